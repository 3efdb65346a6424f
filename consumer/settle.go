package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
)

// finish records the handler's success with what it has queued and emitted, and
// commits.
func (c *Consumer) finish(ctx context.Context, tx pgx.Tx, j *job, found cell) error {
	last := &pgx.Batch{}
	j.out.queueInto(last)
	c.queueMove(last, j, found)
	if err := c.queueEmitted(last, j.emitted); err != nil {
		return err
	}
	return c.endHandled(ctx, tx, last, stepSavepoint)
}

// queueMove adds to last what the handler's success changes in the inbox: nothing,
// where the claim has inserted the row.
func (c *Consumer) queueMove(last *pgx.Batch, j *job, found cell) {
	to := done
	switch {
	case j.kind == compensation:
		to = compensated
	case j.out.nothing:
		to = refused
	}
	if j.older || to == refused {
		last.Queue(c.sql.moveStep, j.transition(found, to, j.Attempt)...)
	}
	if j.parked != nil {
		last.Queue(c.sql.deleteParked, j.parked.id)
	}
	j.emits(j.out.msgs)
	j.note(OutcomeDone, "", nil)
}

// settle does what v says about an arrival that does not enter the handler.
func (c *Consumer) settle(ctx context.Context, tx pgx.Tx, j *job, found cell, v verdict) error {
	switch v {
	case superseded:
		if err := c.reportSuperseded(ctx, tx, j, found); err != nil {
			return err
		}
		if j.watch.outcome == "" { // else it was reported as a dead letter
			j.note(OutcomeSuperseded, "", nil)
		}
		return c.forget(ctx, tx, j)
	case duplicate:
		j.note(OutcomeDuplicate, "", j.cause)
		return c.forget(ctx, tx, j)
	case tombstone:
		j.note(OutcomeTombstone, "", nil)
		if !j.older { // the claim was the tombstone
			c.leaveTombstone(ctx, j)
			return nil
		}
		if _, err := tx.Exec(ctx, c.sql.cancelParked, j.identity()...); err != nil {
			return fmt.Errorf("consumer: cancel parked action: %w", err)
		}
		if err := c.move(ctx, tx, j, found, void, found.undoAttempts); err != nil {
			return err
		}
		c.leaveTombstone(ctx, j)
		return c.forget(ctx, tx, j)
	case wait:
		spent := 0
		if j.parked != nil {
			spent = j.parked.attempts - 1
		}
		// The row learns the payload, so that another one is a reused key.
		return c.parkAs(ctx, tx, j, found, failure{reason: ReasonWaits, attempts: spent}, found.state, found.undoAttempts)
	case queue:
		to := map[kind]state{action: retrying, compensation: undoing}[j.kind]
		spent := j.attempts(found) - 1 // the entry that was to come does not
		return c.parkAs(ctx, tx, j, found, failure{reason: ReasonOrder, attempts: spent}, to, spent)
	case refuse:
		return c.park(ctx, tx, j, failure{reason: ReasonActionDead, dead: true,
			err: errors.New("consumer: the action is a dead letter, so it is not known whether there is anything to undo")})
	case outlived:
		return c.buryTooOld(ctx, tx, j, found)
	case reused:
		return c.park(ctx, tx, j, failure{reason: ReasonKeyReused, dead: true,
			err: errors.New(reusedText)})
	default:
		return fmt.Errorf("consumer: no way to settle %q", v)
	}
}

func (c *Consumer) leaveTombstone(ctx context.Context, j *job) {
	c.logTombstone(ctx, j)
	c.leaveUnhandled(ctx, j, Unhandled{})
}

// reportSuperseded makes a dead letter of an action that the broker delivers
// again although its compensation found nothing to undo: the delivery before may
// have died after an effect outside its transaction, of which no row tells. The
// row then remembers an attempt, so that further copies are not reported.
func (c *Consumer) reportSuperseded(ctx context.Context, tx pgx.Tx, j *job, found cell) error {
	if !j.redelivered || found.state != void || found.attempts > 0 || j.step.CancelParked || j.input.effect != nil {
		return nil // an Effect's call leaves a row before it is made
	}
	err := c.park(ctx, tx, j, failure{reason: ReasonSuperseded, dead: true,
		err: errors.New("consumer: the compensation came first and undid nothing, but an earlier delivery of the action may have died in its handler")})
	if err != nil {
		return err
	}
	args := append(j.identity(), void, 1, found.undoAttempts, nil, nil)
	if _, err := tx.Exec(ctx, c.sql.moveStep, args...); err != nil {
		return fmt.Errorf("consumer: note superseded action: %w", err)
	}
	return nil
}

// move records that the step is now in state to, after attempts entries into
// the handler of j's kind.
func (c *Consumer) move(ctx context.Context, tx pgx.Tx, j *job, found cell, to state, attempts int) error {
	if _, err := tx.Exec(ctx, c.sql.moveStep, j.transition(found, to, attempts)...); err != nil {
		return fmt.Errorf("consumer: move step to %s: %w", to, err)
	}
	return nil
}

// transition are the arguments of sqlMoveStep.
func (j *job) transition(found cell, to state, attempts int) []any {
	if j.kind == compensation {
		return append(j.identity(), to, found.attempts, attempts, nil, j.digest)
	}
	return append(j.identity(), to, attempts, found.undoAttempts, j.digest, nil)
}

// forget deletes the parked copy of j, if it is one.
func (c *Consumer) forget(ctx context.Context, tx pgx.Tx, j *job) error {
	if j.parked == nil {
		return nil
	}
	if _, err := tx.Exec(ctx, c.sql.deleteParked, j.parked.id); err != nil {
		return fmt.Errorf("consumer: delete parked message: %w", err)
	}
	return nil
}

// withConn lends do a connection, and takes it back without a transaction.
func (c *Consumer) withConn(ctx context.Context, do func(conn *pgx.Conn) error) error {
	conn, err := c.db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("consumer: connect: %w", err)
	}
	defer conn.Release()
	defer c.abandon(ctx, conn.Conn())
	return do(conn.Conn())
}

// inTx commits what do did, and what it has added to last.
func (c *Consumer) inTx(ctx context.Context, do func(tx pgx.Tx, last *pgx.Batch) error) error {
	return c.withConn(ctx, func(conn *pgx.Conn) error {
		tx, err := conn.BeginTx(ctx, readCommitted)
		if err != nil {
			return fmt.Errorf("consumer: begin: %w", err)
		}
		last := &pgx.Batch{}
		if err := do(tx, last); err != nil {
			return err
		}
		return c.end(ctx, tx, last)
	})
}

// endEmitting is end with what j's step emits where its handler has not succeeded.
func (c *Consumer) endEmitting(ctx context.Context, tx pgx.Tx, j *job) error {
	last := &pgx.Batch{}
	if err := c.queueEmitted(last, j.emitted); err != nil {
		return err
	}
	return c.end(ctx, tx, last)
}

// end sends what last holds, and COMMIT in the same round trip, which is skipped
// if a statement before it fails. It checks that the server answered COMMIT: on an
// aborted transaction it answers ROLLBACK, without an error. After an error that
// is not the server's own the outcome is not known.
func (c *Consumer) end(ctx context.Context, tx pgx.Tx, last *pgx.Batch) error {
	if err := failpoint.Hit("consumer/before-commit"); err != nil {
		return err
	}
	tag := ""
	last.Queue("commit").Query(func(rows pgx.Rows) error {
		rows.Close()
		tag = rows.CommandTag().String()
		return rows.Err()
	})
	err := tx.Conn().SendBatch(ctx, last).Close()
	if err == nil && tag != "COMMIT" {
		err = pgx.ErrTxCommitRollback
	}
	if err != nil {
		return fmt.Errorf("consumer: commit: %w", err)
	}
	return failpoint.Hit("consumer/after-commit")
}

// The savepoints that are set when a transaction is opened, for one step or for a batch of them.
const stepSavepoint, batchSavepoint = "sagamill_step", "sagamill_queued"

// endHandled is end of a transaction that a handler had. It fails with errTxEnded if the handler has ended that
// and begun another, within a longer string on the bare connection: the savepoint of the opening is gone then.
func (c *Consumer) endHandled(ctx context.Context, tx pgx.Tx, last *pgx.Batch, savepoint string) error {
	var gone error
	last.Queue("RELEASE SAVEPOINT " + savepoint).Fn = func(results pgx.BatchResults) error {
		_, err := results.Exec()
		gone = endedIfGone(err)
		return err
	}
	err := c.end(ctx, tx, last)
	if errors.Is(gone, errTxEnded) {
		return gone
	}
	return err
}

// codeNoSavepoint is what PostgreSQL answers where a savepoint does not exist.
const codeNoSavepoint = "3B001"

// endedIfGone returns err as errTxEnded if it says that a savepoint of ours does not exist.
func endedIfGone(err error) error {
	if sqlState(err) == codeNoSavepoint {
		return errors.Join(Terminal(errTxEnded), err)
	}
	return err
}

// ack acks jobs that are dealt with, and wakes the relay if one of them has
// emitted something.
func (c *Consumer) ack(jobs ...*job) {
	if failpoint.Hit("consumer/before-ack") != nil {
		return
	}
	wakes := false
	for _, j := range jobs {
		j.arrived.msg.Ack()
		wakes = wakes || j.wakes
		c.signals.settled.Send(j.ID)
	}
	if failpoint.Hit("consumer/after-ack") != nil {
		return
	}
	c.wakeRelay(wakes)
}

// committed wakes the relay if j's transaction, which has committed, gives it work.
func (c *Consumer) committed(j *job) {
	c.wakeRelay(j != nil && j.wakes)
}

// wakeRelay calls the option Wake if there is work for the relay. Without it the relay looks a
// little later.
func (c *Consumer) wakeRelay(wakes bool) {
	if wakes && c.opts.Wake != nil {
		guard.Hook(context.Background(), c.opts.Logger, "consumer: option Wake", c.opts.Wake)
	}
}
