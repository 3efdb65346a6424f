package saga

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/drain"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/guard"
)

const (
	// timerTime is what the work on one instance may take.
	timerTime = 30 * time.Second

	// timerLease is for how long others leave an instance alone that was claimed, until its
	// row is locked, which they pass over: if the process dies in between, another one
	// takes it after that.
	timerLease = 10 * time.Second

	// maxTimerTries is how often an instance's timer is tried before a person is asked.
	maxTimerTries = 10

	// suspectPause is between two looks for suspects while there is more than that to do: they are
	// found behind all that are due.
	suspectPause = time.Second
)

// timerPolicy spaces tries.
var timerPolicy = backoff.Policy{Base: time.Second, Cap: 5 * time.Minute}

// runTimers sees to instances whose time has come, until ctx ends. Work in hand is
// finished then.
func (o *Orchestrator) runTimers(ctx context.Context) {
	work, cancel := drain.Context(ctx, timerTime)
	defer cancel()
	for ctx.Err() == nil {
		n, more := 0, false
		err := guard.Call(func() (err error) { // of the pool's hooks
			n, more, err = o.timerPass(work)
			return err
		})
		if err != nil {
			o.opts.Logger.ErrorContext(ctx, "saga: timers cannot be looked at", "error", err)
		}
		o.signals.timerPass.Send(n)
		if more && err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(o.timerPause(ctx, err)):
		}
	}
}

// timerPause returns how long it is until the next instance is due, at most TimerPoll: one
// may be added meanwhile.
func (o *Orchestrator) timerPause(ctx context.Context, failed error) time.Duration {
	var micros int64
	ctx, cancel := context.WithTimeout(ctx, timerTime)
	defer cancel()
	if failed == nil {
		failed = guard.Call(func() error {
			return o.db.QueryRow(ctx, o.sql.nextDue, o.known.names, o.known.versions, o.known.hashes).Scan(&micros)
		})
	}
	if failed != nil {
		return o.opts.TimerPoll
	}
	return max(time.Millisecond, min(o.opts.TimerPoll, time.Duration(micros)*time.Microsecond))
}

// A due is an instance whose time has come.
type due struct {
	scope, key, path string
	tries            int
	revision         int // that it had when it was claimed, or anyRevision
}

// anyRevision is that of what was not claimed: whether there is something to do is asked
// under the lock.
const anyRevision = -1

// timerPass runs the timers of some instances, as many as there are workers, so that none
// waits while it is claimed. It returns how many, and whether there may be more. One of which an earlier try has come to nothing may kill this process too:
// it runs while no other does, so that it spends only its own tries.
func (o *Orchestrator) timerPass(ctx context.Context) (n int, more bool, err error) {
	batch := o.opts.TimerWorkers
	fresh, err := o.claimDue(ctx, batch, false)
	if err != nil {
		return 0, false, err
	}
	o.runClaimed(ctx, fresh)
	if len(fresh) == batch && time.Since(o.suspected) < suspectPause {
		return len(fresh), true, nil
	}
	o.suspected = time.Now()
	suspect, err := o.claimDue(ctx, 1, true)
	o.runClaimed(ctx, suspect)
	return len(fresh) + len(suspect), len(fresh) == batch || len(suspect) > 0, err
}

func (o *Orchestrator) claimDue(ctx context.Context, limit int, suspect bool) ([]due, error) {
	ctx, cancel := context.WithTimeout(ctx, timerTime)
	defer cancel()
	rows, err := o.db.Query(ctx, o.sql.claimDue, o.known.names, o.known.versions, limit, timerLease.Microseconds(), suspect, o.known.hashes)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (d due, err error) {
		return d, r.Scan(&d.scope, &d.key, &d.path, &d.tries, &d.revision)
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all, failpoint.Hit("saga/after-timer-claim")
}

// runClaimed returns when the timers of all have run.
func (o *Orchestrator) runClaimed(ctx context.Context, all []due) {
	var wg sync.WaitGroup
	for _, d := range all {
		wg.Go(func() { o.runTimer(ctx, d) })
	}
	wg.Wait()
}

// runTimer does what is due of an instance, or notes why it could not. If the
// instance has moved since it was claimed, whoever moved it has said when it is due.
func (o *Orchestrator) runTimer(ctx context.Context, d due) {
	err := errTimerKills
	if d.tries <= maxTimerTries {
		err = o.inTx(ctx, d, func(ctx context.Context, r *flow.Run) error { return r.Timer(ctx) })
	}
	if err != nil && !errors.Is(err, ErrNoInstance) && !errors.Is(err, errMoved) {
		o.postpone(d, err)
	}
	o.signals.timed.Send(d.key)
}

var (
	errTimerKills = errors.New("saga: earlier attempts ended without a result, most likely with their process")
	errMoved      = errors.New("saga: the instance has moved since it was claimed")
)

// postpone notes that an instance's timer has failed. If that is lost too, the
// claim says when it is tried again.
func (o *Orchestrator) postpone(d due, cause error) {
	ctx, cancel := context.WithTimeout(context.Background(), timerTime)
	defer cancel()
	last := d.tries >= maxTimerTries || errors.Is(cause, flow.ErrUnfit)
	o.opts.Logger.ErrorContext(ctx, "saga: an instance's timer failed", "scope", d.scope, "key", d.key, "path", d.path, "try", d.tries, "stuck", last, "error", cause)
	err := guard.Call(func() error {
		_, err := o.db.Exec(ctx, o.sql.postpone, d.scope, d.key, d.path, clip(cause.Error()), timerPolicy.Wait(d.tries).Microseconds(), last, d.revision, d.tries)
		return err
	})
	if err != nil {
		o.opts.Logger.ErrorContext(ctx, "saga: that is not noted", "error", err)
	}
}

// inTx has do move an instance, in a transaction of its own, and stores it with what it sends.
// After an error that is not the server's own it is not known whether that has happened.
func (o *Orchestrator) inTx(ctx context.Context, d due, do func(context.Context, *flow.Run) error) error {
	ctx, cancel := context.WithTimeout(ctx, timerTime)
	defer cancel()
	wakes := false
	err := guard.Apart(func() error {
		return pgx.BeginTxFunc(ctx, o.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			if wakes, err = o.moveDue(ctx, tx, d, do); err != nil {
				return err
			}
			return failpoint.Hit("saga/before-timer-commit")
		})
	})
	if err != nil {
		return err
	}
	if wakes && o.opts.Wake != nil {
		guard.Hook(ctx, o.opts.Logger, "saga: option Wake", o.opts.Wake)
	}
	return failpoint.Hit("saga/after-timer-commit")
}

// moveDue is the work of inTx, and reports whether something was sent.
func (o *Orchestrator) moveDue(ctx context.Context, tx pgx.Tx, d due, do func(context.Context, *flow.Run) error) (sent bool, err error) {
	if _, err := tx.Exec(ctx, o.sql.limitIdle, strconv.FormatInt(timerTime.Milliseconds(), 10)); err != nil {
		return false, err
	}
	i, err := o.sql.lock(ctx, tx, d.scope, d.key, d.path)
	if err != nil {
		return false, err
	}
	if d.revision != anyRevision && d.revision != i.revision {
		return false, errMoved
	}
	i.later = d.revision == anyRevision // what follows may fail: then a timer counts it, and asks a person
	f, err := o.flowOf(i)
	if err != nil {
		return false, err
	}
	s := &session{sql: &o.sql, tx: tx, row: i}
	if err := o.move(ctx, s, f, func(r *flow.Run) error { return do(ctx, r) }); err != nil {
		return false, err
	}
	return len(s.out) > 0, o.writer.Write(ctx, tx, s.traced()...)
}
