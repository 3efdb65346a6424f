package idemkeytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/guardtest"
)

// A callback is a function of the user's that goes wrong once.
type callback struct {
	// set gives opts the function. It calls blow.
	set func(opts *idemkey.Options, blow func())

	// before are the requests of the key before the one in which it is called.
	before int
	// lost has an owner vanish before: its run is the key's first.
	lost bool
	// status is what the handler answers with; 0: 201.
	status int
	// fails has the handler fail, with an error.
	fails bool
	// stream lets the response through as it is written. gone says that its beginning was sent.
	stream, gone bool
	// kept says that the outcome is durable when the function is called: a retry is a replay.
	kept bool
	// logged says that the outcome is known without the function: its panic goes no further than the log.
	logged bool
	// aborts says that the response has begun, so that http.ErrAbortHandler takes the panic's place.
	aborts bool
	// store is what is put before the store.
	store func(s idemkey.Store, blow func()) idemkey.Store
}

// callbacks are by name: that of the option, as [guardtest.Functions] has it, or what it is.
var callbacks = map[string]callback{
	"Options.Scope": {set: func(o *idemkey.Options, blow func()) {
		o.Scope = func(*http.Request) (string, error) { blow(); return "tenant-1", nil }
	}},
	"Options.Skip": {set: func(o *idemkey.Options, blow func()) {
		o.Skip = func(*http.Request) bool { blow(); return false }
	}},
	"Options.Key.Validate": {set: func(o *idemkey.Options, blow func()) {
		o.Key.Validate = func(string) error { blow(); return nil }
	}},
	"Options.Fingerprint.Custom": {set: func(o *idemkey.Options, blow func()) {
		o.Fingerprint.Custom = func(*http.Request, []byte) (idemkey.Fingerprint, error) {
			blow()
			return fingerprint, nil
		}
	}},
	"Options.Recover": {lost: true, set: func(o *idemkey.Options, blow func()) {
		o.Recover = func(context.Context, idemkey.Identity) (*idemkey.Response, error) { blow(); return nil, nil }
	}},
	"Options.Response.Redact of what was recovered": {lost: true, logged: true, gone: true, set: func(o *idemkey.Options, blow func()) {
		o.Recover = func(context.Context, idemkey.Identity) (*idemkey.Response, error) {
			return &idemkey.Response{Status: http.StatusCreated}, nil
		}
		o.Response.Redact = func(*http.Request, *idemkey.Response) { blow() }
	}},
	"the handler": {},
	"Options.Policy of a stream": {stream: true, set: func(o *idemkey.Options, blow func()) {
		o.Policy = func(int) idemkey.Verdict { blow(); return idemkey.Keep }
	}},
	"Options.Response.Redact of a stream": {stream: true, set: func(o *idemkey.Options, blow func()) {
		o.Response.Redact = func(*http.Request, *idemkey.Response) { blow() }
	}},
	"the handler, after its first byte": {stream: true, gone: true, aborts: true},
	"Options.Observer.Observe of a stream": {stream: true, gone: true, set: func(o *idemkey.Options, blow func()) {
		o.Observer = observing{observe: blow}
	}},
	"Options.Policy": {set: func(o *idemkey.Options, blow func()) {
		o.Policy = func(int) idemkey.Verdict { blow(); return idemkey.Keep }
	}},
	"Options.Policy of a failure": {status: http.StatusInternalServerError, set: func(o *idemkey.Options, blow func()) {
		o.Policy = func(int) idemkey.Verdict { blow(); return idemkey.Retryable }
	}},
	"Options.Response.Redact": {set: func(o *idemkey.Options, blow func()) {
		o.Response.Redact = func(*http.Request, *idemkey.Response) { blow() }
	}},
	"Options.Response.Redact of a refusal": {status: http.StatusNotFound, set: func(o *idemkey.Options, blow func()) {
		o.Response.Redact = func(*http.Request, *idemkey.Response) { blow() }
	}},
	"Options.Response.Sealer.Seal": {set: func(o *idemkey.Options, blow func()) { o.Response.Sealer = sealing{seal: blow} }},
	"Options.Response.Sealer.Open": {before: 1, kept: true, set: func(o *idemkey.Options, blow func()) {
		o.Response.Sealer = sealing{open: blow}
	}},
	"Options.Response.ReplayHook": {before: 1, kept: true, set: func(o *idemkey.Options, blow func()) {
		o.Response.ReplayHook = func(*http.Request, *idemkey.Response) error { blow(); return nil }
	}},
	"Options.Problems.MapError": {fails: true, set: func(o *idemkey.Options, blow func()) {
		o.Problems.MapError = func(error) *idemkey.Problem { blow(); return nil }
	}},
	"Options.Problems.Writer": {fails: true, set: func(o *idemkey.Options, blow func()) {
		o.Problems.Writer = func(w http.ResponseWriter, r *http.Request, p *idemkey.Problem) {
			blow()
			idemkey.WriteProblem(w, r, p)
		}
	}},
	"StartObserver": {set: func(o *idemkey.Options, blow func()) { o.Observer = observing{started: blow} }},
	"Options.Observer.Observe": {kept: true, set: func(o *idemkey.Options, blow func()) {
		o.Observer = observing{observe: blow}
	}},
	"StoreObserver": {
		set: func(o *idemkey.Options, blow func()) { o.Observer = observing{failed: blow} },
		store: func(s idemkey.Store, _ func()) idemkey.Store {
			return &troubled{Store: s, begin: func() error { return errors.New("the first Begin fails") }}
		},
	},
	"StoreObserver after the outcome": {kept: true,
		set: func(o *idemkey.Options, blow func()) { o.Observer = observing{failed: blow} },
		store: func(s idemkey.Store, _ func()) idemkey.Store {
			return &troubled{Store: s, committed: func() error { return errors.New("the reply is lost") }}
		},
	},
	"Options.Logger": {kept: true, set: func(o *idemkey.Options, blow func()) { o.Logger = guardtest.Log(blow) }},
	"a store's Begin": {store: func(s idemkey.Store, blow func()) idemkey.Store {
		return &troubled{Store: s, begin: func() error { blow(); return nil }}
	}},
	"a store's Commit, before it": {store: func(s idemkey.Store, blow func()) idemkey.Store {
		return &troubled{Store: s, commit: blow}
	}},
	"a store's Commit, after it": {kept: true, store: func(s idemkey.Store, blow func()) idemkey.Store {
		return &troubled{Store: s, committed: func() error { blow(); return nil }}
	}},
}

// fingerprint is that of every request here.
var fingerprint = idemkey.Fingerprint{Alg: "test", Sum: []byte("a")}

// testCallbacks: whichever function of the user's panics, or ends its goroutine, in a request:
// that passes on to the caller unchanged, nothing stays held, and a retry runs at once.
func testCallbacks(t *testing.T, s Subject) {
	guardtest.Covered(t, callbacks, idemkey.Options{})
	for name, c := range callbacks {
		if c.lost && s.traceless() {
			continue // a run that vanishes leaves no record there
		}
		if d, ok := s.Store.(idemkey.Describer); c.stream && ok && d.Traits().Transactional {
			continue // it cannot stream
		}
		for way := range guardtest.Ways {
			t.Run(name+"/"+way, func(t *testing.T) { c.runCallback(t, s, name, way) })
		}
	}
}

func (c *callback) runCallback(t *testing.T, s Subject, name, way string) {
	var armed atomic.Bool
	blown := false
	blow := func() {
		if armed.CompareAndSwap(true, false) {
			blown = true
			guardtest.Ways[way]()
		}
	}
	handler := c.mountCallback(t, s, name, blow, armed.Load)
	key := strings.Map(plainKey, name+"-"+way)
	post := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader("x"))
		r.Header.Set("Idempotency-Key", key)
		handler.ServeHTTP(w, r)
		return w
	}
	if c.lost {
		claim := Claim(key, "a")
		crashed := beginClaim(t, s, claim, idemkey.KindProceed).Exec
		s.Crash(t, claim.ID, crashed)
		defer func() { _ = crashed.Release(t.Context(), idemkey.Bound, 0) }() // its place is this process's
	}
	for range c.before {
		post()
	}
	before := s.heldExecutions()
	armed.Store(true)
	want := c.expectedEnd(way)
	if got := guardtest.End(func() { post() }); got != want {
		t.Errorf("the request ended with %v, want %v", got, want)
	}
	if !blown {
		t.Error("the function was not called")
	}
	faulttest.Await(t, "the store holds no more than before", func() bool { return s.heldExecutions() <= before }, func() string { return fmt.Sprintf("%d, want %d", s.heldExecutions(), before) })
	again, status := post(), c.successStatus()
	if c.gone {
		status = http.StatusGone
	}
	if replayed := again.Header().Get("Idempotent-Replayed") == "true"; again.Code != status || replayed != c.kept {
		t.Errorf("the retry is answered %d %s, replayed %t; want %d, %t", again.Code, again.Body, replayed, status, c.kept)
	}
}

// mountCallback returns a handler behind a middleware that has the function. armed reports whether that
// is yet to go wrong.
func (c *callback) mountCallback(t *testing.T, s Subject, name string, blow func(), armed func() bool) http.Handler {
	t.Helper()
	opts := &idemkey.Options{
		Scope:  func(*http.Request) (string, error) { return "tenant-1", nil },
		Logger: slog.New(slog.DiscardHandler),
		Fingerprint: idemkey.FingerprintOptions{
			Custom: func(*http.Request, []byte) (idemkey.Fingerprint, error) { return fingerprint, nil },
		},
	}
	if c.set != nil {
		c.set(opts, blow)
	}
	opts.Response.AllowStreaming = c.stream
	opts.Limits.MaxInFlightPerScope = 1 // a place that is not given back is missed
	store := s.Store
	if c.store != nil {
		store = c.store(store, blow)
	}
	idem, err := idemkey.New(store, opts)
	if err != nil {
		t.Fatal(err)
	}
	return idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name == "the handler" {
			blow()
		}
		if c.fails && armed() {
			idemkey.Fail(r.Context(), errHandler)
		}
		w.WriteHeader(c.successStatus())
		fmt.Fprint(w, "body")
		if name == "the handler, after its first byte" {
			blow()
		}
	}))
}

// successStatus is the status that the handler answers with.
func (c *callback) successStatus() int { return max(c.status, http.StatusCreated) }

// expectedEnd is how the request ends whose function goes wrong.
func (c *callback) expectedEnd(way string) any {
	switch {
	case c.logged:
		return nil
	case c.aborts:
		return http.ErrAbortHandler
	}
	return guardtest.Want(way)
}

// httpCallback: a panic of an option's function is the recoverer's, as one of the handler is, and
// never a success.
func httpCallback(t *httpTest) {
	for key, value := range map[string]any{"panics": "the policy panics", "aborts": http.ErrAbortHandler} {
		var blown atomic.Bool
		policy := func(status int) idemkey.Verdict {
			if blown.CompareAndSwap(false, true) {
				panic(value)
			}
			return idemkey.DefaultPolicy(status)
		}
		t.mountHandler(func(o *idemkey.Options) { o.Policy = policy }, t.answerOrder)
		first, err := t.sendRequest(t.newRequest(t.Context(), http.MethodPost, "x", key))
		if err == nil && (first.Status < 500 || strings.Contains(first.Body, "x")) {
			t.Errorf("%s: the request is answered %+v, want the recoverer's 500", key, first)
		}
		t.expectReply(t.postOrder("x", key), http.StatusCreated, "")
	}
	t.expectRows("order", 2)
}

// heldExecutions is Held, or 0.
func (s Subject) heldExecutions() int {
	if s.Held == nil {
		return 0
	}
	return s.Held()
}

// plainKey makes a key of a test's name.
func plainKey(r rune) rune {
	if r == ' ' || r == ',' || r == '\'' {
		return '-'
	}
	return r
}

// An observing is an Observer that is everything that one can be.
type observing struct{ observe, started, failed func() }

func callIfSet(f func()) {
	if f != nil {
		f()
	}
}

func (o observing) Observe(context.Context, idemkey.Event)                 { callIfSet(o.observe) }
func (o observing) Started(context.Context, string)                        { callIfSet(o.started) }
func (o observing) StoreFailed(context.Context, string, idemkey.Op, error) { callIfSet(o.failed) }

// A sealing is a Sealer that leaves bodies as they are.
type sealing struct{ seal, open func() }

func (s sealing) Seal(body, _ []byte) ([]byte, string, error) {
	callIfSet(s.seal)
	return body, "key", nil
}
func (s sealing) Open(sealed, _ []byte, _ string) ([]byte, error) {
	callIfSet(s.open)
	return sealed, nil
}

// A troubled is a store whose calls go wrong, once.
type troubled struct {
	idemkey.Store
	begin     func() error // before the first Begin
	commit    func()       // before a Commit
	committed func() error // after the first one
	begun     atomic.Bool
	ended     atomic.Bool
}

func (s *troubled) Traits() idemkey.Traits {
	if d, ok := s.Store.(idemkey.Describer); ok {
		return d.Traits()
	}
	return idemkey.Traits{}
}

func (s *troubled) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	if s.begin != nil && s.begun.CompareAndSwap(false, true) {
		if err := s.begin(); err != nil {
			return idemkey.Decision{}, err
		}
	}
	d, err := s.Store.Begin(ctx, c)
	if d.Exec != nil {
		d.Exec = troubledExecution{d.Exec, s}
	}
	return d, err
}

type troubledExecution struct {
	idemkey.Execution
	of *troubled
}

func (e troubledExecution) Commit(ctx context.Context, r idemkey.Response) error {
	callIfSet(e.of.commit)
	err := e.Execution.Commit(ctx, r)
	if err == nil && e.of.committed != nil && e.of.ended.CompareAndSwap(false, true) {
		err = e.of.committed()
	}
	return err
}
