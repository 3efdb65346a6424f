package idemkey

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"
)

// A Middleware makes handlers idempotent. It is safe for concurrent use.
type Middleware struct {
	store   Store
	opts    *Options
	methods map[string]bool
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
	m := &Middleware{store: store, opts: o, methods: make(map[string]bool)}
	for _, method := range o.Methods {
		m.methods[method] = true
	}
	return m, nil
}

// With returns a Middleware on the same store whose options are those of m,
// changed by set: one route's own limits, for instance.
func (m *Middleware) With(set func(*Options)) (*Middleware, error) {
	o := m.opts.clone()
	set(o)
	return New(m.store, o)
}

// Handler returns next behind m. Authentication, authorisation, tracing, CORS,
// compression and a recoverer belong outside of it.
//
// When a response reaches the client, its outcome is durable. If the process
// dies before, a retry with the same key gets the stored response, or runs
// next again where nothing was committed. Of two requests with one key at the
// same time, one runs next and the other is told to come back.
//
// A panic of next releases the key and goes on to the caller unchanged.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !m.methods[r.Method] || m.opts.Skip != nil && m.opts.Skip(r) {
			next.ServeHTTP(w, r)
			return
		}
		x := &exchange{m: m, w: w, r: r, next: next, event: Event{Route: r.Pattern}}
		defer func() { x.report(context.WithoutCancel(r.Context())) }()
		x.serve()
	})
}

// PolicyHandler answers with what a client has to know, in JSON: the published
// expiry and uniqueness policy that the Idempotency-Key draft asks for.
func (m *Middleware) PolicyHandler() http.Handler {
	o := m.opts
	syntax := "quoted string or bare"
	if o.StrictSyntax {
		syntax = "quoted string"
	}
	body, err := json.Marshal(map[string]any{
		"header": o.Header, "aliases": append([]string{}, o.HeaderAliases...), "syntax": syntax, "required": !o.Optional,
		"min_length": o.MinKeyLen, "max_length": o.MaxKeyLen, "methods": o.Methods,
		"ttl_seconds": int64(o.TTL.Seconds()), "expired_key": expiredPolicy(o), "replay_header": o.ReplayHeader,
		"max_request_bytes": o.MaxRequestBody, "codes": m.codes(),
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
	if o.RejectExpired {
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
		p.Status = m.opts.InFlightStatus
	case CodeKeyReused:
		p.Status = m.opts.MismatchStatus
	}
	return p
}

// An exchange is one covered request on its way through.
type exchange struct {
	m     *Middleware
	w     http.ResponseWriter
	r     *http.Request
	next  http.Handler
	id    Identity // empty without a key
	lost  bool     // another owner took over while the handler ran
	event Event
}

// serve goes through the steps in their observable order: key, scope, body,
// fingerprint, claim. The body is read whole before anything is claimed, so
// that a slow client holds no lock and no connection.
func (x *exchange) serve() {
	o := x.m.opts
	claim := Claim{TTL: o.TTL, Lease: o.Lease, ExecTimeout: o.ExecTimeout, MaxAttempts: o.MaxAttempts, RejectExpired: o.RejectExpired}
	sent, err := o.readKey(x.r.Header)
	switch {
	case errors.Is(err, errKeyMissing) && o.Optional:
	case errors.Is(err, errKeyMissing):
		x.refuse(ResultMissing, CodeKeyMissing, nil)
		return
	case err != nil:
		x.refuse(ResultInvalid, CodeKeyInvalid, nil)
		return
	default:
		if claim.ID, err = x.identify(sent.key); err != nil {
			x.refuse(ResultUnauthorized, CodeScopeMissing, err)
			return
		}
		x.id = claim.ID
		body, ok := x.readBody()
		if !ok {
			return
		}
		if claim.FP, err = o.fingerprint(x.r, body); err != nil {
			x.refuse(ResultInvalid, CodeBodyUnreadable, err)
			return
		}
		x.w.Header().Set(sent.header, sent.value) // checked: it can hold no line break
	}
	x.begin(claim)
}

func (x *exchange) identify(key string) (Identity, error) {
	id := Identity{Namespace: x.m.opts.Namespace, Scope: singleTenant, Key: key}
	if x.m.opts.SingleTenant {
		return id, nil
	}
	var err error
	if id.Scope, err = x.m.opts.Scope(x.r); err != nil {
		return Identity{}, err
	}
	if !text(id.Scope, MaxScope) {
		return Identity{}, errors.New("idemkey: the scope is empty, too long or not printable")
	}
	return id, nil
}

// readBody reads the request's body and puts it back for the handler. It has
// answered if it is not ok.
func (x *exchange) readBody() (body []byte, ok bool) {
	limit := x.m.opts.MaxRequestBody
	if x.r.ContentLength > limit {
		x.refuse(ResultTooLarge, CodeBodyTooLarge, nil)
		return nil, false
	}
	body, err := io.ReadAll(http.MaxBytesReader(x.w, x.r.Body, limit))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		x.refuse(ResultTooLarge, CodeBodyTooLarge, nil)
		return nil, false
	}
	if err != nil {
		x.refuse(ResultInvalid, CodeBodyUnreadable, nil)
		return nil, false
	}
	x.r = x.r.WithContext(x.r.Context()) // a copy: the caller's request keeps its own body
	x.r.Body, x.r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return body, true
}

// begin claims the key and acts on the decision.
func (x *exchange) begin(claim Claim) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(x.detached(), x.m.opts.StoreTimeout)
	d, err := x.m.store.Begin(ctx, claim)
	cancel()
	x.event.Begin = time.Since(start)
	switch {
	case errors.Is(err, ErrCapacity):
		x.refuse(ResultCapacity, CodeCapacity, err)
	case errors.Is(err, ErrRecordCorrupt):
		x.refuse(ResultCorrupt, CodeRecordCorrupt, err)
	case err != nil:
		x.refuse(ResultUnavailable, CodeStoreUnavailable, err)
	case d.Kind == KindProceed:
		x.execute(d)
	default:
		x.turnAway(d)
	}
}

// detached is the request's context without its end: a client that goes away
// must not leave a half-made claim or outcome behind.
func (x *exchange) detached() context.Context { return context.WithoutCancel(x.r.Context()) }

// turnAway answers a decision by which the handler does not run.
func (x *exchange) turnAway(d Decision) {
	switch d.Kind {
	case KindReplay:
		x.replay(d.Record.Response)
	case KindInFlight:
		p := x.m.problem(CodeInProgress)
		p.RetryAfter = d.RetryAfter
		x.answer(ResultInProgress, p)
	case KindMismatch:
		x.refuse(ResultMismatch, CodeKeyReused, nil)
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

// replay sends a stored response: its status, headers and bytes, beside the
// headers that outer middleware sets on any request.
func (x *exchange) replay(r Response) {
	h := x.w.Header()
	for name, values := range r.Header {
		h[name] = slices.Clone(values)
	}
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	h.Set(x.m.opts.ReplayHeader, "true")
	x.event.Result, x.event.Status = ResultReplay, r.Status
	sendBody(x.w, r.Status, r.Body)
}

// refuse answers with the problem that code names. err is for the log only.
func (x *exchange) refuse(result Result, code string, err error) {
	x.event.Err = err
	x.answer(result, x.m.problem(code))
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
	x.m.opts.Problem(w, x.r, p)
}
