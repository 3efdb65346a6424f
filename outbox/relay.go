package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/drain"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/testsignal"
)

// RelayOptions are what most callers leave alone. The zero value is usable.
type RelayOptions struct {
	Schema string // Postgres schema of the outbox; default: sagamill

	Batch          int           // most messages in one pass; default: 500, at most 10,000
	PollMin        time.Duration // pause after a pass that found less than a batch; default: 5 ms
	PollMax        time.Duration // pause that idle polling backs off to; default: 250 ms
	PublishTimeout time.Duration // longest wait for the broker in one pass; default: 30 s, at most 1 h
	DrainTimeout   time.Duration // longest wait for the pass in hand when Run's context ends; default: 10 s

	MaxAttempts int           // refusals after which a message is dead; default: 20
	RetryBase   time.Duration // ceiling of the wait after the first refusal; default: 1 s
	RetryCap    time.Duration // ceiling of any wait after a refusal; default: 5 min

	Logger *slog.Logger // default: slog.Default()
}

// databaseTimeout is what a pass may take besides publishing, so that a
// connection into nowhere cannot hold the relay for ever: pgx has no deadline
// of its own.
const databaseTimeout = 10 * time.Second

// failurePolicy spaces passes that fail because the database or the broker is
// away.
var failurePolicy = backoff.Policy{Base: 100 * time.Millisecond, Cap: 5 * time.Second}

// A Relay publishes what an outbox holds. Any number of them may run on one
// outbox, in any processes: one is active at a time, and the others take over
// as soon as its transaction ends.
type Relay struct {
	db      *pgxpool.Pool
	pub     Publisher
	opts    RelayOptions
	sql     queries
	retry   backoff.Policy
	wake    chan struct{}
	signals struct {
		passed  testsignal.Signal[int]  // messages taken off the outbox by a pass
		standby testsignal.Signal[bool] // a pass that found another relay active
		failed  testsignal.Signal[error]
	}
}

// NewRelay returns a Relay from the outbox in db to pub. It starts nothing:
// call [Relay.Run]. A nil opts means the defaults; an error names the option
// that cannot be used.
func NewRelay(db *pgxpool.Pool, pub Publisher, opts *RelayOptions) (*Relay, error) {
	if db == nil || pub == nil {
		return nil, errors.New("outbox: NewRelay needs a pool and a publisher")
	}
	o := RelayOptions{}
	if opts != nil {
		o = *opts
	}
	o.Schema = cmp.Or(o.Schema, sqlschema.Default)
	o.Batch = cmp.Or(o.Batch, 500)
	o.PollMin = cmp.Or(o.PollMin, 5*time.Millisecond)
	o.PollMax = cmp.Or(o.PollMax, 250*time.Millisecond)
	o.PublishTimeout = cmp.Or(o.PublishTimeout, 30*time.Second)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 10*time.Second)
	o.MaxAttempts = cmp.Or(o.MaxAttempts, 20)
	o.RetryBase = cmp.Or(o.RetryBase, time.Second)
	o.RetryCap = cmp.Or(o.RetryCap, 5*time.Minute)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("outbox: relay %w", err)
	}
	return &Relay{
		db: db, pub: pub, opts: o, sql: newQueries(o.Schema),
		retry: backoff.Policy{Base: o.RetryBase, Cap: o.RetryCap},
		wake:  make(chan struct{}, 1),
	}, nil
}

func (o *RelayOptions) check() error {
	if err := sqlschema.Check(o.Schema); err != nil {
		return fmt.Errorf("option Schema: %w", err)
	}
	switch {
	case o.Batch < 1 || o.Batch > MaxBatch:
		return fmt.Errorf("option Batch: %d is not between 1 and %d", o.Batch, MaxBatch)
	case o.PollMin < 0 || o.PollMax < o.PollMin:
		return fmt.Errorf("option PollMax: %s is less than PollMin, %s", o.PollMax, o.PollMin)
	case o.PublishTimeout < 0 || o.PublishTimeout > time.Hour:
		return fmt.Errorf("option PublishTimeout: %s is not between 0 and 1h", o.PublishTimeout)
	case o.DrainTimeout < 0:
		return fmt.Errorf("option DrainTimeout: %s is negative", o.DrainTimeout)
	case o.MaxAttempts < 1:
		return fmt.Errorf("option MaxAttempts: %d is not positive", o.MaxAttempts)
	case o.RetryBase < 0 || o.RetryCap < o.RetryBase:
		return fmt.Errorf("option RetryCap: %s is less than RetryBase, %s", o.RetryCap, o.RetryBase)
	}
	return nil
}

// Wake makes the relay look at once instead of at its next poll. Call it after
// a transaction with messages has committed. It never blocks, and waking a
// relay that is not running or has nothing to do is harmless.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run publishes until ctx ends, then finishes the pass in hand, for
// DrainTimeout at the most, and returns nil. A database or a broker that is
// away is logged and tried again for ever; it costs no message an attempt.
func (r *Relay) Run(ctx context.Context) error {
	work, cancel := drain.Context(ctx, r.opts.DrainTimeout)
	defer cancel()
	idle, failures := 0, 0
	for ctx.Err() == nil {
		n, err := r.pass(work)
		switch {
		case err != nil:
			if failures++; n > 0 {
				failures, idle = 0, 0 // others get through: they must not wait
			}
			r.opts.Logger.ErrorContext(ctx, "outbox: pass failed", "schema", r.opts.Schema, "failures", failures, "error", err)
			r.signals.failed.Send(err)
		case n > 0:
			idle, failures = 0, 0
		default:
			idle, failures = idle+1, 0
		}
		r.signals.passed.Send(n)
		r.pause(ctx, n, idle, failures)
	}
	return nil
}

// pause waits until there may be something to do. A full batch is followed at
// once by the next. After a failure a wake-up is not heeded: with the broker
// away, every commit would cause one more vain pass.
func (r *Relay) pause(ctx context.Context, n, idle, failures int) {
	var wait time.Duration
	wake := r.wake
	switch {
	case failures > 0:
		wait, wake = failurePolicy.Wait(failures), nil
	case n >= r.opts.Batch:
		return
	default:
		wait = backoff.Policy{Base: r.opts.PollMin, Cap: r.opts.PollMax}.Ceiling(idle + 1)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
}

// limit is how long a pass may take, and how long the database waits for a
// relay that hangs.
func (r *Relay) limit() time.Duration { return r.opts.PublishTimeout + databaseTimeout }

// pass publishes one batch in one transaction, whose locks keep other relays
// from these rows. It returns how many messages are dealt with: published, or
// refused and held. The error may come with n > 0: then what the broker took
// has been committed, and the rest met a broker that was away.
func (r *Relay) pass(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.limit())
	defer cancel()
	var unavailable error
	err = pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) error {
		batch, err := r.take(ctx, tx)
		if err != nil || len(batch) == 0 {
			return err
		}
		results := r.publish(ctx, batch)
		if err := failpoint.Hit("outbox/after-publish"); err != nil {
			return err
		}
		n, unavailable, err = r.settle(ctx, tx, batch, results)
		if err != nil {
			return err
		}
		return failpoint.Hit("outbox/before-commit")
	})
	if err != nil {
		return 0, fmt.Errorf("outbox: pass: %w", err)
	}
	if err := failpoint.Hit("outbox/after-commit"); err != nil {
		return n, err
	}
	if unavailable != nil {
		return n, fmt.Errorf("outbox: publish: %w", unavailable)
	}
	return n, nil
}
