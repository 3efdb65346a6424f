package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/txguard"
)

// databaseTimeout is what a job may take besides its handler, waiting for the
// lock of a concurrent duplicate aside: pgx has no deadline of its own.
const databaseTimeout = 10 * time.Second

// ErrTxManaged reports that a handler tried to end its transaction by Commit or
// Rollback. Nothing has happened to the transaction.
var ErrTxManaged = txguard.ErrManaged

var (
	errTxEnded   = errors.New("consumer: the handler ended the transaction")
	errConnLost  = errors.New("consumer: the connection was lost while the handler ran")
	errTxAborted = errors.New("consumer: the handler returned nil after a statement had failed in its transaction")
	errTxBusy    = errors.New("consumer: the handler returned before it had read all rows of a query, or closed them")
)

// handle takes j to an end: nil means that its effect, its parked copy or its
// dead letter has committed, and that a delivery may be acked. After an error
// nothing is decided: call handle again with the same job, or give it back.
func (c *Consumer) handle(ctx context.Context, j *job) error {
	err := errNoReturn
	defer func() { c.settled(ctx, j, err) }()
	err = c.conclude(ctx, j)
	return err
}

// conclude is handle without those who watch.
func (c *Consumer) conclude(ctx context.Context, j *job) error {
	leave, err := c.joinCompany(ctx, j)
	if err != nil {
		return err
	}
	defer leave()
	if j.cause == nil {
		j.undertaking = nil // of a transaction that did not commit
		err := c.countBeforehand(ctx, j)
		if err == nil {
			err = c.attempt(ctx, j)
		}
		if err == nil && j.undertaking != nil {
			c.undertake(ctx, j)
		}
		if err == nil || !j.entered {
			return err
		}
		j.cause = err
	}
	return c.recordLost(ctx, j)
}

// countBeforehand commits the coming entry into the handler before it happens,
// where an earlier one may have killed the process: then it is all that is
// left of it. Steps that may be entered once only are always counted so, and
// all steps where the subscriber does not tell redeliveries apart.
//
// A first delivery that crashed left no row. Unless every entry is counted
// beforehand, its redelivery therefore counts for two. So it is counted with what
// a message has spent in a batch that failed: such entries leave no row either.
func (c *Consumer) countBeforehand(ctx context.Context, j *job) error {
	always := j.step.MaxAttempts == 1 || !c.marked
	if j.parked != nil || j.input.effect != nil || j.counted || !j.redelivered && j.spent == 0 && !always {
		return nil // claimEffect always counts
	}
	first := j.spent + 1
	if j.redelivered && !always {
		first = 2
	}
	statement := c.sql.countAction
	if j.kind == compensation {
		statement = c.sql.countCompensation
	}
	ctx, cancel := context.WithTimeout(ctx, j.step.Timeout+databaseTimeout)
	defer cancel()
	var attempts int
	err := c.db.QueryRow(ctx, statement, append(j.identity(), first)...).Scan(&attempts)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // it will not be entered
	}
	if err != nil {
		return fmt.Errorf("consumer: count attempt: %w", err)
	}
	if err := j.noteCounted(attempts); err != nil {
		return err
	}
	return failpoint.Hit("consumer/after-count")
}

// noteCounted returns an error if the coming entry, the one that brings them to
// attempts, must not happen.
func (j *job) noteCounted(attempts int) error {
	j.counted = true
	if attempts <= j.step.MaxAttempts {
		return nil
	}
	j.exhausted, j.entered = true, true
	j.cause = errors.New("consumer: earlier attempts ended without a result, most likely with their process")
	return j.cause
}

// attempt does what the step's row says in one transaction. If it returns an
// error with j.entered, the transaction is lost, or its outcome is not known,
// after the handler had begun.
func (c *Consumer) attempt(ctx context.Context, j *job) error {
	ctx, cancel := context.WithTimeout(ctx, 2*j.step.Timeout+databaseTimeout)
	defer cancel()
	return c.withConn(ctx, func(conn *pgx.Conn) error {
		return c.timed(ctx, new(int), func() error {
			if j.parked != nil {
				return c.attemptParked(ctx, conn, j)
			}
			tx, err := c.open(ctx, conn, []*job{j})
			if err != nil {
				return err
			}
			return c.follow(ctx, tx, j, j.found)
		})
	})
}

func (c *Consumer) attemptParked(ctx context.Context, conn *pgx.Conn, j *job) error {
	tx, err := conn.BeginTx(ctx, readCommitted)
	if err != nil {
		return fmt.Errorf("consumer: begin: %w", err)
	}
	found, err := c.lock(ctx, tx, j)
	switch {
	case errors.Is(err, errGone):
		return nil
	case errors.Is(err, errBusy):
		if err := c.handBack(ctx, tx, j); err != nil {
			return err
		}
		return c.end(ctx, tx, &pgx.Batch{})
	case err != nil:
		return err
	}
	return c.follow(ctx, tx, j, found)
}

// follow does what the locked row says, and commits.
func (c *Consumer) follow(ctx context.Context, tx pgx.Tx, j *job, found cell) error {
	v := decide(found, j.arrival())
	c.signals.decided.Send(v)
	if v == run {
		return c.run(ctx, tx, j, found)
	}
	if err := c.settle(ctx, tx, j, found, v); err != nil {
		return err
	}
	return c.endEmitting(ctx, tx, j)
}

// endEmitting is end with what j's step emits where its handler has not succeeded.
func (c *Consumer) endEmitting(ctx context.Context, tx pgx.Tx, j *job) error {
	last := &pgx.Batch{}
	if err := c.queueEmitted(last, j.emitted); err != nil {
		return err
	}
	return c.end(ctx, tx, last)
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

var (
	// errGone reports that a parked copy was dealt with by somebody else.
	errGone = errors.New("consumer: the parked copy is gone")

	// errBusy reports that somebody else is at work on a parked copy's step.
	errBusy = errors.New("consumer: the step is locked")
)

// lock claims and locks the step's row, and opens the savepoint that a failing
// handler falls back to, in one round trip. For a parked job it then makes
// sure that the copy is still its own.
func (c *Consumer) lock(ctx context.Context, tx pgx.Tx, j *job) (cell, error) {
	j.older = true // whoever made the row: it must be moved
	j.emits(nil)
	batch := &pgx.Batch{}
	batch.Queue(c.sql.limitIdle, milliseconds(idleLimit([]*job{j})))
	batch.Queue(c.sql.claimStep, j.identity()...)
	if j.parked == nil {
		batch.Queue(c.sql.lockStep, j.identity()...)
	} else {
		batch.Queue(c.sql.tryLockStep, j.identity()...)
	}
	batch.Queue(c.retention.readHorizon)
	batch.Queue("SAVEPOINT " + stepSavepoint)
	results := tx.SendBatch(ctx, batch)
	var found cell
	_, err := results.Exec()
	if err == nil {
		_, err = results.Exec()
	}
	if err == nil {
		err = results.QueryRow().Scan(found.columns()...)
	}
	busy := j.parked != nil && errors.Is(err, pgx.ErrNoRows)
	if busy {
		err = nil
	}
	if err == nil {
		found.horizon, err = scanHorizon(results.QueryRow())
	}
	if err = errors.Join(err, results.Close()); err != nil {
		return cell{}, fmt.Errorf("consumer: lock step: %w", err)
	}
	if busy {
		return cell{}, errBusy
	}
	if j.parked == nil {
		return found, nil
	}
	var ours bool
	err = tx.QueryRow(ctx, c.sql.lockParked, j.parked.fence()...).Scan(&ours)
	if errors.Is(err, pgx.ErrNoRows) {
		return cell{}, errGone
	}
	if err != nil {
		return cell{}, fmt.Errorf("consumer: lock parked message: %w", err)
	}
	return found, nil
}

// handBack returns a parked copy whose step is busy, for a little while.
func (c *Consumer) handBack(ctx context.Context, tx pgx.Tx, j *job) error {
	wait := j.step.retry().Wait(1)
	if _, err := tx.Exec(ctx, c.sql.handBack, append(j.parked.fence(), wait.Microseconds())...); err != nil {
		return fmt.Errorf("consumer: hand parked message back: %w", err)
	}
	return nil
}

// run enters the handler, records how that ended, under the row's lock, and
// commits.
func (c *Consumer) run(ctx context.Context, tx pgx.Tx, j *job, found cell) error {
	if j.input.effect != nil {
		return c.claimEffect(ctx, tx, j, found)
	}
	err := c.enter(ctx, tx.Conn(), tx, j, found)
	if err == nil {
		err = c.finish(ctx, tx, j, found)
	}
	if err == nil || !j.entered {
		return err
	}
	c.logFailure(ctx, j, err)
	switch {
	case errors.Is(err, errTxEnded):
		return errors.Join(err, c.reopen(ctx, j))
	case errors.Is(err, errConnLost): // COMMIT was not sent, unless by the handler
		j.unmended = !j.older
		return err
	case tx.Conn().IsClosed(), txguard.StatusOf(tx.Conn()) == txguard.Ended:
		return err
	}
	if _, lost := tx.Conn().Exec(ctx, "ROLLBACK TO SAVEPOINT "+stepSavepoint); lost != nil {
		if err = errors.Join(endedIfGone(lost), err); errors.Is(err, errTxEnded) {
			err = errors.Join(err, c.reopen(ctx, j))
		}
		return err
	}
	if err := c.recordFailure(ctx, tx, j, found, err); err != nil {
		return err
	}
	return c.endEmitting(ctx, tx, j)
}

// enter calls the handler with tx, which is on conn.
func (c *Consumer) enter(ctx context.Context, conn *pgx.Conn, tx pgx.Tx, j *job, found cell) (err error) {
	if err := failpoint.Hit("consumer/before-handler"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, j.step.Timeout)
	defer cancel()
	j.Attempt = j.attempts(found)
	j.entered = true
	j.out = &collector{job: j, log: c.opts.Logger}
	defer j.out.close()
	ctx = c.entering(ctx, j)
	err = errNoReturn
	defer func() { c.leaving(j, err) }()
	if j.traffic != nil {
		defer func(begun time.Time) { j.traffic.note(time.Since(begun)) }(time.Now())
	}
	err = guarded(func() error { return j.input.run(ctx, txguard.Wrap(tx), j.Delivery, j.body, j.out.emit) })
	if err == nil {
		err = stateAfter(conn)
	} else if conn.IsClosed() {
		err = errors.Join(errConnLost, err)
	} else if txguard.StatusOf(conn) == txguard.Ended {
		err = errors.Join(Terminal(errTxEnded), err)
	}
	return err
}

// stateAfter returns what is wrong with a transaction that a handler has
// returned as if nothing were.
func stateAfter(conn *pgx.Conn) error {
	switch {
	case conn.IsClosed():
		return errConnLost
	case conn.PgConn().IsBusy():
		return errTxBusy
	case txguard.StatusOf(conn) == txguard.Ended:
		return Terminal(errTxEnded)
	case txguard.StatusOf(conn) == txguard.Aborted:
		return errTxAborted
	}
	return nil
}

// reopen takes back a claim that a handler has committed by ending the
// transaction: the row says that the step is done, and only half of it is. One that it
// has rolled back is gone, and the row may be another delivery's, which stays. If that
// fails, whoever records the failure does it first.
func (c *Consumer) reopen(ctx context.Context, j *job) error {
	if j.older {
		return nil
	}
	err := c.inTx(ctx, func(tx pgx.Tx, _ *pgx.Batch) error {
		_, err := c.reopenIn(ctx, tx, j)
		return err
	})
	j.unmended = err != nil
	return err
}

// reopenIn is reopen in tx, and reports whether there was such a claim. An entry is
// counted with it, since what the handler has committed must be undone whoever
// comes before its failure is recorded.
func (c *Consumer) reopenIn(ctx context.Context, tx pgx.Tx, j *job) (reopened bool, err error) {
	entries := 0
	if j.entered {
		entries = 1
	}
	tag, err := tx.Exec(ctx, c.sql.reopen, append(j.identity(), j.digest, entries, j.xid)...)
	if err != nil {
		return false, fmt.Errorf("consumer: reopen step: %w", err)
	}
	reopened = tag.RowsAffected() > 0
	j.counted = j.counted || reopened && j.entered
	return reopened, nil
}

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
