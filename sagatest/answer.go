package sagatest

import (
	"errors"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
)

// Reply answers the last command of step with its result. A nil result is JSON's null. A step must wait for the
// answer, as for all others: see [Run.Late].
func (r *Run[S]) Reply(step string, result any) {
	r.t.Helper()
	r.answerTo(step, false).Reply(result)
}

// Reject answers that the participant has decided to do nothing.
func (r *Run[S]) Reject(step, reason string) {
	r.t.Helper()
	r.answerTo(step, false).Reject(reason)
}

// Fail answers that the command is a dead letter of the participant: its effect is not known.
func (r *Run[S]) Fail(step, reason string) {
	r.t.Helper()
	r.answerTo(step, false).Fail(reason)
}

// Undone answers the compensation of step: nothing is left of it, or there never was anything.
func (r *Run[S]) Undone(step string) {
	r.t.Helper()
	r.answerTo(step, true).Undone()
}

// FailUndo answers that the compensation of step is a dead letter of the participant.
func (r *Run[S]) FailUndo(step, reason string) {
	r.t.Helper()
	r.answerTo(step, true).Fail(reason)
}

// Late returns an Answer to the last command of step for which no step waits: a duplicate, or one after the deadline.
// If the answer changes anything, the test ends.
func (r *Run[S]) Late(step string) Answer {
	r.t.Helper()
	a := r.answerTo(step, false)
	a.late = true
	return a
}

// LateUndo is [Run.Late] for the compensation of step.
func (r *Run[S]) LateUndo(step string) Answer {
	r.t.Helper()
	a := r.answerTo(step, true)
	a.late = true
	return a
}

func (r *Run[S]) answerTo(step string, undo bool) Answer {
	r.t.Helper()
	id, s := r.findStep(step)
	return Answer{core: r.core, path: r.path, id: id, attempt: s.Attempt, undo: undo}
}

// Answer returns an Answer to c, which need not be the last command of its step.
func (c *Command) Answer() Answer {
	return Answer{core: c.core, path: c.path, id: c.id, attempt: c.Attempt, undo: c.Undo}
}

// Late returns an Answer to c for which no step waits, as [Run.Late] does.
func (c *Command) Late() Answer {
	a := c.Answer()
	a.late = true
	return a
}

// An Answer is a reply to one command. It also counts as an expectation of that command.
type Answer struct {
	core        *core
	path        string
	id, attempt int
	undo, late  bool
}

// Reply is that of [Run.Reply].
func (a Answer) Reply(result any) {
	a.core.t.Helper()
	a.giveAnswer(machine.Replied, "", encodeJSON(result))
}

// Reject is that of [Run.Reject].
func (a Answer) Reject(reason string) {
	a.core.t.Helper()
	a.giveAnswer(machine.Refused, reason, nil)
}

// Fail is that of [Run.Fail], or of [Run.FailUndo].
func (a Answer) Fail(reason string) {
	a.core.t.Helper()
	a.giveAnswer(machine.Failed, reason, nil)
}

// Undone is that of [Run.Undone].
func (a Answer) Undone() {
	a.core.t.Helper()
	a.giveAnswer(machine.Replied, "", nil)
}

func (a Answer) giveAnswer(kind machine.EventKind, reason string, result []byte) {
	c := a.core
	c.t.Helper()
	label := c.host.labelOfStep(a.path, a.id)
	if !a.markExpected() {
		c.failTest("step %s has no %s that could be answered", label, sideOf(a.undo))
	}
	said := string(kind)
	if a.undo && kind == machine.Replied {
		said = "undone"
	}
	if reason != "" {
		said += ": " + reason
	}
	c.noteLine("answer", "%s, attempt %d, %s%s", label, a.attempt, said, showBody(result))
	event := machine.Event{Kind: kind, Step: a.id, Attempt: a.attempt, Undo: a.undo, Reason: reason}
	err := c.moveInstance(a.path, flow.Event{Event: event, Data: result})
	switch {
	case err == nil && a.late:
		c.failTest("step %s: the late answer was taken", label)
	case errors.Is(err, machine.ErrLate) && a.late:
		c.noteLine("", "which nobody waits for")
	case err != nil:
		c.failTest("step %s: %s", label, c.explainForRun(err))
	}
}

// markExpected reports whether there is a message that a answers, and marks it as expected.
func (a Answer) markExpected() (any bool) {
	for _, cmd := range a.core.commands {
		if cmd.path == a.path && cmd.id == a.id && cmd.Attempt == a.attempt && cmd.Undo == a.undo {
			cmd.expected, any = true, true
		}
	}
	return any
}
