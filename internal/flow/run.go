package flow

import (
	"errors"
	"fmt"

	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/machine"
)

// A Run is the work on one instance in one transaction. [Run.OpenState] or [Run.SetFirstState] comes first. Then, for
// each event, [Run.TakeEvent] and [Run.NextWork] until there is no more work.
type Run struct {
	Flow     *Flow
	Instance *Instance
	Now      machine.Millis // since the instance's start

	// Deferred leaves the work that follows from an event to a later Run, which a timer makes. An error is then of
	// the event itself: a result at which its function panics, or which makes the state too large, is an [ErrUnfit].
	Deferred bool

	state any
}

// An Event is something that happened to an instance.
type Event struct {
	machine.Event
	Data []byte // the result that came with an event of kind [machine.Replied]
}

// OpenState decodes the instance's state. Its error is an [ErrUnfit].
func (r *Run) OpenState() error {
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

// SetFirstState sets the first state of a new instance.
func (r *Run) SetFirstState(state any) {
	r.Instance.Progress, r.state = r.Flow.Machine.NewProgress(), state
}

// TakeEvent applies an event. Its error is a [machine.ErrLate], a [machine.ErrRefused] or an [ErrUnfit]. An ErrUnfit
// names a step that the definition does not have, or a result that does not fit; the caller then discards the
// instance with its transaction.
func (r *Run) TakeEvent(e Event) error {
	if e.Step > r.Flow.Machine.Steps() {
		return fmt.Errorf("%w: there is no step %d", ErrUnfit, e.Step)
	}
	if err := r.applyEvent(e.Event); err != nil || e.Kind != machine.Replied {
		return err
	}
	return r.foldReply(e)
}

// applyEvent moves the progress.
func (r *Run) applyEvent(e machine.Event) error {
	e.At, e.Reason = r.Now, ClipReason(e.Reason)
	return r.Flow.Machine.Apply(&r.Instance.Progress, e)
}

// foldReply puts the result of a reply into the state. A deferred Run turns a panic of the user's function into
// an error of the reply.
func (r *Run) foldReply(e Event) error {
	fold := func() error { return r.foldResult(e.Step, e.Undo, e.Data) }
	if !r.Deferred {
		return fold()
	}
	err := guard.Call(fold)
	if panicked := new(guard.PanicError); errors.As(err, &panicked) {
		err = fmt.Errorf("%w: the result of step %s: %w", ErrUnfit, r.Flow.Machine.Step(e.Step).Name, panicked)
	}
	return err
}

// foldResult puts a result into the state.
func (r *Run) foldResult(step int, undo bool, result []byte) error {
	fold := r.actionOf(step, undo).Result
	if fold == nil {
		return nil
	}
	if err := fold(r.state, result); err != nil {
		return fmt.Errorf("%w: the result of step %s: %w", ErrUnfit, r.Flow.Machine.Step(step).Name, err)
	}
	return nil
}

func (r *Run) actionOf(step int, undo bool) *Action {
	f := &r.Flow.Steps[step-1]
	if undo {
		return &f.Undo
	}
	return &f.Do
}

// attemptOf returns the number of the last attempt at a step.
func (r *Run) attemptOf(step int) int { return r.Instance.Progress.Steps[step-1].Attempt }

// encodeState stores the state in the instance.
func (r *Run) encodeState() (err error) {
	r.Instance.State, err = r.Flow.State.Encode(r.state)
	switch {
	case err != nil && r.Deferred: // the event alone changed the state
		return fmt.Errorf("%w: state: %w", ErrUnfit, err)
	case err != nil:
		return fmt.Errorf("state: %w", err)
	}
	return nil
}
