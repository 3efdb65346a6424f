package telemetry

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/traceheader"
	"github.com/sagamill/sagamill/outbox"
)

// maxText limits the bytes of a foreign value in a span. Such values are also made valid UTF-8,
// because one that is not would make an exporter lose all spans of its export.
const maxText = 256

// An entry is the span of one attempt.
type entry struct {
	trace.Span
	in *consumer.Delivery
}

// Context implements [consumer.Entry].
func (e entry) Context(ctx context.Context) context.Context {
	return trace.ContextWithSpan(ctx, e.Span)
}

// Trace implements [consumer.Entry].
func (e entry) Trace() (parent, state string) {
	var c traceheader.Carrier
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), e.emittedContext()), &c)
	return c.Parent, c.State
}

// emittedContext returns the span's context for messages that the handler emits: it has the path to
// them in its tracestate.
func (e entry) emittedContext() trace.SpanContext {
	span := e.SpanContext()
	path := ""
	if from := writerSpan(e.in); from.TraceID() == span.TraceID() {
		path = from.TraceState().Get(pathMember)
	}
	if e.in.Undoable && span.IsSampled() {
		path = prependAction(path, e.in, span.SpanID())
	}
	if path == "" {
		return span
	}
	state, err := span.TraceState().Insert(pathMember, path)
	if err != nil {
		return span // another program wrote a malformed path
	}
	return span.WithTraceState(state)
}

// writerSpan returns the span in which in was written.
func writerSpan(in *consumer.Delivery) trace.SpanContext {
	c := traceheader.Carrier{Parent: in.Metadata.Get(outbox.HeaderTraceParent), State: in.Metadata.Get(outbox.HeaderTraceState)}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), &c))
}

// startInTrace starts a span of in, in the trace of ctx, or else in that of its writer. The span's
// tracestate lacks the path, so that requests made in the span do not disclose it.
func (o *ConsumerObserver) startInTrace(ctx context.Context, in *consumer.Delivery, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if from := writerSpan(in); from.IsValid() && !trace.SpanContextFromContext(ctx).IsValid() {
		from = from.WithTraceState(from.TraceState().Delete(pathMember))
		return o.startSpan(trace.ContextWithRemoteSpanContext(ctx, from), in, opts)
	}
	return o.startLinked(ctx, in, opts...)
}

// startLinked starts a span of in, in the trace of ctx, or else in a new trace, with a link to
// its writer.
func (o *ConsumerObserver) startLinked(ctx context.Context, in *consumer.Delivery, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if from := writerSpan(in); from.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: from}))
	}
	return o.startSpan(ctx, in, opts)
}

// startSpan starts a span of in as a child of the span in ctx. The span of a compensation is
// linked to that of its action.
func (o *ConsumerObserver) startSpan(ctx context.Context, in *consumer.Delivery, opts []trace.SpanStartOption) (context.Context, trace.Span) {
	opts = append(opts, trace.WithSpanKind(trace.SpanKindConsumer))
	operation, of := "process", in.Step
	if in.Undo {
		operation = "compensate"
		if action := findAction(in); action.IsSampled() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: action, Attributes: []attribute.KeyValue{spanKind.String(stepKind(false))}}))
		}
	}
	if of == "" {
		of = in.Topic
	}
	opts = append(opts, trace.WithAttributes(o.common...),
		trace.WithAttributes(spanOperation.String(operation), spanDestination.String(in.Topic)))
	if in.Step != "" {
		opts = append(opts, trace.WithAttributes(spanStep.String(in.Step)))
	}
	return o.tracer.Start(ctx, operation+" "+of, opts...)
}

// addArrivalSpan adds the short span of a delivery that did not enter its handler.
func (o *ConsumerObserver) addArrivalSpan(ctx context.Context, e *consumer.Event) {
	if !trace.SpanContextFromContext(ctx).IsValid() && !writerSpan(e.Delivery).IsValid() {
		return
	}
	start := o.startInTrace
	if e.Outcome == consumer.OutcomeDuplicate || e.Outcome == consumer.OutcomeSuperseded {
		if from := writerSpan(e.Delivery); from.IsValid() && !from.IsSampled() {
			return // there is no trace to link to
		}
		start = o.startLinked
	}
	_, span := start(ctx, e.Delivery, trace.WithTimestamp(e.Began))
	o.endSpan(span, e)
}

// endSpan sets the attributes and the status of span, and ends it.
func (o *ConsumerObserver) endSpan(span trace.Span, e *consumer.Event) {
	defer span.End(trace.WithTimestamp(e.Ended))
	if !span.IsRecording() {
		return
	}
	o.setAttributes(span, e)
	if class := classifyEvent(e); class != "" {
		span.SetAttributes(errorType.String(class))
		span.SetStatus(codes.Error, class)
	}
}

// setAttributes sets the attributes that are known at the end, and those that no sampler needs.
func (o *ConsumerObserver) setAttributes(span trace.Span, e *consumer.Event) {
	in := e.Delivery
	span.SetAttributes(clipText(spanMessageID, in.ID), spanBodySize.Int(len(in.Payload)), spanOutcome.String(string(e.Outcome)), spanBatch.Int(e.Batch))
	if in.Step != "" {
		span.SetAttributes(clipText(spanConversation, in.CorrelationID), clipText(spanType, in.Type), spanKind.String(stepKind(in.Undo)))
	}
	if e.Entered {
		span.SetAttributes(spanAttempt.Int(in.Attempt), spanCommit.Float64(time.Since(e.Ended).Seconds()))
	}
	if e.Reason != "" {
		span.SetAttributes(spanReason.String(string(e.Reason)))
	}
	if e.Parked {
		span.SetAttributes(spanParked.Bool(true))
	}
	if e.Redelivered {
		span.SetAttributes(spanRedelivered.Bool(true))
	}
	if o.keys && in.Key != "" {
		span.SetAttributes(clipText(spanScope, in.Scope), clipText(spanKey, in.Key))
	}
}

func clipText(key attribute.Key, value string) attribute.KeyValue {
	return key.String(cleantext.Clip(value, maxText))
}

func stepKind(undo bool) string {
	if undo {
		return "compensation"
	}
	return "action"
}

// classifyEvent returns error.type of a span, or "" if e is no failure.
func classifyEvent(e *consumer.Event) string {
	switch {
	case e.Reason == consumer.ReasonUnsettled:
		return ""
	case e.Outcome == consumer.OutcomeDead && !e.Entered:
		return string(e.Reason)
	case e.Outcome == consumer.OutcomeDead, e.Outcome == consumer.OutcomeUndecided, e.Outcome == consumer.OutcomeRetry && e.Entered:
		return classifyError(e.Err)
	}
	return ""
}

// classifyError returns one of few words for err. Its text may contain anything, so it is not
// used.
func classifyError(err error) string {
	var panicked *consumer.PanicError
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &panicked):
		return "panic"
	case errors.Is(err, consumer.ErrTerminal):
		return "terminal"
	case errors.Is(err, consumer.ErrParked):
		return "parked"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, &refused) && len(refused.Code) == 5:
		return refused.Code
	}
	return "_OTHER"
}
