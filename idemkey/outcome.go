package idemkey

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sagamill/sagamill/internal/sagaid"
)

// A Verdict says what becomes of a request once its handler has returned. It
// is the handler's, by [SetVerdict], or else the [Policy]'s.
type Verdict uint8

// The verdicts.
const (
	// Undecided leaves it to the policy.
	Undecided Verdict = iota
	// Keep keeps the response for replays. The business writes commit if its
	// status is 2xx or 3xx, and roll back otherwise.
	Keep
	// Retryable rolls back; the same request may run again under the key.
	Retryable
	// Amendable rolls back and forgets the key, so that the client may correct
	// the request and use the key again.
	Amendable
	// CommitAnyway commits and keeps the response whatever its status, as for
	// a declined payment whose record must stay.
	CommitAnyway
)

// A Policy gives the verdict on a status where the handler gave none. Panics
// and timeouts are always Retryable: they leave no response to keep.
type Policy func(status int) Verdict

// notKept are client errors that say nothing about the request itself.
var notKept = []int{401, 403, 407, 408, 409, 421, 423, 425, 429}

// DefaultPolicy keeps successes and redirects, and client errors except those
// that depend on who asks and when: 401 403 407 408 409 421 423 425 429. All
// else may run again.
func DefaultPolicy(status int) Verdict {
	if status >= 200 && status < 500 && !slices.Contains(notKept, status) {
		return Keep
	}
	return Retryable
}

// SuccessOnly keeps 2xx and 3xx.
func SuccessOnly(status int) Verdict {
	if succeeded(status) {
		return Keep
	}
	return Retryable
}

// KeepAll keeps every response, server errors too: a client gets the same
// failure until it chooses a new key.
func KeepAll(int) Verdict { return Keep }

// ForgetFailures keeps 2xx and 3xx and forgets the key of anything else.
func ForgetFailures(status int) Verdict {
	if succeeded(status) {
		return Keep
	}
	return Amendable
}

func succeeded(status int) bool { return status >= 200 && status < 400 }

// A RequestInfo tells a handler what it runs as.
type RequestInfo struct {
	Identity
	Incarnation string    // of the record: see [Decision]
	Attempt     int       // 1, and higher after a failure or a take-over
	ExpiresAt   time.Time // when the key may be forgotten
}

// A run is what the handler and the middleware share by the context. Once it is
// closed it does not change.
type run struct {
	place placement
	info  RequestInfo

	mu      sync.Mutex
	closed  bool
	verdict Verdict
	err     error
}

func (r *run) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// decide sets what becomes of the request, unless r is closed.
func (r *run) decide(set func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		set()
	}
}

// verdict returns the handler's, or else the policy's on status.
func (x *exchange) verdict(r *run, status int) Verdict {
	r.mu.Lock()
	verdict := r.verdict
	r.mu.Unlock()
	if verdict == Undecided {
		return x.m.opts.Policy(status)
	}
	return verdict
}

type runKey struct{}

// withRun returns the context of the handler: it tells what the handler runs as, and which
// saga its messages belong to.
func withRun(ctx context.Context, r *run, begins sagaid.ID) context.Context {
	if begins.Key != "" {
		ctx = sagaid.NewContext(ctx, begins)
	}
	return context.WithValue(ctx, runKey{}, r)
}

func runFrom(ctx context.Context) *run {
	r, _ := ctx.Value(runKey{}).(*run)
	return r
}

// Info returns what the request that ctx belongs to runs as. It is not ok for
// a request without a key.
func Info(ctx context.Context) (info RequestInfo, ok bool) {
	r := runFrom(ctx)
	if r == nil || r.info.Key == "" {
		return RequestInfo{}, false
	}
	return r.info, true
}

// SetVerdict decides what becomes of the request, whatever its status. The
// last call before the handler returns counts; after that, and outside of a
// [Middleware], it does nothing. Several goroutines may call it.
func SetVerdict(ctx context.Context, v Verdict) {
	if r := runFrom(ctx); r != nil {
		r.decide(func() { r.verdict = v })
	}
}

// Fail makes the request fail with err once the handler returns: the business
// writes roll back, what the handler has written is discarded, and the answer
// is err itself if it is or wraps a [*Problem], else what Options.Problems.MapError
// makes of it, else 503 [CodeTxConflict] for an [ErrTxConflict] or a driver's serialization failure
// or deadlock (SQLState 40001, 40P01), else a 500. It is for adapters whose handlers return errors.
// After the handler has returned it does nothing.
func Fail(ctx context.Context, err error) {
	if r := runFrom(ctx); r != nil {
		r.decide(func() { r.err = err })
	}
}

// storedHeaders are the response headers that describe the stored content.
var storedHeaders = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Location", "Location",
	"Etag", "Last-Modified", "Link", "Cache-Control", "Vary", "Deprecation", "Sunset",
}

// neverStored are headers of one exchange or one caller. Replaying them would
// hand out credentials or break the connection.
func neverStored(name string) bool {
	switch name = http.CanonicalHeaderKey(name); name {
	case "Set-Cookie", "Authorization", "Www-Authenticate", "Connection", "Keep-Alive", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Content-Length", "Date", "Server", "Alt-Svc":
		return true
	}
	return len(name) >= 6 && name[:6] == "Proxy-"
}
