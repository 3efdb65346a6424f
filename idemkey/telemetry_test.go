package idemkey_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// A recorder is told of everything.
type recorder struct {
	mu     sync.Mutex
	events []idemkey.Event
	told   []string
}

func (r *recorder) tell(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, what)
}

func (r *recorder) Observe(_ context.Context, e idemkey.Event) {
	r.tell(fmt.Sprint("observed ", e.Started))
	r.events = append(r.events, e)
}
func (r *recorder) Started(context.Context, string) { r.tell("started") }
func (r *recorder) StoreFailed(_ context.Context, _ string, op idemkey.Op, _ error) {
	r.tell("failed " + string(op))
}

// For each handler that starts there is one event that says so.
func TestStarted(t *testing.T) {
	t.Parallel()
	seen := &recorder{}
	m := newMiddleware(t, newMemory(t, nil), idemkey.Options{Observer: seen, Limits: idemkey.Limits{MaxResponseBody: 4}})
	send(t, m, created, "k", "x")
	send(t, m, created, "k", "x")
	func() {
		defer func() { _ = recover() }()
		send(t, m, func(http.ResponseWriter, *http.Request) { panic("boom") }, "p", "x")
	}()
	if got, want := strings.Join(seen.told, ", "), "started, observed true, observed false, started, observed true"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	if !seen.events[0].Oversize || seen.events[1].Oversize {
		t.Errorf("oversize %t, then %t; want the first", seen.events[0].Oversize, seen.events[1].Oversize)
	}
}

// A failing store answers as the test says, at every call.
type failing struct {
	stub
	begin, release, renew error
}

func (s *failing) Begin(context.Context, idemkey.Claim) (idemkey.Decision, error) {
	return idemkey.Decision{Kind: idemkey.KindProceed, Attempt: 1, Exec: s}, s.begin
}
func (s *failing) Release(context.Context, idemkey.ReleaseMode, int) error { return s.release }
func (s *failing) Renew(context.Context) error                             { return s.renew }

// A failure of the store is told with its call; an answer of the store is none.
func TestStoreFailed(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	answer := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	slow := func(http.ResponseWriter, *http.Request) { time.Sleep(1500 * time.Millisecond) }
	for name, tt := range map[string]struct {
		store   failing
		handler http.HandlerFunc
		want    string
	}{
		"begin":          {failing{begin: down}, created, "failed begin"},
		"full":           {failing{begin: idemkey.ErrCapacity}, created, ""},
		"corrupt":        {failing{begin: idemkey.ErrRecordCorrupt}, created, ""},
		"commit":         {failing{stub: stub{end: down}}, answer(200), "failed commit"},
		"not stored":     {failing{stub: stub{end: idemkey.ErrNotStored}}, answer(200), "failed commit"},
		"ambiguous":      {failing{stub: stub{end: idemkey.ErrOutcomeUnknown}}, answer(200), "failed commit"},
		"lost":           {failing{stub: stub{end: errors.Join(idemkey.ErrNotStored, idemkey.ErrLeaseLost)}}, answer(200), ""},
		"refused":        {failing{stub: stub{end: &idemkey.CommitError{Err: down}}}, answer(200), ""},
		"reject":         {failing{stub: stub{end: down}}, answer(400), "failed reject"},
		"release":        {failing{release: down}, answer(500), "failed release"},
		"renew":          {failing{renew: down}, slow, "failed renew"},
		"renewal, lost":  {failing{renew: idemkey.ErrLeaseLost}, slow, ""},
		"nothing at all": {failing{}, created, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				seen := &recorder{}
				m := newMiddleware(t, &tt.store, idemkey.Options{Observer: seen, Limits: idemkey.Limits{Lease: 3 * time.Second, ExecTimeout: 2 * time.Second}})
				send(t, m, tt.handler, "k", "x")
				var got []string
				for _, what := range seen.told {
					if strings.HasPrefix(what, "failed") {
						got = append(got, what)
					}
				}
				if strings.Join(got, ", ") != tt.want {
					t.Errorf("told %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// A run after one that vanished is told apart from one after a failure.
func TestTookOver(t *testing.T) {
	t.Parallel()
	store, seen := newMemory(t, nil), &observer{}
	m := newMiddleware(t, store, idemkey.Options{Observer: seen})
	failed := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }
	expect := func(want bool, attempt int) {
		t.Helper()
		if seen.last.TookOver != want || seen.last.Attempt != attempt {
			t.Errorf("took over %t as attempt %d, want %t as %d", seen.last.TookOver, seen.last.Attempt, want, attempt)
		}
	}
	send(t, m, failed, "k", "x")
	expect(false, 1)
	send(t, m, failed, "k", "x")
	expect(false, 2)
	send(t, m, func(_ http.ResponseWriter, r *http.Request) {
		info, _ := idemkey.Info(r.Context())
		store.Lapse(info.Identity)
		send(t, m, failed, "k", "x")
		expect(true, 4)
		send(t, m, func(_ http.ResponseWriter, r *http.Request) {
			store.Lapse(info.Identity)
			store.Expire(info.Identity)
			send(t, m, created, "k", "x")
			expect(false, 1) // the key was new again
		}, "k", "x")
	}, "k", "x")
}

// results are all that there are.
var results = []idemkey.Result{
	idemkey.ResultFirst, idemkey.ResultAgain, idemkey.ResultKeyless, idemkey.ResultFailOpen, idemkey.ResultReplay, idemkey.ResultRecovered,
	idemkey.ResultInProgress, idemkey.ResultMismatch, idemkey.ResultMissing, idemkey.ResultInvalid, idemkey.ResultUnauthorized,
	idemkey.ResultTooLarge, idemkey.ResultExpired, idemkey.ResultTombstone, idemkey.ResultUnknown, idemkey.ResultUnavailable,
	idemkey.ResultCapacity, idemkey.ResultCorrupt, idemkey.ResultFingerprintUnknown,
	idemkey.ResultMisconfigured,
}

// refusals are the decisions by which a handler does not run, except a replay.
var refusals = []idemkey.Kind{
	idemkey.KindInFlight, idemkey.KindMismatch, idemkey.KindExpired, idemkey.KindNotRetained, idemkey.KindUnknown, idemkey.KindFingerprintUnknown,
}

// What a caller sent, and what it was answered, is not in the log, whatever
// became of it.
func TestLogTellsNothing(t *testing.T) {
	t.Parallel()
	const canary = "canary"
	log, seen := newCapture(), &recorder{}
	run := func(store idemkey.Store, handler http.HandlerFunc, set func(*idemkey.Options, *http.Request)) {
		t.Helper()
		req := httptest.NewRequest("POST", "/"+canary+"-path?q="+canary, strings.NewReader(canary+"-body"))
		req.Header.Set("Idempotency-Key", canary+"-key")
		opts := idemkey.Options{Observer: seen, Logger: log.logger(), Response: idemkey.ResponseOptions{ReplayHeader: "X-Replayed"}, Scope: func(*http.Request) (string, error) { return canary + "-scope", nil }}
		if set != nil {
			set(&opts, req)
		}
		newMiddleware(t, store, opts).Handler(handler).ServeHTTP(httptest.NewRecorder(), req)
	}
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/"+canary)
		_, _ = io.WriteString(w, canary+"-response")
	}
	decided := func(kind idemkey.Kind) *stub {
		return &stub{decision: idemkey.Decision{Kind: kind, Record: &idemkey.Record{State: idemkey.StateCompleted, Response: idemkey.Response{Status: 200, Body: []byte(canary)}}}}
	}
	memory := newMemory(t, nil)
	run(memory, answer, nil)
	run(memory, answer, nil) // a replay
	run(memory, answer, func(o *idemkey.Options, _ *http.Request) { o.Fingerprint.Secret = []byte(canary) })
	run(&stub{decision: idemkey.Decision{Kind: idemkey.KindProceed, Attempt: 2, TookOver: true, Exec: &stub{}}}, answer, nil)
	run(&stub{}, answer, func(o *idemkey.Options, r *http.Request) { o.Key.Optional = true; r.Header.Del("Idempotency-Key") })
	run(&stub{}, answer, func(_ *idemkey.Options, r *http.Request) { r.Header.Del("Idempotency-Key") })
	run(&stub{}, answer, func(_ *idemkey.Options, r *http.Request) { r.Header.Add("Idempotency-Key", canary) })
	run(&stub{}, answer, func(o *idemkey.Options, _ *http.Request) {
		o.Key.Validate = func(key string) error { return errors.New("bad " + key) }
	})
	for _, scope := range []string{"", canary + "\n"} {
		run(&stub{}, answer, func(o *idemkey.Options, _ *http.Request) {
			o.Scope = func(*http.Request) (string, error) { return scope, nil }
		})
	}
	run(&stub{}, answer, func(o *idemkey.Options, _ *http.Request) { o.Limits.MaxRequestBody = 1 })
	run(&stub{}, answer, func(_ *idemkey.Options, r *http.Request) { r.Body = http.NoBody })
	for _, kind := range refusals {
		run(decided(kind), answer, nil)
	}
	run(&stub{err: errors.New("down")}, answer, nil)
	run(&stub{err: errors.New("down")}, answer, func(o *idemkey.Options, _ *http.Request) { o.FailOpen = true })
	run(&stub{err: idemkey.ErrCapacity}, answer, nil)
	run(&stub{err: idemkey.ErrRecordCorrupt}, answer, nil)
	run(&recoverable{}, answer, func(o *idemkey.Options, _ *http.Request) {
		o.Recover = func(context.Context, idemkey.Identity) (*idemkey.Response, error) {
			return &idemkey.Response{Status: 200, Body: []byte(canary)}, nil
		}
	})
	for _, end := range []error{idemkey.ErrNotStored, idemkey.ErrLeaseLost, idemkey.ErrOutcomeUnknown, idemkey.ErrTxMisuse} {
		run(&stub{end: end}, answer, nil)
	}
	for _, result := range results {
		if !slices.ContainsFunc(seen.events, func(e idemkey.Event) bool { return e.Result == result }) {
			t.Errorf("no request here had the result %s", result)
		}
	}
	if lines := strings.Count(log.String(), "\n"); lines != len(seen.events) {
		t.Errorf("%d log lines for %d decisions", lines, len(seen.events))
	}
	if i := strings.Index(log.String(), canary); i >= 0 {
		t.Errorf("the log tells what a caller sent: …%s", log.String()[max(0, i-200):i+len(canary)])
	}
	run(memory, answer, func(o *idemkey.Options, _ *http.Request) { o.LogKeys = true })
	if !strings.Contains(log.String(), canary+"-key") || !strings.Contains(log.String(), canary+"-scope") {
		t.Error("LogKeys does not log the key")
	}
}

// A recoverable store has a run whose owner has vanished.
type recoverable struct{ stub }

func (s *recoverable) Begin(_ context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	if c.External && c.Recovered != "run" {
		return idemkey.Decision{Kind: idemkey.KindUnknown, Attempt: 1, Run: "run"}, nil
	}
	return idemkey.Decision{Kind: idemkey.KindProceed, Attempt: 2, TookOver: true, Exec: s}, nil
}
