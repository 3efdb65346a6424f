package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A ledger records the sagas of one slice: which have begun, and how long they took.
type ledger struct {
	slots chan struct{} // one for each saga in flight

	mu     sync.Mutex
	begun  map[string]time.Time // by order id, until completed
	took   []time.Duration      // in the order of their completion
	want   int
	all    chan struct{} // closed when as many as wanted are completed
	failed chan error    // gets the first failure
}

func newLedger(want, inFlight int) *ledger {
	return &ledger{
		slots: make(chan struct{}, inFlight), begun: make(map[string]time.Time, inFlight), want: want,
		all: make(chan struct{}), failed: make(chan error, 1),
	}
}

// beginSaga waits for a free slot and records a saga whose clock starts at due.
func (l *ledger) beginSaga(ctx context.Context, id string, due time.Time) error {
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if due.IsZero() {
		due = time.Now()
	}
	l.begun[id] = due
	return nil
}

// completed records that the last step of a saga has committed.
func (l *ledger) completed(id string) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	begun, ok := l.begun[id]
	if !ok {
		l.reportFailure(fmt.Errorf("order %s was completed, but not under way", id))
		return
	}
	delete(l.begun, id)
	<-l.slots
	l.took = append(l.took, now.Sub(begun))
	if len(l.took) == l.want {
		close(l.all)
	}
}

// reportFailure reports err, if it is the first.
func (l *ledger) reportFailure(err error) {
	select {
	case l.failed <- err:
	default:
	}
}

// waitUntilDone waits for as many sagas as wanted.
func (l *ledger) waitUntilDone(ctx context.Context) (err error) {
	select {
	case <-l.all:
		return nil
	case err = <-l.failed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Errorf("%d of %d sagas are completed: %w", len(l.took), l.want, err)
}
