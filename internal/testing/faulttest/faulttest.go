package faulttest

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/failpoint"
)

// A Fault is an action at a point of a process.
type Fault struct {
	failpoint.Point
	Action string        // one of [failpoint.Actions]
	Hit    int           // the hit of the point that triggers; default: the first
	Delay  time.Duration // of the action delay; default: [failpoint.DefaultDelay]
}

// Faults returns every action at every point of components.
func Faults(components ...string) (all []Fault) {
	for _, p := range failpoint.Points(components...) {
		for _, action := range failpoint.Actions() {
			all = append(all, Fault{Point: p, Action: action})
		}
	}
	return all
}

// At returns f at another hit of its point.
func (f Fault) At(hit int) Fault {
	f.Hit = hit
	return f
}

// String names f as a test.
func (f Fault) String() string {
	action := f.Action
	if action == "error" && f.Done != "" {
		action = "do-then-error"
	}
	if f.Hit > 1 {
		action = fmt.Sprint(action, " ", f.Hit)
	}
	return strings.ReplaceAll(f.Name, "/", ".") + "=" + action
}

// spec arms a process with f.
func (f Fault) spec() string {
	action := f.Action
	if action == "delay" && f.Delay > 0 {
		action = fmt.Sprintf("delay(%s)", f.Delay)
	}
	return fmt.Sprintf("%s=%s:%d", f.Name, action, cmp.Or(f.Hit, 1))
}

// line is what the process leaves in its log when f strikes.
func (f Fault) line() string { return f.Name + "=" + f.Action }

// Unreached fails the test if a point of components is missing in known: the test has no way to reach it yet.
func Unreached[V any](t *testing.T, known map[string]V, components ...string) {
	t.Helper()
	for _, p := range failpoint.Points(components...) {
		if _, ok := known[p.Name]; !ok {
			t.Errorf("nothing here leads a process to the point %s: say what does", p.Name)
		}
	}
}

// A Stock lends expensive fixtures to one test at a time.
type Stock[T any] chan T

// NewStock returns n fixtures made by build, which decides how long they live.
func NewStock[T any](n int, build func() T) Stock[T] {
	s := make(Stock[T], n)
	for range n {
		s <- build()
	}
	return s
}

// Borrow lends a fixture until t ends. It waits until one is free.
func (s Stock[T]) Borrow(t testing.TB) T {
	one := <-s
	t.Cleanup(func() { s <- one })
	return one
}

// patience is how long a test waits for an event that must happen.
const patience = 30 * time.Second

// Await polls until done, and fails the test if that takes longer than patience. more, which may be nil,
// describes the state at the failure.
func Await(t testing.TB, what string, done func() bool, more func() string) {
	t.Helper()
	limit, tick := time.NewTimer(patience), time.NewTicker(10*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-limit.C:
			text := ""
			if more != nil {
				text = ":\n" + more()
			}
			t.Fatalf("not within %s: %s%s", patience, what, text)
		}
	}
}
