package flow

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
)

// A Turn is what a local step learns about the instance that it is for.
type Turn struct {
	ID         string // of the instance: the correlation id of its messages
	Scope, Key string
	Saga       string
	Version    int
	Step       string // "": the saga ends
	Undo       bool   // the step is being undone
	Attempt    int

	emitted *[]outbox.Message
	queued  *[]Statement
}

// A Statement is SQL with its arguments.
type Statement struct {
	SQL  string
	Args []any
}

// Emit adds messages to the step's own. Package saga documents it, and Queue.
func (t Turn) Emit(msgs ...outbox.Message) { *t.emitted = append(*t.emitted, msgs...) }

// Queue adds a statement to execute after the step has returned.
func (t Turn) Queue(sql string, args ...any) {
	*t.queued = append(*t.queued, Statement{sql, args})
}

// A RejectedError is a local step's decision that no attempt will succeed.
type RejectedError struct {
	Reason string
	Err    error // that the step returned
}

// Error returns the message of the step's error.
func (e *RejectedError) Error() string { return e.Err.Error() }

// Unwrap returns the step's error.
func (e *RejectedError) Unwrap() error { return e.Err }

// A LocalStep is a local step that begins.
type LocalStep struct {
	Turn       Turn
	Messages   []outbox.Message // that it emitted
	Statements []Statement      // that it queued

	id      int    // 0: the call of OnEnd
	before  []byte // the state before it
	execute func(ctx context.Context, tx pgx.Tx) error
}

// beginLocal returns the work of a local step.
func (r *Run) beginLocal(id int, undo bool) (*Work, error) {
	l, err := r.prepareLocal(id)
	if err != nil {
		return nil, err
	}
	if err := r.applyEvent(machine.Event{Kind: machine.Sent, Step: id, Undo: undo}); err != nil {
		return nil, err
	}
	l.Turn.Step, l.Turn.Undo, l.Turn.Attempt = r.Flow.Machine.Step(id).Name, undo, r.attemptOf(id)
	do := r.actionOf(id, undo).Local
	l.execute = func(ctx context.Context, tx pgx.Tx) error { return do(ctx, tx, l.Turn, r.state) }
	return &Work{Local: l}, nil
}

// beginOnEnd returns the call of OnEnd as a local step without a name.
func (r *Run) beginOnEnd() (*Work, error) {
	l, err := r.prepareLocal(0)
	if err != nil {
		return nil, err
	}
	p := &r.Instance.Progress
	l.Turn.Attempt = p.End.Tries + 1
	phase, reason := r.Flow.Machine.Outcome(p), p.Reason
	l.execute = func(ctx context.Context, tx pgx.Tx) error {
		return r.Flow.OnEnd(ctx, tx, l.Turn, r.state, phase, reason)
	}
	return &Work{Local: l}, nil
}

// prepareLocal keeps the state to which a failed step returns.
func (r *Run) prepareLocal(id int) (*LocalStep, error) {
	before, err := r.Flow.State.Encode(r.state)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	l := &LocalStep{id: id, before: before}
	l.Turn = Turn{
		ID: r.Instance.ID, Scope: r.Instance.Scope, Key: r.Instance.Key, Saga: r.Flow.Name(), Version: r.Flow.Version(),
		emitted: &l.Messages, queued: &l.Statements,
	}
	return l, nil
}

// ExecuteStep calls the step's function. The caller rolls back what a failed one did in tx.
func (l *LocalStep) ExecuteStep(ctx context.Context, tx pgx.Tx) error {
	return guard.Call(func() error { return l.execute(ctx, tx) })
}

// ExecuteQueued executes the step's statements at once. Without a transaction it does nothing.
func (l *LocalStep) ExecuteQueued(ctx context.Context, tx pgx.Tx) error {
	if len(l.Statements) == 0 || tx == nil {
		return nil
	}
	b := &pgx.Batch{}
	for _, s := range l.Statements {
		b.Queue(s.SQL, s.Args...)
	}
	return tx.SendBatch(ctx, b).Close()
}

// EndLocal reports how a local step ended. A failed one leaves nothing in the state.
func (r *Run) EndLocal(l *LocalStep, failed error) (err error) {
	if failed != nil {
		if r.state, err = r.Flow.State.Decode(l.before); err != nil {
			return fmt.Errorf("%w: state: %w", ErrUnfit, err)
		}
	}
	if l.id == 0 {
		return r.applyEvent(endEvent(failed))
	}
	return r.applyEvent(l.stepEvent(failed))
}

// endEvent returns the outcome of a call of OnEnd.
func endEvent(failed error) machine.Event {
	switch {
	case failed == nil:
		return machine.Event{Kind: machine.EndDone}
	case errors.Is(failed, outbox.ErrInvalid):
		return machine.Event{Kind: machine.EndBroken, Reason: failed.Error()}
	}
	return machine.Event{Kind: machine.EndFailed, Reason: failed.Error()}
}

// stepEvent returns the outcome of the step.
func (l *LocalStep) stepEvent(failed error) machine.Event {
	e := machine.Event{Kind: machine.Replied, Step: l.id, Undo: l.Turn.Undo, Attempt: l.Turn.Attempt}
	if failed == nil {
		return e
	}
	e.Kind, e.Reason = machine.Failed, failed.Error()
	rejected := new(RejectedError)
	switch {
	case errors.Is(failed, outbox.ErrInvalid):
		e.Kind = machine.Broken
	case errors.As(failed, &rejected):
		e.Kind, e.Reason = machine.Refused, rejected.Reason
	}
	return e
}
