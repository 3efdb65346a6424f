package telemetry_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/telemetry"
)

// A scripted store proceeds, and its executions end as the test says.
type scripted struct{ begin, end error }

func (s *scripted) Begin(context.Context, idemkey.Claim) (idemkey.Decision, error) {
	return idemkey.Decision{Kind: idemkey.KindProceed, Attempt: 2, TookOver: true, Exec: s}, s.begin
}
func (s *scripted) Sweep(context.Context, int) (int, error)                 { return 3, nil }
func (s *scripted) Context(ctx context.Context) context.Context             { return ctx }
func (s *scripted) Commit(context.Context, idemkey.Response) error          { return s.end }
func (s *scripted) Reject(context.Context, idemkey.Response) error          { return s.end }
func (s *scripted) Release(context.Context, idemkey.ReleaseMode, int) error { return s.end }

// Every metric that operators were promised comes from a middleware and a sweeper
// at work, by its name.
func TestRequestMetricNames(t *testing.T) {
	t.Parallel()
	o, reader := newIdempotencyObserver(t)
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	down, quiet := errors.New("down"), slog.New(slog.DiscardHandler)
	run := func(store *scripted, body string, status int) {
		t.Helper()
		idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Observer: o, Logger: quiet, Limits: idemkey.Limits{MaxResponseBody: 4}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, span := tracer.Start(t.Context(), "request")
		defer span.End()
		req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader("x"))
		req.Header.Set("Idempotency-Key", "k")
		idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if lines := readRequests(t, reader); !slices.Contains(lines, "idemkey.inflight[{request}]  1") {
				t.Errorf("inflight is not 1 while a handler runs:\n%s", strings.Join(lines, "\n"))
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		})).ServeHTTP(httptest.NewRecorder(), req)
	}
	run(&scripted{}, "ok", 200)
	run(&scripted{}, "over four", 200)
	run(&scripted{end: idemkey.ErrLeaseLost}, "ok", 200)
	run(&scripted{end: idemkey.ErrOutcomeUnknown}, "ok", 200)
	run(&scripted{begin: down}, "", 200)
	run(&scripted{end: down}, "ok", 400)
	run(&scripted{end: down}, "ok", 500)
	ctx, end := context.WithCancel(t.Context())
	sweeper, err := idemkey.NewSweeper(&scripted{}, &idemkey.SweeperOptions{Interval: time.Millisecond, Observer: once{o, end}, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := sweeper.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
	lines := readRequests(t, reader)
	for _, want := range []string{
		"idemkey.requests[{request}] result=again 6", "idemkey.requests[{request}] result=unavailable 1",
		"idemkey.takeovers[{request}]  6", "idemkey.lease_lost[{request}]  1", "idemkey.commit_ambiguous[{commit}]  1",
		"idemkey.outcomes[{outcome}] outcome=kept 2", "idemkey.outcomes[{outcome}] outcome=failed 2",
		"idemkey.inflight[{request}]  0", "idemkey.stored_bytes[By]  2x2", "idemkey.oversize[{request}] part=tombstone 1", "idemkey.gc_deleted[{record}]  3",
		"idemkey.store_errors[{error}] op=begin 1", "idemkey.store_errors[{error}] op=commit 1",
		"idemkey.store_errors[{error}] op=reject 1", "idemkey.store_errors[{error}] op=release 1",
		"idemkey.handler_seconds[s]  6x", "idemkey.begin_seconds[s]  7x",
	} {
		if !slices.ContainsFunc(lines, func(line string) bool {
			return line == want || strings.HasSuffix(want, "x") && strings.HasPrefix(line, want)
		}) {
			t.Errorf("no series %s among\n%s", want, strings.Join(lines, "\n"))
		}
	}
	o.StoreFailed(t.Context(), "/o", idemkey.OpRenew, down)
	if lines := readRequests(t, reader); !slices.Contains(lines, "idemkey.store_errors[{error}] http.route=/o,op=renew 1") {
		t.Errorf("a renewal that failed is not counted:\n%s", strings.Join(lines, "\n"))
	}
	ended := spans.Ended()[1].Events()[0].Attributes // of the response over the limit
	for _, name := range []attribute.Key{"idemkey.took_over", "idemkey.oversize"} {
		if !slices.Contains(ended, name.Bool(true)) {
			t.Errorf("the span event lacks %s: %v", name, ended)
		}
	}
}

// A once ends a sweeping after its first batch.
type once struct {
	*telemetry.IdempotencyObserver
	end context.CancelFunc
}

func (o once) Swept(ctx context.Context, n int) {
	o.IdempotencyObserver.Swept(ctx, n)
	o.end()
}
