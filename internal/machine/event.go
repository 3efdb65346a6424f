package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// EventKind says what happened.
type EventKind string

// The kinds of events. Those of a step come first, and the verbs of a person after Timer.
const (
	Sent      EventKind = "sent"       // its command or its compensation was sent, or its function runs
	Passed    EventKind = "passed"     // its condition does not hold
	Folded    EventKind = "folded"     // its Result is in the state
	Unfit     EventKind = "unfit"      // its Result cannot be put into the state
	Replied   EventKind = "done"       // it has succeeded, or its compensation has
	Refused   EventKind = "rejected"   // the participant decided to do nothing
	Failed    EventKind = "failed"     // a Local function did nothing; a participant has a dead letter, and another reply may follow
	Held      EventKind = "held"       // a participant has a dead letter that asks for an operator, and another reply follows
	Broken    EventKind = "broken"     // a mistake in the participant, or in a Local function, which a person must mend
	Overdue   EventKind = "overdue"    // the reply is missing for too long
	EndDone   EventKind = "end-done"   // the call of OnEnd has succeeded: the instance ends
	EndFailed EventKind = "end-failed" // it has failed, and is tried again
	EndBroken EventKind = "end-broken" // a mistake in it, which a person must mend
	Timer     EventKind = "timer"      // time has passed: everything that is due
	Pause     EventKind = "pause"
	Resume    EventKind = "resume"
	Cancel    EventKind = "cancel"
	GoBack    EventKind = "compensate-to"
	Skip      EventKind = "skip"
	Reject    EventKind = "reject"
	RetryNow  EventKind = "retry"
	Revoke    EventKind = "revoke" // the saga that this one is nested in undoes it
)

// An Event is something that happened to an instance.
type Event struct {
	Kind    EventKind
	At      Millis
	Step    int  // its id; 0: of the instance as a whole
	Undo    bool // it is about the step's compensation
	Attempt int  // of a reply: the attempt that it answers
	Reason  string
	NotDone bool            // of Replied, about a compensation: the action has not happened
	Message json.RawMessage // of Sent: the body
	Result  json.RawMessage // of Skip: goes into the state; nil: the state is unchanged
	Name    string          // of GoBack: the step to go back to
}

// ErrLate reports a reply for which no step waits: it is a duplicate, its deadline has passed, or another attempt
// was made. Nothing has changed.
var ErrLate = errors.New("nobody waits for this reply")

// ErrRefused reports a verb that would break the saga, or has nothing to do. Nothing has changed.
var ErrRefused = errors.New("refused")

func refuseVerb(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

// Apply moves p by an event. After an [ErrLate] or an [ErrRefused], p is unchanged. Any other error is a mistake of
// the caller, and p is unchanged too.
func (m *Machine) Apply(p *Progress, e Event) error {
	if !m.Fits(p) || e.Step < 0 || e.Step > len(m.steps) {
		return fmt.Errorf("machine: event %s for step %d of a progress of %d, the plan has %d", e.Kind, e.Step, len(p.Steps), len(m.steps))
	}
	e.At = max(e.At, p.Now) // a clock may be set back; the time of an instance is not
	if p.Phase.Ended() && e.Kind != Revoke {
		return refuseEnded(p, e)
	}
	before := p.Now
	p.Now = e.At
	if err := m.applyEvent(p, e); err != nil {
		p.Now = before
		return err
	}
	m.endPhase(p)
	return nil
}

// refuseEnded returns the answer to an event after the end. Nothing changes.
func refuseEnded(p *Progress, e Event) error {
	switch e.Kind {
	case Timer:
		return nil
	case Replied, Refused, Failed, Held, Broken, Overdue:
		return ErrLate
	case Pause, Resume, Cancel, GoBack, Skip, Reject, RetryNow:
		return refuseVerb("the instance is %s", p.Phase)
	}
	return fmt.Errorf("machine: event %s for step %d of an instance that is %s", e.Kind, e.Step, p.Phase)
}

func (m *Machine) applyEvent(p *Progress, e Event) error {
	switch e.Kind {
	case Timer:
		m.applyTimer(p)
		return nil
	case Revoke:
		return m.revokeInstance(p, e)
	case Pause, Resume, Cancel, GoBack, Skip, Reject, RetryNow:
		return m.applyVerb(p, e)
	case EndDone, EndFailed, EndBroken:
		return m.noteEndCall(p, e)
	}
	if e.Step == 0 {
		return fmt.Errorf("machine: event %s without a step", e.Kind)
	}
	s := &p.Steps[e.Step-1]
	switch e.Kind {
	case Sent:
		return m.noteSent(p, s, e)
	case Passed:
		return m.skipConditional(p, s, e)
	case Folded, Unfit:
		return m.noteFold(p, s, e)
	case Replied, Refused, Failed, Held, Broken, Overdue:
		return m.applyReply(p, s, e)
	}
	return fmt.Errorf("machine: there is no event %q", e.Kind)
}

// checkTask returns an error unless t is one of the next tasks. A step that begins after the saga has begun to
// compensate would have its action after its compensation.
func (m *Machine) checkTask(p *Progress, t Task) error {
	if slices.Contains(m.Next(p), t) {
		return nil
	}
	if t.Kind == OnEnd {
		return fmt.Errorf("machine: OnEnd was called in a saga that is %s, when it was not due", p.Phase)
	}
	return fmt.Errorf("machine: step %s is %q in a saga that is %s: nobody has asked to %s it", m.steps[t.ID-1].Name, p.Steps[t.ID-1].State, p.Phase, t.Kind)
}

// skipConditional notes that the condition of a step does not hold.
func (m *Machine) skipConditional(p *Progress, s *Step, e Event) error {
	if n := m.steps[e.Step-1]; !n.Conditional {
		return fmt.Errorf("machine: step %s has no condition that could not hold", n.Name)
	}
	if err := m.checkTask(p, Task{e.Step, Do}); err != nil {
		return err
	}
	s.finishAction(Skipped, e.At)
	return nil
}

// noteFold notes whether a result fitted into the state.
func (m *Machine) noteFold(p *Progress, s *Step, e Event) error {
	switch {
	case len(s.Result) == 0:
		return fmt.Errorf("machine: step %s has no result that could be %s", m.steps[e.Step-1].Name, e.Kind)
	case e.Kind == Unfit:
		m.rejectResult(p, s, e)
	default:
		s.Result, s.Message = nil, nil
	}
	return nil
}

// noteSent notes that a message of a step was sent, or that its function runs.
func (m *Machine) noteSent(p *Progress, s *Step, e Event) error {
	task := Task{e.Step, Do}
	switch {
	case s.Resend:
		task.Kind = Resend
	case e.Undo:
		task.Kind = Undo
	}
	if err := m.checkTask(p, task); err != nil {
		return err
	}
	s.Sent = e.At
	if s.Resend {
		s.Resend = false
		if n := m.steps[e.Step-1]; s.State == InFlight && s.Due == 0 && n.Deadline > 0 {
			s.Due = e.At + MillisOf(n.Deadline)
		}
		return nil
	}
	m.noteFirstSend(s, e)
	return nil
}

// noteFirstSend notes a message that is not a repetition: the attempt begins.
func (m *Machine) noteFirstSend(s *Step, e Event) {
	n := m.steps[e.Step-1]
	s.Message, s.Due, s.Doubt, s.Held, s.NotDone = e.Message, 0, false, false, false
	s.Tries++
	if e.Undo {
		if s.UndoBegan == 0 {
			s.UndoBegan = e.At
		}
		s.State = Undoing
		return
	}
	if s.Began == 0 {
		s.Began = e.At
	}
	s.State = InFlight
	s.Attempt++
	if n.Deadline > 0 {
		s.Due = e.At + MillisOf(n.Deadline)
	}
}
