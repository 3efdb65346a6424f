package idemkey

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// A Middleware makes handlers idempotent. It is safe for concurrent use.
type Middleware struct {
	store   Store
	opts    *Options
	traits  Traits
	methods map[string]bool
	room    *waitingRoom   // shared by every route
	scopes  *scopeCount    // likewise
	cache   *replayCache   // nil: off
	routes  *routeSettings // likewise shared
}

// New returns a Middleware on store. It does no I/O and starts nothing. An
// error names the field of opts that is wrong: Scope or SingleTenant must be
// set, the rest may be left out.
func New(store Store, opts *Options) (*Middleware, error) {
	if store == nil {
		return nil, errors.New("idemkey: store is nil")
	}
	if opts == nil {
		opts = &Options{}
	}
	o := opts.clone()
	o.setDefaults()
	if err := o.check(traitsOf(store)); err != nil {
		return nil, err
	}
	o.bind()
	m := &Middleware{store: store, opts: o, traits: traitsOf(store), methods: make(map[string]bool)}
	m.room = &waitingRoom{keys: make(map[Identity]*waiters)}
	m.scopes = &scopeCount{n: make(map[string]int)}
	m.routes = &routeSettings{byLabel: make(map[string]*fingerprinter)}
	m.routes.addAll(o)
	if o.Response.LocalReplays > 0 {
		m.cache = newReplayCache(o.Response.LocalReplays)
	}
	for _, method := range o.Methods {
		m.methods[method] = true
	}
	return m, nil
}

// With returns a Middleware on the same store whose options are those of m,
// changed by set: one route's own limits, for instance. A list that set assigns replaces
// that of m, and is not added to it: a route that sets Fingerprint.ExcludeFields names all
// fields that it ignores, and gives each of its Fingerprint.Versions all fields too. What a change of
// them does to keys in use is in docs/upgrading.md.
func (m *Middleware) With(set func(*Options)) (*Middleware, error) {
	o := m.opts.clone()
	if set == nil {
		return nil, errors.New("idemkey: With needs a function that sets options")
	}
	set(o)
	route, err := New(m.store, o)
	if err != nil {
		return nil, err
	}
	route.room, route.scopes, route.routes = m.room, m.scopes, m.routes
	m.routes.addAll(route.opts)
	if o.Response.LocalReplays == m.opts.Response.LocalReplays {
		route.cache = m.cache
	}
	return route, nil
}

// Handler returns next behind m. Authentication, authorisation, tracing, CORS,
// compression and a recoverer belong outside of it. What reads the request's body outside of it
// must restore r.Body, or be inside of [Middleware.Outer]: otherwise requests with a key are
// answered with 500, [CodeBodyConsumed].
//
// When a response reaches the client, its outcome is durable. If the process
// dies before, a retry with the same key gets the stored response, or runs
// next again where nothing was committed. Of two requests with one key at the
// same time, one runs next and the other is told to come back.
//
// A panic of next, or of a function of the options, releases the key and goes on to the
// caller unchanged.
//
// A request goes through one Handler on a store for its key. Where there are two, on a router and on
// a route, every request is answered with 500, [CodeMountedTwice], and the log says where they are.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	site := callers()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !m.covers(r) {
			next.ServeHTTP(w, r)
			return
		}
		x := &exchange{m: m, w: w, r: r, next: next, site: site, event: Event{Route: r.Pattern}}
		defer x.report(context.WithoutCancel(r.Context()))
		defer x.leave()
		defer x.unwound()
		x.serve()
	})
}

func (m *Middleware) covers(r *http.Request) bool {
	return m.methods[r.Method] && (m.opts.Skip == nil || !m.opts.Skip(r))
}

// PolicyHandler answers with what a client has to know, in JSON: the published
// expiry and uniqueness policy that the Idempotency-Key draft asks for.
func (m *Middleware) PolicyHandler() http.Handler {
	o := m.opts
	syntax := "quoted string or bare"
	if o.Key.StrictSyntax {
		syntax = "quoted string"
	}
	body, err := json.Marshal(map[string]any{
		"header": o.Key.Header, "aliases": append([]string{}, o.Key.Aliases...), "syntax": syntax, "required": !o.Key.Optional,
		"min_length": o.Key.MinLen, "max_length": o.Key.MaxLen, "methods": o.Methods,
		"ttl_seconds": int64(o.Limits.TTL.Seconds()), "expired_key": expiredPolicy(o), "replay_header": o.Response.ReplayHeader,
		"max_request_bytes": o.Limits.MaxRequestBody, "codes": m.codes(),
	})
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err != nil {
			http.Error(w, "policy unavailable", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.Header().Set("Cache-Control", "max-age=300")
		_, _ = w.Write(append(body, '\n'))
	})
}

func expiredPolicy(o *Options) string {
	if o.Key.RejectExpired {
		return "rejected"
	}
	return "new"
}

func (m *Middleware) codes() map[string]int {
	codes := make(map[string]int, len(problems))
	for code := range problems {
		codes[code] = m.problem(code).Status
	}
	return codes
}

// problem returns the problem that code names, with the configured status.
func (m *Middleware) problem(code string) *Problem {
	p := newProblem(code)
	switch code {
	case CodeInProgress:
		p.Status = m.opts.Problems.InFlightStatus
	case CodeKeyReused:
		p.Status = m.opts.Problems.MismatchStatus
	case CodeFingerprintUnknown:
		if p.Status = m.opts.Problems.UnknownFingerprintStatus; p.Status == http.StatusServiceUnavailable {
			p.Retryable, p.SameKey, p.RetryAfter = true, true, maxRetryAfter
		}
	}
	return p
}

// An exchange is one covered request on its way through.
type exchange struct {
	m     *Middleware
	w     http.ResponseWriter
	r     *http.Request
	next  http.Handler
	site  callSite // of Handler
	place placement
	body  []byte   // of a request with a key
	id    Identity // empty without a key, and where nothing is remembered
	claim Claim
	begun time.Time // when the last claim was sent
	event Event

	open      Execution // nil: the store has been told how it ended, or there is none
	entered   bool      // it counts among the handlers of its scope
	stream    *stream   // nil: the response is buffered
	lost      bool      // another owner took over while the handler ran
	misused   bool      // the handler ended the transaction itself
	misuse    *buffer   // the answer to that, if it is kept
	recovered *Response // what an earlier run is known to have answered

	older    []Fingerprint // of the request, by the settings of the record that was found
	olderErr error         // why one of them could not be made
}

// serve goes through the steps in their observable order: key, scope, body,
// fingerprint, claim. The body is read whole before anything is claimed, so
// that a slow client holds no lock and no connection.
func (x *exchange) serve() {
	o := x.m.opts
	claim := Claim{TTL: o.Limits.TTL, Lease: o.Limits.Lease, ExecTimeout: o.Limits.ExecTimeout, MaxAttempts: o.Limits.MaxAttempts, RejectExpired: o.Key.RejectExpired,
		HoldLapsed: o.ExternalEffects || o.Recover != nil}
	sent, err := o.readKey(x.r.Header)
	switch {
	case errors.Is(err, errKeyMissing) && o.Key.Optional:
		if x.mountedTwice(claim.ID) {
			return
		}
	case errors.Is(err, errKeyMissing):
		x.refuse(ResultMissing, CodeKeyMissing, nil)
		return
	case err != nil:
		x.refuse(ResultInvalid, CodeKeyInvalid, nil)
		return
	case !x.prepare(&claim, sent):
		return
	}
	x.begin(claim)
}

// prepare completes the claim of a request with a key. It has answered if it is not ok.
func (x *exchange) prepare(claim *Claim, sent sentKey) (ok bool) {
	var err error
	switch claim.ID, err = x.identify(sent.key); {
	case errors.Is(err, errScopeInvalid):
		x.refuse(ResultMisconfigured, CodeScopeInvalid, err)
		return false
	case err != nil:
		x.refuse(ResultUnauthorized, CodeScopeMissing, err)
		return false
	}
	x.id = claim.ID
	if x.mountedTwice(claim.ID) || !x.readBody(atHandler) {
		return false
	}
	if claim.FP, err = x.m.opts.fingerprint(x.r, x.body); err != nil {
		x.refuse(ResultInvalid, CodeBodyUnreadable, err)
		return false
	}
	x.w.Header().Set(sent.header, sent.value) // checked: it can hold no line break
	return true
}

// errScopeInvalid is for the log: it is the service that made the scope.
var errScopeInvalid = errors.New("idemkey: Options.Scope returned an invalid scope")

// checkScope tells what is wrong with scope without repeating it.
func checkScope(scope string) error {
	switch odd := oddByte(scope); {
	case scope == "":
		return errors.New("idemkey: Options.Scope returned no scope")
	case len(scope) > MaxScope:
		return fmt.Errorf("%w: it has %d bytes, the limit is %d", errScopeInvalid, len(scope), MaxScope)
	case odd >= 0:
		return fmt.Errorf("%w: byte %d is a control character or no UTF-8", errScopeInvalid, odd)
	}
	return nil
}

func (x *exchange) identify(key string) (Identity, error) {
	id := Identity{Namespace: x.m.opts.namespace(x.r), Scope: singleTenant, Key: key}
	if x.m.opts.SingleTenant {
		return id, nil
	}
	var err error
	if id.Scope, err = x.m.opts.Scope(x.r); err != nil {
		return Identity{}, err
	}
	if err := checkScope(id.Scope); err != nil {
		return Identity{}, err
	}
	return id, nil
}

// begin claims the key and acts on the decision.
func (x *exchange) begin(claim Claim) {
	claim.Misused = x.renderMisused
	x.claim = claim
	d, err := x.decide(claim)
	switch {
	case errors.Is(err, ErrCapacity):
		x.noRoom(err)
	case errors.Is(err, ErrRecordCorrupt):
		x.refuse(ResultCorrupt, CodeRecordCorrupt, err)
	case err != nil && x.m.opts.FailOpen:
		x.failOpen(err)
	case err != nil:
		x.refuse(ResultUnavailable, CodeStoreUnavailable, err)
	case d.Kind == KindProceed && x.recovered != nil:
		x.keepRecovered(d)
	case d.Kind == KindProceed:
		x.execute(d)
	default:
		x.turnAway(d)
	}
}

// decide finds out what is to become of the request, by the cheapest means first.
func (x *exchange) decide(claim Claim) (Decision, error) {
	if d, ok := x.m.cache.decide(&claim); ok {
		return d, nil
	}
	d, err := x.ask(claim)
	x.event.Begin = time.Since(x.begun)
	if err == nil && d.Kind == KindInFlight && x.m.opts.Limits.Wait > 0 {
		d, err = x.await(claim, d)
	}
	if err == nil && d.Kind == KindUnknown && x.m.opts.Recover != nil {
		d, err = x.recover(claim, d)
	}
	if err == nil && d.Kind == KindReplay {
		x.m.cache.add(claim.ID, *d.Record, d.Record.LifeLeft, x.begun)
	}
	return d, err
}

// ask puts one claim to the store, and again if the record was made with other settings that are known.
func (x *exchange) ask(claim Claim) (Decision, error) {
	claim.Prior = x.older
	x.begun = time.Now()
	ctx, cancel := context.WithTimeout(x.detached(), x.m.opts.Limits.StoreTimeout)
	defer cancel()
	d, err := x.claimWithin(ctx, claim)
	if err == nil && d.Kind == KindFingerprintUnknown {
		if x.older, x.olderErr = x.fingerprintAs(d.FPAlg); len(x.older) > 0 {
			claim.Prior = x.older
			d, err = x.claimWithin(ctx, claim)
		}
	}
	x.storeFailed(OpBegin, err)
	return d, err
}

// failOpen runs the handler although nothing can be remembered. The log and the
// event say so; the response says nothing that would promise a replay.
func (x *exchange) failOpen(err error) {
	for _, name := range append([]string{x.m.opts.Key.Header}, x.m.opts.Key.Aliases...) {
		x.w.Header().Del(name)
	}
	x.id = Identity{}
	x.note(err)
	defer func() { // after a panic, too
		x.event.Result = ResultFailOpen
		if x.event.Outcome == OutcomeKept || x.event.Outcome == OutcomeRejected {
			x.event.Outcome = OutcomeUnkept
		}
	}()
	x.execute(Decision{Kind: KindProceed, Exec: keyless{}, Incarnation: newIncarnation(), Attempt: 1})
}

// detached is the request's context without its end: a client that goes away
// must not leave a half-made claim or outcome behind.
func (x *exchange) detached() context.Context { return context.WithoutCancel(x.r.Context()) }

// turnAway answers a decision by which the handler does not run.
func (x *exchange) turnAway(d Decision) {
	switch d.Kind {
	case KindReplay:
		x.replay(d.Record)
	case KindInFlight:
		p := x.m.problem(CodeInProgress)
		p.RetryAfter = max(p.RetryAfter, d.RetryAfter) // none: the owner outlives its lease
		x.answer(ResultInProgress, p)
	case KindMismatch:
		x.refuse(ResultMismatch, CodeKeyReused, nil)
	case KindFingerprintUnknown:
		x.refuse(ResultFingerprintUnknown, CodeFingerprintUnknown, x.errUnknownFingerprint(d))
	case KindExpired:
		x.refuse(ResultExpired, CodeKeyExpired, nil)
	case KindNotRetained:
		p := x.m.problem(CodeNotRetained)
		p.OriginalStatus = d.Record.Response.Status
		if location := d.Record.Response.Header.Values("Location"); len(location) > 0 {
			x.w.Header()["Location"] = slices.Clone(location)
		}
		x.answer(ResultTombstone, p)
	default:
		x.refuse(ResultUnknown, CodeOutcomeUnknown, nil)
	}
}

// replay answers with a stored response, or with what ReplayHook makes of it.
func (x *exchange) replay(rec *Record) {
	r, err := x.opened(rec)
	if err != nil {
		x.refuse(ResultCorrupt, CodeRecordCorrupt, err)
		return
	}
	x.event.Result = ResultReplay
	x.sendReplay(r)
}

// sendReplay sends status, headers and bytes, beside the headers that outer
// middleware sets on any request.
func (x *exchange) sendReplay(r Response) {
	if hook := x.m.opts.Response.ReplayHook; hook != nil {
		if err := hook(x.r, &r); err != nil {
			x.note(err)
			x.writeProblem(x.w, x.problemOf(err))
			return
		}
	}
	h := x.w.Header()
	for name, values := range r.Header {
		if !x.m.opts.own[http.CanonicalHeaderKey(name)] {
			h[name] = slices.Clone(values)
		}
	}
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	h.Set(x.m.opts.Response.ReplayHeader, "true")
	x.event.Status = r.Status
	sendBody(x.w, r.Status, r.Body)
}

// refuse answers with the problem that code names. err is for the log only.
func (x *exchange) refuse(result Result, code string, err error) {
	x.note(err)
	x.answer(result, x.m.problem(code))
}

// noRoom answers that the store is full, or that enough handlers run.
func (x *exchange) noRoom(err error) {
	p := x.m.problem(CodeCapacity)
	if quota := (*QuotaError)(nil); errors.As(err, &quota) {
		p.Title, p.RetryAfter = "Too many idempotency keys in use", maxRetryAfter
	}
	x.note(err)
	x.answer(ResultCapacity, p)
}

func (x *exchange) answer(result Result, p *Problem) {
	x.event.Result = result
	x.writeProblem(x.w, p)
}

// writeProblem answers with p. Without a key there is none to retry with.
func (x *exchange) writeProblem(w http.ResponseWriter, p *Problem) {
	p = x.m.opts.complete(p)
	if x.id.Key == "" && p.SameKey {
		p.Retryable, p.SameKey, p.Detail = false, false, ""
	}
	x.event.Status, x.event.Code = p.Status, p.Code
	x.m.opts.Problems.Writer(w, x.r, p)
}
