package idemkey_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// unknownEnds are the ways in which a handler with external effects can end without anybody knowing what they are.
var unknownEnds = map[string]func(http.ResponseWriter, *http.Request){
	"timeout":                func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	"timeout, and an answer": func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done(); w.WriteHeader(201) },
	"panic":                  func(http.ResponseWriter, *http.Request) { panic("boom") },
	"panic after an answer":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); panic("boom") },
	"verdict": func(w http.ResponseWriter, r *http.Request) {
		idemkey.SetVerdict(r.Context(), idemkey.Unknown)
		w.WriteHeader(504)
	},
	"short": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		w.WriteHeader(201)
		_, _ = w.Write([]byte("half"))
	},
	"error":    func(_ http.ResponseWriter, r *http.Request) { idemkey.Fail(r.Context(), errors.New("insert")) },
	"conflict": func(_ http.ResponseWriter, r *http.Request) { idemkey.Fail(r.Context(), idemkey.ErrTxConflict) },
	"policy":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) },
	"error, and the verdict": func(_ http.ResponseWriter, r *http.Request) {
		idemkey.SetVerdict(r.Context(), idemkey.Unknown)
		idemkey.Fail(r.Context(), errors.New("upstream"))
	},
}

// sendAnyway is send, where the handler may panic.
func sendAnyway(t *testing.T, m *idemkey.Middleware, next http.HandlerFunc, key string) (got reply) {
	t.Helper()
	defer func() { _ = recover() }()
	return send(t, m, next, key, "{}")
}

// A handler whose external effects are not known runs once, whatever ended it and however often the client retries.
func TestUnknownOutcomesRunOnce(t *testing.T) {
	t.Parallel()
	for name, end := range unknownEnds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := &recorder{}
			m := newMiddleware(t, newMemory(t, nil), idemkey.Options{ExternalEffects: true, Policy: idemkey.UpstreamPolicy, Observer: seen,
				Limits: idemkey.Limits{ExecTimeout: time.Millisecond}})
			runs := 0
			run := func(w http.ResponseWriter, r *http.Request) { runs++; end(w, r) }
			first := sendAnyway(t, m, run, "k")
			if strings.HasPrefix(name, "timeout") && (first.status != 409 || first.code() != idemkey.CodeOutcomeUnknown) {
				t.Errorf("the first answer is %d %s", first.status, first.body)
			}
			if e := seen.events[0]; e.Outcome != idemkey.OutcomeHeld {
				t.Errorf("outcome %q", e.Outcome)
			}
			for range 3 {
				if got := sendAnyway(t, m, run, "k"); got.status != 409 || got.code() != idemkey.CodeOutcomeUnknown {
					t.Errorf("a retry is answered with %d %s", got.status, got.body)
				}
			}
			if runs != 1 {
				t.Errorf("the handler ran %d times", runs)
			}
		})
	}
}

// An error that says how it is answered is no unknown outcome: the handler knows what it means.
func TestAnExplainedErrorOfAnExternalHandler(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newMemory(t, nil), idemkey.Options{ExternalEffects: true})
	runs := 0
	refuse := func(_ http.ResponseWriter, r *http.Request) {
		runs++
		idemkey.Fail(r.Context(), &idemkey.Problem{Status: 429, Code: "busy"})
	}
	for range 2 {
		if got := send(t, m, refuse, "k", "{}"); got.status != 429 {
			t.Errorf("got %d %s", got.status, got.body)
		}
	}
	if runs != 2 {
		t.Errorf("the handler ran %d times, want 2", runs)
	}
}

// Without external effects the same ends let the request run again, and so they do while the upstream recognizes the key.
func TestUnknownOutcomesThatMayRunAgain(t *testing.T) {
	t.Parallel()
	for name, end := range unknownEnds {
		for _, opts := range []idemkey.Options{{}, {ExternalEffects: true, UpstreamDedupes: time.Hour}} {
			opts.Limits.ExecTimeout = time.Millisecond
			if !opts.ExternalEffects && (strings.Contains(name, "verdict") || name == "policy") {
				continue // the handler says itself that nobody knows
			}
			m := newMiddleware(t, newMemory(t, nil), opts)
			runs := 0
			for range 2 {
				sendAnyway(t, m, func(w http.ResponseWriter, r *http.Request) { runs++; end(w, r) }, "k")
			}
			if runs != 2 {
				t.Errorf("%s, external effects %v: the handler ran %d times, want 2", name, opts.ExternalEffects, runs)
			}
		}
	}
}

// The last attempt of a route with external effects fails for good: its record waits for a decision.
func TestTheLastAttemptIsHeld(t *testing.T) {
	t.Parallel()
	seen := &recorder{}
	m := newMiddleware(t, newMemory(t, nil), idemkey.Options{ExternalEffects: true, Policy: idemkey.DefaultPolicy, Observer: seen,
		Limits: idemkey.Limits{MaxAttempts: 2}})
	fails := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }
	for _, want := range []int{500, 500, 409} {
		if got := send(t, m, fails, "k", "{}"); got.status != want {
			t.Errorf("got %d, want %d", got.status, want)
		}
	}
	if seen.events[0].Outcome != idemkey.OutcomeFailed || seen.events[1].Outcome != idemkey.OutcomeHeld {
		t.Errorf("outcomes %q, %q", seen.events[0].Outcome, seen.events[1].Outcome)
	}
}

// What was decided before the handler ran leaves the key as it was: nothing can have happened.
func TestAPanicBeforeTheHandlerIsNoUnknownOutcome(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newMemory(t, nil), idemkey.Options{ExternalEffects: true, Observer: &startPanics{}})
	runs := 0
	run := func(http.ResponseWriter, *http.Request) { runs++ }
	sendAnyway(t, m, run, "k")
	if sendAnyway(t, m, run, "k"); runs != 1 {
		t.Errorf("the handler ran %d times, want 1", runs)
	}
}

// A startPanics panics the first time that a handler is to run.
type startPanics struct{ met bool }

func (s *startPanics) Observe(context.Context, idemkey.Event) {}
func (s *startPanics) Started(context.Context, string) {
	if !s.met {
		s.met = true
		panic("boom")
	}
}

// A scope with too many unknown outcomes gets no new key, by a problem of its own. Others are not concerned.
func TestTheLimitOfUnknownOutcomes(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newMemory(t, nil), idemkey.Options{ExternalEffects: true, Limits: idemkey.Limits{MaxUnknownPerScope: 2},
		Scope: func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil }})
	runs := 0
	ask := func(tenant, key string) *httptest.ResponseRecorder {
		req := httptest.NewRequestWithContext(t.Context(), "POST", "/orders", strings.NewReader("{}"))
		req.Header.Set("Idempotency-Key", key)
		req.Header.Set("X-Tenant", tenant)
		rec := httptest.NewRecorder()
		m.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			runs++
			idemkey.SetVerdict(r.Context(), idemkey.Unknown)
		})).ServeHTTP(rec, req)
		return rec
	}
	ask("a", "1")
	ask("a", "2")
	if got := ask("a", "3"); got.Code != 503 || !strings.Contains(got.Body.String(), idemkey.CodeUnknownLimit) || got.Header().Get("Retry-After") != "30" || runs != 2 {
		t.Errorf("a third key gets %d %s, and %d handlers ran", got.Code, got.Body, runs)
	}
	if got := ask("a", "1"); got.Code != 409 {
		t.Errorf("a known key gets %d", got.Code)
	}
	if got := ask("b", "1"); got.Code != 200 {
		t.Errorf("another scope gets %d", got.Code)
	}
}

// A route that alone has external effects has their default policy, unless another one was chosen for all.
func TestThePolicyOfARoute(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		policy idemkey.Policy
		runs   int
	}{"default": {nil, 1}, "chosen": {idemkey.DefaultPolicy, 2}} {
		all := newMiddleware(t, newMemory(t, nil), idemkey.Options{Policy: tt.policy})
		route, err := all.With(func(o *idemkey.Options) { o.ExternalEffects = true })
		if err != nil {
			t.Fatal(err)
		}
		runs := 0
		for range 2 {
			send(t, route, func(w http.ResponseWriter, _ *http.Request) { runs++; w.WriteHeader(504) }, "k", "{}")
		}
		if runs != tt.runs {
			t.Errorf("%s: %d runs, want %d", name, runs, tt.runs)
		}
	}
}

// UpstreamPolicy keeps what the upstream has decided, and lets run again what it has not begun.
func TestUpstreamPolicy(t *testing.T) {
	t.Parallel()
	want := map[idemkey.Verdict][]int{
		idemkey.Keep:      {200, 201, 204, 301, 400, 404, 410, 422},
		idemkey.Retryable: {401, 403, 407, 408, 409, 421, 423, 425, 429, 503},
		idemkey.Unknown:   {500, 501, 502, 504, 520, 599},
	}
	for verdict, statuses := range want {
		for _, status := range statuses {
			if got := idemkey.UpstreamPolicy(status); got != verdict {
				t.Errorf("UpstreamPolicy(%d) = %d, want %d", status, got, verdict)
			}
		}
	}
}

// A run that fails within UpstreamDedupes says nothing of the one before it: once the upstream has forgotten the key, no
// retry runs.
func TestAFailureAfterAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(http.ResponseWriter, *http.Request){
		"retryable": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
		"amendable": func(w http.ResponseWriter, r *http.Request) {
			idemkey.SetVerdict(r.Context(), idemkey.Amendable)
			w.WriteHeader(422)
		},
		"problem": func(_ http.ResponseWriter, r *http.Request) { idemkey.Fail(r.Context(), &idemkey.Problem{Status: 429}) },
	} {
		store := newMemory(t, nil)
		recognizes := newMiddleware(t, store, idemkey.Options{ExternalEffects: true, UpstreamDedupes: time.Hour})
		forgotten := newMiddleware(t, store, idemkey.Options{ExternalEffects: true})
		runs := 0
		run := func(end func(http.ResponseWriter, *http.Request)) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) { runs++; end(w, r) }
		}
		send(t, recognizes, run(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(504) }), "k", "{}")
		send(t, recognizes, run(end), "k", "{}")
		if got := send(t, forgotten, run(end), "k", "{}"); got.status != 409 || got.code() != idemkey.CodeOutcomeUnknown || runs != 2 {
			t.Errorf("%s: got %d %s after %d runs", name, got.status, got.code(), runs)
		}
		if send(t, recognizes, run(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }), "k", "{}"); runs != 3 {
			t.Errorf("%s: %d runs, want 3", name, runs)
		}
		if got := send(t, forgotten, run(end), "k", "{}"); got.status != 201 || runs != 3 {
			t.Errorf("%s: a replay gets %d after %d runs", name, got.status, runs)
		}
	}
}

// A Reconciler asks about each unknown outcome of its namespace, and ends it by what it learns.
func TestReconciler(t *testing.T) {
	t.Parallel()
	store := newMemory(t, nil)
	unknown := func(w http.ResponseWriter, r *http.Request) { idemkey.SetVerdict(r.Context(), idemkey.Unknown) }
	ask := func(_ context.Context, id idemkey.Identity) (*idemkey.Response, error) {
		switch id.Key {
		case "charged":
			return &idemkey.Response{Status: 201, Body: []byte("charged"), Header: http.Header{"Content-Type": {"text/plain"}, "X-Other": {"x"}}}, nil
		case "refused":
			return nil, nil
		case "panics":
			panic("boom")
		case "odd":
			return &idemkey.Response{Status: 1}, nil
		}
		return nil, errors.New("the provider is down")
	}
	m := newMiddleware(t, store, idemkey.Options{Recover: ask, Response: idemkey.ResponseOptions{Redact: func(r *http.Request, s *idemkey.Response) {
		if r.URL.Path == "" {
			panic("no request")
		}
	}}})
	other := newMiddleware(t, store, idemkey.Options{ExternalEffects: true, Key: idemkey.KeyOptions{Namespace: "other"}})
	keys := []string{"charged", "refused", "panics", "odd", "down"}
	for _, key := range keys {
		send(t, m, unknown, key, "{}")
	}
	send(t, other, unknown, "charged", "{}")
	early, err := idemkey.NewReconciler(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := early.Reconcile(t.Context()); n != 0 || err != nil {
		t.Errorf("Reconcile of what has just run = %d, %v", n, err)
	}
	r, err := idemkey.NewReconciler(m, &idemkey.ReconcilerOptions{After: 1})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := r.Reconcile(t.Context()); n != 2 || err == nil {
		t.Errorf("Reconcile = %d, %v; want 2 and an error of Recover", n, err)
	}
	var left []string
	_ = store.EachUnknown(t.Context(), func(u idemkey.UnknownOutcome) error {
		left = append(left, u.ID.Namespace+" "+u.ID.Key)
		return nil
	})
	slices.Sort(left)
	if want := []string{"http down", "http odd", "http panics", "other charged"}; !slices.Equal(left, want) {
		t.Errorf("still unknown: %q, want %q", left, want)
	}
	runs := 0
	run := func(http.ResponseWriter, *http.Request) { runs++ }
	if got := send(t, m, run, "charged", "{}"); got.status != 201 || got.body != "charged" || got.header.Get("X-Other") != "" || runs != 0 {
		t.Errorf("a retry of what was charged gets %d %q %v, and the handler ran %d times", got.status, got.body, got.header, runs)
	}
	if send(t, m, run, "refused", "{}"); runs != 1 {
		t.Errorf("the handler of what had no effect ran %d times, want 1", runs)
	}

	for name, broken := range map[string]*idemkey.Middleware{"Recover": other, "Arbiter": newMiddleware(t, &stub{}, idemkey.Options{Recover: ask})} {
		if _, err := idemkey.NewReconciler(broken, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("NewReconciler without %s = %v", name, err)
		}
	}
}

// code returns the code of the problem that was answered.
func (r reply) code() string {
	var p idemkey.Problem
	_ = json.Unmarshal([]byte(r.body), &p)
	return p.Code
}
