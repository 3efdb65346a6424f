package telemetry_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	godiff "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/telemetry"
)

const written = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func newConsumerObserver(t *testing.T, opts telemetry.Options) (*telemetry.ConsumerObserver, *tracetest.SpanRecorder, *sdkmetric.ManualReader) {
	t.Helper()
	recorder, reader := tracetest.NewSpanRecorder(), sdkmetric.NewManualReader()
	opts.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	opts.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	o, err := telemetry.NewConsumerObserver(&opts)
	must(t, err)
	return o, recorder, reader
}

func delivery(traceparent string) *consumer.Delivery {
	return &consumer.Delivery{
		ID: "id", Topic: "order.created", Type: "OrderCreated", Scope: "acme", Key: "k", Step: "pay", CorrelationID: "saga", Attempt: 3,
		Metadata: message.Metadata{outbox.HeaderTraceParent: traceparent}, Payload: []byte("secret"),
	}
}

// drawSpan returns name, kind, status and attributes of a span, without times.
func drawSpan(s sdktrace.ReadOnlySpan) string {
	attributes := slices.DeleteFunc(slices.Clone(s.Attributes()), func(a attribute.KeyValue) bool { return a.Key == "sagamill.commit_seconds" })
	set := attribute.NewSet(attributes...)
	return fmt.Sprint(s.Name(), " ", s.SpanKind(), " ", s.Status().Code, " ", s.Status().Description, " ", set.Encoded(attribute.DefaultEncoder()))
}

// What a span tells of an entry, of an arrival that is not let in, and of a
// message that nobody can readSteps; and what it does not.
func TestConsumerSpans(t *testing.T) {
	t.Parallel()
	const all = "messaging.destination.name=order.created,messaging.message.body.size=6,messaging.message.conversation_id=saga,messaging.message.id=id,"
	began := time.Unix(1000, 0)
	undo := delivery(written)
	undo.Undo = true
	unread := &consumer.Delivery{ID: "\xff\x00" + strings.Repeat("i", 300), Topic: "order.created", Metadata: message.Metadata{outbox.HeaderTraceParent: written}}
	for name, tt := range map[string]struct {
		opts telemetry.Options
		e    consumer.Event
		want string
	}{
		"done": {e: consumer.Event{Delivery: delivery(written), Entered: true, Outcome: consumer.OutcomeDone, Batch: 7},
			want: "process pay consumer Unset  " + all + "messaging.operation.name=process,messaging.operation.type=process,messaging.system=sagamill,sagamill.attempt=3,sagamill.batch=7,sagamill.kind=action,sagamill.outcome=done,sagamill.step=pay,sagamill.type=OrderCreated"},
		"failed": {e: consumer.Event{Delivery: undo, Entered: true, Outcome: consumer.OutcomeRetry, Reason: consumer.ReasonFailed, Err: errors.New("secret"), Parked: true, Redelivered: true},
			want: "compensate pay consumer Error _OTHER error.type=_OTHER," + all + "messaging.operation.name=compensate,messaging.operation.type=process,messaging.system=sagamill,sagamill.attempt=3,sagamill.batch=0,sagamill.kind=compensation,sagamill.outcome=retry,sagamill.parked=true,sagamill.reason=failed,sagamill.redelivered=true,sagamill.step=pay,sagamill.type=OrderCreated"},
		"only asked, too early": {e: consumer.Event{Delivery: delivery(written), Entered: true, Outcome: consumer.OutcomeRetry, Reason: consumer.ReasonUnsettled, Err: errors.New("secret"), Parked: true},
			want: "process pay consumer Unset  " + all + "messaging.operation.name=process,messaging.operation.type=process,messaging.system=sagamill,sagamill.attempt=3,sagamill.batch=0,sagamill.kind=action,sagamill.outcome=retry,sagamill.parked=true,sagamill.reason=unsettled,sagamill.step=pay,sagamill.type=OrderCreated"},
		"waits": {e: consumer.Event{Delivery: undo, Outcome: consumer.OutcomeRetry, Reason: consumer.ReasonWaits},
			want: "compensate pay consumer Unset  " + all + "messaging.operation.name=compensate,messaging.operation.type=process,messaging.system=sagamill,sagamill.batch=0,sagamill.kind=compensation,sagamill.outcome=retry,sagamill.reason=waits-for-action,sagamill.step=pay,sagamill.type=OrderCreated"},
		"duplicate, with keys": {opts: telemetry.Options{Keys: true, System: "rabbitmq", Attributes: []attribute.KeyValue{attribute.String("own", "1")}},
			e:    consumer.Event{Delivery: delivery(written), Outcome: consumer.OutcomeDuplicate, Batch: 1},
			want: "process pay consumer Unset  " + all + "messaging.operation.name=process,messaging.operation.type=process,messaging.system=rabbitmq,own=1,sagamill.batch=1,sagamill.key=k,sagamill.kind=action,sagamill.outcome=duplicate,sagamill.scope=acme,sagamill.step=pay,sagamill.type=OrderCreated"},
		"unread": {opts: telemetry.Options{Keys: true}, e: consumer.Event{Delivery: unread, Outcome: consumer.OutcomeDead, Reason: consumer.ReasonKeyMissing, Err: errors.New("secret"), Batch: 1},
			want: "process order.created consumer Error key-missing error.type=key-missing,messaging.destination.name=order.created,messaging.message.body.size=0,messaging.message.id=\ufffd\ufffd" + strings.Repeat("i", 250) + ",messaging.operation.name=process,messaging.operation.type=process,messaging.system=sagamill,sagamill.batch=1,sagamill.outcome=dead,sagamill.reason=key-missing"},
	} {
		o, recorder, _ := newConsumerObserver(t, tt.opts)
		tt.e.Began, tt.e.Ended = began, began.Add(time.Second)
		if tt.e.Entered {
			tt.e.Entry = o.Enter(t.Context(), tt.e.Delivery)
		}
		o.Observe(t.Context(), tt.e)
		ended := recorder.Ended()
		if len(ended) != 1 {
			t.Errorf("%s: %d spans, want 1", name, len(ended))
			continue
		}
		if diff := godiff.Diff(tt.want, drawSpan(ended[0])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		from := ended[0].Parent()
		if tt.e.Outcome == consumer.OutcomeDuplicate && !from.IsValid() && len(ended[0].Links()) == 1 {
			from = ended[0].Links()[0].SpanContext
		}
		if from.SpanID().String() != "b7ad6b7169203331" || !from.IsRemote() || !ended[0].EndTime().Equal(tt.e.Ended) {
			t.Errorf("%s: its parent is %s, its links %v, its end %s", name, ended[0].Parent().SpanID(), ended[0].Links(), ended[0].EndTime())
		}
	}
}

// Where a trace comes from, and where none is made.
func TestConsumerSpanParents(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		traceparent string
		ambient     bool
		entered     bool
		outcome     consumer.Outcome // OutcomeDone, unless it is given
		want        string           // spans, whether they are in the message's trace, links
	}{
		"entered":                        {written, false, true, "", "1 true 0"},
		"entered, of no trace":           {"", false, true, "", "1 false 0"},
		"entered, malformed":             {"00-1-2-01", false, true, "", "1 false 0"},
		"entered, not sampled":           {written[:len(written)-1] + "0", false, true, "", "0"},
		"entered, under a router's span": {written, true, true, "", "1 false 1"},
		"not let in":                     {written, false, false, "", "1 true 0"},
		"not let in, of no trace":        {"", false, false, "", "0"},
		"not let in, not sampled":        {written[:len(written)-1] + "0", false, false, "", "0"},
		"not let in, under a span":       {"", true, false, "", "1 false 0"},
		"again":                          {written, false, false, consumer.OutcomeDuplicate, "1 false 1"},
		"again, overtaken":               {written, false, false, consumer.OutcomeSuperseded, "1 false 1"},
		"again, not sampled":             {written[:len(written)-1] + "0", false, false, consumer.OutcomeDuplicate, "0"},
		"again, of no trace":             {"", false, false, consumer.OutcomeDuplicate, "0"},
		"again, under a span":            {written, true, false, consumer.OutcomeDuplicate, "1 false 1"},
	} {
		o, recorder, _ := newConsumerObserver(t, telemetry.Options{})
		ctx := t.Context()
		if tt.ambient {
			ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{9}, SpanID: trace.SpanID{9}, TraceFlags: trace.FlagsSampled}))
		}
		e := consumer.Event{Delivery: delivery(tt.traceparent), Entered: tt.entered, Outcome: cmp.Or(tt.outcome, consumer.OutcomeDone), Began: time.Now(), Ended: time.Now()}
		if tt.entered {
			e.Entry = o.Enter(ctx, e.Delivery)
			parent, _ := e.Entry.Trace()
			span := trace.SpanContextFromContext(e.Entry.Context(t.Context()))
			if want := fmt.Sprintf("00-%s-%s-%s", span.TraceID(), span.SpanID(), span.TraceFlags()); parent != want {
				t.Errorf("%s: it passes %s on, want %s", name, parent, want)
			}
		}
		o.Observe(ctx, e)
		got := fmt.Sprint(len(recorder.Ended()))
		for _, s := range recorder.Ended() {
			got += fmt.Sprint(" ", strings.Contains(tt.traceparent, s.SpanContext().TraceID().String()), " ", len(s.Links()))
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// Errors are told by their class.
func TestErrorClasses(t *testing.T) {
	t.Parallel()
	o, _, reader := newConsumerObserver(t, telemetry.Options{Attributes: []attribute.KeyValue{attribute.String("service", "s")}})
	for _, err := range []error{
		nil, errors.New("secret"), &consumer.PanicError{Value: "secret"}, consumer.Terminal(errors.New("secret")),
		fmt.Errorf("x: %w", context.DeadlineExceeded), context.Canceled, &pgconn.PgError{Code: "40001", Message: "secret"}, &pgconn.PgError{Code: "a longer one"},
		consumer.Park(errors.New("secret")),
	} {
		e := consumer.Event{Delivery: delivery(""), Entered: true, Outcome: consumer.OutcomeRetry, Err: err, Lag: -1}
		e.Entry = o.Enter(t.Context(), e.Delivery)
		o.Observe(t.Context(), e)
	}
	early := consumer.Event{Delivery: delivery(""), Entered: true, Outcome: consumer.OutcomeRetry, Reason: consumer.ReasonUnsettled, Err: errors.New("secret"), Lag: -1}
	early.Entry = o.Enter(t.Context(), early.Delivery)
	o.Observe(t.Context(), early)
	o.Observe(t.Context(), consumer.Event{Delivery: &consumer.Delivery{}, Outcome: consumer.OutcomeDead, Reason: consumer.ReasonTooLarge, Lag: -1})
	o.Ended(t.Context(), consumer.Transaction{Messages: 64, Time: time.Second, Err: errors.New("secret")})
	const of = "kind=action,service=s,step=pay"
	want := []string{
		"consumer.attempts[{attempt}]{" + of + "} 1",
		"consumer.attempts[{attempt}]{error.type=40001," + of + "} 1",
		"consumer.attempts[{attempt}]{error.type=_OTHER," + of + "} 2",
		"consumer.attempts[{attempt}]{error.type=canceled," + of + "} 1",
		"consumer.attempts[{attempt}]{error.type=panic," + of + "} 1",
		"consumer.attempts[{attempt}]{error.type=parked," + of + "} 1",
		"consumer.attempts[{attempt}]{error.type=terminal," + of + "} 1",
		"consumer.attempts[{attempt}]{error.type=timeout," + of + "} 1",
		"consumer.batch[{message}]{service=s} 1x64",
		"consumer.attempts[{attempt}]{error.type=unsettled," + of + "} 1",
		"consumer.handler_seconds[s]{" + of + "} 10",
		"consumer.messages[{message}]{kind=action,outcome=retry,service=s,step=pay} 9",
		"consumer.messages[{message}]{kind=action,outcome=retry,reason=unsettled,service=s,step=pay} 1",
		"consumer.messages[{message}]{outcome=dead,reason=too-large,service=s} 1",
		"consumer.rollbacks[{transaction}]{service=s} 1",
		"consumer.transaction_seconds[s]{service=s} 1",
	}
	slices.Sort(want)
	if diff := godiff.Diff(want, readSteps(t, reader)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// The parked messages are readSteps at a collection; without a database all else is.
func TestConsumerMetrics(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	handler := func(_ context.Context, _ pgx.Tx, in consumer.Message[order], _ consumer.Emit) error {
		return consumer.Terminal(errors.New("never"))
	}
	c, err := consumer.New(pool, telling{inproc.New(nil).Subscriber("s")}, []consumer.Step{{Name: "pay", Action: consumer.On("pay", handler)}},
		&consumer.Options{Schema: schema, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	msg := message.NewMessage("id", []byte("{}"))
	msg.Metadata = message.Metadata{outbox.HeaderKey: "k:pay", outbox.HeaderScope: "s", outbox.PropertyType: "pay"}
	must(t, c.Handle(t.Context(), "pay", msg))
	must(t, c.Handle(t.Context(), "pay", message.NewMessage("id", nil)))
	_, err = pool.Exec(t.Context(), "UPDATE "+schema+".parked SET first_at = first_at - interval '100 seconds'")
	must(t, err)

	reader := sdkmetric.NewManualReader()
	registration, err := telemetry.RegisterConsumer(c, &telemetry.Options{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), Attributes: []attribute.KeyValue{attribute.String("service", "s")},
	})
	must(t, err)
	var got []string
	for _, line := range readSteps(t, reader) {
		if name, value, _ := strings.Cut(line, "} "); strings.HasPrefix(name, "parked.oldest") {
			if value < "100" || value > "130" {
				t.Errorf("%s, want a little over 100", line)
			}
			line = name
		}
		got = append(got, line)
	}
	const dead = "kind=action,reason=terminal,service=s,state=dead,step=pay"
	want := []string{
		"consumer.cancelled[{subscription}]{service=s,topic=pay} 3",
		"consumer.inflight[{attempt}]{service=s} 0",
		"consumer.paused[{consumer}]{service=s} 0",
		"consumer.subscribed[{subscription}]{service=s,topic=pay} 1",
		"parked.messages[{message}]{" + dead + "} 1",
		"parked.messages[{message}]{reason=key-missing,service=s,state=dead} 1",
		"parked.oldest_seconds[s]{" + dead,
		"parked.oldest_seconds[s]{reason=key-missing,service=s,state=dead",
		"parked.overdue_seconds[s]{service=s} 0",
	}
	if diff := godiff.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	pool.Close()
	if diff := godiff.Diff(want[:4], readSteps(t, reader)); diff != "" {
		t.Errorf("metrics without a database (-want +got):\n%s", diff)
	}
	must(t, registration.Unregister())
	if rest := readSteps(t, reader); len(rest) > 0 {
		t.Errorf("after Unregister: %q", rest)
	}
}

// telling is a subscriber whose subscriptions are served, and were cancelled three times.
type telling struct{ message.Subscriber }

func (telling) Subscription(string) (served bool, cancelled uint64) { return true, 3 }

func TestRegisterConsumerIsChecked(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	if _, err := telemetry.NewConsumerObserver(&telemetry.Options{MeterProvider: refusing{"sagamill.consumer.messages", refused}.provider()}); !errors.Is(err, refused) {
		t.Errorf("New: %v, want the provider's error", err)
	}
	if _, err := telemetry.NewConsumerObserver(nil); err != nil {
		t.Errorf("New(nil): %v", err)
	}
	if _, err := telemetry.RegisterConsumer(nil, nil); err == nil {
		t.Error("registered no consumer")
	}
	c := &consumer.Consumer{}
	if _, err := telemetry.RegisterConsumer(c, &telemetry.Options{Timeout: -1}); err == nil || !strings.Contains(err.Error(), "Timeout") {
		t.Errorf("Timeout -1: %v, want an error that names it", err)
	}
	if _, err := telemetry.RegisterConsumer(c, &telemetry.Options{MeterProvider: refusing{"sagamill.parked.oldest_seconds", refused}.provider()}); !errors.Is(err, refused) {
		t.Errorf("Register: %v, want the provider's error", err)
	}
}
