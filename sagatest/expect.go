package sagatest

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A Command is what a participant is sent: a command, or a compensation.
type Command struct {
	Step        string // with those that it is nested in: "payment/charge"
	Topic, Type string
	N           string // with key and step the identity of the message
	Attempt     int
	Undo        bool // it is a compensation
	Body        json.RawMessage

	core     *core
	path     string
	id       int
	expected bool
}

// ExpectCommand takes the next command to step that was not expected yet. With a
// want, its body must be the same JSON.
func (r *Run[S]) ExpectCommand(step string, want ...any) *Command {
	r.t.Helper()
	return r.expect(step, false, want)
}

// ExpectUndo is [Run.ExpectCommand] for a compensation.
func (r *Run[S]) ExpectUndo(step string, want ...any) *Command {
	r.t.Helper()
	return r.expect(step, true, want)
}

// Expect is [Run.ExpectCommand] for a command whose body is a C, which it returns.
func Expect[C, S any](r *Run[S], step string) C {
	r.t.Helper()
	return decodeAs[C](r.core, r.expect(step, false, nil))
}

// ExpectUndo is [Expect] for a compensation.
func ExpectUndo[C, S any](r *Run[S], step string) C {
	r.t.Helper()
	return decodeAs[C](r.core, r.expect(step, true, nil))
}

func decodeAs[C any](c *core, cmd *Command) (body C) {
	c.t.Helper()
	if err := json.Unmarshal(cmd.Body, &body); err != nil {
		c.fail("step %s: the body is no %T: %v", cmd.Step, body, err)
	}
	return body
}

func (r *Run[S]) expect(step string, undo bool, want []any) *Command {
	r.t.Helper()
	id, _ := r.step(step)
	for _, cmd := range r.commands {
		if cmd.expected || cmd.path != r.path || cmd.id != id || cmd.Undo != undo {
			continue
		}
		cmd.expected = true
		for _, w := range want {
			if wanted := encode(w); !sameJSON(cmd.Body, wanted) {
				r.fail("step %s was sent%s, want%s", step, show(cmd.Body), show(wanted))
			}
		}
		return cmd
	}
	r.fail("step %s was sent no %s, or none that is not expected already", step, sideOf(undo))
	return nil
}

func sideOf(undo bool) string {
	if undo {
		return "compensation"
	}
	return "command"
}

// ExpectNothing expects that there is no command and no message that is not expected yet.
func (r *Run[S]) ExpectNothing() {
	r.t.Helper()
	if left := r.unexpected(); len(left) > 0 {
		r.fail("there should be nothing more, and there is %s", strings.Join(left, ", "))
	}
}

// ExpectMessage takes the next message that a local step has emitted to topic and that was not
// expected yet.
func (r *Run[S]) ExpectMessage(topic string) outbox.Message {
	r.t.Helper()
	for _, m := range r.emitted {
		if !m.seen && m.Topic == topic {
			m.seen = true
			return m.Message
		}
	}
	r.fail("there is no message to %s, or none that is not expected already", topic)
	return outbox.Message{}
}

// unexpected returns what nobody has expected.
func (c *core) unexpected() (left []string) {
	for _, cmd := range c.commands {
		if !cmd.expected {
			left = append(left, fmt.Sprintf("a %s to %s (%s, attempt %d)", sideOf(cmd.Undo), cmd.Step, cmd.Topic, cmd.Attempt))
		}
	}
	for _, m := range c.emitted {
		if !m.seen {
			left = append(left, fmt.Sprintf("a message to %s (of step %s)", m.Topic, m.Step))
		}
	}
	return left
}

// leftovers is a cleanup. As helpers it and [Start] have the error told at the line that has called Start.
func (c *core) leftovers() {
	c.t.Helper()
	if left := c.unexpected(); len(left) > 0 && !c.lenient && !c.t.Failed() {
		c.t.Errorf("nobody has expected %s\nthe run: %s\nwhat has happened:\n%s", strings.Join(left, ", "), c.title, c.timeline.String())
	}
}

// ExpectStatus expects that the instance has a status.
func (r *Run[S]) ExpectStatus(want saga.Status) {
	r.t.Helper()
	if got := r.Status(); got != want {
		r.fail("the status is %s (%s), want %s", got, r.Reason(), want)
	}
}

// Status returns where the instance is.
func (r *Run[S]) Status() saga.Status { return statusOf(&r.row().Progress) }

// Reason returns why it compensates, or is stuck.
func (r *Run[S]) Reason() string { return r.row().flow.Machine.Why(&r.row().Progress) }

// State returns a copy of the instance's state.
func (r *Run[S]) State() S {
	r.t.Helper()
	state, err := r.row().flow.State.Decode(r.row().State)
	if err != nil {
		r.fail("state: %v", err)
	}
	s, ok := state.(*S)
	if !ok {
		r.fail("the state is a %T, not a %T", state, s)
	}
	return *s
}

// Timeline returns what has happened so far, for people.
func (r *Run[S]) Timeline() string { return r.timeline.String() }

func (r *Run[S]) row() *instance { return r.host.rows[r.path] }

// step returns a step's id and what has become of it.
func (r *Run[S]) step(name string) (id int, s machine.Step) {
	r.t.Helper()
	id = r.row().flow.Machine.FindStep(name)
	if id == 0 {
		r.fail("saga %s has no step %q", r.row().flow.Name(), name)
	}
	return id, r.row().Progress.Steps[id-1]
}
