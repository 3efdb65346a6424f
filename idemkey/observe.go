package idemkey

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"time"
)

// A Result says how a request was decided. Results are few and fixed, so that
// they can label a metric; keys never should.
type Result string

// The results.
const (
	ResultFirst        Result = "first"     // ran, attempt 1
	ResultAgain        Result = "again"     // ran, after a failure or a take-over
	ResultKeyless      Result = "keyless"   // ran without a key
	ResultFailOpen     Result = "fail_open" // ran unprotected: the store failed
	ResultReplay       Result = "replay"
	ResultRecovered    Result = "recovered" // answered with what Options.Recover knew
	ResultInProgress   Result = "in_progress"
	ResultMismatch     Result = "mismatch"
	ResultMissing      Result = "missing"      // no key
	ResultInvalid      Result = "invalid"      // malformed key, or unreadable body
	ResultUnauthorized Result = "unauthorized" // no scope
	ResultTooLarge     Result = "too_large"    // request body
	ResultExpired      Result = "expired"
	ResultTombstone    Result = "tombstone"
	ResultUnknown      Result = "unknown"     // attempted too often, or its owner vanished
	ResultUnavailable  Result = "unavailable" // the store failed
	ResultCapacity     Result = "capacity"
	ResultCorrupt      Result = "corrupt" // stored response

	// ResultMisconfigured: the service is put together wrongly, and no such request can run.
	ResultMisconfigured Result = "misconfigured"

	ResultFingerprintUnknown Result = "fingerprint_unknown" // Options.Fingerprint.Versions lacks settings
)

// An Outcome says what became of a handler that ran.
type Outcome string

// The outcomes.
const (
	OutcomeKept     Outcome = "kept"      // committed, response kept
	OutcomeRejected Outcome = "rejected"  // rolled back, response kept
	OutcomeFailed   Outcome = "failed"    // rolled back, may run again
	OutcomeAmended  Outcome = "amended"   // rolled back, key forgotten
	OutcomeHeld     Outcome = "held"      // rolled back; what happened outside is unknown, and a decision is awaited
	OutcomeLost     Outcome = "lost"      // another owner had taken over
	OutcomeUnknown  Outcome = "ambiguous" // the commit's result was lost
	OutcomeUnkept   Outcome = "unkept"    // effects stand, response not stored
)

// An Op is a call of the store.
type Op string

// The calls that can fail.
const (
	OpBegin   Op = "begin"
	OpCommit  Op = "commit"
	OpReject  Op = "reject"
	OpRelease Op = "release"
	OpRenew   Op = "renew"
)

// An Event describes one covered request, when it is over.
type Event struct {
	Route    string // the pattern of the ServeMux, if the middleware is inside of one
	Result   Result
	Outcome  Outcome // of a handler that ran
	Code     string  // of the problem that was answered, if one was
	Status   int     // 0 if the handler panicked
	Attempt  int     // of a handler that ran
	Started  bool    // a handler ran, and a StartObserver was called
	TookOver bool    // the attempt before never ended: its owner had vanished
	Oversize bool    // body or headers were over what may be stored, so a tombstone was to be kept
	Stored   int     // bytes of body
	Begin    time.Duration
	Handler  time.Duration
	Err      error // the service's own failure
}

// An Observer gets the Event of every covered request, on the request's goroutine. It may also be a
// [StartObserver], a [StoreObserver] and a [SweepObserver].
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// Started of a StartObserver is called before a handler runs, on its goroutine. For each such
// call Observe is called later with Event.Started, even if the handler panics.
type StartObserver interface {
	Started(ctx context.Context, route string)
}

// StoreFailed of a StoreObserver is called when a call of the store fails. A
// lost lease, a refused commit and a full store are answers, and no failures. It
// must be safe for concurrent use: leases are renewed beside the handler.
type StoreObserver interface {
	StoreFailed(ctx context.Context, route string, op Op, err error)
}

// storeAnswers are errors that are a store's answer, and no failure of it.
var storeAnswers = []error{ErrCapacity, ErrRecordCorrupt, ErrLeaseLost, ErrTxMisuse, ErrTxConflict, ErrNotCommitted}

// noteError adds err to the event's errors. It keeps those that were noted before.
func (q *request) noteError(err error) {
	switch {
	case err == nil, errors.Is(q.event.Err, err):
	case q.event.Err == nil:
		q.event.Err = err
	default:
		q.event.Err = errors.Join(q.event.Err, err)
	}
}

// noteStoreFailure tells the Observer of err, if it is a failure of the store.
func (q *request) noteStoreFailure(op Op, err error) {
	o, ok := q.m.opts.Observer.(StoreObserver)
	if !ok || err == nil || slices.ContainsFunc(storeAnswers, func(answer error) bool { return errors.Is(err, answer) }) {
		return
	}
	o.StoreFailed(q.detachedContext(), q.event.Route, op, err)
}

// noteStart tells the Observer that the handler is about to run.
func (q *request) noteStart() {
	q.event.Started = true
	if o, ok := q.m.opts.Observer.(StartObserver); ok {
		o.Started(q.detachedContext(), q.event.Route)
	}
}

// ourFault are the results by which an error is the service's, regardless of the status.
var ourFault = []Result{ResultFailOpen, ResultFingerprintUnknown, ResultUnknown}

// reportEvent writes the request's one log line and calls the Observer.
func (q *request) reportEvent(ctx context.Context) {
	e, o := &q.event, q.m.opts
	if o.Observer != nil {
		o.Observer.Observe(ctx, *e)
	}
	level := slog.LevelInfo
	if e.Err != nil && (slices.Contains(ourFault, e.Result) || e.Status == 0 || e.Status >= 500 || errors.Is(e.Err, errStreamCut)) {
		level = slog.LevelError
	}
	if !o.Logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("result", string(e.Result)),
		slog.Int("status", e.Status),
		slog.Duration("begin", e.Begin),
	}
	if e.Route != "" {
		attrs = append(attrs, slog.String("route", e.Route))
	}
	if e.Code != "" {
		attrs = append(attrs, slog.String("code", e.Code))
	}
	if e.Attempt > 0 {
		attrs = append(attrs, slog.String("outcome", string(e.Outcome)), slog.Int("attempt", e.Attempt), slog.Duration("handler", e.Handler))
	}
	if e.TookOver {
		attrs = append(attrs, slog.Bool("took_over", true))
	}
	if e.Oversize {
		attrs = append(attrs, slog.Bool("oversize", true))
	}
	if id := cmp.Or(q.id, q.claim.ID); id.Key != "" {
		attrs = append(attrs, identityAttr(id, o.LogKeys))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
	o.Logger.LogAttrs(ctx, level, "idemkey: request", attrs...)
}

// Digest names id without showing it, in 12 hexadecimal digits: a key may be business data, or all that a client proves
// itself with. The log names requests so, and so do the pages and commands of package operator.
func (id Identity) Digest() string {
	d := digest{sha256.New()}
	d.writeStrings(id.Namespace, id.Scope, id.Key)
	return hex.EncodeToString(d.Sum(nil)[:6])
}

// identityAttr names an identity for the log, by its digest unless plain.
func identityAttr(id Identity, plain bool) slog.Attr {
	if plain {
		return slog.Group("id", "namespace", id.Namespace, "scope", id.Scope, "key", id.Key)
	}
	return slog.String("key", id.Digest())
}
