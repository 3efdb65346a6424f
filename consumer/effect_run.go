package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/drain"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/outbox"
)

// How an attempt at an Effect goes, from one commit to the next:
//
//	claimEffect   in the transaction that decided: park the message with the attempt counted, in doubt, not due
//	              before its lease is over, and the step's row retrying or undoing
//	undertake     nothing is locked: ask verify if there is a doubt, make the call, and
//	keep          lock the row and the parked copy, which must still be the one of this attempt (attempts and
//	              round are the fence), and commit either what record does and the end of the copy, or the copy's next turn
//
// A process that dies in between leaves a parked message behind that says
// enough. One that loses its lease finds the fence raised.

// effectMargin is what a lease has room for besides verify and call: the
// commit before them, and the way to the lock after them.
const effectMargin = 5 * time.Second

// recordGrace is how long after the end of a drain the outcome of a call that
// ended with it may still be recorded. It is shorter than deafGrace.
const recordGrace = 3 * time.Second

var (
	errLate      = NotDone(errors.New("consumer: the attempt's lease was over before its call; it was not made"))
	errSpent     = errors.New("consumer: all attempts are used up")
	errUnsettled = errors.New("consumer: verify finds nothing yet, but the call in doubt may still have its effect")
)

// An undertaking is an attempt at an Effect whose lease has been written.
type undertaking struct {
	parked    parkedCopy
	doubt     bool          // an earlier attempt may have had the effect
	unsettled time.Duration // how long yet verify's "nothing" says nothing; not positive: it is believed
	until     time.Time     // the lease's end, or somewhat before it
}

// An outcome is what came of an undertaking.
type outcome struct {
	result    any
	err       error
	doubt     bool          // it may have had the effect; of no meaning without err
	unsettled time.Duration // positive: only asked, too early; come back then
	rest      time.Duration // of a question that failed: how long yet "nothing" says nothing
}

// asks reports whether an attempt in doubt can be looked up.
func (in *Input) asks() bool { return in.effect != nil && in.effect.verify != nil }

// replayed reports whether j's message has been published before, so that the
// database may have forgotten what came of it.
func (j *job) replayed() bool { return j.Metadata.Get(outbox.HeaderReplayed) != "" }

// claimEffect takes the lease for one attempt at j's effect, in the transaction
// that holds the lock of its step, and commits. Then comes the call.
func (c *Consumer) claimEffect(ctx context.Context, tx pgx.Tx, j *job, found cell) error {
	j.exhausted = false
	u := undertaking{parked: parkedCopy{attempts: j.attempts(found)}}
	j.exhausted = u.parked.attempts > j.step.MaxAttempts
	j.Attempt = j.attempts(found)
	if err := c.readDoubt(ctx, tx, j, &u); err != nil {
		return err
	}
	lease := c.effectLease(j, u.doubt)
	u.until = time.Now().Add(lease) // before the database begins to count
	last := &pgx.Batch{}
	err := c.takeLease(ctx, tx, last, j, &u, lease)
	if errors.Is(err, errOtherCopy) {
		if err := c.buryOther(ctx, tx, j, found.entries(j.kind)); err != nil {
			return err
		}
		return c.endEmitting(ctx, tx, j)
	}
	if err != nil {
		return err
	}
	last.Queue(c.sql.moveStep, j.transition(found, parkedState(j.kind, false), j.Attempt)...)
	if err := c.end(ctx, tx, last); err != nil {
		return err
	}
	if u.parked.id == 0 {
		j.note(OutcomeDuplicate, "", nil)
		return nil
	}
	j.undertaking = &u
	return nil
}

// effectLease is how long an attempt may take before another one may begin.
func (c *Consumer) effectLease(j *job, doubt bool) time.Duration {
	if doubt && j.input.asks() {
		return 2*j.step.Timeout + c.effectMargin
	}
	return j.step.Timeout + c.effectMargin
}

// readDoubt fills in what is known of earlier attempts. Those of a delivery
// were made before the step was an Effect: nothing is known but their number.
func (c *Consumer) readDoubt(ctx context.Context, tx pgx.Tx, j *job, u *undertaking) error {
	u.doubt, u.unsettled = u.parked.attempts > 1, j.step.Settle
	forgotten, waits := c.effectLease(j, true)+j.step.Settle, false
	if j.parked != nil {
		var err error
		if forgotten, waits, err = c.readParkedDoubt(ctx, tx, j, u); err != nil {
			return err
		}
	}
	if j.input.asks() && !waits {
		j.suspect(u, forgotten)
	}
	return nil
}

// suspect puts an attempt into doubt before which there may have been another: the
// database was set back, and has forgotten it. That of a replayed message was made
// before this came, or before an operator sent it round with the mark, and whoever made
// it may not have seen it end: for as long as that, forgotten, "nothing" says nothing.
// Afterwards what such a message does, and what each of [Step].AskFirst does, is asked
// about and believed at once: what is asked of each must not make each wait.
func (j *job) suspect(u *undertaking, forgotten time.Duration) {
	switch {
	case j.replayed() && u.doubt:
		u.unsettled = max(u.unsettled, forgotten)
	case j.replayed():
		u.doubt, u.unsettled = true, forgotten
	case j.step.AskFirst && !u.doubt:
		u.doubt, u.unsettled = true, 0
	}
}

// readParkedDoubt does so for a copy, by what its last attempt has left. It waits if
// that has asked too early. Forgotten is for how long yet a call may be under way that
// the database knows nothing of.
func (c *Consumer) readParkedDoubt(ctx context.Context, tx pgx.Tx, j *job, u *undertaking) (forgotten time.Duration, waits bool, err error) {
	unseen := c.effectLease(j, true) + j.step.Settle
	var left, forgottenLeft int64
	err = tx.QueryRow(ctx, c.effectSQL.readDoubt, j.parked.id, unseen.Microseconds(), j.step.Settle.Microseconds()).Scan(&u.doubt, &left, &forgottenLeft, &waits)
	if err != nil {
		return 0, false, fmt.Errorf("consumer: read doubt: %w", err)
	}
	u.unsettled = time.Duration(left) * time.Microsecond
	return time.Duration(forgottenLeft) * time.Microsecond, waits, nil
}

// takeLease parks the message for the time of the attempt: a copy with last, and a
// delivery at once, for what there is already decides how the row is moved. Where
// that is the same message, u is left without an id; another is errOtherCopy.
func (c *Consumer) takeLease(ctx context.Context, tx pgx.Tx, last *pgx.Batch, j *job, u *undertaking, lease time.Duration) error {
	if j.parked != nil {
		u.parked.id, u.parked.round = j.parked.id, j.parked.round
		last.Queue(c.effectSQL.leaseParked, j.parked.id, lease.Microseconds())
		return nil
	}
	columns := append(j.columns(ReasonCalling, "", "", u.parked.attempts), lease.Microseconds())
	err := tx.QueryRow(ctx, c.effectSQL.leaseDelivery, columns...).Scan(&u.parked.id)
	other := false
	if errors.Is(err, pgx.ErrNoRows) {
		err = tx.QueryRow(ctx, c.effectSQL.readOther, append(j.identity(), j.kind, j.digest)...).Scan(&other)
	}
	switch {
	case err != nil:
		return fmt.Errorf("consumer: lease message: %w", err)
	case other:
		return errOtherCopy
	}
	return nil
}

// undertake makes the attempt that j has the lease for and records what came
// of it. It returns no error: j is parked whatever happens, and if nothing can be
// recorded its lease runs out.
func (c *Consumer) undertake(ctx context.Context, j *job) {
	j.watch.delivered = j.parked == nil
	j.parked = &j.undertaking.parked
	if err := failpoint.Hit("effect/after-claim"); err != nil {
		return // as if the process had died
	}
	o := c.resolve(ctx, j)
	work, cancel := drain.Context(ctx, recordGrace)
	defer cancel()
	c.keep(work, j, o)
}

// resolve finds out what came of earlier attempts, if there is a doubt, and
// makes the call if it must.
func (c *Consumer) resolve(ctx context.Context, j *job) outcome {
	u := j.undertaking
	if u.doubt && j.input.asks() {
		result, found, err := c.ask(ctx, j)
		switch {
		case err != nil:
			return outcome{err: fmt.Errorf("consumer: verify: %w", err), doubt: true, rest: u.unsettled}
		case found:
			return outcome{result: result}
		case u.unsettled > 0:
			return outcome{err: errUnsettled, doubt: true, unsettled: u.unsettled}
		}
		u.doubt = false
	}
	if j.exhausted {
		return outcome{err: errSpent, doubt: u.doubt}
	}
	result, err := c.call(ctx, j)
	return outcome{result: result, err: err, doubt: u.doubt || !errors.Is(err, ErrNotDone)}
}

func (c *Consumer) ask(ctx context.Context, j *job) (result any, found bool, err error) {
	if err := failpoint.Hit("effect/before-verify"); err != nil {
		return nil, false, err
	}
	err = c.within(ctx, j, func(ctx context.Context) (err error) {
		result, found, err = j.input.effect.verify(ctx, j.Delivery, j.body)
		return err
	})
	return result, found, cmp.Or(err, failpoint.Hit("effect/after-verify"))
}

func (c *Consumer) call(ctx context.Context, j *job) (result any, err error) {
	if err := failpoint.Hit("effect/before-call"); err != nil {
		return nil, err
	}
	err = c.within(ctx, j, func(ctx context.Context) (err error) {
		result, err = j.input.effect.call(ctx, j.Delivery, j.body)
		return err
	})
	return result, cmp.Or(err, failpoint.Hit("effect/after-call"))
}

// within runs do in j's entry with the step's deadline, and not at all if the lease
// is over, as it is when the process has hung. A panic becomes an error.
func (c *Consumer) within(ctx context.Context, j *job, do func(ctx context.Context) error) (err error) {
	now := time.Now()
	if !now.Before(j.undertaking.until) {
		return errLate
	}
	limit := now.Add(j.step.Timeout)
	if j.undertaking.until.Before(limit) {
		limit = j.undertaking.until
	}
	ctx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	ctx = c.entering(ctx, j)
	err = errNoReturn
	defer func() { c.leaving(j, err) }()
	err = guarded(func() error { return do(ctx) })
	return err
}

// keep records o. A result is worth some tries: without it the next attempt has
// to ask or to call again.
func (c *Consumer) keep(ctx context.Context, j *job, o outcome) {
	if o.err == nil {
		o.err = persist(ctx, func() error { return c.recordResult(ctx, j, o.result) })
		if o.err == nil {
			return
		}
		o.doubt = true
	}
	var err error
	if o.unsettled > 0 {
		err = c.postpone(ctx, j, o.unsettled)
	} else {
		c.logFailure(ctx, j, o.err)
		err = persist(ctx, func() error { return c.recordUndone(ctx, j, o) })
	}
	if err != nil {
		j.note(OutcomeUndecided, "", err)
		c.logJob(ctx, slog.LevelError, "consumer: the outcome of an effect cannot be recorded; another attempt follows its lease", j, slog.Any("error", err))
	}
}

// persist runs do until it succeeds, for [maxTries] or until ctx ends, unless
// trying again is of no use.
func persist(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		var panicked *PanicError
		if err == nil || try == maxTries || errors.Is(err, ErrTerminal) || errors.Is(err, ErrParked) || errors.As(err, &panicked) || ctx.Err() != nil {
			return err
		}
		pause(ctx, failurePolicy.Wait(try), nil, false)
	}
}

// recordResult commits record's work and the end of the parked copy.
func (c *Consumer) recordResult(ctx context.Context, j *job, result any) error {
	err := c.underFence(ctx, j, func(ctx context.Context, tx pgx.Tx, found cell) error {
		if err := failpoint.Hit("effect/before-record"); err != nil {
			return err
		}
		r := j.recording(result)
		defer func() { j.watch, j.wakes = r.watch, r.wakes }()
		if err := c.enter(ctx, tx.Conn(), tx, r, found); err != nil {
			return err
		}
		return c.finish(ctx, tx, r, found)
	})
	if err == nil {
		err = failpoint.Hit("effect/after-record")
	}
	return err
}

// recording returns j with record, given result, for its handler.
func (j *job) recording(result any) *job {
	r, e := *j, j.input.effect
	r.older, r.traffic = true, nil // the row is there, and record's time is not the step's
	r.input.run = func(ctx context.Context, tx pgx.Tx, d Delivery, body any, emit Emit) error {
		return e.record(ctx, tx, d, body, result, emit)
	}
	return &r
}

// recordUndone parks j's copy for its next turn or makes it a dead letter.
func (c *Consumer) recordUndone(ctx context.Context, j *job, o outcome) error {
	return c.underFence(ctx, j, func(ctx context.Context, tx pgx.Tx, found cell) error {
		f := j.undone(found, o)
		if err := c.park(ctx, tx, j, f); err != nil {
			return err
		}
		last := &pgx.Batch{}
		last.Queue(c.effectSQL.setDoubt, j.parked.id, o.doubt, max(0, o.rest-j.step.Settle).Microseconds())
		last.Queue(c.sql.moveStep, j.transition(found, parkedState(j.kind, f.dead), f.attempts)...)
		if err := c.queueEmitted(last, j.emitted); err != nil {
			return err
		}
		return c.end(ctx, tx, last)
	})
}

// undone says how o is parked. The last attempt, if it is in doubt, gets
// another turn at which it is asked, once, what came of it.
func (j *job) undone(found cell, o outcome) failure {
	f := j.failure(found, o.err)
	spent := f.reason == ReasonExhausted || f.reason == ReasonUnavailable
	if spent && o.doubt && j.input.asks() && !j.exhausted {
		f.reason, f.dead = ReasonFailed, false
	}
	return f
}

// postpone sends j's copy round again without an attempt spent. It may not be
// tried twice: it lowers the fence, so that after a COMMIT without an answer the
// copy could be another attempt's.
func (c *Consumer) postpone(ctx context.Context, j *job, wait time.Duration) error {
	return c.underFence(ctx, j, func(ctx context.Context, tx pgx.Tx, found cell) error {
		j.note(OutcomeRetry, ReasonUnsettled, errUnsettled)
		last := &pgx.Batch{}
		last.Queue(c.effectSQL.postpone, j.parked.id, wait.Microseconds(), j.step.Settle.Microseconds())
		last.Queue(c.sql.moveStep, j.transition(found, parkedState(j.kind, false), j.parked.attempts-1)...)
		return c.end(ctx, tx, last)
	})
}

// underFence runs do, which commits, under the locks of j's step and of its parked
// copy, if that is still the one of this attempt. Otherwise nothing happens, and
// that is no error: an earlier COMMIT without an answer has done it already, or
// another attempt has begun and finds out for itself.
func (c *Consumer) underFence(ctx context.Context, j *job, do func(context.Context, pgx.Tx, cell) error) error {
	ctx, cancel := context.WithTimeout(ctx, j.step.Timeout+databaseTimeout)
	defer cancel()
	err := c.withConn(ctx, func(conn *pgx.Conn) error {
		return c.timed(ctx, new(int), func() error {
			tx, found, err := c.lockHeld(ctx, conn, j)
			if err != nil {
				return err
			}
			return do(ctx, tx, found)
		})
	})
	if errors.Is(err, errGone) {
		j.note(OutcomeDuplicate, "", nil)
		c.logJob(ctx, slog.LevelWarn, "consumer: the outcome of an effect is not recorded: it is already, or another attempt has taken over", j)
		return nil
	}
	return err
}

// lockHeld begins a transaction and locks the step's row and then the parked
// copy, in one round trip, before the savepoint by which endHandled knows it. Unlike lock it waits for the row, since there is an
// outcome at hand.
func (c *Consumer) lockHeld(ctx context.Context, conn *pgx.Conn, j *job) (pgx.Tx, cell, error) {
	j.emits(nil)
	var found cell
	ours := false
	b := &pgx.Batch{}
	b.BeginTx(readCommitted)
	b.Queue(c.sql.limitIdle, milliseconds(idleLimit([]*job{j})))
	b.Queue(c.sql.lockStep, j.identity()...).QueryRow(func(row pgx.Row) error { return row.Scan(found.columns()...) })
	b.Queue(c.sql.lockParked, j.parked.fence()...).QueryRow(func(row pgx.Row) error { return row.Scan(&ours) })
	b.Queue("SAVEPOINT " + stepSavepoint)
	results := conn.SendBatch(ctx, b)
	err := results.Close()
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, cell{}, errGone
	case err != nil:
		return nil, cell{}, fmt.Errorf("consumer: lock effect: %w", err)
	}
	return results.Tx(), found, nil
}
