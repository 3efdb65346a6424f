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
	Step       string
	Undo       bool // the step is being undone
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

	id      int
	before  []byte // the state before it
	execute func(ctx context.Context, tx pgx.Tx) error
}

// beginLocal keeps the state to which a failed step returns.
func (r *Run) beginLocal(id int, undo bool) (*Work, error) {
	before, err := r.Flow.State.Encode(r.state)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if err := r.applyEvent(machine.Event{Kind: machine.Sent, Step: id, Undo: undo}); err != nil {
		return nil, err
	}
	l := &LocalStep{id: id, before: before}
	l.Turn = Turn{
		ID: r.Instance.ID, Scope: r.Instance.Scope, Key: r.Instance.Key, Saga: r.Flow.Name(), Version: r.Flow.Version(),
		Step: r.Flow.Machine.Step(id).Name, Undo: undo, Attempt: r.attemptOf(id), emitted: &l.Messages, queued: &l.Statements,
	}
	do := r.actionOf(id, undo).Local
	l.execute = func(ctx context.Context, tx pgx.Tx) error { return do(ctx, tx, l.Turn, r.state) }
	return &Work{Local: l}, nil
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
	e := machine.Event{Kind: machine.Replied, Step: l.id, Undo: l.Turn.Undo, Attempt: l.Turn.Attempt}
	if failed == nil {
		return r.applyEvent(e)
	}
	e.Kind, e.Reason = machine.Failed, failed.Error()
	if rejected := new(RejectedError); errors.As(failed, &rejected) {
		e.Kind, e.Reason = machine.Refused, rejected.Reason
	}
	if r.state, err = r.Flow.State.Decode(l.before); err != nil {
		return fmt.Errorf("%w: state: %w", ErrUnfit, err)
	}
	return r.applyEvent(e)
}
