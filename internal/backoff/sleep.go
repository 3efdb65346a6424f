package backoff

import (
	"context"
	"time"
)

// Sleep waits for d and returns nil. If ctx ends first, or has ended already, it returns ctx's error at once.
// If d is not positive, it does not wait and returns ctx's error, if any.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
