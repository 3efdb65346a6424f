package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/outbox"
)

// What is kept of an error and of a stack, in bytes.
const (
	maxErrorText = 4 << 10
	maxStack     = 16 << 10
)

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

// headers turns metadata into columns, sorted by name. The redelivered mark
// belongs to one delivery, not to the message.
func headers(metadata message.Metadata) (names, values [][]byte) {
	names, values = [][]byte{}, [][]byte{}
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		if name != outbox.PropertyRedelivered {
			names, values = append(names, []byte(name)), append(values, []byte(metadata[name]))
		}
	}
	return names, values
}

func tooOldError(j *job, horizon time.Time) error {
	since, what := j.since(), "message"
	if j.kind == compensation {
		what = "saga"
	}
	if since.IsZero() {
		return fmt.Errorf("consumer: the inbox has no row of the step, those from before %s may have been removed, and the age of the %s is not known: it may have run",
			horizon.UTC().Format(time.RFC3339), what)
	}
	return fmt.Errorf("consumer: the inbox has no row of the step, and those from before %s may have been removed: the %s, of %s, may have run",
		horizon.UTC().Format(time.RFC3339), what, since.UTC().Format(time.RFC3339))
}

// buryTooOld makes a dead letter of j, once for each message, and leaves the
// step's row absent: what is true of j is true of the step's other message, too.
func (c *Consumer) buryTooOld(ctx context.Context, tx pgx.Tx, j *job, found cell) error {
	kept, err := c.keptTooOld(ctx, tx, j)
	if err == nil && !kept {
		f := failure{reason: ReasonTooOld, dead: true, err: tooOldError(j, found.horizon), attempts: j.attempts(found)}
		if !j.exhausted {
			f.attempts-- // the entry that is to come does not
		}
		err = c.park(ctx, tx, j, f)
	}
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, c.sql.unclaim, identityColumns([]*job{j})...); err != nil {
		return fmt.Errorf("consumer: take claim back: %w", err)
	}
	return nil
}

// keptTooOld reports whether an earlier delivery of j is parked as too old. A
// parked copy stays itself.
func (c *Consumer) keptTooOld(ctx context.Context, tx pgx.Tx, j *job) (kept bool, err error) {
	if j.parked != nil {
		return false, nil
	}
	args := append(j.identity(), j.kind, ReasonTooOld, bytesOf(j.Payload))
	if err := tx.QueryRow(ctx, c.retention.hasTooOld, args...).Scan(&kept); err != nil {
		return false, fmt.Errorf("consumer: look for dead letter: %w", err)
	}
	return kept, nil
}

// An Unhandled is a message of a step that has ended without its handler having
// succeeded.
type Unhandled struct {
	// Delivery is the message, not to be changed, with as much as could be read: a
	// payload may be undecodable. Undo tells action from compensation. Attempt is how
	// often the handler was entered. Nothing can be queued.
	Delivery

	Dead   bool   // it is a dead letter; else a compensation that found nothing to undo
	Reason Reason // why it is a dead letter
	Error  string // the same in words, as it is stored
}

// leaveUnhandled asks j's step what is to be emitted for a message that ends like
// that. Whatever goes wrong there, the message ends.
func (c *Consumer) leaveUnhandled(ctx context.Context, j *job, u Unhandled) {
	j.emits(nil)
	if j.step.Unhandled == nil {
		return
	}
	attempt := u.Attempt
	u.Delivery = j.Delivery
	u.Attempt, u.out = attempt, nil // there is no handler's transaction
	msgs, err := c.answer(j, u)
	if err == nil {
		err = outbox.Validate(msgs...)
	}
	if err != nil {
		c.logJob(ctx, slog.LevelError, "consumer: Unhandled failed, and nothing is emitted", j, slog.Any("error", err))
		return
	}
	j.emits(msgs)
}

// answer returns what the step's Unhandled emits.
func (c *Consumer) answer(j *job, u Unhandled) (msgs []outbox.Message, err error) {
	out := &collector{job: j, log: c.opts.Logger}
	defer out.close()
	err = guard.Call(func() error { j.step.Unhandled(u, out.emit); return nil })
	if panicked := new(guard.PanicError); errors.As(err, &panicked) {
		return nil, fmt.Errorf("it %w\n%s", err, cleantext.Clip(string(panicked.Stack), maxStack))
	}
	return out.msgs, nil
}

// leaveDead is leaveUnhandled for a dead letter.
func (c *Consumer) leaveDead(ctx context.Context, j *job, f failure) {
	text, _ := f.text()
	c.leaveUnhandled(ctx, j, Unhandled{Delivery: Delivery{Attempt: f.attempts}, Dead: true, Reason: f.reason, Error: text})
}

// leaveRejected is leaveDead for a message that is a dead letter because it cannot
// be a job: j is what could be read of it, nil if it belongs to no step. What is
// emitted is added to last.
func (c *Consumer) leaveRejected(ctx context.Context, last *pgx.Batch, j *job, f failure) error {
	if j == nil {
		return nil
	}
	c.leaveDead(ctx, j, f)
	return c.queueEmitted(last, j.emitted)
}

// emits sets what j's transaction puts into the outbox.
func (j *job) emits(msgs []outbox.Message) { j.emitted, j.wakes = msgs, len(msgs) > 0 }
