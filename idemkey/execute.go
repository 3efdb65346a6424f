package idemkey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sagaid"
	"github.com/sagamill/sagamill/internal/sqlstate"
)

// errNotReturned is for the log and the observer; the panic itself goes on.
var errNotReturned = errors.New("idemkey: the handler, or a function of the options, panicked or ended its goroutine")

// unwound releases the execution if it is still open, because a function of the user's has
// panicked or has ended the goroutine. That goes on unchanged, whatever the store says.
func (x *exchange) unwound() {
	if x.open == nil {
		return
	}
	err := guard.Call(func() error {
		x.release(x.open, Bound, http.StatusInternalServerError)
		return nil
	})
	x.event.Err = errors.Join(errNotReturned, x.event.Err, err)
}

// execute runs the handler and settles its outcome. Whatever way the handler
// ends, the execution ends too (see unwound). If the response has begun, the connection is
// cut, and the event tells of the panic.
func (x *exchange) execute(d Decision) {
	x.open = d.Exec
	x.event.Result, x.event.Attempt, x.event.TookOver = ResultFirst, d.Attempt, d.TookOver
	switch {
	case x.id.Key == "":
		x.event.Result = ResultKeyless
	case d.Attempt > 1:
		x.event.Result = ResultAgain
	}
	if err := failpoint.Hit("idemkey/after-begin"); err != nil {
		x.release(d.Exec, Bound, http.StatusInternalServerError)
		x.fail(err)
		return
	}
	b := x.newBuffer(x.m.opts.Limits.HardResponseLimit)
	state := &run{place: x.place, info: RequestInfo{Identity: x.id, Incarnation: d.Incarnation, Attempt: d.Attempt, ExpiresAt: d.ExpiresAt}}
	ctx, cancel := x.handlerContext()
	defer cancel()
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)

	start, returned := time.Now(), false
	stop := x.keepAlive(d.Exec, lost)
	defer func() {
		if returned {
			return
		}
		state.close()
		x.cutStream()
		b.close()
		stop()
		x.event.Handler = time.Since(start)
		switch {
		case x.streaming():
			x.endStream(thrownError(recover()))
		case x.stream != nil && x.stream.err != nil:
			x.open = nil // as notStarted: the key is not released
			x.event.Outcome, x.event.Err = OutcomeUnkept, errors.Join(errNotReturned, x.stream.err)
		}
	}()
	x.started()
	begins := sagaid.ID{Scope: x.claim.ID.Scope, Key: x.claim.ID.Key, Incarnation: d.Incarnation}
	x.next.ServeHTTP(x.writer(d.Exec, state, b, stop, lost), x.r.WithContext(d.Exec.Context(withRun(ctx, state, begins))))
	returned = true
	state.close()
	if ctx.Err() != nil || state.err != nil {
		x.cutStream()
	}
	b.finish()
	stop()
	x.event.Handler = time.Since(start)
	x.lost = errors.Is(context.Cause(ctx), ErrLeaseLost) || errors.Is(state.err, ErrLeaseLost)
	x.settle(ctx, d.Exec, state, b)
}

func (x *exchange) handlerContext() (context.Context, context.CancelFunc) {
	parent := x.r.Context()
	if !x.m.opts.CancelOnDisconnect {
		parent = x.detached()
	}
	return context.WithTimeout(parent, x.m.opts.Limits.ExecTimeout)
}

// settle makes the outcome durable and only then answers.
func (x *exchange) settle(ctx context.Context, exec Execution, state *run, b *buffer) {
	switch {
	case x.streaming():
		x.endStream(errors.Join(ctx.Err(), state.err))
		return
	case x.stream != nil && x.stream.err != nil:
		x.notStarted(x.stream.err)
		return
	case ctx.Err() != nil && !x.lost: // too late, even if it succeeded: the store may have given up on it
		x.event.Err = context.Cause(ctx)
		x.release(exec, Bound, http.StatusServiceUnavailable)
		x.writeProblem(x.w, newProblem(CodeExecTimeout))
		return
	case b.over && x.m.traits.Transactional:
		x.release(exec, Bound, http.StatusInternalServerError)
		x.answerReleased(b)
		return
	case state.err != nil && !b.over: // over the limit it may be that of the refused Write; what was done stands
		b = x.renderError(state)
	}
	verdict := x.verdict(state, b.status)
	switch {
	case verdict == Keep, verdict == CommitAnyway:
		x.keep(exec, b, verdict == CommitAnyway || succeeded(b.status))
		return
	case verdict == Amendable:
		x.release(exec, Forget, b.status)
	default:
		x.release(exec, Bound, b.status)
	}
	x.answerReleased(b)
}

// answerReleased answers with what the handler wrote, unless its end was another one.
func (x *exchange) answerReleased(b *buffer) {
	switch {
	case x.misused:
		x.answerMisused()
	case x.lost && x.m.traits.Transactional:
		x.writeProblem(x.w, x.m.problem(CodeInProgress)) // whatever the handler made of it, another is at work
	default:
		x.send(b)
	}
}

// send answers with what the handler wrote, unless a part of that is missing.
func (x *exchange) send(b *buffer) {
	if b.over {
		x.sendTooLarge()
		return
	}
	x.event.Status = b.status
	x.markFirst(b)
	b.send()
}

// markFirst says that this is no replay, whatever the handler has copied from the
// answer of a service behind it.
func (x *exchange) markFirst(b *buffer) {
	b.sent.Del(x.m.opts.Response.ReplayHeader)
	if x.m.opts.Response.EmitReplayedFalse && x.id.Key != "" {
		b.sent.Set(x.m.opts.Response.ReplayHeader, "false")
	}
}

// wake lets those look again who wait for the end of this run.
func (x *exchange) wake() {
	if x.id.Key != "" {
		x.m.room.wake(x.id)
	}
}

// fail answers a failure of our own that rolled back.
func (x *exchange) fail(err error) {
	x.note(err)
	x.writeProblem(x.w, newProblem(CodeInternal))
}

// sendTooLarge answers in the place of a body over the hard limit. A retry would come to the same.
func (x *exchange) sendTooLarge() {
	p := newProblem(CodeResponseTooLarge)
	p.Detail = fmt.Sprintf("The response body is over HardResponseLimit, %d bytes.", x.m.opts.Limits.HardResponseLimit)
	switch x.event.Outcome {
	case OutcomeKept, OutcomeRejected, OutcomeUnkept:
		p.Detail += " The request was processed, and its response was not kept."
	}
	x.note(errResponseTooLarge)
	x.writeProblem(x.w, p)
}

// renderError returns the answer to a returned error, which takes the place of what
// the handler wrote. It can be kept like any other, but never commits.
func (x *exchange) renderError(state *run) *buffer {
	p := x.problemOf(state.err)
	if p.Status >= 500 {
		x.event.Err = state.err
	}
	if state.verdict == CommitAnyway {
		state.verdict = Undecided
	}
	return x.renderProblem(p)
}

// renderProblem returns p as an answer that can be kept.
func (x *exchange) renderProblem(p *Problem) *buffer {
	b := x.newBuffer(math.MaxInt)
	x.writeProblem(b, p)
	b.finish()
	return b
}

func (x *exchange) newBuffer(limit int) *buffer {
	b := newBuffer(x.w, limit)
	b.own = x.m.opts.own
	return b
}

// problemOf maps a handler's or a commit's error. An error that is no problem
// of the caller's own making tells the client nothing about its text.
func (x *exchange) problemOf(err error) *Problem {
	if own := (*Problem)(nil); errors.As(err, &own) {
		return own
	}
	if x.m.opts.Problems.MapError != nil {
		if p := x.m.opts.Problems.MapError(err); p != nil {
			return p
		}
	}
	switch {
	case errors.Is(err, ErrLeaseLost):
		return x.m.problem(CodeInProgress)
	case errors.Is(err, ErrTxConflict), sqlstate.Conflict(err):
		return newProblem(CodeTxConflict)
	case errors.Is(err, ErrNotCommitted):
		return newProblem(CodeCommitFailed)
	}
	return newProblem(CodeInternal)
}

// keep stores the response, with the business writes if commit, and answers.
func (x *exchange) keep(exec Execution, b *buffer, commit bool) {
	written := b.response(x.m.opts.kept, x.m.opts.Limits.MaxResponseBody)
	x.event.Oversize = written.Dropped
	resp, err := x.stored(&written)
	if err == nil || !x.m.traits.Transactional { // what the handler did stands, so it must be remembered that it ran
		err = failpoint.Hit("idemkey/before-keep")
	}
	if err != nil {
		x.release(exec, Bound, http.StatusInternalServerError)
		x.fail(err)
		return
	}
	ctx, cancel := context.WithTimeout(x.detached(), x.m.opts.Limits.CompleteTimeout)
	defer cancel()
	end, op, outcome := exec.Reject, OpReject, OutcomeRejected
	if commit {
		end, op, outcome = exec.Commit, OpCommit, OutcomeKept
	}
	err = cmp.Or(end(ctx, resp), failpoint.Hit("idemkey/after-keep"))
	x.open = nil
	x.storeFailed(op, err)
	x.wake()
	switch {
	case err == nil:
		x.cacheOwn(resp)
		x.event.Outcome, x.event.Stored = outcome, len(resp.Body)
	case errors.Is(err, ErrNotStored):
		x.event.Outcome = OutcomeUnkept
		x.note(err)
		if errors.Is(err, ErrLeaseLost) {
			x.event.Outcome = OutcomeLost
		}
	default:
		x.notKept(err)
		return
	}
	x.send(b)
}

// cacheOwn caches what was just kept. Its life began at the claim, which cannot
// have been before it was sent.
func (x *exchange) cacheOwn(r Response) {
	if x.id.Key != "" {
		rec := Record{State: r.State(), FP: x.claim.FP, Response: r}
		x.m.cache.add(x.id, rec, x.m.opts.Limits.TTL, x.begun)
	}
}

// notKept answers where the handler's own response would claim what is not so.
func (x *exchange) notKept(err error) {
	x.event.Outcome = OutcomeFailed
	x.note(err)
	switch {
	case errors.Is(err, ErrLeaseLost):
		x.event.Outcome = OutcomeLost
		x.writeProblem(x.w, x.m.problem(CodeInProgress))
	case errors.Is(err, ErrOutcomeUnknown):
		x.event.Outcome = OutcomeUnknown
		x.writeProblem(x.w, newProblem(CodeUnverified))
	case errors.Is(err, ErrTxMisuse):
		x.answerMisused()
	case errors.Is(err, ErrTxConflict), errors.Is(err, ErrNotCommitted):
		x.writeProblem(x.w, x.problemOf(err))
	default:
		x.writeProblem(x.w, newProblem(CodeStoreUnavailable))
	}
}

// renderMisused is [Claim].Misused: what is kept is what answerMisused answers with.
func (x *exchange) renderMisused() Response {
	x.misuse = x.renderProblem(newProblem(CodeTxMisuse))
	written := x.misuse.response(x.m.opts.kept, x.m.opts.Limits.MaxResponseBody)
	kept, _ := x.stored(&written) // a tombstone, if it cannot be sealed
	return kept
}

func (x *exchange) answerMisused() {
	if x.misuse == nil { // there is no record
		x.writeProblem(x.w, newProblem(CodeTxMisuse))
		return
	}
	x.event.Code = CodeTxMisuse
	x.send(x.misuse)
}

// release rolls back and lets the key go. If the store does not hear of it,
// the key is free once its lease has run out: that delays a retry and no more.
func (x *exchange) release(exec Execution, mode ReleaseMode, status int) {
	ctx, cancel := context.WithTimeout(x.detached(), x.m.opts.Limits.CompleteTimeout)
	defer cancel()
	if failpoint.Hit("idemkey/before-release") != nil {
		cancel() // the store does not hear of it
	}
	err := cmp.Or(exec.Release(ctx, mode, status), failpoint.Hit("idemkey/after-release"))
	x.open = nil
	x.lost = x.lost || errors.Is(err, ErrLeaseLost)
	x.misused = errors.Is(err, ErrTxMisuse)
	switch {
	case x.lost:
		x.event.Outcome = OutcomeLost
	case mode == Forget:
		x.event.Outcome = OutcomeAmended
	default:
		x.event.Outcome = OutcomeFailed
	}
	x.note(err)
	x.storeFailed(OpRelease, err)
	x.wake()
}
