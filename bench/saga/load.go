package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// clients start sagas at once. What they do is a request each.
const clients = 32

// saturate starts the sagas as fast as the clients can and the ledger has slots.
func saturate(ctx context.Context, w way, l *ledger, n int) error {
	var begun atomic.Int64
	return each(func() error {
		for begun.Add(1) <= int64(n) {
			o := newOrder()
			if err := l.begin(ctx, o.OrderID, time.Time{}); err != nil {
				return err
			}
			if err := w.start(ctx, o); err != nil {
				return err
			}
		}
		return nil
	})
}

// paced returns a load of so many sagas a second, evenly spaced. The rate does not
// depend on how the sagas get on, and the clock of one starts when it is due, not
// when a client has time for it.
func paced(rate float64) load {
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
		return each(func() error {
			for at := range due {
				o := newOrder()
				if err := l.begin(ctx, o.OrderID, at); err != nil {
					return err
				}
				if err := w.start(ctx, o); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// each runs f for each client.
func each(f func() error) error {
	var wg sync.WaitGroup
	faults := make([]error, clients)
	for i := range faults {
		wg.Go(func() { faults[i] = f() })
	}
	wg.Wait()
	return errors.Join(faults...)
}
