package drain_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sagamill/sagamill/internal/drain"
)

func TestWorkOutlivesTheOrderToStopByTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		work, cancel := drain.Context(ctx, time.Minute)
		defer cancel()
		stop()
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		if work.Err() != nil {
			t.Error("work was cancelled before the grace was over")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if work.Err() == nil {
			t.Error("work still runs after the grace")
		}
	})
}

// synctest fails a test that leaves a goroutine behind.
func TestCancelLeavesNothingRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		work, cancel := drain.Context(ctx, time.Hour)
		stop()
		synctest.Wait()
		cancel()
		if work.Err() == nil {
			t.Error("cancel did not end the work")
		}
	})
}
