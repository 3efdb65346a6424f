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

var (
	errTxEnded   = errors.New("consumer: the handler ended the transaction")
	errConnLost  = errors.New("consumer: the connection was lost while the handler ran")
	errTxAborted = errors.New("consumer: the handler returned nil after a statement had failed in its transaction")
	errTxBusy    = errors.New("consumer: the handler returned before it had read all rows of a query, or closed them")
)

// ErrTxManaged reports that a handler tried to end its transaction by Commit or
// Rollback. Nothing has happened to the transaction.
var ErrTxManaged = txguard.ErrManaged

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

// everybody is what the company consists of; a handler is one of it.
const everybody = 1 << 20

// companyWait is how long what wants to be alone waits for others to end. A handler
// that does not must not hold up everything else; then it goes on in company.
const companyWait = 5 * time.Second

// joinCompany waits until j may be handled beside what else this process is at,
// and returns what ends that. What may have killed a process is handled in company
// as well, but not for the last time: its attempts are counted before it is entered, so that
// a message beside it that does kill the process costs it one. When it has only one
// left, nothing else runs.
func (c *Consumer) joinCompany(ctx context.Context, j *job) (leave func(), err error) {
	last, err := c.lastChance(ctx, j)
	if err != nil {
		return nil, err
	}
	if last {
		wait, cancel := context.WithTimeout(ctx, companyWait)
		defer cancel()
		if c.company.Acquire(wait, everybody) == nil {
			return func() { c.company.Release(everybody) }, nil
		}
	}
	if err := c.enterCompany(ctx); err != nil {
		return nil, err
	}
	return func() { c.company.Release(1) }, nil
}

// enterCompany waits while something is handled alone.
func (c *Consumer) enterCompany(ctx context.Context) error {
	if c.company.TryAcquire(1) {
		return nil
	}
	if err := c.company.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("consumer: wait for a message that is handled alone: %w", err)
	}
	return nil
}

// lastChance reports whether j may have killed a process, and has one attempt left.
func (c *Consumer) lastChance(ctx context.Context, j *job) (bool, error) {
	if j.cause != nil || j.parked != nil || j.input.effect != nil || j.counted || !j.redelivered && c.marked {
		return false, nil // an Effect's delivery has killed nothing: its calls are a parked copy's
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var entries, undoEntries int
	err := c.db.QueryRow(ctx, c.sql.readAttempts, j.identity()...).Scan(&entries, &undoEntries)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, fmt.Errorf("consumer: read attempts: %w", err)
	}
	if j.kind == compensation {
		entries = undoEntries
	}
	if j.redelivered && c.marked {
		entries = max(entries, 1) // the first left no row
	}
	return entries > 0 && entries+1 == j.step.MaxAttempts, nil
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

// recordLost notes, in a transaction of its own, that an entry into the
// handler ended with its transaction lost. The row tells first whether that
// transaction committed after all, or another attempt has succeeded since.
func (c *Consumer) recordLost(ctx context.Context, j *job) error {
	j.note("", "", nil) // what the lost transaction would have made of it
	ctx, cancel := context.WithTimeout(ctx, j.step.Timeout+databaseTimeout)
	defer cancel()
	return c.inTx(ctx, func(tx pgx.Tx, last *pgx.Batch) error {
		if j.unmended {
			reopened, err := c.reopenIn(ctx, tx, j)
			if err != nil {
				return err
			}
			if reopened && !errors.Is(j.cause, errTxEnded) {
				j.cause = errors.Join(Terminal(errTxEnded), j.cause)
			}
		}
		found, err := c.lock(ctx, tx, j)
		switch {
		case errors.Is(err, errGone):
			j.note(OutcomeDuplicate, "", j.cause)
			return nil
		case errors.Is(err, errBusy) && j.exhausted:
			return c.handBack(ctx, tx, j)
		case errors.Is(err, errBusy):
			return nil // the entry is counted; the lease runs out and another attempt follows
		case err != nil:
			return err
		}
		if err := c.settleLost(ctx, tx, j, found); err != nil {
			return err
		}
		return c.queueEmitted(last, j.emitted)
	})
}

// settleLost does what the locked row says about an entry that was lost.
func (c *Consumer) settleLost(ctx context.Context, tx pgx.Tx, j *job, found cell) error {
	switch v := decide(found, j.arrival()); {
	case v == run:
		j.recorded = j.attempts(found)
		return c.recordFailure(ctx, tx, j, found, j.cause)
	case v == duplicate && j.recorded > 0 && found.entries(j.kind) >= j.recorded:
		j.note(OutcomeRetry, ReasonFailed, j.cause)
		return nil // it was recorded the time before, whose COMMIT was not answered
	case v == duplicate && (found.state == retrying || found.state == undoing):
		return c.countParked(ctx, tx, j)
	default:
		return c.settle(ctx, tx, j, found, v)
	}
}

// countParked adds the lost entry to those of the copy that another delivery
// of the message has left behind meanwhile.
func (c *Consumer) countParked(ctx context.Context, tx pgx.Tx, j *job) error {
	if _, err := tx.Exec(ctx, c.sql.countParked, append(j.identity(), j.kind)...); err != nil {
		return fmt.Errorf("consumer: count attempt: %w", err)
	}
	j.note(OutcomeRetry, ReasonFailed, j.cause)
	return nil
}
