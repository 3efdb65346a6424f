package idemkey

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/internal/sqlstate"
)

// An answerer answers the client. It is the last stage: all others end here, with the handler's response,
// a stored one, or a problem.
type answerer struct{ *request }

// refuseRequest answers with the problem that code names. err is for the log only.
func (a answerer) refuseRequest(result Result, code string, err error) {
	a.noteError(err)
	a.answerProblem(result, a.m.problemByCode(code))
}

func (a answerer) answerProblem(result Result, p *Problem) {
	a.event.Result = result
	a.writeProblem(a.w, p)
}

// refuseClaim answers a claim that failed with err.
func (a answerer) refuseClaim(err error) {
	switch {
	case errors.Is(err, ErrCapacity):
		a.refuseCapacity(err)
	case errors.Is(err, ErrRecordCorrupt):
		a.refuseRequest(ResultCorrupt, CodeRecordCorrupt, err)
	case errors.Is(err, ErrRecordHidden):
		a.refuseRequest(ResultUnavailable, CodeRecordHidden, err)
	default:
		a.refuseRequest(ResultUnavailable, CodeStoreUnavailable, err)
	}
}

// refuseCapacity answers that the store is full, or that enough handlers run.
func (a answerer) refuseCapacity(err error) {
	p := a.m.problemByCode(CodeCapacity)
	if unknown := (*UnknownLimitError)(nil); errors.As(err, &unknown) {
		p = a.m.problemByCode(CodeUnknownLimit)
	}
	if quota := (*QuotaError)(nil); errors.As(err, &quota) {
		p.Title, p.RetryAfter = "Too many idempotency keys in use", maxRetryAfter
	}
	a.noteError(err)
	a.answerProblem(ResultCapacity, p)
}

// answerDecision answers a request whose handler does not run.
func (a answerer) answerDecision(found ruling) {
	switch found.Kind {
	case KindReplay:
		a.replayRecord(found.Record)
	case KindInFlight:
		p := a.m.problemByCode(CodeInProgress)
		p.RetryAfter = max(p.RetryAfter, found.RetryAfter) // none: the owner outlives its lease
		a.answerProblem(ResultInProgress, p)
	case KindMismatch:
		a.refuseRequest(ResultMismatch, CodeKeyReused, nil)
	case KindFingerprintUnknown:
		a.refuseRequest(ResultFingerprintUnknown, CodeFingerprintUnknown, found.unknown)
	case KindExpired:
		a.refuseRequest(ResultExpired, CodeKeyExpired, nil)
	case KindNotRetained:
		p := a.m.problemByCode(CodeNotRetained)
		p.OriginalStatus = found.Record.Response.Status
		if location := found.Record.Response.Header.Values("Location"); len(location) > 0 {
			a.w.Header()["Location"] = slices.Clone(location)
		}
		a.answerProblem(ResultTombstone, p)
	default:
		a.refuseRequest(ResultUnknown, CodeOutcomeUnknown, nil)
	}
}

// replayRecord answers with a stored response, or with what ReplayHook makes of it.
func (a answerer) replayRecord(rec *Record) {
	r, err := a.openStored(rec)
	if err != nil {
		a.refuseRequest(ResultCorrupt, CodeRecordCorrupt, err)
		return
	}
	a.event.Result = ResultReplay
	a.sendReplay(r)
}

// sendReplay sends status, headers and bytes, beside the headers that outer middleware sets on any request.
func (a answerer) sendReplay(r Response) {
	if hook := a.m.opts.Response.ReplayHook; hook != nil {
		if err := hook(a.r, &r); err != nil {
			a.noteError(err)
			a.writeProblem(a.w, a.problemFor(err))
			return
		}
	}
	h := a.w.Header()
	outerVary := h["Vary"]
	for name, values := range r.Header {
		if !a.m.opts.own[http.CanonicalHeaderKey(name)] {
			h[name] = slices.Clone(values)
		}
	}
	if len(outerVary) > 0 {
		h["Vary"] = mergeVary(outerVary, r.Header["Vary"])
	}
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	h.Set(a.m.opts.Response.ReplayHeader, "true")
	a.event.Status = r.Status
	sendBody(a.w, r.Status, r.Body, a.r.Method == http.MethodHead)
}

// mergeVary returns the lines of outer and those of stored, without the names that occur before. Middleware around this
// one depends on headers of its own.
func mergeVary(outer, stored []string) []string {
	merged, seen := slices.Clone(outer), make(map[string]bool)
	for _, line := range outer {
		for name := range strings.SplitSeq(line, ",") {
			seen[strings.ToLower(strings.TrimSpace(name))] = true
		}
	}
	for _, line := range stored {
		var more []string
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.TrimSpace(name); !seen[strings.ToLower(name)] {
				seen[strings.ToLower(name)] = true
				more = append(more, name)
			}
		}
		if len(more) > 0 {
			merged = append(merged, strings.Join(more, ", "))
		}
	}
	return merged
}

// sendWritten answers with what the handler wrote, unless a part of that is missing.
func (a answerer) sendWritten(b *buffer) {
	if b.over {
		a.sendTooLarge()
		return
	}
	a.event.Status = b.status
	a.markFirst(b)
	b.sendResponse()
}

// markFirst says that this is no replay. The handler may have copied the header from another service's answer.
func (a answerer) markFirst(b *buffer) {
	b.sent.Del(a.m.opts.Response.ReplayHeader)
	if a.m.opts.Response.EmitReplayedFalse && a.id.Key != "" {
		b.sent.Set(a.m.opts.Response.ReplayHeader, "false")
	}
}

// sendTooLarge answers in the place of a body over the hard limit. A retry would have the same result.
func (a answerer) sendTooLarge() {
	p := newProblem(CodeResponseTooLarge)
	p.Detail = fmt.Sprintf("The response body is over HardResponseLimit, %d bytes.", a.m.opts.Limits.HardResponseLimit)
	switch a.event.Outcome {
	case OutcomeKept, OutcomeRejected, OutcomeUnkept:
		p.Detail += " The request was processed, and its response was not kept."
	}
	a.noteError(errResponseTooLarge)
	a.writeProblem(a.w, p)
}

// answerFailure answers an internal failure that rolled back.
func (a answerer) answerFailure(err error) {
	a.noteError(err)
	a.writeProblem(a.w, newProblem(CodeInternal))
}

// renderError returns the answer to an error that the handler returned, in the place of what the handler
// wrote. It can be kept like any other, but never commits.
func (a answerer) renderError(run *handlerRun) *buffer {
	p := a.problemFor(run.err)
	if p.Status >= 500 {
		a.event.Err = run.err
	}
	if run.verdict == CommitAnyway {
		run.verdict = Undecided
	}
	return a.renderProblem(p)
}

// renderProblem returns p as an answer that can be kept.
func (a answerer) renderProblem(p *Problem) *buffer {
	b := newBuffer(a.w, math.MaxInt, a.m.opts.own)
	a.writeProblem(b, p)
	b.finishResponse()
	return b
}

// isAnswer reports whether err, or Problems.MapError, says how to answer it.
func (a answerer) isAnswer(err error) bool {
	own := (*Problem)(nil)
	return errors.As(err, &own) || a.m.opts.Problems.MapError != nil && a.m.opts.Problems.MapError(err) != nil
}

// problemFor maps a handler's or a commit's error. The client learns nothing of the text of an error that is
// no problem of the service's own making.
func (a answerer) problemFor(err error) *Problem {
	if own := (*Problem)(nil); errors.As(err, &own) {
		return own
	}
	if a.m.opts.Problems.MapError != nil {
		if p := a.m.opts.Problems.MapError(err); p != nil {
			return p
		}
	}
	switch {
	case errors.Is(err, ErrLeaseLost):
		return a.m.problemByCode(CodeInProgress)
	case errors.Is(err, ErrTxConflict), sqlstate.Conflict(err):
		return newProblem(CodeTxConflict)
	case errors.Is(err, ErrNotCommitted):
		return newProblem(CodeCommitFailed)
	}
	return newProblem(CodeInternal)
}

// writeProblem answers with p. A request without a key has none to retry with, so p does not promise a retry.
func (a answerer) writeProblem(w http.ResponseWriter, p *Problem) {
	p = a.m.opts.completeProblem(p)
	if a.id.Key == "" && p.SameKey {
		p.Retryable, p.SameKey, p.Detail = false, false, ""
	}
	a.event.Status, a.event.Code = p.Status, p.Code
	a.m.opts.Problems.Writer(w, a.r, p)
}
