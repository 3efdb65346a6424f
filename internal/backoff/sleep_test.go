package backoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
)

// Both events have happened then, and a select would choose one at random.
func TestSleepReturnsErrorOfEndedContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10_000 {
		if err := backoff.Sleep(ctx, time.Nanosecond); !errors.Is(err, context.Canceled) {
			t.Fatalf("Sleep = %v, want %v", err, context.Canceled)
		}
	}
}

func TestSleepWaitsUntilContextEnds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		sleep, limit, want time.Duration
		err                error
	}{
		"waited":            {time.Second, time.Minute, time.Second, nil},
		"context ends":      {time.Minute, time.Second, time.Second, context.DeadlineExceeded},
		"nothing to wait":   {-time.Second, time.Minute, 0, nil},
		"context has ended": {time.Second, -time.Second, 0, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
				defer cancel()
				began := time.Now()
				if err := backoff.Sleep(ctx, tt.sleep); !errors.Is(err, tt.err) || time.Since(began) != tt.want {
					t.Errorf("Sleep = %v after %s, want %v after %s", err, time.Since(began), tt.err, tt.want)
				}
			})
		})
	}
}
