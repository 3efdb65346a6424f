package sagatest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A Command is a command or a compensation for a participant.
type Command struct {
	Step        string // with the steps around it: "payment/charge"
	Topic, Type string
	N           string // with key and step the identity of the message
	Attempt     int
	Undo        bool            // it is a compensation
	Body        json.RawMessage // JSON, unless the definition gives the step's action a Codec

	core     *core
	path     string
	id       int
	codec    outbox.Codec // nil: JSON
	expected bool
}

// ExpectCommand takes the next command to step that was not expected yet. With a want, its body must be the same
// JSON, or what the action's Codec makes of want.
func (r *Run[S]) ExpectCommand(step string, want ...any) *Command {
	r.t.Helper()
	return r.expectCommand(step, false, want)
}

// ExpectUndo is [Run.ExpectCommand] for a compensation.
func (r *Run[S]) ExpectUndo(step string, want ...any) *Command {
	r.t.Helper()
	return r.expectCommand(step, true, want)
}

// Expect is [Run.ExpectCommand] for a command whose body is a C, which it returns.
func Expect[C, S any](r *Run[S], step string) C {
	r.t.Helper()
	return decodeAs[C](r.core, r.expectCommand(step, false, nil))
}

// ExpectUndo is [Expect] for a compensation.
func ExpectUndo[C, S any](r *Run[S], step string) C {
	r.t.Helper()
	return decodeAs[C](r.core, r.expectCommand(step, true, nil))
}

func decodeAs[C any](c *core, cmd *Command) (body C) {
	c.t.Helper()
	decode := json.Unmarshal
	if cmd.codec != nil {
		decode = cmd.codec.Decode
	}
	if err := decode(cmd.Body, &body); err != nil {
		c.failTest("step %s: the body is no %T: %v", cmd.Step, body, err)
	}
	return body
}

// bodyIs compares the body of a command with what want encodes to, which it returns.
func (cmd *Command) bodyIs(want any) (same bool, wanted []byte, err error) {
	if cmd.codec == nil {
		wanted = encodeJSON(want)
		return sameJSON(cmd.Body, wanted), wanted, nil
	}
	wanted, err = cmd.codec.Encode(want)
	return bytes.Equal(cmd.Body, wanted), wanted, err
}

func (r *Run[S]) expectCommand(step string, undo bool, want []any) *Command {
	r.t.Helper()
	id, _ := r.findStep(step)
	for _, cmd := range r.commands {
		if cmd.expected || cmd.path != r.path || cmd.id != id || cmd.Undo != undo {
			continue
		}
		cmd.expected = true
		for _, w := range want {
			same, wanted, err := cmd.bodyIs(w)
			if err != nil {
				r.failTest("step %s: its Codec cannot encode %T: %v", step, w, err)
			}
			if !same {
				r.failTest("step %s was sent%s, want%s", step, showBody(cmd.Body), showBody(wanted))
			}
		}
		return cmd
	}
	r.failTest("step %s was sent no %s, or none that is not expected already", step, sideOf(undo))
	return nil
}

func sideOf(undo bool) string {
	if undo {
		return "compensation"
	}
	return "command"
}

// ExpectNothing expects that each command and each message was expected before.
func (r *Run[S]) ExpectNothing() {
	r.t.Helper()
	if left := r.listUnexpected(); len(left) > 0 {
		r.failTest("there should be nothing more, and there is %s", strings.Join(left, ", "))
	}
}

// ExpectMessage takes the next message that a local step has emitted to topic and that was not expected yet.
func (r *Run[S]) ExpectMessage(topic string) outbox.Message {
	r.t.Helper()
	for _, m := range r.emitted {
		if !m.seen && m.Topic == topic {
			m.seen = true
			return m.Message
		}
	}
	r.failTest("there is no message to %s, or none that is not expected already", topic)
	return outbox.Message{}
}

// listUnexpected describes the commands and messages that were not expected.
func (c *core) listUnexpected() (left []string) {
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

// checkLeftovers is a cleanup. It and [Start] are helpers, so the error is reported at the line that calls Start.
func (c *core) checkLeftovers() {
	c.t.Helper()
	if left := c.listUnexpected(); len(left) > 0 && !c.lenient && !c.t.Failed() {
		c.t.Errorf("nobody has expected %s\nthe run: %s\nwhat has happened:\n%s", strings.Join(left, ", "), c.title, c.timeline.String())
	}
}

// ExpectStatus expects that the instance has a status.
func (r *Run[S]) ExpectStatus(want saga.Status) {
	r.t.Helper()
	if got := r.Status(); got != want {
		r.failTest("the status is %s (%s), want %s", got, r.Reason(), want)
	}
}

// Status returns where the instance is.
func (r *Run[S]) Status() saga.Status { return statusOf(&r.rowOfRun().Progress) }

// Reason returns why the instance compensates, or is stuck.
func (r *Run[S]) Reason() string { return r.rowOfRun().flow.Machine.Why(&r.rowOfRun().Progress) }

// State returns a copy of the instance's state.
func (r *Run[S]) State() S {
	r.t.Helper()
	state, err := r.rowOfRun().flow.State.Decode(r.rowOfRun().State)
	if err != nil {
		r.failTest("state: %v", err)
	}
	s, ok := state.(*S)
	if !ok {
		r.failTest("the state is a %T, not a %T", state, s)
	}
	return *s
}

// Timeline describes all events so far, for people.
func (r *Run[S]) Timeline() string { return r.timeline.String() }

func (r *Run[S]) rowOfRun() *instance { return r.host.rows[r.path] }

// findStep returns a step's id and its state.
func (r *Run[S]) findStep(name string) (id int, s machine.Step) {
	r.t.Helper()
	id = r.rowOfRun().flow.Machine.FindStep(name)
	if id == 0 {
		r.failTest("saga %s has no step %q", r.rowOfRun().flow.Name(), name)
	}
	return id, r.rowOfRun().Progress.Steps[id-1]
}
