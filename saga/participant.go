package saga

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/outbox"
)

// HeaderReplyTo is set on a command and on a compensation: the topic to which the participant replies. The reply is a
// message of type [TypeReply]. Its step key is that of the command, with ".d" behind its n, or ".u" if the message was
// a compensation. [On] and [OnUndo] reply so. The reply may name another step than the command's, unless the
// orchestrator has [Options].NamedReplies.
const HeaderReplyTo = flow.HeaderReplyTo

// The types of the messages that orchestrators take.
//
// The body of a TypeReply is a JSON object. Its member "outcome" is "done", with a "result", for a step that is done;
// "undone" for a compensation after which nothing is left of the step, or, with a member "not_done" that is true, before
// which there was nothing, and perhaps with the "reason" why the action had failed;
// "rejected", with a "reason", if the participant has decided to do nothing; or "failed", with a "reason", if the
// message is a dead letter of the participant, so that its effect is not known. The first 500 bytes of a reason are
// kept.
//
// After "failed" for an action the saga waits: a redrive of the dead letter leads to another reply. It compensates at the
// step's deadline, or at once with [Step].OnDeadLetter Undo. After "failed" for a compensation it is stuck. An action has two more outcomes, both with a "reason".
// "held" is a dead letter that asks for an operator ([consumer.Park]); it waits in any case. "broken" is a mistake in
// the participant, such as a message that the outbox refuses ([outbox.ErrInvalid]): the step is stuck.
const (
	TypeReply  = flow.TypeReply  // from a participant
	TypeRevoke = flow.TypeRevoke // from the orchestrator of the saga around a nested one
)

// A Handler does a participant's step in tx, as a [consumer.Handler] does, and returns its result, which travels with
// the reply. A [Reject] error is a business outcome: the transaction commits with whatever the handler has done in
// it, the reply is a rejection, and the step is never undone. After any other error the handler is entered again.
type Handler[C, R any] func(ctx context.Context, tx pgx.Tx, in consumer.Message[C]) (R, error)

// An UndoHandler undoes a step. It cannot reject: after an error it is entered again, and in the end its message is a
// dead letter and the saga is stuck.
//
// It is not entered for an action that has not run, or was rejected.
type UndoHandler[C any] func(ctx context.Context, tx pgx.Tx, in consumer.Message[C]) error

// On returns the Input of a participant's step: it hands the commands of topic to h and replies to the orchestrator
// in the same transaction.
func On[C, R any](topic string, h Handler[C, R]) consumer.Input {
	if h == nil {
		return consumer.On[C](topic, nil)
	}
	input := consumer.On(topic, func(ctx context.Context, tx pgx.Tx, in consumer.Message[C], emit consumer.Emit) error {
		result, err := h(ctx, tx, in)
		var rejected *RejectedError
		switch {
		case errors.As(err, &rejected):
			return Rejected(emit, in.Delivery, rejected.Reason)
		case err != nil:
			return err
		}
		return Done(emit, in.Delivery, result)
	})
	input.Reply = reflect.TypeFor[R]()
	return input
}

// OnUndo returns the Input of a participant's compensation, as [On] does.
func OnUndo[C any](topic string, h UndoHandler[C]) consumer.Input {
	if h == nil {
		return consumer.On[C](topic, nil)
	}
	input := consumer.On(topic, func(ctx context.Context, tx pgx.Tx, in consumer.Message[C], emit consumer.Emit) error {
		if err := h(ctx, tx, in); err != nil {
			var rejected *RejectedError
			if errors.As(err, &rejected) {
				return consumer.Terminal(err) // a compensation cannot reject
			}
			return err
		}
		return Undone(emit, in.Delivery)
	})
	input.Reply = anyResult
	return input
}

// anyResult is the type of a result whose type is not known, and of a reply without a result.
var anyResult = reflect.TypeFor[any]()

// Done replies that the step of command d is done. It is for handlers that do not come from [On], such as the record
// of a [consumer.Effect]; so are [Rejected] and [Undone]. An error is terminal: d is no command of a saga, or result
// is no JSON.
func Done(emit consumer.Emit, d consumer.Delivery, result any) error {
	body, err := json.Marshal(result)
	if err != nil {
		return consumer.Terminal(err)
	}
	return emitReplyMessage(emit, d, flow.ReplyBody{Outcome: flow.OutcomeDone, Result: body})
}

// Rejected replies that the participant has decided to do nothing. It is the reply that [On] sends when its handler
// returns a [Reject]. If the compensation was sent before the saga knew that, it enters no handler. That does not hold
// for a Delivery that was rebuilt outside of the handler: there the compensation enters the handler.
func Rejected(emit consumer.Emit, d consumer.Delivery, reason string) error {
	if !d.Undo {
		d.DidNothing()
	}
	return emitReplyMessage(emit, d, flow.ReplyBody{Outcome: flow.OutcomeRejected, Reason: reason})
}

// Undone replies that the step of compensation d is undone.
func Undone(emit consumer.Emit, d consumer.Delivery) error {
	return emitReplyMessage(emit, d, flow.ReplyBody{Outcome: flow.OutcomeUndone})
}

func emitReplyMessage(emit consumer.Emit, d consumer.Delivery, body flow.ReplyBody) error {
	msg, err := newReplyMessage(d, body, "")
	if err != nil {
		return consumer.Terminal(err)
	}
	emit(msg)
	return nil
}

// Participant returns s as a step that always answers. It answers for a compensation that finds nothing to undo, which
// enters no handler. For a message that becomes a dead letter the outcome is failed, held or broken: see [TypeReply].
// Without Participant the saga waits for those answers.
//
// Where the handlers do nothing outside of their transaction, set CancelParked too. A command that became a dead
// letter has then done nothing, and its compensation finds nothing to undo. So it is with an Effect whose calls ended
// in [consumer.NotDone]. Otherwise the compensation is a dead letter as well, and the saga is stuck until both are
// redriven.
func Participant(s consumer.Step) consumer.Step {
	next := s.Unhandled
	s.Unhandled = func(u consumer.Unhandled, emit consumer.Emit) {
		if next != nil {
			next(u, emit)
		}
		if msg, ok := replyUnhandled(u); ok {
			emit(msg)
		}
	}
	for _, in := range []*consumer.Input{&s.Action, &s.Compensation} {
		if in.Topic != "" && in.Reply == nil {
			in.Reply = anyResult
		}
	}
	return s
}

// replyUnhandled returns the reply to a message that ended without its handler. It returns none if the message is no
// command of a saga.
func replyUnhandled(u consumer.Unhandled) (outbox.Message, bool) {
	body, suffix := flow.ReplyBody{Outcome: flow.OutcomeUndone, NotDone: true, Reason: u.Error}, ""
	if u.Dead {
		body, suffix = flow.ReplyBody{Outcome: outcomeOfDead(&u), Reason: "dead letter, " + string(u.Reason)}, randomSuffix()
		if u.Reason != consumer.ReasonActionDead { // which needs no further words
			body.Reason += ": " + u.Error
		}
	}
	msg, err := newReplyMessage(u.Delivery, body, suffix)
	return msg, err == nil
}

// outcomeOfDead returns what a dead letter means to the saga. A compensation that cannot end is stuck in any case.
func outcomeOfDead(u *consumer.Unhandled) flow.Outcome {
	switch {
	case u.Undo:
	case u.Reason == consumer.ReasonParked:
		return flow.OutcomeHeld
	case u.Reason == consumer.ReasonEmitInvalid:
		return flow.OutcomeBroken
	}
	return flow.OutcomeFailed
}

// randomSuffix tells one failure of a message from another: it is as long as the n of a step key has room for.
func randomSuffix() string { return strings.ToLower(rand.Text()[:4]) }

// newReplyMessage returns the message that answers d; suffix is that of flow.ReplyN.
func newReplyMessage(d consumer.Delivery, body flow.ReplyBody, suffix string) (outbox.Message, error) {
	to := d.Metadata.Get(HeaderReplyTo)
	if to == "" {
		return outbox.Message{}, fmt.Errorf("saga: the message has no header %s, so it is not a command of a saga", HeaderReplyTo)
	}
	if d.N == "" {
		return outbox.Message{}, fmt.Errorf("saga: the step key of the command has no n")
	}
	body.Reason = flow.ClipReason(body.Reason)
	payload, err := json.Marshal(body)
	if err != nil {
		return outbox.Message{}, fmt.Errorf("saga: result: %w", err)
	}
	return outbox.Message{
		Topic: to, Type: TypeReply, Step: stepNamedInKey(&d), N: flow.ReplyN(d.N, d.Undo, suffix), Payload: payload,
		Scope: d.Scope, Key: d.Key, OrderingKey: sagarow.OrderingKey(d.Scope, d.Key, d.N),
	}, nil
}

// stepNamedInKey returns the step in a delivery's step key. In a command that is the saga's step, whatever the
// participant calls its own.
func stepNamedInKey(d *consumer.Delivery) string {
	key, err := stepkey.Parse(d.Metadata.Get(outbox.HeaderKey))
	if err != nil { // the message did not come by a broker
		return d.Step
	}
	return key.Step
}
