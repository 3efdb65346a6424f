package saga

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/outbox"
)

// A Handler does a participant's step in tx, as a [consumer.Handler] does, and
// returns its result, which travels with the reply. A [Reject] error is a business outcome: the
// transaction commits, with whatever the handler has done in it, the reply
// says so, and nothing is ever undone. After any other error it is entered again.
type Handler[C, R any] func(ctx context.Context, tx pgx.Tx, in consumer.Message[C]) (R, error)

// An UndoHandler undoes a step. It cannot say no: what it cannot do is an error, which
// is tried again, and in the end a dead letter and a saga that is stuck.
//
// It is not entered for an action that has not run, or has said no.
type UndoHandler[C any] func(ctx context.Context, tx pgx.Tx, in consumer.Message[C]) error

// On returns the Input of a participant's step: it hands the commands of topic to h
// and replies to the orchestrator in the same transaction.
func On[C, R any](topic string, h Handler[C, R]) consumer.Input {
	if h == nil {
		return consumer.On[C](topic, nil)
	}
	return consumer.On(topic, func(ctx context.Context, tx pgx.Tx, in consumer.Message[C], emit consumer.Emit) error {
		result, err := h(ctx, tx, in)
		var rejected *flow.RejectedError
		switch {
		case errors.As(err, &rejected):
			return Refuse(emit, in.Delivery, rejected.Reason)
		case err != nil:
			return err
		}
		return Done(emit, in.Delivery, result)
	})
}

// OnUndo returns the Input of a participant's compensation, as [On] does.
func OnUndo[C any](topic string, h UndoHandler[C]) consumer.Input {
	if h == nil {
		return consumer.On[C](topic, nil)
	}
	return consumer.On(topic, func(ctx context.Context, tx pgx.Tx, in consumer.Message[C], emit consumer.Emit) error {
		if err := h(ctx, tx, in); err != nil {
			var rejected *flow.RejectedError
			if errors.As(err, &rejected) {
				return consumer.Terminal(err) // it cannot say no
			}
			return err
		}
		return Undone(emit, in.Delivery)
	})
}

// Done replies that the step which d is the command of is done. It is for handlers
// that do not come from [On], such as the record of a [consumer.Effect]; so are
// [Refuse] and [Undone]. An error is terminal: d is no command of a saga, or result is no JSON.
func Done(emit consumer.Emit, d consumer.Delivery, result any) error {
	body, err := json.Marshal(result)
	if err != nil {
		return consumer.Terminal(err)
	}
	return send(emit, d, reply{Outcome: OutcomeDone, Result: body})
}

// Refuse replies that the step has done nothing, by its own decision. Its compensation,
// should one be sent before the saga has heard of that, enters no handler.
func Refuse(emit consumer.Emit, d consumer.Delivery, reason string) error {
	if !d.Undo {
		d.DidNothing()
	}
	return send(emit, d, reply{Outcome: OutcomeRejected, Reason: reason})
}

// Undone replies that the step which d is the compensation of is undone.
func Undone(emit consumer.Emit, d consumer.Delivery) error {
	return send(emit, d, reply{Outcome: OutcomeUndone})
}

func send(emit consumer.Emit, d consumer.Delivery, r reply) error {
	msg, err := answer(d, r, "")
	if err != nil {
		return consumer.Terminal(err)
	}
	emit(msg)
	return nil
}

// Participant returns s as a step that always answers: also for a compensation that finds nothing to undo, which
// no handler sees, and with [OutcomeFailed] for a message that becomes a dead letter.
// Without it the saga waits for those.
//
// Where the handlers do nothing outside of their transaction, set CancelParked too. A
// command that became a dead letter has done nothing then, and its compensation says so; without it
// the compensation is a dead letter as well, and the saga stuck until both are redriven.
func Participant(s consumer.Step) consumer.Step {
	next := s.Unhandled
	s.Unhandled = func(u consumer.Unhandled, emit consumer.Emit) {
		if next != nil {
			next(u, emit)
		}
		if msg, ok := endOf(u); ok {
			emit(msg)
		}
	}
	return s
}

// endOf returns the answer to a message whose handler has not given one.
func endOf(u consumer.Unhandled) (outbox.Message, bool) {
	r, tell := reply{Outcome: OutcomeUndone}, ""
	if u.Dead {
		r, tell = reply{Outcome: OutcomeFailed, Reason: "dead letter, " + string(u.Reason)}, tellApart()
		if u.Reason != consumer.ReasonActionDead { // that says all of it
			r.Reason += ": " + u.Error
		}
	}
	msg, err := answer(u.Delivery, r, tell)
	return msg, err == nil // else it is no command of a saga, and nobody waits
}

// tellApart returns what tells one failure of a message from another: as much as
// there is room for in the n of a step key.
func tellApart() string { return strings.ToLower(rand.Text()[:4]) }

func clip(reason string) string { return cleantext.Clip(reason, MaxReason) }
