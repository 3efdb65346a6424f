package saga

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
)

// A Turn is what a local step is told of the instance whose turn it is.
type Turn struct {
	ID         string // of the instance, UUIDv7
	Scope, Key string // of the request that began it
	Saga       string
	Version    int
	Step       string
	Undo       bool // the step is being undone
	Attempt    int

	turn flow.Turn
}

// Emit adds messages to the outbox: they are published if the transaction commits, and
// the step has succeeded. Scope, Key and CorrelationID default to those of the saga;
// Topic and Step are required.
func (t Turn) Emit(msgs ...outbox.Message) { t.turn.Emit(msgs...) }

// Queue adds a statement to the transaction that is executed after the step has
// returned, where that is possible with the transaction's last round trip: it costs none of
// its own. If it fails then, so does the whole transaction, and the message that it was
// for is handled again: what must be able to fail as a step is executed with tx. It
// is one statement, with the limits of [pgx.Batch].
func (t Turn) Queue(sql string, args ...any) { t.turn.Queue(sql, args...) }

func turnOf(t flow.Turn) Turn {
	return Turn{t.ID, t.Scope, t.Key, t.Saga, t.Version, t.Step, t.Undo, t.Attempt, t}
}

// Local returns an Action that does its work in the orchestrator's transaction, the one that
// moves the instance; if it is the first step, in the caller's of Start. It must not end tx, nor have
// effects outside of it.
//
// After an error, a panic included, nothing of it is left in the database or the state, and it is tried again
// as the step's Retry says, without holding up others. Local steps that follow each other share a
// transaction, and its 30 s. A [Reject] says that no
// attempt will succeed: the saga compensates. It is given what it is told of the
// instance and the state, which it may change.
func Local[S any](do func(ctx context.Context, tx pgx.Tx, t Turn, s *S) error) Action[S] {
	a := Action[S]{kind: machine.Local}
	if do != nil {
		a.run.Local = func(ctx context.Context, tx pgx.Tx, t flow.Turn, state any) error {
			return do(ctx, tx, turnOf(t), state.(*S))
		}
	}
	return a
}

// A RejectedError is what [Reject] returns. Its field Reason says why.
type RejectedError = flow.RejectedError

// Reject returns an error by which a local step, or a participant, says no: it
// has done nothing, and no further attempt is to be made, unless the step's Retry asks for it.
//
// It is for [Local] and [On]. A [consumer.Effect] replies in its record, by [Done] or
// [Refuse]: an error of its call or its record is one, and is tried again.
//
// The reason is kept with the instance; it is shown to operators, so it must not hold secrets.
func Reject(reason string) error { return &flow.RejectedError{Reason: reason} }
