package consumerotel

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

// The attributes of a span.
const (
	spanSystem        = attribute.Key("messaging.system")
	spanOperation     = attribute.Key("messaging.operation.name")
	spanOperationType = attribute.Key("messaging.operation.type")
	spanDestination   = attribute.Key("messaging.destination.name")
	spanMessageID     = attribute.Key("messaging.message.id")
	spanConversation  = attribute.Key("messaging.message.conversation_id")
	spanBodySize      = attribute.Key("messaging.message.body.size")
	spanStep          = attribute.Key("sagamill.step")
	spanType          = attribute.Key("sagamill.type")
	spanKind          = attribute.Key("sagamill.kind")
	spanAttempt       = attribute.Key("sagamill.attempt")
	spanOutcome       = attribute.Key("sagamill.outcome")
	spanReason        = attribute.Key("sagamill.reason")
	spanParked        = attribute.Key("sagamill.parked")
	spanRedelivered   = attribute.Key("sagamill.redelivered")
	spanBatch         = attribute.Key("sagamill.batch")
	spanCommit        = attribute.Key("sagamill.commit_seconds")
	spanScope         = attribute.Key("sagamill.scope")
	spanKey           = attribute.Key("sagamill.key")
	keyError          = attribute.Key("error.type")
)

// maxText is how many bytes of a foreign value a span has. A protocol that
// demands UTF-8 would refuse every span of an export with one that is not.
const maxText = 256

// An entry is the span of one entry into a handler.
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
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), e.emitting()), &c)
	return c.Parent, c.State
}

// emitting returns the context of e's span, with the path to what its handler emits.
func (e entry) emitting() trace.SpanContext {
	span := e.SpanContext()
	path := ""
	if from := writer(e.in); from.TraceID() == span.TraceID() {
		path = from.TraceState().Get(pathMember)
	}
	if e.in.Undoable && span.IsSampled() {
		path = extended(path, e.in, span.SpanID())
	}
	if path == "" {
		return span
	}
	state, err := span.TraceState().Insert(pathMember, path)
	if err != nil {
		return span // somebody else has written a path that is none
	}
	return span.WithTraceState(state)
}

// writer returns the span in which in was written.
func writer(in *consumer.Delivery) trace.SpanContext {
	c := traceheader.Carrier{Parent: in.Metadata.Get(outbox.HeaderTraceParent), State: in.Metadata.Get(outbox.HeaderTraceState)}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), &c))
}

// start begins a span of in, in the trace of ctx, or else in that of its writer, whose
// path it leaves behind: requests that are made in the span tell nobody of it.
func (o *Observer) start(ctx context.Context, in *consumer.Delivery, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if from := writer(in); from.IsValid() && !trace.SpanContextFromContext(ctx).IsValid() {
		from = from.WithTraceState(from.TraceState().Delete(pathMember))
		return o.begin(trace.ContextWithRemoteSpanContext(ctx, from), in, opts)
	}
	return o.startApart(ctx, in, opts...)
}

// startApart begins a span of in, in the trace of ctx, or else in one of its own, with a
// link to its writer.
func (o *Observer) startApart(ctx context.Context, in *consumer.Delivery, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if from := writer(in); from.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: from}))
	}
	return o.begin(ctx, in, opts)
}

func (o *Observer) begin(ctx context.Context, in *consumer.Delivery, opts []trace.SpanStartOption) (context.Context, trace.Span) {
	opts = append(opts, trace.WithSpanKind(trace.SpanKindConsumer))
	operation, of := "process", in.Step
	if in.Undo {
		operation = "compensate"
		if action := undone(in); action.IsSampled() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: action, Attributes: []attribute.KeyValue{spanKind.String(kind(false))}}))
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

// short makes the span of an arrival that was not let into its handler.
func (o *Observer) short(ctx context.Context, e *consumer.Event) {
	if !trace.SpanContextFromContext(ctx).IsValid() && !writer(e.Delivery).IsValid() {
		return
	}
	start := o.start
	if e.Outcome == consumer.OutcomeDuplicate || e.Outcome == consumer.OutcomeSuperseded {
		if from := writer(e.Delivery); from.IsValid() && !from.IsSampled() {
			return // nor is there a trace to link to
		}
		start = o.startApart
	}
	_, span := start(ctx, e.Delivery, trace.WithTimestamp(e.Began))
	o.end(span, e)
}

// end completes span and ends it.
func (o *Observer) end(span trace.Span, e *consumer.Event) {
	defer span.End(trace.WithTimestamp(e.Ended))
	if !span.IsRecording() {
		return
	}
	o.describe(span, e)
	if class := failureClass(e); class != "" {
		span.SetAttributes(keyError.String(class))
		span.SetStatus(codes.Error, class)
	}
}

// describe sets what only the end tells, and what no sampler needs to know.
func (o *Observer) describe(span trace.Span, e *consumer.Event) {
	in := e.Delivery
	span.SetAttributes(text(spanMessageID, in.ID), spanBodySize.Int(len(in.Payload)), spanOutcome.String(string(e.Outcome)), spanBatch.Int(e.Batch))
	if in.Step != "" {
		span.SetAttributes(text(spanConversation, in.CorrelationID), text(spanType, in.Type), spanKind.String(kind(in.Undo)))
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
		span.SetAttributes(text(spanScope, in.Scope), text(spanKey, in.Key))
	}
}

func text(key attribute.Key, value string) attribute.KeyValue {
	return key.String(cleantext.Clip(value, maxText))
}

func kind(undo bool) string {
	if undo {
		return "compensation"
	}
	return "action"
}

// failureClass returns error.type of a span, or "" if nothing is wrong.
func failureClass(e *consumer.Event) string {
	switch {
	case e.Reason == consumer.ReasonUnsettled:
		return ""
	case e.Outcome == consumer.OutcomeDead && !e.Entered:
		return string(e.Reason)
	case e.Outcome == consumer.OutcomeDead, e.Outcome == consumer.OutcomeUndecided, e.Outcome == consumer.OutcomeRetry && e.Entered:
		return errorClass(e.Err)
	}
	return ""
}

// errorClass returns one of few words for err. Its text is not one: it may be
// anything.
func errorClass(err error) string {
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
