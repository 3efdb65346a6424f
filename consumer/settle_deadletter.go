package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/outbox"
)

// How many bytes of an error and of a stack are stored.
const (
	maxErrorText = 4 << 10
	maxStack     = 16 << 10
)

// A failure says why a message is parked, and how.
type failure struct {
	reason   Reason
	err      error
	attempts int
	dead     bool // no further attempt
}

func (f failure) errorText() (text, stack string) {
	if f.err == nil {
		return "", ""
	}
	var p *PanicError
	if errors.As(f.err, &p) {
		stack = cleantext.Clip(string(p.Stack), maxStack)
	}
	return cleantext.Clip(f.err.Error(), maxErrorText), stack
}

// recordFailure parks a for its next attempt or makes it a dead letter, and moves the step's row accordingly.
func (s *settler) recordFailure(ctx context.Context, tx pgx.Tx, a *attempt, cause error) error {
	f := a.failureOf(cause)
	return s.parkAndMove(ctx, tx, a, f, parkedState(a.kind, f.dead), f.attempts)
}

// errOtherCopy reports that a message with another payload is retrying under the identity of a delivery, and that
// the row does not know this.
var errOtherCopy = errors.New("consumer: another message is retrying under this identity")

// parkAndMove parks a and moves the step's row to state to, with attempts entries.
func (s *settler) parkAndMove(ctx context.Context, tx pgx.Tx, a *attempt, f failure, to state, attempts int) error {
	err := s.parkMessage(ctx, tx, a, f)
	if errors.Is(err, errOtherCopy) {
		return s.buryOtherPayload(ctx, tx, a, f.attempts)
	}
	if err != nil {
		return err
	}
	return s.moveStep(ctx, tx, a, to, attempts)
}

// buryOtherPayload makes a dead letter of a, since the step belongs to the message that is retrying. The row stays
// as it was: a row that a's own claim has inserted would say that the step is done, and is removed.
func (s *settler) buryOtherPayload(ctx context.Context, tx pgx.Tx, a *attempt, attempts int) error {
	if !a.older {
		if err := s.takeClaimBack(ctx, tx, a); err != nil {
			return err
		}
	}
	return s.parkMessage(ctx, tx, a, failure{reason: ReasonKeyReused, dead: true, attempts: attempts, err: errors.New(inbox.ReusedText)})
}

// failureOf says how a is parked after an attempt that ended by cause.
func (a *attempt) failureOf(cause error) failure {
	f := failure{reason: ReasonFailed, err: cause, attempts: a.countEntries()}
	var rejected *rejection
	switch {
	case errors.As(cause, &rejected):
		f.reason, f.dead = rejected.reason, true
	case errors.Is(cause, outbox.ErrInvalid): // a mistake in the handler, which no attempt changes
		f.reason, f.dead = ReasonEmitInvalid, true
	case errors.Is(cause, ErrTerminal):
		f.reason, f.dead = ReasonTerminal, true
	case errors.Is(cause, ErrParked):
		f.reason, f.dead = ReasonParked, true
		f.attempts-- // it is not the message's fault
	case f.attempts >= a.step.MaxAttempts && isUnavailable(cause):
		f.reason, f.dead = ReasonUnavailable, true
	case f.attempts >= a.step.MaxAttempts:
		f.reason, f.dead = ReasonExhausted, true
	}
	return f
}

// parkMessage stores a: it inserts a delivery and updates a parked copy. It fails with errOtherCopy, and stores
// nothing, if another message is retrying under the identity of a delivery.
func (s *settler) parkMessage(ctx context.Context, tx pgx.Tx, a *attempt, f failure) error {
	text, stack := f.errorText()
	wait := a.step.waitAfter(f.err, max(f.attempts, 1)).Microseconds()
	var err error
	switch {
	case a.parked != nil:
		to := retrying
		if f.dead {
			to = dead
		}
		_, err = tx.Exec(ctx, s.sql.repark, a.parked.id, to, f.reason, text, stack, f.attempts, wait)
	case f.dead:
		_, err = tx.Exec(ctx, s.sql.bury, a.parkedColumns(f.reason, text, stack, f.attempts)...)
	default:
		var tag pgconn.CommandTag
		tag, err = tx.Exec(ctx, s.sql.park, append(a.parkedColumns(f.reason, text, stack, f.attempts), wait)...)
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
	a.noteOutcome(OutcomeRetry, f.reason, f.err)
	a.setEmitted(nil) // a failed handler's messages are not sent
	if f.dead {
		a.noteOutcome(OutcomeDead, f.reason, f.err)
		s.reporter.logDeadLetter(ctx, a, f)
		s.emitForDead(ctx, a, f)
	}
	return nil
}

func (a *attempt) parkedColumns(reason Reason, text, stack string, attempts int) []any {
	names, values := headerColumns(a.Metadata)
	return []any{a.kind, a.Scope, a.Key, a.Step, a.joinedN(), a.Topic, []byte(a.ID), names, values, nonNilBytes(a.Payload), reason, text, stack, attempts}
}

// storeRejected makes msg, which was rejected, a dead letter.
func (s *settler) storeRejected(ctx context.Context, topic string, msg *message.Message, r *rejection) (err error) {
	began := time.Now()
	defer func() { s.reporter.reportRejected(ctx, topic, msg, began, r, err) }()
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	f := failure{reason: r.reason, err: r.err, dead: true}
	text, stack := f.errorText()
	names, values := headerColumns(msg.Metadata)
	a := newAttempt(r.of)
	err = s.database.inTransaction(ctx, func(tx pgx.Tx, last *pgx.Batch) error {
		_, err := tx.Exec(ctx, s.sql.bury, "unknown", nil, nil, nil, nil, topic, []byte(msg.UUID), names, values, nonNilBytes(msg.Payload), r.reason, text, stack, 0)
		if err == nil {
			err = failpoint.Hit("consumer/after-dead-letter")
		}
		if err != nil {
			return err
		}
		return s.emitForRejected(ctx, last, a, f)
	})
	if err != nil {
		return fmt.Errorf("consumer: store dead letter: %w", err)
	}
	s.reporter.logRejected(ctx, topic, msg.UUID, f)
	s.wakeAfterCommit(a)
	return nil
}

// nonNilBytes keeps an empty payload from becoming NULL.
func nonNilBytes(payload []byte) []byte {
	if payload == nil {
		return []byte{}
	}
	return payload
}

func tooOldError(a *attempt, horizon time.Time) error {
	since, what := a.since(), "message"
	if a.kind == compensation {
		what = "saga"
	}
	if since.IsZero() {
		return fmt.Errorf("consumer: the inbox has no row of the step, those from before %s may have been removed, and the age of the %s is not known: it may have run",
			horizon.UTC().Format(time.RFC3339), what)
	}
	return fmt.Errorf("consumer: the inbox has no row of the step, and those from before %s may have been removed: the %s, of %s, may have run",
		horizon.UTC().Format(time.RFC3339), what, since.UTC().Format(time.RFC3339))
}

// buryTooOld makes a dead letter of a, once for each message. It leaves the step's row absent, so that the step's
// other message ends in the same way.
func (s *settler) buryTooOld(ctx context.Context, tx pgx.Tx, a *attempt) error {
	kept, err := s.hasTooOldLetter(ctx, tx, a)
	if err == nil && !kept {
		f := failure{reason: ReasonTooOld, dead: true, err: tooOldError(a, a.found.horizon), attempts: a.countEntries()}
		if !a.barred {
			f.attempts-- // the entry that is to come does not
		}
		err = s.parkMessage(ctx, tx, a, f)
	}
	if err != nil {
		return err
	}
	return s.takeClaimBack(ctx, tx, a)
}

// takeClaimBack removes the row that a's claim has inserted.
func (s *settler) takeClaimBack(ctx context.Context, tx pgx.Tx, a *attempt) error {
	b := &pgx.Batch{}
	queueAnew(b, s.sql.unclaim, identityColumns([]*attempt{a})...)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("consumer: take claim back: %w", err)
	}
	return nil
}

// hasTooOldLetter reports whether an earlier delivery of a is parked as too old.
func (s *settler) hasTooOldLetter(ctx context.Context, tx pgx.Tx, a *attempt) (kept bool, err error) {
	if a.parked != nil {
		return false, nil
	}
	args := append(a.identity(), a.kind, ReasonTooOld, nonNilBytes(a.Payload))
	b := &pgx.Batch{}
	queueAnew(b, s.retention.hasTooOld, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&kept) })
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return false, fmt.Errorf("consumer: look for dead letter: %w", err)
	}
	return kept, nil
}

// An Unhandled is a message of a step that has ended without success of its handler.
type Unhandled struct {
	// Delivery is the message, not to be changed, with as much as could be read: a
	// payload may be undecodable. Undo tells action from compensation. Attempt is how
	// often the handler was entered. Nothing can be queued.
	Delivery

	Dead bool // it is a dead letter; else a compensation that found nothing to undo

	// Reason says why it is a dead letter, and Error the same in words, as they are stored. Of a compensation that has
	// cancelled a failed action they are those of the action.
	Reason Reason
	Error  string
}

// emitUnhandled asks a's step what to emit for a message that ends unhandled. If that fails, the message ends
// without an answer.
func (s *settler) emitUnhandled(ctx context.Context, a *attempt, u Unhandled) {
	a.setEmitted(nil)
	if a.step.Unhandled == nil {
		return
	}
	attempt := u.Attempt
	u.Delivery = a.Delivery
	u.Attempt, u.out = attempt, nil // there is no handler's transaction
	msgs, err := s.callUnhandled(a, u)
	if err == nil {
		err = outbox.Validate(msgs...)
	}
	if err != nil {
		s.reporter.logAttempt(ctx, slog.LevelError, "consumer: Unhandled failed, and nothing is emitted", a, slog.Any("error", err))
		return
	}
	a.setEmitted(msgs)
}

// callUnhandled returns what the step's Unhandled emits.
func (s *settler) callUnhandled(a *attempt, u Unhandled) (msgs []outbox.Message, err error) {
	out := &collector{job: a, log: s.reporter.log}
	defer out.closeCollector()
	err = guard.Call(func() error { a.step.Unhandled(u, out.emitMessages); return nil })
	if panicked := new(guard.PanicError); errors.As(err, &panicked) {
		return nil, fmt.Errorf("it %w\n%s", err, cleantext.Clip(string(panicked.Stack), maxStack))
	}
	return out.msgs, nil
}

// emitForDead is emitUnhandled for a dead letter.
func (s *settler) emitForDead(ctx context.Context, a *attempt, f failure) {
	text, _ := f.errorText()
	s.emitUnhandled(ctx, a, Unhandled{Delivery: Delivery{Attempt: f.attempts}, Dead: true, Reason: f.reason, Error: text})
}

// emitForRejected is emitForDead for a rejected message. It adds the emitted messages to last. A nil a means that
// the message belongs to no step.
func (s *settler) emitForRejected(ctx context.Context, last *pgx.Batch, a *attempt, f failure) error {
	if a == nil {
		return nil
	}
	s.emitForDead(ctx, a, f)
	return s.queueEmitted(last, a.emitted)
}

// setEmitted sets what the present transaction puts into the outbox.
func (a *attempt) setEmitted(msgs []outbox.Message) { a.emitted = msgs }

// headerColumns returns metadata as two columns, without the redelivered mark: it belongs to one delivery.
func headerColumns(metadata message.Metadata) (names, values [][]byte) {
	return inbox.HeaderColumns(metadata, outbox.PropertyRedelivered)
}
