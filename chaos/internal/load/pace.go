package load

import (
	"context"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
)

// A pace spreads beginnings evenly over time. It does not wait for answers: what is
// late is begun as soon as a client is free, until that has been caught up with.
type pace struct {
	began time.Time
	every time.Duration
}

// paceOf spreads n beginnings over d from now on. Of further ones it makes no
// difference.
func paceOf(d time.Duration, n int) pace {
	return pace{began: time.Now(), every: d / time.Duration(max(n, 1))}
}

// waitForTurn returns when the n-th is due, counted from 0, or when ctx ends.
func (p pace) waitForTurn(ctx context.Context, n int) {
	_ = backoff.Sleep(ctx, time.Until(p.began.Add(time.Duration(n)*p.every)))
}
