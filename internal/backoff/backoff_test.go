package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
)

func TestCeilingDoublesUpToTheCap(t *testing.T) {
	t.Parallel()
	p := backoff.Policy{Base: time.Second, Cap: 10 * time.Second}
	for n, want := range map[int]time.Duration{
		0: time.Second, 1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 5: 10 * time.Second, math.MaxInt: 10 * time.Second,
	} {
		if got := p.Ceiling(n); got != want {
			t.Errorf("Ceiling(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestWaitIsNeitherZeroNorOverTheCeiling(t *testing.T) {
	t.Parallel()
	for _, p := range []backoff.Policy{{Base: time.Second, Cap: time.Minute}, {Base: 1, Cap: 1}, {Base: time.Nanosecond, Cap: math.MaxInt64}} {
		for n := range 100 {
			if w := p.Wait(n); w < p.Ceiling(n)/8 || w > p.Ceiling(n) {
				t.Errorf("%+v: Wait(%d) = %s, ceiling %s", p, n, w, p.Ceiling(n))
			}
		}
	}
}
