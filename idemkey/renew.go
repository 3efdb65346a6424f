package idemkey

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sagamill/sagamill/internal/guard"
)

// renewals is how often a lease is renewed within its length: one lost answer
// does not cost the lease.
const renewals = 3

// keepAlive renews exec's lease, if it ends by the clock, until stop is called.
// It calls lost when the store says that the lease has gone to another owner.
// A store that cannot be reached is no such answer: the handler goes on.
func (x *exchange) keepAlive(exec Execution, lost context.CancelCauseFunc) (stop func()) {
	r, ok := exec.(Renewer)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(x.detached())
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
			if ctx.Err() == nil { // not a call that was given up since the handler had returned
				guard.Hook(ctx, x.m.opts.Logger, "idemkey: option Observer", func() { x.storeFailed(OpRenew, err) })
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
