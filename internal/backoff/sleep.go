package backoff

import (
	"context"
	"time"
)

// Sleep waits for d, or until ctx ends, and returns nil if it has waited. If ctx ends first, or has
// ended, Sleep returns ctx's error. A d that is not positive only asks for that error.
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
