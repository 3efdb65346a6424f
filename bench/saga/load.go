package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// clients is how many clients start sagas at the same time, each with one request at a time.
const clients = 32

// offerSaturating starts the sagas as fast as the clients can and the ledger has slots.
func offerSaturating(ctx context.Context, w way, l *ledger, n int) error {
	var begun atomic.Int64
	return forEachClient(func() error {
		for begun.Add(1) <= int64(n) {
			o := randomOrder()
			if err := l.beginSaga(ctx, o.OrderID, time.Time{}); err != nil {
				return err
			}
			if err := w.startSaga(ctx, o); err != nil {
				return err
			}
		}
		return nil
	})
}

// offerPaced returns a load of so many sagas a second, evenly spaced. The rate is constant, even if the sagas
// are slow. A saga's clock starts when it is due, not when a client has time for it.
func offerPaced(rate float64) load {
	return func(ctx context.Context, w way, l *ledger, n int) error {
		due := make(chan time.Time, n)
		var dispatch sync.WaitGroup
		dispatch.Go(func() {
			defer close(due)
			begin := time.Now()
			for i := range n {
				at := begin.Add(time.Duration(float64(i) / rate * float64(time.Second)))
				time.Sleep(time.Until(at))
				due <- at
			}
		})
		defer dispatch.Wait()
		return forEachClient(func() error {
			for at := range due {
				o := randomOrder()
				if err := l.beginSaga(ctx, o.OrderID, at); err != nil {
					return err
				}
				if err := w.startSaga(ctx, o); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// forEachClient runs f for each client.
func forEachClient(f func() error) error {
	var wg sync.WaitGroup
	faults := make([]error, clients)
	for i := range faults {
		wg.Go(func() { faults[i] = f() })
	}
	wg.Wait()
	return errors.Join(faults...)
}
