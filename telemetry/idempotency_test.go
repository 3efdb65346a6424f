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

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/telemetry"
)

// newIdempotencyObserver returns an observer and what reads its metrics.
func newIdempotencyObserver(t *testing.T) (*telemetry.IdempotencyObserver, *sdkmetric.ManualReader) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	o, err := telemetry.NewIdempotencyObserver(&telemetry.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return o, reader
}

// readRequests returns a line for each series: its name, labels and value, sorted.
// A histogram's value is the number of its measurements and their sum.
func readRequests(t *testing.T, reader *sdkmetric.ManualReader) []string {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatalf("Collect: %v", err)
	}
	var lines []string
	add := func(m metricdata.Metrics, labels attribute.Set, value any) {
		lines = append(lines, fmt.Sprintf("%s[%s] %s %v", m.Name, m.Unit, labels.Encoded(attribute.DefaultEncoder()), value))
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(m, p.Attributes, p.Value)
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					add(m, p.Attributes, fmt.Sprint(p.Count, "x", p.Sum))
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(m, p.Attributes, fmt.Sprint(p.Count, "x", p.Sum))
				}
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// What each event adds to the metrics.
func TestRequestMetrics(t *testing.T) {
	t.Parallel()
	const begin, run = 250 * time.Millisecond, 2 * time.Second
	down := errors.New("down")
	claim := "idemkey.begin_seconds[s] http.route=/o 1x0.25"
	handler := "idemkey.handler_seconds[s] http.route=/o 1x2"
	requests := func(result string) string { return "idemkey.requests[{request}] http.route=/o,result=" + result + " 1" }
	outcomes := func(outcome string) string {
		return "idemkey.outcomes[{outcome}] http.route=/o,outcome=" + outcome + " 1"
	}
	ran := func(outcome idemkey.Outcome, code string, err error) idemkey.Event {
		return idemkey.Event{Route: "/o", Result: idemkey.ResultFirst, Outcome: outcome, Attempt: 1, Code: code, Begin: begin, Handler: run, Stored: 7, Err: err}
	}
	tests := []struct {
		name  string
		event idemkey.Event
		want  []string
	}{
		{"missing", idemkey.Event{Route: "/o", Result: idemkey.ResultMissing}, []string{requests("missing")}},
		{"no route", idemkey.Event{Result: idemkey.ResultMissing}, []string{"idemkey.requests[{request}] result=missing 1"}},
		{"replay", idemkey.Event{Route: "/o", Result: idemkey.ResultReplay, Begin: begin}, []string{claim, requests("replay")}},
		{"too large", idemkey.Event{Route: "/o", Result: idemkey.ResultTooLarge},
			[]string{"idemkey.oversize[{request}] http.route=/o,part=request 1", requests("too_large")}},
		{"unavailable", idemkey.Event{Route: "/o", Result: idemkey.ResultUnavailable, Begin: begin, Code: idemkey.CodeStoreUnavailable, Err: down},
			[]string{claim, requests("unavailable")}},
		{"kept", ran(idemkey.OutcomeKept, "", nil),
			[]string{claim, handler, outcomes("kept"), requests("first"), "idemkey.stored_bytes[By] http.route=/o 1x7"}},
		{"rejected", ran(idemkey.OutcomeRejected, "", nil),
			[]string{claim, handler, outcomes("rejected"), requests("first"), "idemkey.stored_bytes[By] http.route=/o 1x7"}},
		{"keyless", idemkey.Event{Route: "/o", Result: idemkey.ResultKeyless, Outcome: idemkey.OutcomeKept, Attempt: 1, Begin: begin, Handler: run, Stored: 7},
			[]string{claim, handler, outcomes("kept"), requests("keyless")}},
		{"failed", ran(idemkey.OutcomeFailed, idemkey.CodeInternal, down), []string{claim, handler, outcomes("failed"), requests("first")}},
		{"amended", ran(idemkey.OutcomeAmended, "", nil), []string{claim, handler, outcomes("amended"), requests("first")}},
		{"held", ran(idemkey.OutcomeHeld, idemkey.CodeOutcomeUnknown, down), []string{claim, handler, outcomes("held"), requests("first")}},
		{"response too large", ran(idemkey.OutcomeFailed, idemkey.CodeResponseTooLarge, down),
			[]string{claim, handler, outcomes("failed"), "idemkey.oversize[{request}] http.route=/o,part=response 1", requests("first")}},
		{"took over", idemkey.Event{Route: "/o", Result: idemkey.ResultAgain, Outcome: idemkey.OutcomeFailed, Attempt: 2, TookOver: true, Begin: begin, Handler: run},
			[]string{claim, handler, outcomes("failed"), requests("again"), "idemkey.takeovers[{request}] http.route=/o 1"}},
		{"oversize", idemkey.Event{Route: "/o", Result: idemkey.ResultFirst, Outcome: idemkey.OutcomeFailed, Attempt: 1, Oversize: true, Begin: begin, Handler: run},
			[]string{claim, handler, outcomes("failed"), "idemkey.oversize[{request}] http.route=/o,part=tombstone 1", requests("first")}},
		{"lost", ran(idemkey.OutcomeLost, idemkey.CodeInProgress, idemkey.ErrLeaseLost),
			[]string{claim, handler, "idemkey.lease_lost[{request}] http.route=/o 1", outcomes("lost"), requests("first")}},
		{"ambiguous", ran(idemkey.OutcomeUnknown, idemkey.CodeUnverified, idemkey.ErrOutcomeUnknown),
			[]string{claim, "idemkey.commit_ambiguous[{commit}] http.route=/o 1", handler, outcomes("ambiguous"), requests("first")}},
		{"unkept", ran(idemkey.OutcomeUnkept, "", idemkey.ErrNotStored),
			[]string{claim, handler, outcomes("unkept"), requests("first")}},
		{"store died", ran(idemkey.OutcomeFailed, idemkey.CodeStoreUnavailable, down),
			[]string{claim, handler, outcomes("failed"), requests("first")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o, reader := newIdempotencyObserver(t)
			o.Observe(t.Context(), tt.event)
			if diff := cmp.Diff(tt.want, readRequests(t, reader)); diff != "" {
				t.Errorf("series (-want +got):\n%s", diff)
			}
		})
	}
}

// The histograms have bounds that fit seconds.
func TestRequestBounds(t *testing.T) {
	t.Parallel()
	o, reader := newIdempotencyObserver(t)
	o.Observe(t.Context(), idemkey.Event{Result: idemkey.ResultReplay, Begin: 3 * time.Millisecond})
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if h, ok := m.Data.(metricdata.Histogram[float64]); ok && (h.DataPoints[0].BucketCounts[0] != 0 || h.DataPoints[0].Bounds[0] != 0.001) {
			t.Errorf("%s: bounds %v, counts %v", m.Name, h.DataPoints[0].Bounds, h.DataPoints[0].BucketCounts)
		}
	}
}

// serveTraced serves a middleware that tells o, each request in a span of its own.
func serveTraced(t *testing.T, o idemkey.Observer, handler http.HandlerFunc) (http.Handler, *tracetest.SpanRecorder) {
	t.Helper()
	store, err := idemkey.NewMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	idem, err := idemkey.New(store, &idemkey.Options{
		Scope:    func(*http.Request) (string, error) { return "secret-tenant", nil },
		Observer: o,
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", idem.Handler(handler))
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := tracer.Start(r.Context(), "request")
		defer span.End()
		mux.ServeHTTP(w, r.WithContext(ctx))
	}), spans
}

func postOrder(h http.Handler, key, body string) {
	req := httptest.NewRequest(http.MethodPost, "/orders/secret-id", strings.NewReader(body))
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	h.ServeHTTP(httptest.NewRecorder(), req)
}

// Each decision is one event on the request's span. Nothing that a caller sent
// gets into it or into a label.
func TestRequestsAreTraced(t *testing.T) {
	t.Parallel()
	o, reader := newIdempotencyObserver(t)
	h, spans := serveTraced(t, o, func(w http.ResponseWriter, r *http.Request) {
		if info, _ := idemkey.Info(r.Context()); info.Key == "secret-key-2" && info.Attempt == 1 {
			idemkey.Fail(r.Context(), errors.New("secret-reason"))
		}
		w.WriteHeader(http.StatusCreated)
	})
	postOrder(h, "secret-key-1", "secret-body")
	postOrder(h, "secret-key-1", "secret-body")
	postOrder(h, "secret-key-1", "other")
	postOrder(h, "", "x")
	postOrder(h, "secret-key-2", "x")
	postOrder(h, "secret-key-2", "x")

	var got []string
	for _, span := range spans.Ended() {
		for _, e := range span.Events() {
			set := attribute.NewSet(e.Attributes...)
			got = append(got, e.Name+" "+set.Encoded(attribute.DefaultEncoder()))
		}
	}
	want := []string{
		"idemkey.decision http.response.status_code=201,idemkey.attempt=1,idemkey.outcome=kept,idemkey.result=first",
		"idemkey.decision http.response.status_code=201,idemkey.result=replay",
		"idemkey.decision http.response.status_code=422,idemkey.code=key-reused,idemkey.result=mismatch",
		"idemkey.decision http.response.status_code=400,idemkey.code=key-missing,idemkey.result=missing",
		"idemkey.decision http.response.status_code=500,idemkey.attempt=1,idemkey.code=internal,idemkey.outcome=failed,idemkey.result=first",
		"idemkey.decision http.response.status_code=201,idemkey.attempt=2,idemkey.outcome=kept,idemkey.result=again",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("span events (-want +got):\n%s", diff)
	}
	lines := readRequests(t, reader)
	if !slices.Contains(lines, "idemkey.requests[{request}] http.route=POST /orders/{id},result=replay 1") {
		t.Errorf("no replay is counted for the route:\n%s", strings.Join(lines, "\n"))
	}
	if all := strings.Join(append(lines, got...), "\n"); strings.Contains(all, "secret") {
		t.Errorf("telemetry tells what a caller sent:\n%s", all)
	}
}

// A panic has no status to tell; without a span nothing is serveTraced.
func TestAPanicIsTraced(t *testing.T) {
	t.Parallel()
	o, reader := newIdempotencyObserver(t)
	h, spans := serveTraced(t, o, func(http.ResponseWriter, *http.Request) { panic("boom") })
	func() {
		defer func() { _ = recover() }()
		postOrder(h, "k", "x")
	}()
	events := spans.Ended()[0].Events()
	if len(events) == 0 || events[0].Name != "idemkey.decision" || slices.ContainsFunc(events[0].Attributes, func(a attribute.KeyValue) bool { return a.Key == "http.response.status_code" }) {
		t.Errorf("events = %v, want a decision without a status first", events)
	}
	o.Observe(context.Background(), idemkey.Event{Result: idemkey.ResultReplay})
	if lines := readRequests(t, reader); !slices.Contains(lines, "idemkey.requests[{request}] result=replay 1") {
		t.Errorf("series = %q", lines)
	}
}

// A provider that refuses an instrument is found out at the start.
func TestNewIdempotencyObserver(t *testing.T) {
	t.Parallel()
	if _, err := telemetry.NewIdempotencyObserver(nil); err != nil {
		t.Errorf("New(nil): %v", err)
	}
	refused := errors.New("refused")
	for _, name := range []string{"idemkey.requests", "idemkey.handler_seconds", "idemkey.stored_bytes", "idemkey.inflight"} {
		if _, err := telemetry.NewIdempotencyObserver(&telemetry.Options{MeterProvider: refusing{name, refused}.provider()}); !errors.Is(err, refused) {
			t.Errorf("New without %s: %v, want the provider's error", name, err)
		}
	}
}
