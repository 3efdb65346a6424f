package flow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
)

// A Run is the work on one instance in one transaction.
type Run struct {
	Flow     *Flow
	Instance *Instance
	Now      machine.Millis // since the instance's start
	Out      Outlet

	// Later leaves what follows from an event to another Run, as of [Run.Timer]. What
	// fails then is the event itself: a result that its function panics at, or
	// that makes the state too large, is an [ErrUnfit].
	Later bool

	state any
}

// Open decodes the instance's state. An error is an [ErrUnfit].
func (r *Run) Open() error {
	if !r.Flow.Machine.Fits(&r.Instance.Progress) {
		return fmt.Errorf("%w: the instance has %d steps, version %d of %s has %d", ErrUnfit,
			len(r.Instance.Progress.Steps), r.Flow.Version(), r.Flow.Name(), r.Flow.Machine.Steps())
	}
	err := guard.Call(func() (err error) {
		r.state, err = r.Flow.State.Decode(r.Instance.State)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: the state of the instance: %w", ErrUnfit, err)
	}
	return nil
}

// Begin sets the instance's first state and does what is to be done first.
func (r *Run) Begin(ctx context.Context, state any) error {
	r.Instance.Progress, r.state = r.Flow.Machine.Begin(), state
	return r.Advance(ctx)
}

// A Reply is an answer to a step.
type Reply struct {
	Step, Attempt int
	Undo          bool
	Kind          machine.EventKind // Replied, Refused or Failed
	Reason        string
	Result        []byte // of Replied
}

// Reply takes an answer, and does what follows from it. An error is
// [machine.ErrLate] if nobody waits for it, an [ErrUnfit] if the result cannot be used,
// or of [Run.Advance].
func (r *Run) Reply(ctx context.Context, a Reply) error {
	if a.Step > r.Flow.Machine.Steps() {
		return fmt.Errorf("%w: there is no step %d", ErrUnfit, a.Step)
	}
	err := r.apply(machine.Event{Kind: a.Kind, Step: a.Step, Undo: a.Undo, Attempt: a.Attempt, Reason: a.Reason})
	if err != nil {
		return err
	}
	if a.Kind == machine.Replied {
		if err := r.take(a); err != nil {
			return err
		}
	}
	return r.Advance(ctx)
}

// take puts the result of a reply into the state. That it does not fit may be found out by a panic.
func (r *Run) take(a Reply) error {
	fold := func() error { return r.fold(r.action(a.Step, a.Undo), a.Step, a.Result) }
	if !r.Later {
		return fold()
	}
	err := guard.Call(fold)
	if panicked := new(guard.PanicError); errors.As(err, &panicked) {
		err = fmt.Errorf("%w: the result of step %s: %w", ErrUnfit, r.Flow.Machine.Step(a.Step).Name, panicked)
	}
	return err
}

// Timer does what is due, and what follows from it.
func (r *Run) Timer(ctx context.Context) error {
	if err := r.apply(machine.Event{Kind: machine.Timer}); err != nil {
		return err
	}
	return r.Advance(ctx)
}

// Apply applies an event, and does what follows from it.
func (r *Run) Apply(ctx context.Context, e machine.Event) error {
	if err := r.apply(e); err != nil {
		return err
	}
	return r.Advance(ctx)
}

// Advance does what is to be done until there is nothing left, and encodes the
// state. After an error the instance must be thrown away with its transaction.
func (r *Run) Advance(ctx context.Context) error {
	for !r.Later {
		tasks := r.Flow.Machine.Next(&r.Instance.Progress)
		if len(tasks) == 0 {
			break
		}
		if err := r.do(ctx, tasks[0]); err != nil {
			return fmt.Errorf("step %s: %w", r.Flow.Machine.Step(tasks[0].ID).Name, err)
		}
	}
	var err error
	r.Instance.State, err = r.Flow.State.Encode(r.state)
	switch {
	case err != nil && r.Later: // the event alone has made it so
		return fmt.Errorf("%w: state: %w", ErrUnfit, err)
	case err != nil:
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// MaxReason is how many bytes of a reason are kept. The instance is stored with it at
// every move, and the saga around it is told.
const MaxReason = 500

func (r *Run) apply(e machine.Event) error {
	e.At, e.Reason = r.Now, cleantext.Clip(e.Reason, MaxReason)
	return r.Flow.Machine.Apply(&r.Instance.Progress, e)
}

func (r *Run) action(step int, undo bool) *Action {
	f := &r.Flow.Steps[step-1]
	if undo {
		return &f.Undo
	}
	return &f.Do
}

func (r *Run) do(ctx context.Context, t machine.Task) error {
	s := &r.Instance.Progress.Steps[t.ID-1]
	switch t.Kind {
	case machine.Fold:
		if err := r.fold(r.action(t.ID, false), t.ID, s.Result); err != nil {
			return r.apply(machine.Event{Kind: machine.Unfit, Step: t.ID, Reason: err.Error()})
		}
		return r.apply(machine.Event{Kind: machine.Folded, Step: t.ID})
	case machine.Resend:
		return r.resend(ctx, t.ID, s)
	case machine.Undo:
		return r.begin(ctx, t.ID, true)
	}
	if when := r.Flow.Steps[t.ID-1].When; when != nil && s.State == machine.Idle && !when(r.state) {
		return r.apply(machine.Event{Kind: machine.Passed, Step: t.ID})
	}
	return r.begin(ctx, t.ID, false)
}

// begin sets off a step, or its compensation.
func (r *Run) begin(ctx context.Context, id int, undo bool) error {
	node, a := r.Flow.Machine.Step(id), r.action(id, undo)
	kind := node.Kind
	if undo {
		kind = node.Undo
	}
	switch kind {
	case machine.Local:
		return r.local(ctx, id, undo, a)
	case machine.Nested:
		if !undo {
			return r.child(ctx, id, a)
		}
	}
	var body []byte
	if a.Body != nil {
		value, err := a.Body(r.state)
		if err == nil {
			body, err = json.Marshal(value)
		}
		if err != nil {
			return fmt.Errorf("body of the command: %w", err)
		}
	}
	if err := r.apply(machine.Event{Kind: machine.Sent, Step: id, Undo: undo, Message: body}); err != nil {
		return err
	}
	return r.Out.Command(ctx, r.command(id, undo, body))
}

func (r *Run) command(id int, undo bool, body []byte) Command {
	node := r.Flow.Machine.Step(id)
	c := Command{
		Step: node.Name, N: N(r.Instance.Path, id, r.Instance.Progress.Steps[id-1].Attempt),
		Topic: node.Topic, Type: node.Type, Undo: undo, Body: body,
	}
	if undo {
		c.Topic, c.Type, c.Nested = node.UndoTopic, node.UndoType, node.Saga
	}
	return c
}

// resend sends what was sent last once more. Whoever has had it takes it for a
// duplicate.
func (r *Run) resend(ctx context.Context, id int, s *machine.Step) error {
	undo, body := s.State == machine.Undoing, s.Message
	if err := r.apply(machine.Event{Kind: machine.Sent, Step: id, Undo: undo}); err != nil {
		return err
	}
	if r.Flow.Machine.Step(id).Kind == machine.Nested && !undo {
		return nil // it is there: its row is its message
	}
	c := r.command(id, undo, body)
	c.Again = true
	return r.Out.Command(ctx, c)
}

func (r *Run) child(ctx context.Context, id int, a *Action) error {
	state, err := a.Body(r.state)
	if err != nil {
		return fmt.Errorf("state of the nested saga: %w", err)
	}
	if err := r.apply(machine.Event{Kind: machine.Sent, Step: id}); err != nil {
		return err
	}
	path := N(r.Instance.Path, id, r.Instance.Progress.Steps[id-1].Attempt)
	return r.Out.Child(ctx, Child{Flow: a.Nested, Path: path, State: state})
}

// local runs a step in the transaction. Of one that fails nothing is left, neither
// in the database nor in the state.
func (r *Run) local(ctx context.Context, id int, undo bool, a *Action) error {
	before, err := r.Flow.State.Encode(r.state)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if err := r.apply(machine.Event{Kind: machine.Sent, Step: id, Undo: undo}); err != nil {
		return err
	}
	var (
		emitted []outbox.Message
		queued  []Statement
	)
	turn := r.turn(id, undo)
	turn.out, turn.queued = &emitted, &queued
	later, canQueue := r.Out.(Queuer)
	failed, err := r.Out.Nested(ctx, func(tx pgx.Tx) error {
		err := guard.Call(func() error { return a.Local(ctx, tx, turn, r.state) })
		if err == nil && !canQueue {
			err = execute(ctx, tx, queued)
		}
		return err
	})
	if err != nil {
		return err
	}
	if failed == nil && canQueue && len(queued) > 0 {
		later.Queue(queued)
	}
	e := machine.Event{Kind: machine.Replied, Step: id, Undo: undo, Attempt: turn.Attempt}
	var rejected *RejectedError
	switch {
	case failed == nil:
		if err := r.Out.Emit(ctx, emitted); err != nil {
			return err
		}
		return r.apply(e)
	case errors.As(failed, &rejected):
		e.Kind, e.Reason = machine.Refused, rejected.Reason
	default:
		e.Kind, e.Reason = machine.Failed, failed.Error()
	}
	if r.state, err = r.Flow.State.Decode(before); err != nil {
		return fmt.Errorf("%w: state: %w", ErrUnfit, err)
	}
	return r.apply(e)
}

func (r *Run) turn(id int, undo bool) Turn {
	return Turn{
		ID: r.Instance.ID, Scope: r.Instance.Scope, Key: r.Instance.Key, Saga: r.Flow.Name(), Version: r.Flow.Version(),
		Step: r.Flow.Machine.Step(id).Name, Undo: undo, Attempt: r.Instance.Progress.Steps[id-1].Attempt,
	}
}

// execute sends statements at once.
func execute(ctx context.Context, tx pgx.Tx, statements []Statement) error {
	if len(statements) == 0 || tx == nil {
		return nil
	}
	b := &pgx.Batch{}
	for _, s := range statements {
		b.Queue(s.SQL, s.Args...)
	}
	return tx.SendBatch(ctx, b).Close()
}

// fold puts a result into the state.
func (r *Run) fold(a *Action, step int, result []byte) error {
	if a.Result == nil {
		return nil
	}
	if err := a.Result(r.state, result); err != nil {
		return fmt.Errorf("%w: the result of step %s: %w", ErrUnfit, r.Flow.Machine.Step(step).Name, err)
	}
	return nil
}
