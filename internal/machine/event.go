package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// EventKind is what has happened.
type EventKind string

// What happens to a step.
const (
	Sent     EventKind = "sent"     // its command or its compensation was sent, or its function runs
	Passed   EventKind = "passed"   // its condition does not hold
	Folded   EventKind = "folded"   // its Result is in the state
	Unfit    EventKind = "unfit"    // its Result cannot be put into the state
	Replied  EventKind = "done"     // it has succeeded, or its compensation has
	Refused  EventKind = "rejected" // it has done nothing, by its own decision
	Failed   EventKind = "failed"   // a Local function: nothing was done; else what was done is not known
	Overdue  EventKind = "overdue"  // nobody has answered for too long
	Timer    EventKind = "timer"    // time has passed: whatever is due
	Pause    EventKind = "pause"    // and the rest are somebody's decisions
	Resume   EventKind = "resume"
	Cancel   EventKind = "cancel"
	GoBack   EventKind = "compensate-to"
	Skip     EventKind = "skip"
	Reject   EventKind = "reject"
	RetryNow EventKind = "retry"
	Revoke   EventKind = "revoke" // the saga that this one is nested in undoes it
)

// An Event is what has happened to an instance.
type Event struct {
	Kind    EventKind
	At      Millis
	Step    int             // its id; 0: of the instance as a whole
	Undo    bool            // it is about the step's compensation
	Attempt int             // which one was answered
	Reason  string          // why
	Message json.RawMessage // of Sent: the body
	Result  json.RawMessage // of Skip: what is put into the state; nil: nothing
	Name    string          // of GoBack: the step to which
}

// ErrLate reports a reply that nobody waits for: it was given before, its
// deadline has passed, or another attempt has been made. Nothing has changed.
var ErrLate = errors.New("nobody waits for this reply")

// ErrRefused reports a decision that would break the saga, or has nothing to
// do. Nothing has changed.
var ErrRefused = errors.New("refused")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

// Apply moves p. After an error, an [ErrLate] or an [ErrRefused], p is as it was.
// Any other error is a mistake of the caller.
func (m *Machine) Apply(p *Progress, e Event) error {
	if !m.Fits(p) || e.Step < 0 || e.Step > len(m.leaves) {
		return fmt.Errorf("machine: event %s for step %d of a progress of %d, the plan has %d", e.Kind, e.Step, len(p.Steps), len(m.leaves))
	}
	e.At = max(e.At, p.Now) // clocks may be set back, and nothing in an instance goes backwards
	if p.Phase.Ended() && e.Kind != Revoke {
		return ended(p, e)
	}
	before := p.Now
	p.Now = e.At
	if err := m.apply(p, e); err != nil {
		p.Now = before
		return err
	}
	m.settle(p)
	return nil
}

// ended answers an event that comes after the end, which nothing changes.
func ended(p *Progress, e Event) error {
	switch e.Kind {
	case Timer:
		return nil
	case Replied, Refused, Failed, Overdue:
		return ErrLate
	case Pause, Resume, Cancel, GoBack, Skip, Reject, RetryNow:
		return refuse("the instance is %s", p.Phase)
	}
	return fmt.Errorf("machine: event %s for step %d of an instance that is %s", e.Kind, e.Step, p.Phase)
}

func (m *Machine) apply(p *Progress, e Event) error {
	switch e.Kind {
	case Timer:
		m.timer(p)
		return nil
	case Revoke:
		return m.revoke(p, e)
	case Pause, Resume, Cancel, GoBack, Skip, Reject, RetryNow:
		return m.decide(p, e)
	}
	if e.Step == 0 {
		return fmt.Errorf("machine: event %s without a step", e.Kind)
	}
	s := &p.Steps[e.Step-1]
	switch e.Kind {
	case Sent:
		return m.sent(p, s, e)
	case Passed:
		return m.passed(p, s, e)
	case Folded, Unfit:
		return m.folded(p, s, e)
	case Replied, Refused, Failed, Overdue:
		return m.reply(p, s, e)
	}
	return fmt.Errorf("machine: there is no event %q", e.Kind)
}

// asked returns an error unless t is to be done now. Nobody may begin a step after
// the saga has turned round: the action would come after its compensation.
func (m *Machine) asked(p *Progress, t Task) error {
	if slices.Contains(m.Next(p), t) {
		return nil
	}
	return fmt.Errorf("machine: step %s is %q in a saga that is %s: nobody has asked to %s it", m.leaves[t.ID-1].Name, p.Steps[t.ID-1].State, p.Phase, t.Kind)
}

// passed notes that the condition of a step does not hold.
func (m *Machine) passed(p *Progress, s *Step, e Event) error {
	if n := m.leaves[e.Step-1]; !n.Conditional {
		return fmt.Errorf("machine: step %s has no condition that could not hold", n.Name)
	}
	if err := m.asked(p, Task{e.Step, Do}); err != nil {
		return err
	}
	s.finish(Skipped, e.At)
	return nil
}

// folded notes what came of putting a result into the state.
func (m *Machine) folded(p *Progress, s *Step, e Event) error {
	switch {
	case len(s.Result) == 0:
		return fmt.Errorf("machine: step %s has no result that could be %s", m.leaves[e.Step-1].Name, e.Kind)
	case e.Kind == Unfit:
		m.unfit(p, s, e)
	default:
		s.Result, s.Message = nil, nil
	}
	return nil
}

// sent notes that a task of Next was carried out, as far as it is for the
// sender to do.
func (m *Machine) sent(p *Progress, s *Step, e Event) error {
	task := Task{e.Step, Do}
	switch {
	case s.Resend:
		task.Kind = Resend
	case e.Undo:
		task.Kind = Undo
	}
	if err := m.asked(p, task); err != nil {
		return err
	}
	s.Sent = e.At
	if s.Resend {
		s.Resend = false
		if n := m.leaves[e.Step-1]; s.State == InFlight && s.Due == 0 && n.Deadline > 0 {
			s.Due = e.At + MillisOf(n.Deadline)
		}
		return nil
	}
	m.begun(s, e)
	return nil
}

// begun notes that the action or the compensation of a step has been sent for
// the first time, or runs.
func (m *Machine) begun(s *Step, e Event) {
	n := m.leaves[e.Step-1]
	s.Message, s.Due, s.Doubt = e.Message, 0, false
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
