package idemkey

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/fieldhash"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sagaid"
	"github.com/sagamill/sagamill/internal/stepkey"
)

// An executor runs the handler of one claimed request.
type executor struct {
	*request
	next    http.Handler
	records *recorder
}

// A handled is the value that the record stage gets: the handler's verdict and its response.
type handled struct {
	run    *handlerRun
	buffer *buffer
	stream *stream // nil: the response is buffered
}

// runHandler runs the handler and passes what it wrote to the recorder, which ends the execution. After a
// panic of the handler releaseAfterPanic ends it. If the response has begun by then, the connection is cut.
func (x *executor) runHandler(found ruling) {
	x.records.openExecution(found)
	if err := failpoint.Hit("idemkey/after-begin"); err != nil {
		_ = x.records.releaseKey(Bound, http.StatusInternalServerError)
		x.records.answers.answerFailure(err)
		return
	}
	h := &handled{buffer: newBuffer(x.w, x.m.opts.Limits.HardResponseLimit, x.m.opts.own), run: &handlerRun{place: x.place,
		info: RequestInfo{Identity: x.id, Incarnation: found.Incarnation, Attempt: found.Attempt, ExpiresAt: found.ExpiresAt}}}
	h.buffer.head = x.r.Method == http.MethodHead
	ctx, cancel := x.handlerContext()
	defer cancel()
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)

	start, returned := time.Now(), false
	stopRenewing, stopCutting := x.keepAlive(found.Exec, lost), func() {}
	defer func() {
		if returned {
			return
		}
		stopCutting()
		h.run.closeRun()
		h.cutStream()
		h.buffer.closeWrites()
		stopRenewing()
		x.event.Handler = time.Since(start)
		if h.responseBegan() {
			x.records.endStream(h, thrownError(recover()))
		}
		x.records.settlePanicked(h)
	}()
	x.noteStart()
	w := x.handlerWriter(h, stopRenewing, lost)
	stopCutting = h.cutAtEnd(ctx)
	x.records.entered = true
	x.next.ServeHTTP(w, x.r.WithContext(found.Exec.Context(x.contextOfRun(ctx, h.run))))
	returned = true
	stopCutting()
	h.run.closeRun()
	if ctx.Err() != nil || h.run.err != nil {
		h.cutStream()
	}
	h.buffer.finishResponse()
	stopRenewing()
	x.event.Handler = time.Since(start)
	x.records.settleOutcome(ctx, h)
}

// runUnprotected runs the handler after the claim has failed with err. Nothing is remembered: the log and
// the event say so, and the response has no header that would promise a replay.
func (x *executor) runUnprotected(err error) {
	for _, name := range append([]string{x.m.opts.Key.Header}, x.m.opts.Key.Aliases...) {
		x.w.Header().Del(name)
	}
	x.id = Identity{}
	x.noteError(err)
	defer func() { // after a panic, too
		x.event.Result = ResultFailOpen
		if x.event.Outcome == OutcomeKept || x.event.Outcome == OutcomeRejected {
			x.event.Outcome = OutcomeUnkept
		}
	}()
	x.runHandler(ruling{Decision: Decision{Kind: KindProceed, Exec: keyless{}, Incarnation: newIncarnation(), Attempt: 1}})
}

// handlerContext ends after ExecTimeout, and with CancelOnDisconnect when the client disconnects.
func (x *executor) handlerContext() (context.Context, context.CancelFunc) {
	parent := x.r.Context()
	if !x.m.opts.CancelOnDisconnect {
		parent = x.detachedContext()
	}
	return context.WithTimeout(parent, x.m.opts.Limits.ExecTimeout)
}

// contextOfRun returns ctx with run, and with the identity of the sagas that the handler's messages begin.
func (x *executor) contextOfRun(ctx context.Context, run *handlerRun) context.Context {
	if id := x.claim.ID; id.Key != "" {
		ctx = sagaid.NewContext(ctx, sagaid.ID{Scope: id.Scope, Key: id.Key, Incarnation: run.info.Incarnation})
	}
	return context.WithValue(ctx, runKey{}, run)
}

// renewals is how often a lease is renewed within its length: one lost answer does not cost the lease.
const renewals = 3

// keepAlive renews exec's lease, if it ends by the clock, until stop is called. It calls lost when the store
// says that another owner has the lease. If the store cannot be reached, the handler goes on.
func (x *executor) keepAlive(exec Execution, lost context.CancelCauseFunc) (stop func()) {
	r, ok := exec.(Renewer)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(x.detachedContext())
	var wg sync.WaitGroup
	wg.Go(func() {
		every := max(x.m.opts.Limits.Lease/renewals, time.Millisecond)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			call, done := context.WithTimeout(ctx, min(every, x.m.opts.Limits.StoreTimeout))
			err := guard.Call(func() error { return r.Renew(call) })
			done()
			if errors.Is(err, ErrLeaseLost) {
				lost(ErrLeaseLost)
				return
			}
			if ctx.Err() == nil { // else the call was given up because the handler has returned
				guard.Hook(ctx, x.m.opts.Logger, "idemkey: option Observer", func() { x.noteStoreFailure(OpRenew, err) })
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// A RequestInfo tells a handler what it runs as.
type RequestInfo struct {
	Identity
	Incarnation string    // of the record: see [Decision]
	Attempt     int       // 1, and higher after a failure or a take-over
	ExpiresAt   time.Time // when the key may be forgotten
}

// A handlerRun is what the handler and the middleware share by the context. Once it is closed it does not
// change.
type handlerRun struct {
	place placement
	info  RequestInfo

	mu      sync.Mutex
	closed  bool
	verdict Verdict
	err     error
}

func (r *handlerRun) closeRun() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// setUnlessClosed calls set, which changes the verdict or the error, unless r is closed.
func (r *handlerRun) setUnlessClosed(set func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		set()
	}
}

// failWith makes the request fail with p, whatever its handler and its policy say. p is not kept.
func (r *handlerRun) failWith(p *Problem) {
	r.setUnlessClosed(func() { r.verdict, r.err = Retryable, p })
}

// failShort makes a closed run fail with short, unless that is nil or the handler has failed by itself. It reports whether
// the run has failed.
func (r *handlerRun) failShort(short error) bool {
	r.err = cmp.Or(r.err, short)
	return r.err != nil
}

// verdictOnStatus returns the handler's verdict, or else the policy's on status.
func (r *handlerRun) verdictOnStatus(status int, policy Policy) Verdict {
	r.mu.Lock()
	verdict := r.verdict
	r.mu.Unlock()
	if verdict == Undecided {
		return policy(status)
	}
	return verdict
}

type runKey struct{}

func runFrom(ctx context.Context) *handlerRun {
	r, _ := ctx.Value(runKey{}).(*handlerRun)
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

// SetVerdict sets the verdict on the request, regardless of its status. The
// last call before the handler returns counts. After that, and outside of a
// [Middleware], it does nothing. Several goroutines may call it.
func SetVerdict(ctx context.Context, v Verdict) {
	if r := runFrom(ctx); r != nil {
		r.setUnlessClosed(func() { r.verdict = v })
	}
}

// Fail makes the request fail with err once the handler returns: the business
// writes roll back, and the handler's response is discarded. The answer is the first of these:
//
//   - err itself, if it is or wraps a [*Problem];
//   - the Problem that Options.Problems.MapError makes of it;
//   - 503 [CodeTxConflict], for an [ErrTxConflict] or a driver's serialization failure or
//     deadlock (SQLState 40001, 40P01);
//   - a 500.
//
// Fail is for adapters whose handlers return errors. After the handler has returned it does nothing.
func Fail(ctx context.Context, err error) {
	if r := runFrom(ctx); r != nil {
		r.setUnlessClosed(func() { r.err = err })
	}
}

// DownstreamKey derives the idempotency key for a call that a handler makes to
// another system, such as a payment provider: the same for every attempt of id,
// and another one for any other identity or step. step tells several calls of one
// handler apart. It is 64 characters of hex.
//
// The client's own key must never be passed on. It is unique within its scope only: two
// tenants with one key would collide at the provider, and one would get the other's
// payment. A third party that knows a key could also claim it there first, so secret
// keeps the derived key from being guessed. The secret must be the same in all
// processes, and must not change while records live, or a retry calls again under
// another key. 32 random bytes serve.
//
// Messages of a saga carry [StepKey] instead, and their handlers call others with
// consumer.Delivery.EffectKey.
func DownstreamKey(secret []byte, id Identity, step string) string {
	return fieldhash.Hex(hmac.New(sha256.New, secret), "idemkey downstream 1", id.Namespace, id.Scope, id.Key, step)
}

// ErrStepKey reports a key, step or n outside the grammar of the step key.
var ErrStepKey = errors.New("idemkey: invalid step key")

// StepKey joins a client's key and the name of a saga's step to "<key>:<step>[#<n>]".
// n tells several messages to one step apart; an empty n is left out. Its error is an
// [ErrStepKey].
func StepKey(key, step, n string) (string, error) {
	k := stepkey.Key{Key: key, Step: step, N: n}
	if err := k.Check(); err != nil {
		return "", fmt.Errorf("%w: %w", ErrStepKey, err)
	}
	return k.String(), nil
}

// ParseStepKey splits a result of [StepKey], at the last colon. Its error is an
// [ErrStepKey] and never repeats s.
func ParseStepKey(s string) (key, step, n string, err error) {
	k, err := stepkey.Parse(s)
	if err != nil {
		return "", "", "", fmt.Errorf("%w: %w", ErrStepKey, err)
	}
	return k.Key, k.Step, k.N, nil
}
