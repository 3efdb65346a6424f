package consumer

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// calls are those of an Effect, in their order. The last one of them serves for
// all that follow.
type calls struct {
	mu   sync.Mutex
	all  []func() error
	made int
}

func (c *calls) step(f *fixture) Step {
	call := func(context.Context, Message[payment], string) (string, error) {
		c.mu.Lock()
		do := c.all[min(c.made, len(c.all)-1)]
		c.made++
		c.mu.Unlock()
		return "receipt", do()
	}
	return Step{
		Name: "process-payment", RetryBase: 1, RetryCap: 1, Settle: 1, MaxAttempts: 5,
		Action: Effect("pay", call, nil, f.record()),
	}
}

// late makes what is leased due, as if the lease were over.
func (f *fixture) late(t *testing.T) {
	t.Helper()
	f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp()")
}

// The first attempt at a call hangs for so long that the message becomes a dead
// letter without it and is redriven. Its outcome is not that of the first attempt
// of the new round, which is at its call.
func TestAHungCallIsNotThatOfALaterRound(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	hung, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s := &calls{}
	c := f.consumer(t, Options{}, s.step(f.fixture))
	s.all = []func() error{
		func() error {
			close(hung)
			<-end
			return NotDone(errors.New("no"))
		},
		func() error { return Terminal(errors.New("no")) },
		func() error {
			close(end)
			<-ended
			if n := runParkedOnce(t, c); n != 0 {
				t.Error("another attempt begins while the call is under way")
			}
			return nil
		},
	}
	go func() {
		defer close(ended)
		handle(t, c, act("k"))
	}()
	<-hung
	f.late(t)
	runParkedOnce(t, c)
	if got, want := f.doubts(t), "dead terminal 2?"; got != want {
		t.Fatalf("%q, want %q", got, want)
	}
	f.redriveID(t, 1)
	runParkedOnce(t, c)
	compareStored(t, stored{Row: "done 1 0", Effects: "receipt k 1"}, stored{Row: f.row(t), Parked: f.doubts(t), Effects: f.effects(t)})
	if s.made != 3 {
		t.Errorf("%d calls, want 3", s.made)
	}
}

// The first attempt at a call hangs for longer than its lease. That it fails then is
// not the end of the second one, which is at its call.
func TestAHungCallIsNotThatOfTheNextAttempt(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	hung, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s := &calls{}
	c := f.consumer(t, Options{}, s.step(f.fixture))
	s.all = []func() error{
		func() error {
			close(hung)
			<-end
			return NotDone(errors.New("no"))
		},
		func() error {
			close(end)
			<-ended
			if n := runParkedOnce(t, c); n != 0 {
				t.Error("another attempt begins while the call is under way")
			}
			return nil
		},
	}
	go func() {
		defer close(ended)
		handle(t, c, act("k"))
	}()
	<-hung
	f.late(t)
	runParkedOnce(t, c)
	compareStored(t, stored{Row: "done 2 0", Effects: "receipt k 1"}, stored{Row: f.row(t), Parked: f.doubts(t), Effects: f.effects(t)})
	if s.made != 2 {
		t.Errorf("%d calls, want 2", s.made)
	}
}

// A person who is in a hurry does not disturb a call that is under way: it is
// neither made a second time beside the first, nor is its outcome lost.
func TestACallInHandIsLeftAlone(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	s := &calls{}
	c := f.consumer(t, Options{}, s.step(f.fixture))
	s.all = []func() error{func() error {
		if n, err := f.letters.RetryNow(t.Context()); n != 0 || err != nil {
			t.Errorf("RetryNow = %d, %v; want 0", n, err)
		}
		if n, err := f.letters.Bury(t.Context(), 1); n != 0 || err != nil {
			t.Errorf("Bury = %d, %v; want 0", n, err)
		}
		if n := runParkedOnce(t, c); n != 0 {
			t.Error("another attempt begins while the call is under way")
		}
		return nil
	}}
	handle(t, c, act("k"))
	compareStored(t, stored{Row: "done 1 0", Effects: "receipt k 1"}, stored{Row: f.row(t), Parked: f.doubts(t), Effects: f.effects(t)})
	if s.made != 1 {
		t.Errorf("%d calls, want 1", s.made)
	}
}
