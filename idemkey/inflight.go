package idemkey

import (
	"context"
	"fmt"
	"sync"
)

// A scopeCount counts the handlers that run in this process, by scope.
type scopeCount struct {
	mu sync.Mutex
	n  map[string]int
}

// enter reports false if limit handlers of scope run already.
func (s *scopeCount) enter(scope string, limit int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n[scope] >= limit {
		return false
	}
	s.n[scope]++
	return true
}

func (s *scopeCount) leave(scope string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n[scope]--; s.n[scope] == 0 {
		delete(s.n, scope)
	}
}

// claimWithin puts the claim to the store if its scope may run another handler.
// The place is taken before the claim: a caller that is over its limit makes no
// record and takes no connection.
func (x *exchange) claimWithin(ctx context.Context, claim Claim) (Decision, error) {
	limit := x.m.opts.Limits.MaxInFlightPerScope
	if limit == 0 || claim.ID.Key == "" {
		return x.m.store.Begin(ctx, claim)
	}
	if !x.entered && !x.m.scopes.enter(claim.ID.Scope, limit) {
		return x.find(ctx, claim, limit)
	}
	x.entered = true
	d, err := x.m.store.Begin(ctx, claim)
	if err == nil && d.Kind != KindProceed {
		x.leave() // after an error it may run unprotected yet
	}
	return d, err
}

// find answers a request over the limit if its record alone decides it: a replay
// costs no handler.
func (x *exchange) find(ctx context.Context, claim Claim, limit int) (Decision, error) {
	over := fmt.Errorf("%w: %d handlers of one scope, the limit of Options.Limits.MaxInFlightPerScope", ErrCapacity, limit)
	f, ok := x.m.store.(Finder)
	if !ok {
		return Decision{}, over
	}
	d, decided, err := f.Find(ctx, claim)
	switch {
	case err != nil:
		x.storeFailed(OpBegin, err)
		return Decision{}, fmt.Errorf("%w: %w", over, err) // not a reason to fail open
	case !decided:
		return Decision{}, over
	}
	return d, nil
}

// leave gives the place back, if there is one.
func (x *exchange) leave() {
	if x.entered {
		x.entered = false
		x.m.scopes.leave(x.claim.ID.Scope)
	}
}
