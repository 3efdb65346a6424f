package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	godiff "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/telemetry"
)

// A teller answers calls and questions, and keeps the traceparent of each.
type teller struct {
	*httptest.Server
	asked []string
	codes []int  // the next answers; after them 200
	first func() // called in the first call
}

func newTeller(t *testing.T, codes ...int) *teller {
	x := &teller{codes: codes}
	x.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x.asked = append(x.asked, r.URL.Path+" "+r.Header.Get("Traceparent"))
		if len(x.codes) > 0 {
			w.WriteHeader(x.codes[0])
			x.codes = x.codes[1:]
		}
	}))
	t.Cleanup(x.Close)
	return x
}

// ask is what an instrumented client does: it sends the span of ctx along.
func (x *teller) ask(ctx context.Context, what string) (found bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, x.URL+"/"+what, nil)
	if err != nil {
		return false, err
	}
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(r.Header))
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false, err
	}
	if err := answer.Body.Close(); err != nil {
		return false, err
	}
	if answer.StatusCode >= http.StatusInternalServerError {
		return false, errors.New(answer.Status)
	}
	return answer.StatusCode == http.StatusOK, nil
}

// charge is a step that charges at x.
func (x *teller) charge() consumer.Step {
	return consumer.Step{
		Name: "charge", RetryBase: 1, RetryCap: 1, Settle: 1,
		Action: consumer.Effect("charge",
			func(ctx context.Context, _ consumer.Message[order], _ string) (bool, error) {
				x.first()
				return x.ask(ctx, "call")
			},
			func(ctx context.Context, _ consumer.Message[order], _ string) (bool, bool, error) {
				found, err := x.ask(ctx, "verify")
				return found, found, err
			},
			func(_ context.Context, _ pgx.Tx, in consumer.Message[order], _ bool, emit consumer.Emit) error {
				emit(outbox.Message{Topic: "charged", Step: "next", Payload: in.Payload})
				return nil
			}),
	}
}

// Each attempt at an Effect has one span, in the trace of its message. The requests
// that verify and call make are of it, and so is what record emits.
func TestAnEffectIsTraced(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	x := newTeller(t, http.StatusInternalServerError, http.StatusBadGateway) // the call, and the first question
	s := &spans{news: make(chan struct{}, 1)}
	reader := sdkmetric.NewManualReader()
	tracers, meters := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s)), sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	observer, err := telemetry.NewConsumerObserver(&telemetry.Options{TracerProvider: tracers, MeterProvider: meters})
	must(t, err)
	broker := inproc.New(nil)
	t.Cleanup(func() { _ = broker.Close() })
	c, err := consumer.New(pool, broker.Subscriber("s"), []consumer.Step{x.charge()}, &consumer.Options{
		Schema: schema, Observer: observer, Logger: slog.New(slog.DiscardHandler), ParkedPoll: 10 * time.Millisecond,
	})
	must(t, err)
	_, err = telemetry.RegisterConsumer(c, &telemetry.Options{MeterProvider: meters})
	must(t, err)
	msg := message.NewMessage("id", []byte(`{}`))
	msg.Metadata = message.Metadata{
		outbox.HeaderKey: "k:charge", outbox.HeaderScope: "shop", outbox.PropertyType: "charge",
		outbox.HeaderTraceParent: "00-00000000000000000000000000000001-00000000000000ff-01",
	}
	var during []string
	x.first = func() {
		x.first = func() {}
		during = readSteps(t, reader)
	}
	must(t, c.Handle(t.Context(), "charge", msg))
	const calling = "parked.messages[{message}]{kind=action,reason=calling,state=calling,step=charge} 1"
	if !slices.Contains(during, calling) || !slices.Contains(during, "consumer.inflight[{attempt}]{} 1") {
		t.Errorf("during the call %q, want %s, and it in flight", during, calling)
	}
	run(t, c.Run)
	ended := s.await(t, trace.TraceID{15: 1}, 3)
	if diff := godiff.Diff("process charge 1 retry failed _OTHER\nprocess charge 2 retry failed _OTHER\nprocess charge 3 done\n", tree(ended)); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	slices.SortFunc(ended, func(a, b sdktrace.ReadOnlySpan) int { return strings.Compare(line(a), line(b)) })
	parent := func(i int) string {
		return fmt.Sprintf("00-%s-%s-01", ended[i].SpanContext().TraceID(), ended[i].SpanContext().SpanID())
	}
	want := []string{"/call " + parent(0), "/verify " + parent(1), "/verify " + parent(2)}
	if diff := godiff.Diff(want, x.asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	var emitted string
	must(t, pool.QueryRow(t.Context(), "SELECT headers->>'traceparent' FROM "+schema+".outbox").Scan(&emitted))
	if emitted != parent(2) {
		t.Errorf("what was emitted has the trace %q, want %q", emitted, parent(2))
	}
	wantSeries := []string{
		"consumer.attempts[{attempt}]{error.type=_OTHER,kind=action,step=charge} 2",
		"consumer.attempts[{attempt}]{kind=action,step=charge} 1",
		"consumer.batch[{message}]{} 6x6",
		"consumer.handler_seconds[s]{kind=action,step=charge} 3",
		"consumer.inflight[{attempt}]{} 0",
		"consumer.messages[{message}]{kind=action,outcome=done,step=charge} 1",
		"consumer.messages[{message}]{kind=action,outcome=retry,reason=failed,step=charge} 2",
		"consumer.paused[{consumer}]{} 0",
		"consumer.transaction_seconds[s]{} 6",
		"parked.overdue_seconds[s]{} 0",
	}
	if diff := godiff.Diff(wantSeries, readSteps(t, reader)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
