package idemkey

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// A Middleware makes handlers idempotent. It is safe for concurrent use.
type Middleware struct {
	store   Store
	opts    *Options
	traits  Traits
	methods map[string]bool
	room    *waitingRoom   // shared by all routes
	scopes  *scopeCount    // shared by all routes
	cache   *replayCache   // nil: off
	routes  *routeSettings // shared by all routes
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
	o := opts.cloneOptions()
	o.setDefaults()
	if err := o.checkOptions(traitsOf(store)); err != nil {
		return nil, err
	}
	o.prepareLookups()
	m := &Middleware{store: store, opts: o, traits: traitsOf(store), methods: make(map[string]bool)}
	m.room = &waitingRoom{keys: make(map[Identity]*waiters)}
	m.scopes = &scopeCount{running: make(map[string]int)}
	m.routes = &routeSettings{byLabel: make(map[string]*fingerprinter)}
	m.routes.addSettings(o)
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
// fields that it ignores, and gives each of its Fingerprint.Versions all fields too.
// docs/upgrading.md says what a change of them does to keys in use.
func (m *Middleware) With(set func(*Options)) (*Middleware, error) {
	o := m.opts.cloneOptions()
	if set == nil {
		return nil, errors.New("idemkey: With needs a function that sets options")
	}
	set(o)
	route, err := New(m.store, o)
	if err != nil {
		return nil, err
	}
	route.room, route.scopes, route.routes = m.room, m.scopes, m.routes
	m.routes.addSettings(route.opts)
	if o.Response.LocalReplays == m.opts.Response.LocalReplays {
		route.cache = m.cache
	}
	return route, nil
}

// Handler returns next behind m. Authentication, authorisation, tracing, CORS,
// compression and a recoverer belong outside of it. Middleware that reads the request's body outside of it
// must restore r.Body, or be inside of [Middleware.Outer]: otherwise requests with a key are
// answered with 500, [CodeBodyConsumed].
//
// When a response reaches the client, its outcome is durable. If the process
// dies before, a retry with the same key gets the stored response, or runs
// next again where nothing was committed. Of two requests with one key at the
// same time, one runs next, and the other is answered with 409.
//
// A panic of next, or of a function of the options, releases the key and goes on to the
// caller unchanged.
//
// A request goes through one Handler on a store for its key. Where there are two, on a router and on
// a route, every request is answered with 500, [CodeMountedTwice], and the log says where they are.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	site := mountSite()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !m.coversRequest(r) {
			m.passBy(w, r, next)
			return
		}
		m.serveStages(w, r, next, site)
	})
}

// ErrNotIdempotent reports that a handler needs the transaction of an idempotent request, and that no middleware makes the
// request one.
var ErrNotIdempotent = errors.New("idemkey: the request does not go through an idempotency middleware that covers it")

// passBy serves a request that m does not cover. If next panics with an [ErrNotIdempotent], as idempg.Tx does, it is
// answered with 500, [CodeNotIdempotent], and the log says why the request is not covered.
func (m *Middleware) passBy(w http.ResponseWriter, r *http.Request, next http.Handler) {
	defer func() {
		thrown := recover()
		if thrown == nil {
			return
		}
		if err, ok := thrown.(error); !ok || !errors.Is(err, ErrNotIdempotent) {
			panic(thrown)
		}
		reason := "Options.Skip passes the request by"
		if !m.methods[r.Method] {
			reason = fmt.Sprintf("%s is not among Options.Methods, %v", r.Method, m.opts.Methods)
		}
		q := newRequest(m, w, r)
		defer q.reportEvent(context.WithoutCancel(r.Context()))
		p := m.problemByCode(CodeNotIdempotent)
		p.Detail = "The handler runs in the transaction of an idempotent request only, and " + reason + "."
		q.noteError(fmt.Errorf("%w: %s: change Options.Methods, or mount the handler without idempg.Tx", ErrNotIdempotent, reason))
		answerer{q}.answerProblem(ResultMisconfigured, p)
	}()
	next.ServeHTTP(w, r)
}

// serveStages takes a covered request through the stages: receive, claim, execute, record. Clients observe
// their order. A panic goes on to the caller, after the key was released and the request was reported.
func (m *Middleware) serveStages(w http.ResponseWriter, r *http.Request, next http.Handler, site mountStack) {
	q := newRequest(m, w, r)
	defer q.reportEvent(context.WithoutCancel(r.Context()))
	claims := &claimer{request: q}
	defer claims.leaveScope()
	answers := answerer{q}
	records := &recorder{request: q, answers: answers}
	defer records.releaseAfterPanic()

	receives := &receiver{request: q, answers: answers}
	if !receives.receiveRequest(site) {
		return
	}
	q.claim.Misused = records.renderMisuse
	executes := &executor{request: q, next: next, records: records}
	switch found, err := claims.decideClaim(); {
	case err != nil && claims.mayFailOpen(err):
		executes.runUnprotected(err)
	case err != nil:
		answers.refuseClaim(err)
	case found.Kind != KindProceed:
		answers.answerDecision(found)
	case found.recovered != nil:
		records.keepRecovered(found)
	default:
		executes.runHandler(found)
	}
}

func (m *Middleware) coversRequest(r *http.Request) bool {
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
	expired := "new"
	if o.Key.RejectExpired {
		expired = "rejected"
	}
	body, err := json.Marshal(map[string]any{
		"header": o.Key.Header, "aliases": append([]string{}, o.Key.Aliases...), "syntax": syntax, "required": !o.Key.Optional,
		"min_length": o.Key.MinLen, "max_length": o.Key.MaxLen, "methods": o.Methods,
		"ttl_seconds": int64(o.Limits.TTL.Seconds()), "expired_key": expired, "replay_header": o.Response.ReplayHeader,
		"max_request_bytes": o.Limits.MaxRequestBody, "codes": m.problemStatuses(),
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

func (m *Middleware) problemStatuses() map[string]int {
	statuses := make(map[string]int, len(problems))
	for code := range problems {
		statuses[code] = m.problemByCode(code).Status
	}
	return statuses
}

// problemByCode returns the problem that code names, with the configured status.
func (m *Middleware) problemByCode(code string) *Problem {
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
