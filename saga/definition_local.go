package saga

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
)

// A Turn is what a local step learns about the instance that it is for.
type Turn struct {
	ID         string // of the instance, UUIDv7
	Scope, Key string // of the request that started it
	Saga       string
	Version    int
	Step       string
	Undo       bool // the step is being undone
	Attempt    int

	turn flow.Turn
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
			err := do(ctx, tx, Turn{t.ID, t.Scope, t.Key, t.Saga, t.Version, t.Step, t.Undo, t.Attempt, t}, state.(*S))
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
// It is for [Local] and [On]. A [consumer.Effect] replies in its record, by [Done] or [Refuse]: there a Reject is an
// error like others, and the call is tried again.
//
// The reason is stored with the instance and shown to operators, so it must not hold secrets.
func Reject(reason string) error { return &RejectedError{Reason: reason} }
