package flow

import (
	"encoding/json"
	"fmt"

	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
)

// A Work is what the caller of a [Run] does next in its transaction. One of its last three fields is set.
type Work struct {
	Step string // name of the step that it is for; of the call of OnEnd: OnEnd

	Command *Command   // to send
	Child   *Child     // to begin, unless its row exists
	Local   *LocalStep // to execute, and then to report by [Run.EndLocal]
}

// A Command is a message that a step sends.
type Command struct {
	Step, N     string
	Topic, Type string
	Nested      string // name of the nested saga to compensate; "": the message is for a participant
	Undo        bool
	Resent      bool // the same message was sent before
	Body        []byte
	Codec       outbox.Codec // of the body; nil: JSON
}

// A Child is a nested instance to begin.
type Child struct {
	Flow  *Flow
	Path  string
	State any
}

// NextWork does what needs no transaction, and returns the first work that needs one. It returns nil when no work
// is left; the instance then has its new state. After an error the caller discards the instance with its
// transaction.
func (r *Run) NextWork() (*Work, error) {
	for !r.Deferred {
		tasks := r.Flow.Machine.Next(&r.Instance.Progress)
		if len(tasks) == 0 {
			break
		}
		step := r.nameOfTask(tasks[0])
		work, err := r.performTask(tasks[0])
		if err != nil {
			return nil, fmt.Errorf("step %s: %w", step, err)
		}
		if work != nil {
			work.Step = step
			return work, nil
		}
	}
	return nil, r.encodeState()
}

// nameOfTask returns the name of the step that a task is for.
func (r *Run) nameOfTask(t machine.Task) string {
	if t.Kind == machine.OnEnd {
		return "OnEnd"
	}
	return r.Flow.Machine.Step(t.ID).Name
}

// performTask does a task of the machine, or returns the work that is needed for it.
func (r *Run) performTask(t machine.Task) (*Work, error) {
	if t.Kind == machine.OnEnd {
		return r.beginOnEnd()
	}
	s := &r.Instance.Progress.Steps[t.ID-1]
	switch t.Kind {
	case machine.Fold:
		if err := r.foldResult(t.ID, false, s.Result); err != nil {
			return nil, r.applyEvent(machine.Event{Kind: machine.Unfit, Step: t.ID, Reason: err.Error()})
		}
		return nil, r.applyEvent(machine.Event{Kind: machine.Folded, Step: t.ID})
	case machine.Resend:
		return r.resendCommand(t.ID, s)
	case machine.Undo:
		return r.beginStep(t.ID, true)
	}
	if when := r.Flow.Steps[t.ID-1].When; when != nil && s.State == machine.Idle && !when(r.state) {
		return nil, r.applyEvent(machine.Event{Kind: machine.Passed, Step: t.ID})
	}
	return r.beginStep(t.ID, false)
}

// beginStep returns the work of a step, or of its compensation.
func (r *Run) beginStep(id int, undo bool) (*Work, error) {
	kind := r.Flow.Machine.Step(id).Kind
	if undo {
		kind = r.Flow.Machine.Step(id).Undo
	}
	switch {
	case kind == machine.Local:
		return r.beginLocal(id, undo)
	case kind == machine.Nested && !undo:
		return r.beginChild(id)
	default:
		return r.sendCommand(id, undo)
	}
}

// sendCommand makes the body of a command from the state.
func (r *Run) sendCommand(id int, undo bool) (*Work, error) {
	var body []byte
	if action := r.actionOf(id, undo); action.Body != nil {
		value, err := action.Body(r.state)
		switch {
		case err != nil:
		case action.Codec != nil:
			body, err = action.Codec.Encode(value)
		default:
			body, err = json.Marshal(value)
		}
		if err != nil {
			return nil, fmt.Errorf("body of the command: %w", err)
		}
	}
	if err := r.applyEvent(machine.Event{Kind: machine.Sent, Step: id, Undo: undo, Message: body}); err != nil {
		return nil, err
	}
	return &Work{Command: r.commandOf(id, undo, body)}, nil
}

func (r *Run) commandOf(id int, undo bool, body []byte) *Command {
	node := r.Flow.Machine.Step(id)
	c := &Command{
		Step: node.Name, N: N(r.Instance.Path, id, r.attemptOf(id)),
		Topic: node.Topic, Type: node.Type, Undo: undo, Body: body, Codec: r.actionOf(id, undo).Codec,
	}
	if undo {
		c.Topic, c.Type, c.Nested = node.UndoTopic, node.UndoType, node.Saga
	}
	return c
}

// resendCommand sends the last message of a step again. A participant that has handled it takes it for a duplicate.
func (r *Run) resendCommand(id int, s *machine.Step) (*Work, error) {
	undo, body := s.State == machine.Undoing, s.Message
	if err := r.applyEvent(machine.Event{Kind: machine.Sent, Step: id, Undo: undo}); err != nil {
		return nil, err
	}
	if r.Flow.Machine.Step(id).Kind == machine.Nested && !undo {
		return nil, nil // the row of the nested instance is the message, and it exists
	}
	c := r.commandOf(id, undo, body)
	c.Resent = true
	return &Work{Command: c}, nil
}

// beginChild makes the first state of a nested instance.
func (r *Run) beginChild(id int) (*Work, error) {
	action := r.actionOf(id, false)
	state, err := action.Body(r.state)
	if err != nil {
		return nil, fmt.Errorf("state of the nested saga: %w", err)
	}
	if err := r.applyEvent(machine.Event{Kind: machine.Sent, Step: id}); err != nil {
		return nil, err
	}
	return &Work{Child: &Child{Flow: action.Nested, Path: N(r.Instance.Path, id, r.attemptOf(id)), State: state}}, nil
}
