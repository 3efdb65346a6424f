package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// databaseTimeout is what a job may take besides its handler, waiting for the
// lock of a concurrent duplicate aside: pgx has no deadline of its own.
const databaseTimeout = 10 * time.Second

// ErrTxManaged reports that a handler tried to end its transaction by Commit or
// Rollback. Nothing has happened to the transaction.
var ErrTxManaged = txguard.ErrManaged

var (
	errTxEnded   = errors.New("consumer: the handler ended the transaction")
	errTxAborted = errors.New("consumer: the handler returned nil after a statement had failed in its transaction")
)

// A PanicError is a handler's panic.
type PanicError struct {
	Value any
	Stack []byte
}

// Error does not repeat the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("consumer: the handler panicked: %v", e.Value)
}

// handle takes j to an end: nil means that its effect, its parked copy or its
// dead letter has committed, and that a delivery may be acked. After an error
// nothing is decided: call handle again with the same job, or give it back.
func (c *Consumer) handle(ctx context.Context, j *job) error {
	if j.cause == nil {
		err := c.countBeforehand(ctx, j)
		if err == nil {
			err = c.attempt(ctx, j)
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
// beforehand, its redelivery therefore counts for two.
func (c *Consumer) countBeforehand(ctx context.Context, j *job) error {
	always := j.step.MaxAttempts == 1 || !c.marked
	if j.parked != nil || j.counted || !j.redelivered && !always {
		return nil
	}
	first := 2
	if always {
		first = 1
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
	j.counted = true
	if attempts > j.step.MaxAttempts {
		j.exhausted, j.entered = true, true
		return errors.New("consumer: earlier attempts ended without a result, most likely with their process")
	}
	return nil
}

// attempt does what the step's row says in one transaction. If it returns an
// error with j.entered, the transaction is lost, or its outcome is not known,
// after the handler had begun.
func (c *Consumer) attempt(ctx context.Context, j *job) error {
	ctx, cancel := context.WithTimeout(ctx, 2*j.step.Timeout+databaseTimeout)
	defer cancel()
	return c.inTx(ctx, func(tx pgx.Tx) error {
		cell, err := c.lock(ctx, tx, j)
		switch {
		case errors.Is(err, errGone):
			return nil
		case errors.Is(err, errBusy):
			return c.handBack(ctx, tx, j)
		case err != nil:
			return err
		}
		v := decide(cell, j.arrival())
		c.signals.decided.Send(v)
		if v == run {
			return c.run(ctx, tx, j, cell)
		}
		return c.settle(ctx, tx, j, cell, v)
	})
}

// inTx commits what do did, and checks that the server answered COMMIT: on an
// aborted transaction it answers ROLLBACK, without an error.
func (c *Consumer) inTx(ctx context.Context, do func(tx pgx.Tx) error) error {
	tx, err := c.db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("consumer: begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := do(tx); err != nil {
		return err
	}
	if err := failpoint.Hit("consumer/before-commit"); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("consumer: commit: %w", err)
	}
	return failpoint.Hit("consumer/after-commit")
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
	idle := j.step.Timeout + databaseTimeout
	batch := &pgx.Batch{}
	batch.Queue(c.sql.limitIdle, strconv.FormatInt(idle.Milliseconds(), 10))
	batch.Queue(c.sql.claimStep, j.identity()...)
	if j.parked == nil {
		batch.Queue(c.sql.lockStep, j.identity()...)
	} else {
		batch.Queue(c.sql.tryLockStep, j.identity()...)
	}
	batch.Queue("SAVEPOINT sagamill_step")
	results := tx.SendBatch(ctx, batch)
	var found cell
	_, err := results.Exec()
	if err == nil {
		_, err = results.Exec()
	}
	if err == nil {
		err = results.QueryRow().Scan(&found.state, &found.attempts, &found.undoAttempts, &found.digest, &found.undoDigest)
	}
	busy := j.parked != nil && errors.Is(err, pgx.ErrNoRows)
	if busy {
		err = nil
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
	err = tx.QueryRow(ctx, c.sql.lockParked, j.parked.id, j.parked.attempts).Scan(&ours)
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
	if _, err := tx.Exec(ctx, c.sql.handBack, j.parked.id, j.parked.attempts, wait.Microseconds()); err != nil {
		return fmt.Errorf("consumer: hand parked message back: %w", err)
	}
	return nil
}

// run enters the handler and records how that ended, under the row's lock.
func (c *Consumer) run(ctx context.Context, tx pgx.Tx, j *job, found cell) error {
	if err := failpoint.Hit("consumer/before-handler"); err != nil {
		return err
	}
	j.Attempt = j.attempts(found)
	j.entered = true
	emitted, err := c.enter(ctx, tx, j)
	if err == nil {
		err = c.finish(ctx, tx, j, found, emitted)
	}
	if err == nil {
		return nil
	}
	c.logFailure(ctx, j, err)
	if tx.Conn().IsClosed() || errors.Is(err, errTxEnded) {
		return err
	}
	if _, lost := tx.Exec(ctx, "ROLLBACK TO SAVEPOINT sagamill_step"); lost != nil {
		return errors.Join(err, lost)
	}
	return c.recordFailure(ctx, tx, j, found, err)
}

// enter calls the handler. A panic becomes an error here and nowhere else.
func (c *Consumer) enter(ctx context.Context, tx pgx.Tx, j *job) (emitted []outbox.Message, err error) {
	ctx, cancel := context.WithTimeout(ctx, j.step.Timeout)
	defer cancel()
	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	var out collector
	err = j.input.run(ctx, txguard.Wrap(tx), j.Delivery, j.body, func(msgs ...outbox.Message) {
		if !out.add(j, msgs) {
			c.opts.Logger.ErrorContext(ctx, "consumer: emit was called after the handler had returned; the messages are lost", "step", j.Step)
		}
	})
	emitted = out.close()
	switch {
	case err != nil:
	case tx.Conn().IsClosed():
		err = errors.New("consumer: the connection was lost while the handler ran")
	case txguard.StatusOf(tx.Conn()) == txguard.Ended:
		err = Terminal(errTxEnded)
	case txguard.StatusOf(tx.Conn()) == txguard.Aborted:
		err = errTxAborted
	}
	return emitted, err
}

// A collector keeps what a handler emits until the handler returns.
type collector struct {
	mu     sync.Mutex
	msgs   []outbox.Message
	closed bool
}

func (o *collector) add(j *job, msgs []outbox.Message) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range msgs {
		o.msgs = append(o.msgs, j.follow(m))
	}
	return !o.closed
}

func (o *collector) close() []outbox.Message {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	return o.msgs
}

// follow fills in m what it has in common with the message that led to it.
func (j *job) follow(m outbox.Message) outbox.Message {
	m.Scope = cmp.Or(m.Scope, j.Scope)
	m.Key = cmp.Or(m.Key, j.Key)
	m.CorrelationID = cmp.Or(m.CorrelationID, usable(j.CorrelationID))
	m.CausationID = cmp.Or(m.CausationID, usable(j.ID))
	own := m.Headers
	m.Headers = map[string]string{}
	for _, name := range []string{outbox.HeaderTraceParent, outbox.HeaderTraceState} {
		if value := j.Metadata.Get(name); value != "" && len(own)+len(m.Headers) < outbox.MaxHeaders && cleantext.Printable(value) && len(value) <= outbox.MaxHeaderName*4 {
			m.Headers[name] = value
		}
	}
	maps.Copy(m.Headers, own)
	return m
}

// usable returns id if the outbox would take it: an id of foreign origin may
// be anything, and must not make a step fail.
func usable(id string) string {
	if len(id) > outbox.MaxHeaderName || !cleantext.Printable(id) {
		return ""
	}
	return id
}

// finish records the handler's success with what it emitted.
func (c *Consumer) finish(ctx context.Context, tx pgx.Tx, j *job, found cell, emitted []outbox.Message) error {
	if err := c.outbox.Write(ctx, tx, emitted...); err != nil {
		if errors.Is(err, outbox.ErrInvalid) {
			return Terminal(err)
		}
		return err
	}
	to := done
	if j.kind == compensation {
		to = compensated
	}
	if err := c.move(ctx, tx, j, found, to, j.Attempt); err != nil {
		return err
	}
	j.wakes = len(emitted) > 0
	return c.forget(ctx, tx, j)
}

// move records that the step is now in state to, after attempts entries into
// the handler of j's kind.
func (c *Consumer) move(ctx context.Context, tx pgx.Tx, j *job, found cell, to state, attempts int) error {
	entries, undoEntries := attempts, found.undoAttempts
	digest, undoDigest := j.digest, []byte(nil)
	if j.kind == compensation {
		entries, undoEntries = found.attempts, attempts
		digest, undoDigest = nil, j.digest
	}
	args := append(j.identity(), to, entries, undoEntries, digest, undoDigest)
	if _, err := tx.Exec(ctx, c.sql.moveStep, args...); err != nil {
		return fmt.Errorf("consumer: move step to %s: %w", to, err)
	}
	return nil
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
