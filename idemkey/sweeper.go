package idemkey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/guard"
)

// The defaults of [SweeperOptions].
const (
	DefaultSweepInterval = 5 * time.Minute
	DefaultSweepBatch    = 1000
	DefaultSweepBudget   = 30 * time.Second
)

// sweepRetry is the longest wait after a first failed pass.
const sweepRetry = time.Second

// SweeperOptions configure a [Sweeper]. The zero value works.
type SweeperOptions struct {
	Interval time.Duration // average pause between two passes of the sweeper; each pause is between 0.5 and 1.5 times Interval; default: 5 min
	Batch    int           // largest number of records that one call of Store.Sweep removes; default: 1000
	Budget   time.Duration // a pass that has run for this time begins no further batch; Budget is also the longest time of one batch; default: 30 s

	Observer SweepObserver // Observer is called after each batch that removed a record; default: none
	Logger   *slog.Logger  // Logger gets the errors of failed batches; default: slog.Default()
}

// Swept of a SweepObserver is called after each batch that removed anything.
type SweepObserver interface {
	Swept(ctx context.Context, deleted int)
}

// A Sweeper removes the expired records of a [Store]. It is safe to run one in
// every process: a store gives each record to one of them, and does not remove those with
// a live owner. On a store that removes expired records without it, as Redis does, it has nothing to do.
type Sweeper struct {
	store Store
	opts  SweeperOptions
}

// NewSweeper returns a Sweeper of store. It starts nothing: call [Sweeper.Run].
// A nil opts means the defaults; an error names the option that is wrong.
func NewSweeper(store Store, opts *SweeperOptions) (*Sweeper, error) {
	if store == nil {
		return nil, errors.New("idemkey: store is nil")
	}
	s := &Sweeper{store: store}
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	o.Interval = cmp.Or(o.Interval, DefaultSweepInterval)
	o.Batch = cmp.Or(o.Batch, DefaultSweepBatch)
	o.Budget = cmp.Or(o.Budget, DefaultSweepBudget)
	o.Logger = guard.Logger(cmp.Or(o.Logger, slog.Default()))
	switch {
	case o.Interval < time.Millisecond:
		return nil, errors.New("idemkey: SweeperOptions.Interval must be at least a millisecond")
	case o.Batch < 0:
		return nil, errors.New("idemkey: SweeperOptions.Batch must be positive")
	case o.Budget < time.Millisecond:
		return nil, errors.New("idemkey: SweeperOptions.Budget must be at least a millisecond")
	}
	return s, nil
}

// Run removes expired records until ctx ends, and then returns nil. A batch that
// is under way then is given up, and a later one removes its records. A pass goes on
// until a batch is not full or the budget is spent. A pass that fails is logged and
// tried again, first within a second and at last after the interval.
func (s *Sweeper) Run(ctx context.Context) error {
	for failures := 0; ; {
		if backoff.Sleep(ctx, s.nextPause(failures)) != nil {
			return nil
		}
		err := guard.Call(func() error { return s.sweepPass(ctx) })
		failures++
		if err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			s.opts.Logger.ErrorContext(ctx, "idemkey: expired records could not be deleted, trying again later", "error", err, "failures", failures)
		}
	}
}

// nextPause spreads the passes of processes that were started together.
func (s *Sweeper) nextPause(failures int) time.Duration {
	if failures > 0 {
		return backoff.Policy{Base: min(sweepRetry, s.opts.Interval), Cap: s.opts.Interval}.Wait(failures)
	}
	return s.opts.Interval/2 + rand.N(s.opts.Interval)
}

func (s *Sweeper) sweepPass(ctx context.Context) error {
	for start := time.Now(); ctx.Err() == nil; {
		n, err := s.sweepBatch(ctx)
		if n > 0 && s.opts.Observer != nil { // after a batch that failed half-way, too
			guard.Hook(ctx, s.opts.Logger, "idemkey: option Observer", func() { s.opts.Observer.Swept(ctx, n) })
		}
		if err != nil {
			return fmt.Errorf("idemkey: sweep: %w", err)
		}
		if n < s.opts.Batch || time.Since(start) >= s.opts.Budget {
			return nil
		}
	}
	return nil
}

// sweepBatch bounds one call: a store that hangs must not stop the sweeping for good.
func (s *Sweeper) sweepBatch(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Budget)
	defer cancel()
	return s.store.Sweep(ctx, s.opts.Batch)
}
