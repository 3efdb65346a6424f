package load

import (
	"context"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
)

// A pace spreads beginnings evenly over time. It does not wait for answers: late sagas are begun as soon as a
// client is free, until the load has caught up.
type pace struct {
	began time.Time
	every time.Duration
}

// paceOf spreads n beginnings over d from now on, and further ones at the same distance.
func paceOf(d time.Duration, n int) pace {
	return pace{began: time.Now(), every: d / time.Duration(max(n, 1))}
}

// waitForTurn returns when the n-th is due, counted from 0, or when ctx ends.
func (p pace) waitForTurn(ctx context.Context, n int) {
	_ = backoff.Sleep(ctx, time.Until(p.began.Add(time.Duration(n)*p.every)))
}
