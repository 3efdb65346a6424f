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
	want   int                  // completed sagas, for which somebody waits
	all    chan struct{}        // gets a value when there are so many
	failed chan error           // gets the first failure
}

// newLedger returns a ledger of so many sagas.
func newLedger(sagas, inFlight int) *ledger {
	return &ledger{
		slots: make(chan struct{}, inFlight), begun: make(map[string]time.Time, min(inFlight, sagas)),
		took: make([]time.Duration, 0, sagas), all: make(chan struct{}, 1), failed: make(chan error, 1),
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
		l.all <- struct{}{}
	}
}

// reportFailure reports err, if it is the first.
func (l *ledger) reportFailure(err error) {
	select {
	case l.failed <- err:
	default:
	}
}

// waitUntilDone waits until so many sagas of the slice are completed. Only one call may wait at a time.
func (l *ledger) waitUntilDone(ctx context.Context, want int) (err error) {
	l.mu.Lock()
	l.want = want
	done := len(l.took) >= want
	l.mu.Unlock()
	if done {
		return nil
	}
	select {
	case <-l.all:
		return nil
	case err = <-l.failed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Errorf("%d of %d sagas are completed: %w", len(l.took), want, err)
}
