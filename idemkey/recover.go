package idemkey

import (
	"context"
	"errors"

	"github.com/sagamill/sagamill/internal/guard"
)

// errTooLate reports that Options.Recover did not keep to its time.
var errTooLate = errors.New("idemkey: Recover took longer than half of the lease")

// recover asks Options.Recover what became of a run whose owner has vanished,
// and takes it over if that is known. The answer is about the attempt that was
// found, and no other is taken over by it.
func (x *exchange) recover(c Claim, unknown Decision) (Decision, error) {
	ctx, cancel := context.WithTimeout(x.detached(), x.m.opts.Limits.Lease/2)
	defer cancel()
	resp, err := x.m.opts.Recover(x.withBody(ctx), c.ID)
	if err == nil && ctx.Err() != nil {
		err = errTooLate
	}
	if err != nil {
		x.note(err)
		return unknown, nil
	}
	c.Recovered = unknown.Attempt
	d, err := x.ask(c)
	if err == nil && d.Kind == KindProceed {
		x.recovered = resp
	}
	return d, err
}

// keepRecovered stores what Recover found out and answers with it, as a replay. The request
// has run, so its key is never released: what cannot be sealed leaves a tombstone, and where
// nothing can be kept the record lapses again, and Recover is asked once more. There is
// nothing to commit, and a Commit that fails would release the key.
func (x *exchange) keepRecovered(d Decision) {
	x.event.Attempt, x.event.TookOver = d.Attempt, d.TookOver
	resp := x.recovered.clone()
	for name := range resp.Header {
		if !x.m.opts.kept[name] {
			delete(resp.Header, name)
		}
	}
	stored := Response{Status: resp.Status, Dropped: true} // of a Sealer that panics
	x.note(guard.Apart(func() error {
		stored, _ = x.stored(&resp) // the event has its error
		return nil
	}))
	ctx, cancel := context.WithTimeout(x.detached(), x.m.opts.Limits.CompleteTimeout)
	defer cancel()
	err := d.Exec.Reject(ctx, stored)
	x.storeFailed(OpReject, err)
	if err != nil && (!errors.Is(err, ErrNotStored) || errors.Is(err, ErrLeaseLost)) {
		x.notKept(err) // another owner may have kept something else
		return
	}
	x.event.Outcome = OutcomeKept
	x.note(err)
	if err != nil {
		x.event.Outcome = OutcomeUnkept
	}
	x.sendReplay(resp)
	x.event.Result = ResultRecovered
}
