package idemkey

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A claimer finds out what is to become of one request: from the cache, the store, and Options.Recover.
type claimer struct {
	*request
	entered bool      // the request counts among the running handlers of its scope
	asked   time.Time // when the last claim was sent

	older    []Fingerprint // of the request, by the settings of the record that was found
	olderErr error         // why one of them could not be made
}

// A ruling is a decision of the claim stage, with what the later stages need of it.
type ruling struct {
	Decision
	asked     time.Time // when the claim was sent: the record's life began no earlier
	recovered *Response // of KindProceed: an earlier run's answer, which Options.Recover knows; nil: run the handler
	unknown   error     // of KindFingerprintUnknown, for the log
}

// decideClaim asks the cheapest source first. When two requests race for a key, one proceeds. After an error
// nothing was decided.
func (c *claimer) decideClaim() (ruling, error) {
	claim := c.claim
	if d, ok := c.m.cache.findReplay(&claim); ok {
		return ruling{Decision: d}, nil
	}
	d, err := c.askStore(claim)
	c.event.Begin = time.Since(c.asked)
	if err == nil && d.Kind == KindInFlight && c.m.opts.Limits.Wait > 0 {
		d, err = c.awaitOutcome(claim, d)
	}
	found := ruling{Decision: d}
	if err == nil && d.Kind == KindUnknown && c.m.opts.Recover != nil {
		found, err = c.recoverOutcome(claim, d)
	}
	if err == nil && found.Kind == KindReplay {
		c.m.cache.addRecord(claim.ID, *found.Record, found.Record.LifeLeft, c.asked)
	}
	if found.asked = c.asked; found.Kind == KindFingerprintUnknown {
		found.unknown = c.unknownFingerprintError(found.Decision)
	}
	return found, err
}

// askStore sends one claim, and sends it again if the record was made with other settings that are known.
func (c *claimer) askStore(claim Claim) (Decision, error) {
	claim.Prior = slices.Concat(c.claim.Prior, c.older)
	c.asked = time.Now()
	ctx, cancel := context.WithTimeout(c.detachedContext(), c.m.opts.Limits.StoreTimeout)
	defer cancel()
	d, err := c.claimInScope(ctx, claim)
	if err == nil && d.Kind == KindFingerprintUnknown {
		if c.older, c.olderErr = c.digestOtherSettings(d.FPAlg); len(c.older) > 0 {
			claim.Prior = slices.Concat(c.claim.Prior, c.older)
			d, err = c.claimInScope(ctx, claim)
		}
	}
	c.noteStoreFailure(OpBegin, err)
	return d, err
}

// claimInScope sends the claim to the store if its scope may run another handler. It takes the place before
// the claim: a caller over its limit makes no record and takes no connection.
func (c *claimer) claimInScope(ctx context.Context, claim Claim) (Decision, error) {
	limit := c.m.opts.Limits.MaxInFlightPerScope
	if limit == 0 || claim.ID.Key == "" {
		return c.m.store.Begin(ctx, claim)
	}
	if !c.entered && !c.m.scopes.enterScope(claim.ID.Scope, limit) {
		return c.findRecord(ctx, claim, limit)
	}
	c.entered = true
	d, err := c.m.store.Begin(ctx, claim)
	if err == nil && d.Kind != KindProceed {
		c.leaveScope() // not after an error: the request may fail open, and run unprotected
	}
	return d, err
}

// leaveScope gives the place back, if the request has one.
func (c *claimer) leaveScope() {
	if c.entered {
		c.entered = false
		c.m.scopes.leaveScope(c.claim.ID.Scope)
	}
}

// findRecord answers a request over the limit if its record alone decides it: a replay needs no handler.
func (c *claimer) findRecord(ctx context.Context, claim Claim, limit int) (Decision, error) {
	over := fmt.Errorf("%w: %d handlers of one scope, the limit of Options.Limits.MaxInFlightPerScope", ErrCapacity, limit)
	f, ok := c.m.store.(Finder)
	if !ok {
		return Decision{}, over
	}
	d, decided, err := f.Find(ctx, claim)
	switch {
	case err != nil:
		c.noteStoreFailure(OpBegin, err)
		return Decision{}, fmt.Errorf("%w: %w", over, err) // not a reason to fail open
	case !decided:
		return Decision{}, over
	}
	return d, nil
}

// The pauses between two looks at a key that another process runs.
const (
	firstPause = 25 * time.Millisecond
	maxPause   = 250 * time.Millisecond
)

// awaitOutcome asks again until the key is no longer in flight, the time is over or the client has
// disconnected. If the other run failed, this request may proceed: it is the retry that the client would
// have sent.
func (c *claimer) awaitOutcome(claim Claim, d Decision) (Decision, error) {
	room := c.m.room
	g := room.enterRoom(claim.ID)
	if g == nil {
		return d, nil
	}
	defer room.leaveRoom(claim.ID, g)
	ctx, cancel := context.WithTimeout(c.r.Context(), c.m.opts.Limits.Wait)
	defer cancel()
	ended := room.runEnded(g) // before the first look: a run that ends in between is not missed
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		next, err := c.askStore(claim)
		if err != nil || next.Kind != KindInFlight {
			return next, err
		}
		d = next
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ended:
			ended = room.runEnded(g)
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return d, nil
		}
		timer.Stop()
	}
}

// errRecoverLate reports that Options.Recover exceeded its time.
var errRecoverLate = errors.New("idemkey: Recover took longer than half of the lease")

// recoverOutcome asks Options.Recover what became of a run whose outcome is unknown, and takes the run over
// if that is known. The answer is about the run that was found: no other run is taken over by it.
func (c *claimer) recoverOutcome(claim Claim, unknown Decision) (ruling, error) {
	ctx, cancel := context.WithTimeout(c.detachedContext(), c.m.opts.Limits.Lease/2)
	defer cancel()
	resp, err := c.m.opts.Recover(ctx, claim.ID)
	if err == nil {
		err = checkRecovered(ctx, resp)
	}
	if err != nil {
		c.noteError(err)
		return ruling{Decision: unknown}, nil
	}
	claim.Recovered = unknown.Run
	d, err := c.askStore(claim)
	if err != nil || d.Kind != KindProceed {
		resp = nil
	}
	return ruling{Decision: d, recovered: resp}, err
}

// checkRecovered returns why an answer of Options.Recover, which was asked under ctx, does not count.
func checkRecovered(ctx context.Context, resp *Response) error {
	switch {
	case ctx.Err() != nil:
		return errRecoverLate
	case resp != nil && (resp.Status < 200 || resp.Status > 999):
		return fmt.Errorf("idemkey: Recover returned a response of status %d", resp.Status)
	}
	return nil
}

// digestOtherSettings returns the request's fingerprints by the settings, other than the claim's, that can have
// made a record's fingerprint of algorithm alg. The body is digested once more for each, so it is called
// only where a record has such a fingerprint.
func (c *claimer) digestOtherSettings(alg string) (made []Fingerprint, err error) {
	var settings []*fingerprinter
	for _, f := range c.m.opts.older {
		if f.mayHaveMade(alg) {
			settings = append(settings, f)
		}
	}
	if f := c.m.routes.findSettings(alg); f != nil && !slices.ContainsFunc(settings, func(g *fingerprinter) bool { return g.label == alg }) {
		settings = append(settings, f)
	}
	for _, f := range settings {
		fp, failed := f.digestRequest(c.withBody(c.r.Context()), c.body) // a Custom may read the request
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		made = append(append(made, fp), f.fingerprintsAsSpelled(c.r, c.body)...)
	}
	return made, err
}

// unknownFingerprintError is for the log: the service lacks settings, and the client has done nothing wrong.
func (c *claimer) unknownFingerprintError(d Decision) error {
	err := fmt.Errorf("idemkey: the key's record was made with fingerprint settings %q, and this process has %q: "+
		"add the former to Options.Fingerprint.Versions for Limits.TTL", d.FPAlg, c.claim.FP.Alg)
	return errors.Join(err, c.olderErr)
}

// mayFailOpen reports whether the handler runs although the claim failed with err. A store that is full, or
// that has a corrupt record, has not failed.
func (c *claimer) mayFailOpen(err error) bool {
	return c.m.opts.FailOpen && !errors.Is(err, ErrCapacity) && !errors.Is(err, ErrRecordCorrupt)
}
