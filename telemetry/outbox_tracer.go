package telemetry

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/internal/traceheader"
	"github.com/sagamill/sagamill/outbox"
)

// Values of error.type of a publish span.
const (
	errorRefused = "refused" // the broker refused the message
	errorUnknown = "unknown" // the broker did not answer
)

// An OutboxTracer stores the trace of a message with it, and adds a span for each attempt to
// publish it. Set it as [outbox.WriterOptions].Tracer and as [outbox.RelayOptions].Observer.
// It serves any number of writers and relays concurrently.
type OutboxTracer struct {
	tracer trace.Tracer
	common []attribute.KeyValue
}

var (
	_ outbox.WriterTracer    = (*OutboxTracer)(nil)
	_ outbox.PublishObserver = (*OutboxTracer)(nil)
)

// NewOutboxTracer returns an OutboxTracer. A nil opts means the defaults.
func NewOutboxTracer(opts *Options) *OutboxTracer {
	o := opts.withDefaults()
	common := []attribute.KeyValue{spanSystem.String(o.System), spanOperation.String("publish"), spanOperationType.String("send")}
	return &OutboxTracer{tracer: o.TracerProvider.Tracer(scopeOutbox), common: append(common, o.Attributes...)}
}

// Trace implements [outbox.WriterTracer]. It returns the span that is active in ctx, sampled
// or not. Baggage is left out, because it may contain anything.
func (t *OutboxTracer) Trace(ctx context.Context) (parent, state string) {
	var c traceheader.Carrier
	propagation.TraceContext{}.Inject(ctx, &c)
	return c.Parent, c.State
}

// Published implements [outbox.PublishObserver]. Each message whose trace is sampled gets a
// span.
func (t *OutboxTracer) Published(ctx context.Context, c outbox.Call) {
	for i := range c.Traced {
		m := &c.Traced[i]
		writer := propagation.TraceContext{}.Extract(ctx, &traceheader.Carrier{Parent: m.TraceParent, State: m.TraceState})
		if trace.SpanContextFromContext(writer).IsSampled() {
			t.addPublishSpan(writer, &c, m)
		}
	}
}

// addPublishSpan adds the span of m, as a child of the span in which m was written.
func (t *OutboxTracer) addPublishSpan(writer context.Context, c *outbox.Call, m *outbox.TracedMessage) {
	_, span := t.tracer.Start(writer, "publish "+m.Topic,
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(c.Began), trace.WithAttributes(t.common...))
	defer span.End(trace.WithTimestamp(c.Began.Add(c.Took)))
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(spanDestination.String(m.Topic), spanMessageID.String(m.ID), spanConversation.String(m.CorrelationID),
		spanBodySize.Int(m.Bytes), spanType.String(m.Type), spanStep.String(m.Step),
		spanAttempt.Int(m.Attempt), spanBatch.Int(c.Messages))
	if m.Err == nil {
		return
	}
	class := errorUnknown
	if errors.Is(m.Err, outbox.ErrRefused) {
		class = errorRefused
	}
	span.SetAttributes(errorType.String(class))
	span.SetStatus(codes.Error, class)
}
