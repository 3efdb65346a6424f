package idemkey_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
)

// sweep runs a sweeper of store for as long as d, in a bubble of synctest.
func sweep(t *testing.T, store idemkey.Store, d time.Duration, opts idemkey.SweeperOptions) {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = quiet
	}
	s, err := idemkey.NewSweeper(store, &opts)
	if err != nil {
		t.Fatalf("NewSweeper: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := s.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// swept counts.
type swept struct{ batches []int }

func (s *swept) Swept(_ context.Context, n int) { s.batches = append(s.batches, n) }

// Expired records go within one pass, in batches; all others stay.
func TestSweeper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, seen := newMemory(t, nil), &swept{}
		for i := range 7 {
			c := idemkeytest.Claim(fmt.Sprint(i), "a")
			if i < 5 {
				c.TTL = time.Minute
			}
			if _, err := m.Begin(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		sweep(t, m, 8*time.Minute, idemkey.SweeperOptions{Batch: 2, Observer: seen})
		if !slices.Equal(seen.batches, []int{2, 2, 1}) {
			t.Errorf("batches = %d, want 2 2 1", seen.batches)
		}
		if n, err := m.Sweep(t.Context(), 10); n != 0 || err != nil {
			t.Errorf("Sweep = %d, %v; want nothing left", n, err)
		}
	})
}

// A scripted store sweeps as the test says and remembers when.
type scripted struct {
	stub
	sweep func(ctx context.Context, call, limit int) (int, error)
	calls []time.Time
}

func (s *scripted) Sweep(ctx context.Context, limit int) (int, error) {
	s.calls = append(s.calls, time.Now())
	return s.sweep(ctx, len(s.calls), limit)
}

// Passes are an interval apart, more or less, so that processes started together
// do not sweep together.
func TestSweeperJitter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &scripted{sweep: func(context.Context, int, int) (int, error) { return 0, nil }}
		start := time.Now()
		sweep(t, store, 24*time.Hour, idemkey.SweeperOptions{})
		last, lengths := start, make(map[time.Duration]bool)
		for _, at := range store.calls {
			gap := at.Sub(last)
			last, lengths[gap] = at, true
			if gap < 150*time.Second || gap > 450*time.Second {
				t.Errorf("a pass after %v, want 2.5 to 7.5 min", gap)
			}
		}
		if n := len(store.calls); n < 230 || n > 350 || len(lengths) < n/2 { // 288 on average
			t.Errorf("%d passes in a day with %d different pauses", n, len(lengths))
		}
	})
}

// A backlog that never ends does not keep a pass from ending, nor does a store
// that hangs.
func TestSweeperBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &scripted{sweep: func(_ context.Context, _, limit int) (int, error) {
			time.Sleep(4 * time.Second)
			return limit, nil
		}}
		sweep(t, store, 8*time.Minute, idemkey.SweeperOptions{Interval: 6 * time.Minute})
		for i, at := range store.calls {
			if gap := at.Sub(store.calls[0]); i < 8 && gap > 30*time.Second || i == 8 && gap < time.Minute {
				t.Errorf("batch %d began %v after the first, want 8 within 30 s and then a pause", i+1, gap)
			}
		}
		hung := &scripted{sweep: func(ctx context.Context, _, _ int) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		sweep(t, hung, 20*time.Minute, idemkey.SweeperOptions{})
		if len(hung.calls) < 2 {
			t.Errorf("%d calls of a store that hangs, want another try", len(hung.calls))
		}
	})
}

// Failures are logged and tried again, ever less often, and what was removed
// before counts.
func TestSweeperErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, log, seen := &scripted{}, newCapture(), &swept{}
		store.sweep = func(_ context.Context, call, _ int) (int, error) {
			if call <= 4 {
				return 3, errors.New("down")
			}
			return 0, nil
		}
		sweep(t, store, 20*time.Minute, idemkey.SweeperOptions{Logger: log.logger(), Observer: seen})
		for i, ceiling := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
			if gap := store.calls[i+1].Sub(store.calls[i]); gap > ceiling {
				t.Errorf("failure %d was tried again after %v, want at most %v", i+1, gap, ceiling)
			}
		}
		if gap := store.calls[5].Sub(store.calls[4]); gap < 150*time.Second {
			t.Errorf("the pass after a success came after %v", gap)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 4 || strings.Count(log.String(), `"level":"ERROR"`) != 4 || !slices.Equal(seen.batches, []int{3, 3, 3, 3}) {
			t.Errorf("%d log lines and batches %d, want 4 errors and 3 records each:\n%s", lines, seen.batches, log)
		}
	})
}

// An end in the middle of a batch is no failure.
func TestSweeperStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, start := newCapture(), time.Now()
		store := &scripted{sweep: func(ctx context.Context, _, _ int) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		sweep(t, store, 8*time.Minute, idemkey.SweeperOptions{Budget: time.Hour, Logger: log.logger()})
		if took := time.Since(start); took != 8*time.Minute || len(store.calls) != 1 || log.String() != "" {
			t.Errorf("Run ended after %v and %d calls, log %s", took, len(store.calls), log)
		}
	})
}

func TestNewSweeperRefuses(t *testing.T) {
	t.Parallel()
	if _, err := idemkey.NewSweeper(nil, nil); err == nil {
		t.Error("NewSweeper accepted no store")
	}
	for field, opts := range map[string]*idemkey.SweeperOptions{
		"Interval": {Interval: -1}, "Batch": {Batch: -1}, "Budget": {Budget: -1},
	} {
		if _, err := idemkey.NewSweeper(&stub{}, opts); err == nil || !strings.Contains(err.Error(), "SweeperOptions."+field+" ") {
			t.Errorf("NewSweeper = %v, want an error that names %s", err, field)
		}
	}
}
