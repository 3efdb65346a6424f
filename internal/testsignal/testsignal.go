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

// capacity is how many values a Signal holds that no test has waited for yet.
// Later ones are dropped: a signal never blocks the code that sends it.
const capacity = 1024

// waitTimeout ends a Wait for something that does not come.
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
