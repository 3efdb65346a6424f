package telemetry_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	godiff "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/telemetry"
)

// spans is a span processor that keeps what has ended, and lets a test wait.
type spans struct {
	mu    sync.Mutex
	ended []sdktrace.ReadOnlySpan
	news  chan struct{}
}

func (*spans) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (*spans) Shutdown(context.Context) error                  { return nil }
func (*spans) ForceFlush(context.Context) error                { return nil }

func (s *spans) OnEnd(span sdktrace.ReadOnlySpan) {
	s.mu.Lock()
	s.ended = append(s.ended, span)
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// await waits until n spans of trace have ended, and returns them.
func (s *spans) await(t *testing.T, id trace.TraceID, n int) []sdktrace.ReadOnlySpan {
	t.Helper()
	return s.awaitThose(t, n, func(span sdktrace.ReadOnlySpan) bool { return span.SpanContext().TraceID() == id })
}

// awaitLinked does so for spans of other traces that are linked to it.
func (s *spans) awaitLinked(t *testing.T, id trace.TraceID, n int) []sdktrace.ReadOnlySpan {
	t.Helper()
	return s.awaitThose(t, n, func(span sdktrace.ReadOnlySpan) bool {
		return slices.ContainsFunc(span.Links(), func(l sdktrace.Link) bool { return l.SpanContext.TraceID() == id })
	})
}

func (s *spans) awaitThose(t *testing.T, n int, those func(sdktrace.ReadOnlySpan) bool) []sdktrace.ReadOnlySpan {
	t.Helper()
	giveUp := time.After(deadline)
	for {
		s.mu.Lock()
		found := slices.DeleteFunc(slices.Clone(s.ended), func(span sdktrace.ReadOnlySpan) bool { return !those(span) })
		s.mu.Unlock()
		if len(found) >= n {
			return found
		}
		select {
		case <-s.news:
		case <-giveUp:
			t.Fatalf("%d of %d spans:\n%s", len(found), n, tree(found))
		}
	}
}

// tree draws spans under their parents, siblings by name, attempt and outcome.
func tree(all []sdktrace.ReadOnlySpan) string {
	byParent := map[trace.SpanID][]sdktrace.ReadOnlySpan{}
	known := map[trace.SpanID]bool{}
	for _, s := range all {
		known[s.SpanContext().SpanID()] = true
	}
	for _, s := range all {
		parent := s.Parent().SpanID()
		if !known[parent] {
			parent = trace.SpanID{}
		}
		byParent[parent] = append(byParent[parent], s)
	}
	var b strings.Builder
	var draw func(parent trace.SpanID, indent string)
	draw = func(parent trace.SpanID, indent string) {
		siblings := byParent[parent]
		slices.SortFunc(siblings, func(a, b sdktrace.ReadOnlySpan) int { return cmp.Compare(line(a), line(b)) })
		for _, s := range siblings {
			fmt.Fprintf(&b, "%s%s\n", indent, line(s))
			draw(s.SpanContext().SpanID(), indent+"  ")
		}
	}
	draw(trace.SpanID{}, "")
	return b.String()
}

func line(s sdktrace.ReadOnlySpan) string {
	text := s.Name()
	for _, name := range []attribute.Key{"sagamill.attempt", "sagamill.outcome", "sagamill.reason", "error.type"} {
		if v := value(s, name); v != "" && (name != "sagamill.attempt" || s.SpanKind() == trace.SpanKindConsumer) {
			text += " " + v
		}
	}
	for _, e := range s.Events() {
		text += " +" + e.Name
		for _, a := range e.Attributes {
			if a.Key == "idemkey.result" {
				text += "=" + a.Value.AsString()
			}
		}
	}
	return text
}

func value(s sdktrace.ReadOnlySpan, name attribute.Key) string {
	for _, a := range s.Attributes() {
		if a.Key == name {
			return a.Value.String()
		}
	}
	return ""
}

// A shop is a service that takes orders, payments and shipments.
type shop struct {
	pool     *pgxpool.Pool
	handler  http.Handler
	consumer *consumer.Consumer
	spans    *spans
	tracer   trace.Tracer
	reader   *sdkmetric.ManualReader
}

type order struct {
	Card, Item string
}

func newShop(t *testing.T) *shop {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	s := &shop{pool: pool, spans: &spans{news: make(chan struct{}, 1)}, reader: sdkmetric.NewManualReader()}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.reader))
	s.tracer = tracers.Tracer("test")
	observer, err := telemetry.NewConsumerObserver(&telemetry.Options{TracerProvider: tracers, MeterProvider: meters})
	must(t, err)
	requests, err := telemetry.NewIdempotencyObserver(&telemetry.Options{MeterProvider: meters})
	must(t, err)
	tracer := telemetry.NewOutboxTracer(&telemetry.Options{TracerProvider: tracers})
	quiet := slog.New(slog.DiscardHandler)

	broker := inproc.New(nil)
	t.Cleanup(func() { _ = broker.Close() })
	relay, err := outbox.NewRelay(pool, broker, &outbox.RelayOptions{Schema: schema, Observer: tracer, Logger: quiet})
	must(t, err)
	s.consumer, err = consumer.New(pool, broker.Subscriber("shop"), steps(), &consumer.Options{
		Schema: schema, Observer: observer, Wake: relay.Wake, Logger: quiet, ParkedPoll: 10 * time.Millisecond,
	})
	must(t, err)
	_, err = telemetry.RegisterConsumer(s.consumer, &telemetry.Options{MeterProvider: meters})
	must(t, err)
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: schema, Tracer: tracer})
	must(t, err)
	store, err := idempg.New(pool, &idempg.Options{Schema: schema})
	must(t, err)
	idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Observer: requests, Logger: quiet})
	must(t, err)
	s.handler = s.traced(idem.Handler(idempg.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		w.WriteHeader(http.StatusAccepted)
		return writer.Write(r.Context(), tx, outbox.Message{
			Topic: "order.created", Scope: "shop", Key: r.Header.Get("Idempotency-Key"), Incarnation: outbox.NoIncarnation, Step: "process-payment", Payload: body,
		})
	})), relay.Wake)
	run(t, relay.Run, s.consumer.Run)
	return s
}

// run runs loops until the test ends.
func run(t *testing.T, loops ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	for _, loop := range loops {
		running.Go(func() {
			if err := loop(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// traced is what otelhttp does for a user.
func (s *shop) traced(next http.Handler, wake func()) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := s.tracer.Start(ctx, r.Method+" "+r.URL.Path, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
		wake()
	})
}

// place places an order in the trace of which id is the last byte.
func (s *shop) place(t *testing.T, id byte, key, body string) trace.TraceID {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Traceparent", fmt.Sprintf("00-%032x-00000000000000ff-01", id))
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	if w.Code != http.StatusAccepted {
		t.Fatalf("POST: %d %s", w.Code, w.Body)
	}
	return trace.TraceID{15: id}
}

// steps are a payment that fails at first, a shipment that is rejected, and the
// record of what comes of it.
func steps() []consumer.Step {
	emit := func(topic string) consumer.Handler[order] {
		return func(_ context.Context, _ pgx.Tx, in consumer.Message[order], emit consumer.Emit) error {
			if in.Step == "process-payment" && !in.Undo && in.Attempt == 1 {
				return errors.New("not at once")
			}
			to := topic
			if in.Body.Card == "declined" && in.Step == "process-payment" {
				to = "payment.declined"
			}
			if to != "" {
				emit(outbox.Message{Topic: to, Step: "next", Payload: in.Payload})
			}
			return nil
		}
	}
	return []consumer.Step{
		{
			Name: "process-payment", Action: consumer.On("order.created", emit("payment.processed")),
			Compensation: consumer.On("shipment.rejected", emit("payment.refunded")), RetryBase: 1, RetryCap: 1,
		},
		{Name: "arrange-shipping", Action: consumer.On("payment.processed", emit("shipment.rejected"))},
		{Name: "record-refund", Action: consumer.On("payment.refunded", emit(""))},
		{Name: "record-decline", Action: consumer.On("payment.declined", emit(""))},
	}
}

// From the request to the compensation's record everything is one trace, with
// each attempt in it; so is an order that is declined. A message that comes again is
// in a trace of its own that is linked to where it was written. So is a replayed
// request, with nothing behind it.
func TestOneTrace(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	const rejectedBody = `{"card":"ok","item":"unshippable"}`
	rejected := s.place(t, 1, "k-rejected", rejectedBody)
	got := tree(s.spans.await(t, rejected, 10))
	want := `POST /orders +idemkey.decision=first
  process process-payment 1 retry failed _OTHER
  process process-payment 2 done
    process arrange-shipping 1 done
      compensate process-payment 1 done
        process record-refund 1 done
        publish payment.refunded
      publish shipment.rejected
    publish payment.processed
  publish order.created
`
	if diff := godiff.Diff(want, got); diff != "" {
		t.Errorf("a rejected order (-want +got):\n%s", diff)
	}
	declined := s.place(t, 2, "k-declined", `{"card":"declined"}`)
	got = tree(s.spans.await(t, declined, 6))
	want = `POST /orders +idemkey.decision=first
  process process-payment 1 retry failed _OTHER
  process process-payment 2 done
    process record-decline 1 done
    publish payment.declined
  publish order.created
`
	if diff := godiff.Diff(want, got); diff != "" {
		t.Errorf("a declined order (-want +got):\n%s", diff)
	}
	replayed := s.place(t, 3, "k-rejected", rejectedBody)
	if got, want := tree(s.spans.await(t, replayed, 1)), "POST /orders +idemkey.decision=replay\n"; got != want {
		t.Errorf("a replayed request: got %q, want %q", got, want)
	}

	again := message.NewMessage("again", []byte(`{"card":"declined"}`))
	again.Metadata = message.Metadata{
		outbox.HeaderKey: "k-declined:process-payment", outbox.HeaderScope: "shop", outbox.PropertyType: "order.created",
		outbox.HeaderTraceParent: "00-00000000000000000000000000000002-00000000000000ff-01",
	}
	if err := s.consumer.Handle(t.Context(), "order.created", again); err != nil {
		t.Fatal(err)
	}
	duplicate := s.spans.awaitLinked(t, declined, 1)[0]
	if got := line(duplicate); got != "process process-payment duplicate" || duplicate.Links()[0].SpanContext.SpanID() != (trace.SpanID{7: 0xff}) {
		t.Errorf("after a duplicate: %q, linked to %v", got, duplicate.Links())
	}
	if got := tree(s.spans.await(t, declined, 6)); got != want {
		t.Errorf("after a duplicate the order's trace is\n%s", got)
	}
	s.checkMetrics(t)
}
