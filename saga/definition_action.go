package saga

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
)

// An Action is what a step does, or what undoes it. Make one with [Remote], [Tell], [Local] or [Nested].
type Action[S any] struct {
	Topic string // of a Remote: where its command is published
	Type  string // of that command; default: Topic

	// Codec encodes the body of a Remote's command. The participant's Input needs it among its Codecs. A reply, and so
	// the result, is JSON. Default: JSON.
	Codec outbox.Codec

	kind  machine.Kind
	run   flow.Action
	child Plan
}

// Remote returns an Action that sends a command to the participant that listens to topic. body makes the command
// from the saga's state, which it must not change; result puts the participant's answer into the state. Either may
// be nil, and then write the types out: a command without body is null, and the answer is ignored. An answer that is
// no R makes the reply a dead letter, and leaves the instance as it was. The participant gets scope, key and, as the
// correlation id, the instance's id.
//
// An Undo may be sent although no result has come, after a deadline or a cancellation: the participant knows by the
// key what to undo.
func Remote[S, C, R any](topic string, body func(s *S) C, result func(s *S, r R)) Action[S] {
	a := Action[S]{Topic: topic, Type: topic, kind: machine.Remote}
	a.run.ResultType = reflect.TypeFor[R]()
	if body != nil {
		a.run.BodyType = reflect.TypeFor[C]()
		a.run.Body = func(state any) (any, error) { return body(state.(*S)), nil }
	}
	if result != nil {
		a.run.Result = func(state any, data []byte) error {
			var r R
			if err := consumer.DecodeJSON(data, &r); err != nil {
				return err
			}
			result(state.(*S), r)
			return nil
		}
	}
	return a
}

// Tell is [Remote] for a step whose result is ignored, as for most that undo something.
func Tell[S, C any](topic string, body func(s *S) C) Action[S] {
	return Remote[S, C, any](topic, body, nil)
}

// Nested returns an Action that runs another saga as a part of this one: under the same key, with its own state,
// which begin makes and end takes over. It is done when the other saga has completed, and rejected when that has
// compensated. Undoing it compensates the other saga, also if that has completed. So a saga with a pivot can be
// nested at the pivot or behind it only.
func Nested[S, C any](d *Definition[C], begin func(s *S) C, end func(s *S, c C)) Action[S] {
	a := Action[S]{kind: machine.Nested}
	a.run.BodyType, a.run.ResultType = reflect.TypeFor[C](), reflect.TypeFor[C]()
	if d != nil {
		a.child = d
	}
	if begin != nil {
		a.run.Body = func(state any) (any, error) {
			c := begin(state.(*S))
			return &c, nil
		}
	}
	if end != nil {
		a.run.Result = func(state any, data []byte) error {
			var c C
			if err := json.Unmarshal(data, &c); err != nil {
				return err
			}
			end(state.(*S), c)
			return nil
		}
	}
	return a
}

// A Turn is what a local step learns about the instance that it is for.
type Turn struct {
	ID         string // of the instance, UUIDv7
	Scope, Key string // of the request that started it
	Saga       string
	Version    int
	Step       string // in [Definition.OnEnd]: ""
	Undo       bool   // the step is being undone
	Attempt    int

	turn flow.Turn
}

func newTurn(t flow.Turn) Turn {
	return Turn{t.ID, t.Scope, t.Key, t.Saga, t.Version, t.Step, t.Undo, t.Attempt, t}
}

// Emit adds messages to the outbox: they are published if the step succeeds and the transaction commits. Scope, Key
// and CorrelationID default to those of the saga; Topic and Step are required.
func (t Turn) Emit(msgs ...outbox.Message) { t.turn.Emit(msgs...) }

// Queue adds a statement to the transaction. It is executed after the step has returned, with the transaction's last
// round trip where that is possible, and then costs no round trip. If it fails there, the whole transaction fails,
// and the message that it was for is handled again: execute with tx what must be able to fail as a step. It is one
// statement, with the limits of [pgx.Batch].
func (t Turn) Queue(sql string, args ...any) { t.turn.Queue(sql, args...) }

// Local returns an Action that works in the orchestrator's transaction, which moves the instance. A first step works
// in the transaction of Start's caller. do must not end tx, nor have effects outside of tx.
//
// After an error or a panic nothing of the step is left in the database or the state. The step is tried again as its
// Retry says, and holds up no other step meanwhile. Local steps that follow each other share a transaction, and its
// 30 s. A [Reject] says that no attempt will succeed: the saga compensates. do may change the state.
func Local[S any](do func(ctx context.Context, tx pgx.Tx, t Turn, s *S) error) Action[S] {
	a := Action[S]{kind: machine.Local}
	if do != nil {
		a.run.Local = func(ctx context.Context, tx pgx.Tx, t flow.Turn, state any) error {
			err := do(ctx, tx, newTurn(t), state.(*S))
			if rejected := new(RejectedError); errors.As(err, &rejected) {
				return &flow.RejectedError{Reason: rejected.Reason, Err: err}
			}
			return err
		}
	}
	return a
}

// A RejectedError is the error of [Reject].
type RejectedError struct{ Reason string }

// Error returns the reason.
func (e *RejectedError) Error() string { return "rejected: " + e.Reason }

// Reject returns an error by which a local step, or a participant, decides to do nothing: it has done nothing, and
// no further attempt is made unless the step's Retry asks for it.
//
// It is for [Local] and [On]. A [consumer.Effect] replies in its record, by [Done] or [Rejected]: there a Reject is an
// error like others, and the call is tried again.
//
// The reason is stored with the instance and shown to operators, so it must not hold secrets.
func Reject(reason string) error { return &RejectedError{Reason: reason} }
