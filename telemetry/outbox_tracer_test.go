package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/telemetry"
)

func newTracer(opts telemetry.Options) (*telemetry.OutboxTracer, *tracetest.SpanRecorder, trace.Tracer) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	opts.TracerProvider = provider
	return telemetry.NewOutboxTracer(&opts), recorder, provider.Tracer("test")
}

// What is stored is the active span, as W3C has it.
func TestAWriterStoresTheActiveSpan(t *testing.T) {
	t.Parallel()
	tracer, _, _ := newTracer(telemetry.Options{})
	state, err := trace.ParseTraceState("a=1,b=2")
	if err != nil {
		t.Fatal(err)
	}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceState: state})
	for name, tt := range map[string]struct {
		ctx  context.Context
		want string
	}{
		"none":        {t.Context(), "|"},
		"not sampled": {trace.ContextWithSpanContext(t.Context(), span), "00-01000000000000000000000000000000-0200000000000000-00|a=1,b=2"},
		"sampled":     {trace.ContextWithSpanContext(t.Context(), span.WithTraceFlags(trace.FlagsSampled)), "00-01000000000000000000000000000000-0200000000000000-01|a=1,b=2"},
	} {
		parent, state := tracer.Trace(tt.ctx)
		if got := parent + "|" + state; got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// A message makes a span if and only if its trace is sampled.
func TestPublishSpans(t *testing.T) {
	t.Parallel()
	tracer, recorder, writer := newTracer(telemetry.Options{System: "rabbitmq", Attributes: []attribute.KeyValue{attribute.String("own", "1")}})
	ctx, span := writer.Start(t.Context(), "POST /orders")
	parent, _ := tracer.Trace(ctx)
	began := time.Unix(1000, 0)
	call := outbox.Call{Began: began, Took: time.Second, Messages: 9, Traced: []outbox.TracedMessage{
		{ID: "1", Topic: "paid", Type: "Paid", Step: "ship", CorrelationID: "c", TraceParent: parent, Bytes: 7, Attempt: 1},
		{ID: "2", Topic: "nobody", Type: "Paid", Step: "ship", CorrelationID: "c", TraceParent: parent, Attempt: 3, Err: fmt.Errorf("secret: %w", outbox.ErrRefused)},
		{ID: "3", Topic: "away", Type: "Paid", Step: "ship", CorrelationID: "c", TraceParent: parent, Attempt: 1, Err: errors.New("secret")},
		{ID: "4", Topic: "unsampled", TraceParent: parent[:len(parent)-2] + "00"},
		{ID: "5", Topic: "malformed", TraceParent: "00-1-2-01"},
	}}
	tracer.Published(t.Context(), call)
	want := []string{
		"publish paid producer Unset messaging.destination.name=paid,messaging.message.body.size=7,messaging.message.conversation_id=c,messaging.message.id=1,messaging.operation.name=publish,messaging.operation.type=send,messaging.system=rabbitmq,own=1,sagamill.attempt=1,sagamill.batch=9,sagamill.step=ship,sagamill.type=Paid",
		"publish nobody producer Error/refused error.type=refused,messaging.destination.name=nobody,messaging.message.body.size=0,messaging.message.conversation_id=c,messaging.message.id=2,messaging.operation.name=publish,messaging.operation.type=send,messaging.system=rabbitmq,own=1,sagamill.attempt=3,sagamill.batch=9,sagamill.step=ship,sagamill.type=Paid",
		"publish away producer Error/unknown error.type=unknown,messaging.destination.name=away,messaging.message.body.size=0,messaging.message.conversation_id=c,messaging.message.id=3,messaging.operation.name=publish,messaging.operation.type=send,messaging.system=rabbitmq,own=1,sagamill.attempt=1,sagamill.batch=9,sagamill.step=ship,sagamill.type=Paid",
	}
	var got []string
	for _, s := range recorder.Ended() {
		status := s.Status().Code.String()
		if s.Status().Description != "" {
			status += "/" + s.Status().Description
		}
		set := attribute.NewSet(slices.Clone(s.Attributes())...)
		got = append(got, fmt.Sprint(s.Name(), " ", s.SpanKind(), " ", status, " ", set.Encoded(attribute.DefaultEncoder())))
		if s.Parent().SpanID() != span.SpanContext().SpanID() || s.SpanContext().TraceID() != span.SpanContext().TraceID() || !s.Parent().IsRemote() {
			t.Errorf("%s: its parent is %v, want %v", s.Name(), s.Parent(), span.SpanContext())
		}
		if !s.StartTime().Equal(began) || s.EndTime().Sub(began) != time.Second || len(s.Events()) > 0 {
			t.Errorf("%s: from %s to %s with %d events, want the call's times and none", s.Name(), s.StartTime(), s.EndTime(), len(s.Events()))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}

// Without a tracer provider that samples, nothing is made of what comes.
func TestATracerWithoutAProvider(t *testing.T) {
	t.Parallel()
	tracer := telemetry.NewOutboxTracer(nil)
	tracer.Published(t.Context(), outbox.Call{Traced: []outbox.TracedMessage{{TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}})
	if parent, state := tracer.Trace(t.Context()); parent != "" || state != "" {
		t.Errorf("Trace = %q, %q; want none", parent, state)
	}
}
