// Package drain gives work in hand a context that outlives the order to stop.
package drain

import (
	"context"
	"time"
)

// Context returns a context with the values of ctx. It ends when grace has passed after the end of ctx, or
// when cancel is called. Intake stops with ctx; work that was taken in finishes under the returned context.
func Context(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-work.Done():
		}
	})
	return work, func() { stop(); cancel() }
}
