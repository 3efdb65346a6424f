// Package backoff computes how long to wait before another try, and waits. The waits are exponential, with
// full jitter, and capped. (Brooker, "Exponential Backoff And Jitter", AWS 2015: full jitter spreads
// competing clients best for the least work.)
package backoff

import (
	"math/rand/v2"
	"time"
)

// A Policy is the shape of a backoff. Both fields must be positive.
type Policy struct {
	Base time.Duration // ceiling of the first wait
	Cap  time.Duration // ceiling of any wait
}

// A wait is at least the floor-th part of its ceiling. Full jitter alone could draw a wait near zero many
// times in a row, which is a hot loop.
const floor = 8

// Ceiling returns the longest wait after attempt n, which counts from 1: Base doubled n-1 times, at most Cap.
func (p Policy) Ceiling(n int) time.Duration {
	d := p.Base
	for ; n > 1; n-- {
		if d > p.Cap/2 {
			return p.Cap // before the doubling could overflow
		}
		d *= 2
	}
	return min(d, p.Cap)
}

// Wait draws the wait after attempt n at random, from an eighth of [Policy.Ceiling] to the whole of it.
func (p Policy) Wait(n int) time.Duration {
	c := p.Ceiling(n)
	low := c / floor
	return low + rand.N(c-low+1)
}
