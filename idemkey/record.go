package idemkey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
)

// A Verdict decides the outcome of a request whose handler has returned. The
// handler gives it by [SetVerdict], or else the [Policy] does.
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
	// Unknown rolls back and sends the response, but the request does not run again before a decision: the handler
	// cannot tell whether its effects outside of the store have happened, as after an upstream's 504. See
	// Options.ExternalEffects.
	Unknown
)

// A Policy gives the verdict on a status where the handler gave none. Panics
// and timeouts have no response to keep: they are Unknown with Options.ExternalEffects, and else Retryable.
type Policy func(status int) Verdict

// callerErrors are client errors that depend on the caller or the moment, and not on the request itself.
var callerErrors = []int{401, 403, 407, 408, 409, 421, 423, 425, 426, 429}

// DefaultPolicy keeps successes and redirects, and client errors except those
// that depend on the caller and the moment: 401 403 407 408 409 421 423 425 426 429. A
// request with any other response may run again.
func DefaultPolicy(status int) Verdict {
	if status >= 200 && status < 500 && !slices.Contains(callerErrors, status) {
		return Keep
	}
	return Retryable
}

// SuccessOnly keeps 2xx and 3xx.
func SuccessOnly(status int) Verdict {
	if isSuccess(status) {
		return Keep
	}
	return Retryable
}

// upstreamRefusals are answers of an upstream that has not begun to handle the request.
var upstreamRefusals = append([]int{http.StatusServiceUnavailable}, callerErrors...)

// UpstreamPolicy is for handlers that pass on what another system answers, such as a proxy. An upstream that answers
// 401 403 407 408 409 421 423 425 426 429 or 503 has not begun, so the same request may run again. After any other 5xx
// the outcome is unknown: see [Unknown]. All other responses are kept. It is the default with Options.ExternalEffects.
func UpstreamPolicy(status int) Verdict {
	switch {
	case slices.Contains(upstreamRefusals, status):
		return Retryable
	case status >= 500:
		return Unknown
	}
	return Keep
}

// KeepAll keeps every response, server errors too: a client gets the same
// failure until it chooses a new key.
func KeepAll(int) Verdict { return Keep }

// ForgetFailures keeps 2xx and 3xx and forgets the key of anything else.
func ForgetFailures(status int) Verdict {
	if isSuccess(status) {
		return Keep
	}
	return Amendable
}

func isSuccess(status int) bool { return status >= 200 && status < 400 }

// errNotReturned is for the log and the observer; the panic itself goes on.
var errNotReturned = errors.New("idemkey: the handler, or a function of the options, panicked or ended its goroutine")

// A recorder makes the outcome of one request durable, and only then lets it be answered.
type recorder struct {
	*request
	answers   answerer
	open      Execution // nil: the store was told the outcome, or nothing was claimed
	asked     time.Time // see ruling
	entered   bool      // the handler was called
	unsettled bool      // see [Decision].Unsettled
	lost      bool      // another owner took over while the handler ran
	misuse    *buffer   // the answer that is kept where the handler ended the transaction itself; nil: no such record
}

// openExecution makes the recorder responsible for the end of a claimed execution.
func (c *recorder) openExecution(found ruling) {
	c.open, c.asked, c.unsettled = found.Exec, found.asked, found.Unsettled
	c.event.Result, c.event.Attempt, c.event.TookOver = ResultFirst, found.Attempt, found.TookOver
	switch {
	case c.id.Key == "":
		c.event.Result = ResultKeyless
	case found.Attempt > 1:
		c.event.Result = ResultAgain
	}
}

// settleOutcome makes the outcome durable and only then answers. ctx is the handler's.
func (c *recorder) settleOutcome(ctx context.Context, h *handled) {
	c.lost = errors.Is(context.Cause(ctx), ErrLeaseLost) || errors.Is(h.run.err, ErrLeaseLost)
	b := h.buffer
	switch {
	case h.responseBegan():
		c.endStream(h, errors.Join(ctx.Err(), h.run.err))
		return
	case h.streamErr() != nil || c.open == nil: // settled when the stream was to begin, also if an observer panicked then
		c.answerUnstarted(cmp.Or(h.streamErr(), errStreamCut))
		return
	case ctx.Err() != nil && !c.lost: // too late, even if it succeeded: the store may have given up on it
		c.event.Err = context.Cause(ctx)
		_ = c.releaseKey(c.unfinished(), http.StatusServiceUnavailable)
		c.answers.writeProblem(c.w, c.unfinishedProblem(newProblem(CodeExecTimeout)))
		return
	case b.over && c.m.traits.Transactional:
		c.answerReleased(b, c.releaseKey(c.unfinished(), http.StatusInternalServerError))
		return
	case h.run.failShort(b.checkLength()) && !b.over: // over the limit the error may be that of the refused Write; the effects stand
		if c.claim.External && !c.lost && h.run.verdict == Undecided && !c.answers.isAnswer(h.run.err) {
			c.holdFailed(h.run.err)
			return
		}
		b = c.answers.renderError(h.run)
	}
	switch verdict := h.run.verdictOnStatus(b.status, c.m.opts.Policy); verdict {
	case Keep, CommitAnyway:
		c.keepResponse(b, verdict == CommitAnyway || isSuccess(b.status))
	case Amendable:
		c.answerReleased(b, c.releaseKey(Forget, b.status))
	case Unknown:
		c.answerReleased(b, c.releaseKey(c.unknownMode(), b.status))
	default:
		c.answerReleased(b, c.releaseKey(Bound, b.status))
	}
}

// holdFailed ends a run with external effects whose handler has failed with err, and has not said by a [*Problem] or a
// verdict what that means. Its status would be the middleware's, of which no policy can judge.
func (c *recorder) holdFailed(err error) {
	c.event.Err = err
	b := c.answers.renderProblem(c.unfinishedProblem(c.answers.problemFor(err)))
	c.answerReleased(b, c.releaseKey(Hold, b.status))
}

// keepResponse stores the response, with the business writes if commit, and answers.
func (c *recorder) keepResponse(b *buffer, commit bool) {
	written := b.keptResponse(c.m.opts, c.m.opts.Limits.MaxResponseBody)
	c.event.Oversize = written.Dropped
	resp, err := c.prepareStored(&written)
	if err == nil || !c.m.traits.Transactional { // without transactions the effects stand, so the run must be remembered
		err = failpoint.Hit("idemkey/before-keep")
	}
	if err != nil {
		_ = c.releaseKey(c.unfinished(), http.StatusInternalServerError)
		c.answers.answerFailure(err)
		return
	}
	ctx, cancel := context.WithTimeout(c.detachedContext(), c.m.opts.Limits.CompleteTimeout)
	defer cancel()
	end, op, outcome := c.open.Reject, OpReject, OutcomeRejected
	if commit {
		end, op, outcome = c.open.Commit, OpCommit, OutcomeKept
	}
	err = cmp.Or(end(ctx, resp), failpoint.Hit("idemkey/after-keep"))
	c.open = nil
	c.noteStoreFailure(op, err)
	c.wakeWaiters()
	switch {
	case err == nil:
		c.cacheResponse(resp)
		c.event.Outcome, c.event.Stored = outcome, len(resp.Body)
	case errors.Is(err, ErrNotStored):
		c.event.Outcome = OutcomeUnkept
		c.noteError(err)
		if errors.Is(err, ErrLeaseLost) {
			c.event.Outcome = OutcomeLost
		}
	default:
		c.answerNotKept(err)
		return
	}
	c.answers.sendWritten(b)
}

// cacheResponse caches a response that was just kept. Its life began at the claim, and no earlier than the
// claim was sent.
func (c *recorder) cacheResponse(r Response) {
	if c.id.Key != "" {
		rec := Record{State: r.State(), FP: c.claim.FP, Response: r}
		c.m.cache.addRecord(c.id, rec, c.m.opts.Limits.TTL, c.asked)
	}
}

// wakeWaiters lets the requests that wait for the end of this run ask the store again.
func (c *recorder) wakeWaiters() {
	if c.id.Key != "" {
		c.m.room.wakeWaiters(c.id)
	}
}

// releaseKey rolls back and lets the key go. If the store cannot be told, the key is free once its lease has
// run out: that delays a retry and has no other effect.
func (c *recorder) releaseKey(mode ReleaseMode, status int) error {
	last := mode == Bound && c.claim.External && c.entered && c.claim.MaxAttempts > 0 && c.event.Attempt >= c.claim.MaxAttempts
	if last || c.unsettled { // retries are answered so from now on; or an earlier run may have had its effects
		mode = Hold
	}
	ctx, cancel := context.WithTimeout(c.detachedContext(), c.m.opts.Limits.CompleteTimeout)
	defer cancel()
	if failpoint.Hit("idemkey/before-release") != nil {
		cancel() // the store is not told
	}
	err := cmp.Or(c.open.Release(ctx, mode, status), failpoint.Hit("idemkey/after-release"))
	c.open = nil
	c.lost = c.lost || errors.Is(err, ErrLeaseLost)
	switch {
	case c.lost:
		c.event.Outcome = OutcomeLost
	case mode == Forget:
		c.event.Outcome = OutcomeAmended
	case mode == Hold:
		c.event.Outcome = OutcomeHeld
	default:
		c.event.Outcome = OutcomeFailed
	}
	c.noteError(err)
	c.noteStoreFailure(OpRelease, err)
	c.wakeWaiters()
	return err
}

// unfinished is how the key of a run is released that did not come to its end: its effects outside of the store may
// have happened.
func (c *recorder) unfinished() ReleaseMode {
	if c.claim.External && c.entered {
		return Hold
	}
	return Bound
}

// unfinishedProblem answers such a run with p if a retry may run, and else as a retry will be answered.
func (c *recorder) unfinishedProblem(p *Problem) *Problem {
	if c.claim.External && c.claim.DedupesFor == 0 && c.m.opts.Recover == nil {
		return c.m.problemByCode(CodeOutcomeUnknown)
	}
	return p
}

// errHoldsNothing is for the log: the verdict cannot be followed.
var errHoldsNothing = errors.New("idemkey: verdict Unknown on a store that remembers no unfinished runs; the request may run again")

// unknownMode is how the key is released by the verdict Unknown.
func (c *recorder) unknownMode() ReleaseMode {
	if c.m.traits.Traceless && c.id.Key != "" {
		c.noteError(errHoldsNothing)
		return Bound
	}
	return Hold
}

// answerReleased answers with what the handler wrote, unless the release has found another end of the run.
func (c *recorder) answerReleased(b *buffer, released error) {
	switch {
	case errors.Is(released, ErrTxMisuse):
		c.answerMisused()
	case c.lost && c.m.traits.Transactional:
		// The handler's response does not count: another owner runs the request.
		c.answers.writeProblem(c.w, c.m.problemByCode(CodeInProgress))
	default:
		c.answers.sendWritten(b)
	}
}

// answerNotKept answers where the handler's own response would be wrong: err says why nothing was kept.
func (c *recorder) answerNotKept(err error) {
	c.event.Outcome = OutcomeFailed
	c.noteError(err)
	switch {
	case errors.Is(err, ErrLeaseLost):
		c.event.Outcome = OutcomeLost
		c.answers.writeProblem(c.w, c.m.problemByCode(CodeInProgress))
	case errors.Is(err, ErrOutcomeUnknown):
		c.event.Outcome = OutcomeUnknown
		c.answers.writeProblem(c.w, newProblem(CodeUnverified))
	case errors.Is(err, ErrTxMisuse):
		c.answerMisused()
	case errors.Is(err, ErrRecordHidden):
		c.answers.writeProblem(c.w, newProblem(CodeRecordHidden))
	case errors.Is(err, ErrTxConflict), errors.Is(err, ErrNotCommitted):
		c.answers.writeProblem(c.w, c.unfinishedProblem(c.answers.problemFor(err)))
	default:
		c.answers.writeProblem(c.w, newProblem(CodeStoreUnavailable))
	}
}

// renderMisuse is [Claim].Misused: the store keeps the answer that answerMisused sends.
func (c *recorder) renderMisuse() Response {
	c.misuse = c.answers.renderProblem(newProblem(CodeTxMisuse))
	written := c.misuse.keptResponse(c.m.opts, c.m.opts.Limits.MaxResponseBody)
	kept, _ := c.prepareStored(&written) // a tombstone, if it cannot be sealed
	return kept
}

func (c *recorder) answerMisused() {
	if c.misuse == nil { // there is no record
		c.answers.writeProblem(c.w, newProblem(CodeTxMisuse))
		return
	}
	c.event.Code = CodeTxMisuse
	c.answers.sendWritten(c.misuse)
}

// keepTombstone keeps the fact that the request ran, before a streamed response begins. After nil the
// response may be sent as it is written.
func (c *recorder) keepTombstone(b *buffer) error {
	written := b.keptResponse(c.m.opts, 0)
	written.Body, written.Dropped = nil, true
	resp, err := c.prepareStored(&written)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.detachedContext(), c.m.opts.Limits.CompleteTimeout)
	defer cancel()
	err = cmp.Or(c.open.Commit(ctx, resp), failpoint.Hit("idemkey/after-bury"))
	c.open = nil
	if err != nil {
		c.noteStoreFailure(OpCommit, err)
		return err
	}
	c.event.Outcome = OutcomeKept
	c.wakeWaiters()
	c.answers.markFirst(b)
	return nil
}

// endStream ends a response that has begun. If failed is not nil, the handler did not mean the response to
// end here: the connection is cut, so that the response does not look complete.
func (c *recorder) endStream(h *handled, failed error) {
	c.event.Status = h.stream.status
	if failed == nil {
		return
	}
	c.event.Err = fmt.Errorf("%w: %w", errStreamCut, failed)
	h.stream.cutConnection()
	panic(http.ErrAbortHandler)
}

// answerUnstarted answers where no tombstone could be kept, and so nothing was sent. The key is not released:
// the handler's effects stand, and the next request finds a run whose owner has vanished.
func (c *recorder) answerUnstarted(err error) {
	c.open = nil
	c.answerNotKept(err)
	if c.event.Outcome == OutcomeFailed {
		c.event.Outcome = OutcomeUnkept
	}
}

// settlePanicked settles what a panic must not undo: a run whose effects stand. All other executions stay
// open for releaseAfterPanic.
func (c *recorder) settlePanicked(h *handled) {
	switch {
	case h.streamErr() != nil || c.open == nil:
		c.open = nil // as in answerUnstarted: the key is not released
		c.event.Outcome, c.event.Err = OutcomeUnkept, errors.Join(errNotReturned, h.streamErr())
	case h.buffer.over && !c.m.traits.Transactional: // the refused Write may have made its caller panic
		c.keepTooLarge(h)
	}
}

// keepTooLarge keeps a tombstone for a handler that has panicked after its response went over the
// hard limit, on a store where its effects stand. The panic goes on, and answers the client.
func (c *recorder) keepTooLarge(h *handled) {
	b := h.buffer
	b.finishResponse()
	verdict := h.run.verdictOnStatus(b.status, c.m.opts.Policy)
	if verdict != Keep && verdict != CommitAnyway {
		return // releaseAfterPanic releases
	}
	written := b.keptResponse(c.m.opts, c.m.opts.Limits.MaxResponseBody)
	resp, _ := c.prepareStored(&written)
	ctx, cancel := context.WithTimeout(c.detachedContext(), c.m.opts.Limits.CompleteTimeout)
	defer cancel()
	exec := c.open
	c.open = nil // after an error too: the request has run
	err := exec.Commit(ctx, resp)
	c.noteStoreFailure(OpCommit, err)
	c.wakeWaiters()
	if c.event.Outcome = OutcomeKept; err != nil {
		c.event.Outcome = OutcomeUnkept
	}
	c.noteError(errors.Join(errNotReturned, errResponseTooLarge, err))
}

// releaseAfterPanic releases an execution that is still open, because a function of the user's has panicked
// or has ended the goroutine. The panic goes on unchanged, whatever the store says.
func (c *recorder) releaseAfterPanic() {
	if c.open == nil {
		return
	}
	err := guard.Call(func() error {
		_ = c.releaseKey(c.unfinished(), http.StatusInternalServerError)
		return nil
	})
	c.event.Err = errors.Join(errNotReturned, c.event.Err, err)
}

// dropUnkept removes from h what is not stored: also what h's Connection says is of one connection.
func (o *Options) dropUnkept(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	maps.DeleteFunc(h, func(name string, _ []string) bool { return !o.keepsHeader(name) })
}

// keepsHeader reports whether the response header called name is stored.
func (o *Options) keepsHeader(name string) bool {
	if !o.Response.KeepAllHeaders {
		return o.kept[name]
	}
	return validName(name) && http.CanonicalHeaderKey(name) == name && !neverStored(name) && !o.own[name]
}

// keepRecovered stores the response that Recover has found and answers with it, as a replay. The request
// has run, so its key is never released: a response that cannot be sealed leaves a tombstone, and where
// nothing can be kept the record lapses, and Recover is asked once more. Nothing is committed: a Commit
// that fails would release the key.
func (c *recorder) keepRecovered(found ruling) {
	c.event.Attempt, c.event.TookOver = found.Attempt, found.TookOver
	resp := found.recovered.cloneResponse()
	c.m.opts.dropUnkept(resp.Header)
	stored := Response{Status: resp.Status, Dropped: true} // of a Sealer that panics
	c.noteError(guard.Apart(func() error {
		stored, _ = c.prepareStored(&resp) // the event has its error
		return nil
	}))
	ctx, cancel := context.WithTimeout(c.detachedContext(), c.m.opts.Limits.CompleteTimeout)
	defer cancel()
	err := found.Exec.Reject(ctx, stored)
	c.noteStoreFailure(OpReject, err)
	if err != nil && (!errors.Is(err, ErrNotStored) || errors.Is(err, ErrLeaseLost)) {
		c.answerNotKept(err) // another owner may have kept something else
		return
	}
	c.event.Outcome = OutcomeKept
	c.noteError(err)
	if err != nil {
		c.event.Outcome = OutcomeUnkept
	}
	if resp.Dropped {
		c.answers.answerDecision(ruling{Decision: Decision{Kind: KindNotRetained, Record: &Record{Response: resp}}})
	} else {
		c.answers.sendReplay(resp)
	}
	c.event.Result = ResultRecovered
}
