package outboxotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/internal/traceheader"
	"github.com/sagamill/sagamill/outbox"
)

// The attributes of a span. Those of messaging are of OpenTelemetry's semantic
// conventions, version 1.43.
const (
	spanSystem        = attribute.Key("messaging.system")
	spanOperation     = attribute.Key("messaging.operation.name")
	spanOperationType = attribute.Key("messaging.operation.type")
	spanDestination   = attribute.Key("messaging.destination.name")
	spanMessageID     = attribute.Key("messaging.message.id")
	spanConversation  = attribute.Key("messaging.message.conversation_id")
	spanBodySize      = attribute.Key("messaging.message.body.size")
	spanError         = attribute.Key("error.type")
	spanType          = attribute.Key("sagamill.type")
	spanStep          = attribute.Key("sagamill.step")
	spanAttempt       = attribute.Key("sagamill.attempt")
	spanBatch         = attribute.Key("sagamill.batch")
)

// The classes of what goes wrong.
const (
	errorRefused = "refused" // by the broker
	errorUnknown = "unknown" // it did not answer
)

// TracerOptions are what most callers leave alone.
type TracerOptions struct {
	TracerProvider trace.TracerProvider // default: the global one

	// System is messaging.system of the spans, such as rabbitmq. Default: sagamill.
	System string

	// Attributes are of every span. Default: none.
	Attributes []attribute.KeyValue
}

// A Tracer makes what an outbox publishes part of the trace in which it was
// written. It is both [outbox.WriterOptions].Tracer and
// [outbox.RelayOptions].Observer, and serves any number of them, concurrently.
type Tracer struct {
	tracer trace.Tracer
	common []attribute.KeyValue
}

var (
	_ outbox.WriterTracer    = (*Tracer)(nil)
	_ outbox.PublishObserver = (*Tracer)(nil)
)

// NewTracer returns a Tracer. A nil opts means the defaults.
func NewTracer(opts *TracerOptions) *Tracer {
	o := TracerOptions{}
	if opts != nil {
		o = *opts
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.System == "" {
		o.System = "sagamill"
	}
	common := append([]attribute.KeyValue{spanSystem.String(o.System), spanOperation.String("publish"), spanOperationType.String("send")}, o.Attributes...)
	return &Tracer{tracer: o.TracerProvider.Tracer(scopeName), common: common}
}

// Trace implements [outbox.WriterTracer]. What is stored is the span that is
// active in ctx, sampled or not. Baggage is not: it may be anything.
func (t *Tracer) Trace(ctx context.Context) (parent, state string) {
	var c traceheader.Carrier
	propagation.TraceContext{}.Inject(ctx, &c)
	return c.Parent, c.State
}

// Published implements [outbox.PublishObserver]: a span for each message whose
// trace is sampled.
func (t *Tracer) Published(ctx context.Context, c outbox.Call) {
	for i := range c.Traced {
		m := &c.Traced[i]
		writer := propagation.TraceContext{}.Extract(ctx, &traceheader.Carrier{Parent: m.TraceParent, State: m.TraceState})
		if trace.SpanContextFromContext(writer).IsSampled() {
			t.span(writer, &c, m)
		}
	}
}

// span makes the span of m, a child of the one in which it was written.
func (t *Tracer) span(writer context.Context, c *outbox.Call, m *outbox.TracedMessage) {
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
	span.SetAttributes(spanError.String(class))
	span.SetStatus(codes.Error, class)
}
