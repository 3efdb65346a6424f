package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/failpoint"
)

// What is kept of an error and of a stack, in bytes.
const (
	maxErrorText = 4 << 10
	maxStack     = 16 << 10
)

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

// A failure is why a message is kept, and how.
type failure struct {
	reason   Reason
	err      error
	attempts int
	dead     bool // no further attempt
}

func (f failure) text() (text, stack string) {
	if f.err == nil {
		return "", ""
	}
	var p *PanicError
	if errors.As(f.err, &p) {
		stack = cleantext.Clip(string(p.Stack), maxStack)
	}
	return cleantext.Clip(f.err.Error(), maxErrorText), stack
}

// recordFailure parks j for its next attempt or makes it a dead letter, and
// moves the step's row accordingly.
func (c *Consumer) recordFailure(ctx context.Context, tx pgx.Tx, j *job, found cell, cause error) error {
	f := j.failure(found, cause)
	return c.parkAs(ctx, tx, j, found, f, parkedState(j.kind, f.dead), f.attempts)
}

// errOtherCopy reports that a message with another payload goes round under the
// identity of a delivery, of which the row does not know.
var errOtherCopy = errors.New("consumer: another message goes round under this identity")

// parkAs parks j, and moves the step's row to state to with so many attempts.
func (c *Consumer) parkAs(ctx context.Context, tx pgx.Tx, j *job, found cell, f failure, to state, attempts int) error {
	err := c.park(ctx, tx, j, f)
	if errors.Is(err, errOtherCopy) {
		return c.buryOther(ctx, tx, j, f.attempts)
	}
	if err != nil {
		return err
	}
	return c.move(ctx, tx, j, found, to, attempts)
}

// buryOther makes a dead letter of j, since the step belongs to the message that
// goes round. The row stays what it was: one that j's own claim has inserted, which
// says that the step is done, goes.
func (c *Consumer) buryOther(ctx context.Context, tx pgx.Tx, j *job, attempts int) error {
	if !j.older {
		if _, err := tx.Exec(ctx, c.sql.unclaim, identityColumns([]*job{j})...); err != nil {
			return fmt.Errorf("consumer: take claim back: %w", err)
		}
	}
	return c.park(ctx, tx, j, failure{reason: ReasonKeyReused, dead: true, attempts: attempts, err: errors.New(reusedText)})
}

// failure says how j is kept after an attempt that ended by cause.
func (j *job) failure(found cell, cause error) failure {
	f := failure{reason: ReasonFailed, err: cause, attempts: j.attempts(found)}
	var rejected *rejection
	switch {
	case errors.As(cause, &rejected):
		f.reason, f.dead = rejected.reason, true
	case errors.Is(cause, ErrTerminal):
		f.reason, f.dead = ReasonTerminal, true
	case errors.Is(cause, ErrParked):
		f.reason, f.dead = ReasonParked, true
		f.attempts-- // it is not the message's fault
	case f.attempts >= j.step.MaxAttempts && isUnavailable(cause):
		f.reason, f.dead = ReasonUnavailable, true
	case f.attempts >= j.step.MaxAttempts:
		f.reason, f.dead = ReasonExhausted, true
	}
	return f
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

// park keeps j: a delivery is inserted, a parked copy goes round again. Its error is
// errOtherCopy if a delivery is not kept, for another message goes round already.
func (c *Consumer) park(ctx context.Context, tx pgx.Tx, j *job, f failure) error {
	text, stack := f.text()
	wait := j.step.wait(f.err, max(f.attempts, 1)).Microseconds()
	var err error
	switch {
	case j.parked != nil:
		to := retrying
		if f.dead {
			to = dead
		}
		_, err = tx.Exec(ctx, c.sql.repark, j.parked.id, to, f.reason, text, stack, f.attempts, wait)
	case f.dead:
		_, err = tx.Exec(ctx, c.sql.bury, j.columns(f.reason, text, stack, f.attempts)...)
	default:
		var tag pgconn.CommandTag
		tag, err = tx.Exec(ctx, c.sql.park, append(j.columns(f.reason, text, stack, f.attempts), wait)...)
		if err == nil && tag.RowsAffected() == 0 {
			return errOtherCopy
		}
	}
	if err == nil && f.dead {
		err = failpoint.Hit("consumer/after-dead-letter")
	}
	if err != nil {
		return fmt.Errorf("consumer: park message: %w", err)
	}
	j.note(OutcomeRetry, f.reason, f.err)
	j.emits(nil) // what a handler that has failed has emitted
	if f.dead {
		j.note(OutcomeDead, f.reason, f.err)
		c.logDead(ctx, j, f)
		c.leaveDead(ctx, j, f)
	}
	return nil
}

func (j *job) columns(reason Reason, text, stack string, attempts int) []any {
	names, values := headers(j.Metadata)
	return []any{j.kind, j.Scope, j.Key, j.Step, j.joinedN(), j.Topic, []byte(j.ID), names, values, bytesOf(j.Payload), reason, text, stack, attempts}
}

// bury makes msg, which cannot be a job, a dead letter.
func (c *Consumer) bury(ctx context.Context, topic string, msg *message.Message, r *rejection) (err error) {
	began := time.Now()
	defer func() { c.buried(ctx, topic, msg, began, r, err) }()
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	f := failure{reason: r.reason, err: r.err, dead: true}
	text, stack := f.text()
	names, values := headers(msg.Metadata)
	err = c.inTx(ctx, func(tx pgx.Tx, last *pgx.Batch) error {
		_, err := tx.Exec(ctx, c.sql.bury, "unknown", nil, nil, nil, nil, topic, []byte(msg.UUID), names, values, bytesOf(msg.Payload), r.reason, text, stack, 0)
		if err == nil {
			err = failpoint.Hit("consumer/after-dead-letter")
		}
		if err != nil {
			return err
		}
		return c.leaveRejected(ctx, last, r.of, f)
	})
	if err != nil {
		return fmt.Errorf("consumer: store dead letter: %w", err)
	}
	c.logRejected(ctx, topic, msg.UUID, f)
	c.committed(r.of)
	return nil
}

// bytesOf keeps an empty payload from becoming NULL.
func bytesOf(payload []byte) []byte {
	if payload == nil {
		return []byte{}
	}
	return payload
}
