// Package testsignal lets a test wait for something that happened inside
// running code, instead of sleeping and hoping.
//
// A Signal costs one atomic load until a test enables it.
package testsignal

import (
	"sync/atomic"
	"testing"
	"time"
)

// capacity is the most values that a Signal keeps for a later Wait. Further values are dropped: a signal
// never blocks the code that sends it.
const capacity = 1024

// waitTimeout is how long Wait waits for an event before the test fails.
const waitTimeout = 30 * time.Second

// A Signal carries values of one kind of event. The zero value drops them.
type Signal[T any] struct {
	values atomic.Pointer[chan T]
}

// Enable keeps the values sent from now on. Call it before the code runs.
func (s *Signal[T]) Enable() {
	c := make(chan T, capacity)
	s.values.Store(&c)
}

// Send hands v to a waiting test. It never blocks.
func (s *Signal[T]) Send(v T) {
	c := s.values.Load()
	if c == nil {
		return
	}
	select {
	case *c <- v:
	default:
	}
}

// Wait returns the next value, in the order sent.
func (s *Signal[T]) Wait(t testing.TB) T {
	t.Helper()
	c := s.values.Load()
	if c == nil {
		t.Fatal("testsignal: Wait on a signal that was not enabled")
	}
	select {
	case v := <-*c:
		return v
	case <-time.After(waitTimeout):
		t.Fatalf("testsignal: nothing came within %s", waitTimeout)
		panic("unreachable")
	}
}

// WaitFor returns the first value that ok accepts.
func (s *Signal[T]) WaitFor(t testing.TB, ok func(T) bool) T {
	t.Helper()
	for {
		if v := s.Wait(t); ok(v) {
			return v
		}
	}
}
