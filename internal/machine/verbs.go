package machine

import "encoding/json"

// decide deals with what somebody wants done with an instance.
func (m *Machine) decide(p *Progress, e Event) error {
	switch e.Kind {
	case Pause:
		if p.Paused {
			return refuse("it is paused already")
		}
		p.Paused = true
		return nil
	case Resume:
		if !p.Paused {
			return refuse("it is not paused")
		}
		p.Paused = false
		if p.Phase == Running {
			p.Reason = "" // it is back where it was to go back to
		}
		return nil
	case Cancel:
		return m.cancel(p, e)
	case GoBack:
		return m.goBack(p, e)
	}
	if e.Step == 0 {
		if e.Kind == RetryNow {
			return m.retryAll(p)
		}
		return refuse("%s needs the name of a step", e.Kind)
	}
	switch e.Kind {
	case Skip:
		return m.skip(p, e)
	case Reject:
		return m.reject(p, e)
	default:
		return m.retry(p, e.Step)
	}
}

// cancel compensates all that was done, and waits for nothing that is in flight.
func (m *Machine) cancel(p *Progress, e Event) error {
	switch {
	case p.Phase == Compensating && p.Back > 0:
		p.Back, p.Reason, p.Paused = 0, because("cancelled", e.Reason), false
		return nil
	case p.Phase == Compensating && !m.awaits(p):
		return refuse("it is compensating already: %s", p.Reason)
	case m.committed(p):
		return refuse("the pivot, %s, has been sent: the saga only goes forward", m.leaves[m.pivot-1].Name)
	}
	p.Paused = false
	m.compensate(p, because("cancelled", e.Reason), true)
	return nil
}

// goBack undoes what comes after a step, and pauses then.
func (m *Machine) goBack(p *Progress, e Event) error {
	to, ok := m.top(e.Name, m.root)
	switch {
	case !ok:
		return refuse("there is no step %q, or it is one of several in parallel", e.Name)
	case p.Phase == Compensating:
		return refuse("it is compensating already: %s", p.Reason)
	case m.committed(p):
		return refuse("the pivot, %s, has been sent: the saga only goes forward", m.leaves[m.pivot-1].Name)
	case !m.forward(p, &to, new([]Task)):
		return refuse("step %s is not done itself", e.Name)
	}
	begun := false
	for i := to.last; i < len(p.Steps); i++ {
		begun = begun || p.Steps[i].State != Idle
	}
	if !begun {
		return refuse("nothing after step %s has begun", e.Name)
	}
	m.compensate(p, because("back to step "+e.Name, e.Reason), true)
	p.Back, p.Paused = to.last, false
	return nil
}

// skip has a step pass for done, or for undone.
func (m *Machine) skip(p *Progress, e Event) error {
	s, name := &p.Steps[e.Step-1], m.leaves[e.Step-1].Name
	switch s.State {
	case InFlight, Waiting, Stuck:
		if p.Phase == Compensating {
			return refuse("step %s is to be undone when its outcome is known: cancel does not wait for it", name)
		}
		if len(e.Result) > 0 && !json.Valid(e.Result) {
			return refuse("the result for step %s is not JSON", name)
		}
		s.pass(e, p.Now)
	case Undoing, UndoWaiting, UndoStuck, Unknown:
		if len(e.Result) > 0 {
			return refuse("step %s is being undone, which has no result", name)
		}
		s.State, s.UndoEnded, s.Due, s.Message, s.Override, s.Reason, s.Resend = Undone, p.Now, 0, nil, true, e.Reason, false
	case Idle:
		return refuse("step %s has not begun", name)
	default:
		return refuse("step %s is %s", name, s.State)
	}
	return nil
}

// pass has s pass for done. Its message is kept until it is known that the result fits.
func (s *Step) pass(e Event, now Millis) {
	doubt, message := s.State == InFlight || s.Doubt, s.Message
	s.finish(Done, now)
	s.Override, s.Doubt, s.Reason = true, doubt, e.Reason
	if len(e.Result) > 0 {
		s.Result, s.Message = e.Result, message
	}
}

// reject has a step pass for one that has done nothing and never will.
func (m *Machine) reject(p *Progress, e Event) error {
	s, name := &p.Steps[e.Step-1], m.leaves[e.Step-1].Name
	switch {
	case m.behind(e.Step):
		return refuse("step %s comes after the pivot: the saga only goes forward, and the step can be skipped", name)
	case s.State == InFlight || s.State == Waiting || s.State == Stuck || s.State == Unknown:
		m.again(p, s, e, 0)
		s.Override = true
		return nil
	case s.State == Idle:
		return refuse("step %s has not begun", name)
	default:
		return refuse("step %s is %s", name, s.State)
	}
}

func (m *Machine) retryAll(p *Progress) error {
	retried := false
	for id := 1; id <= len(p.Steps); id++ {
		s := p.Steps[id-1].State
		if s == Waiting || s == Stuck || s == UndoWaiting || s == UndoStuck {
			retried = m.retry(p, id) == nil || retried
		}
	}
	if !retried {
		return refuse("no step is stuck, or waits to be tried again: name a step to have its last message sent once more")
	}
	return nil
}

// retry has a step tried again at once, with all its attempts; where it is not
// known what became of the last one, under the same key.
func (m *Machine) retry(p *Progress, id int) error {
	s, n := &p.Steps[id-1], m.leaves[id-1]
	switch s.State {
	case Waiting, UndoWaiting:
		s.Due, s.Tries = 0, 0
	case Stuck:
		if s.Doubt && n.Kind != Local {
			s.State, s.Doubt, s.Resend, s.Tries = InFlight, false, true, 1 // its deadline begins when it is sent
		} else {
			s.State, s.Doubt, s.Tries = Waiting, false, 0
		}
	case UndoStuck:
		if n.Undo == Local {
			s.State, s.Tries = UndoWaiting, 0
		} else {
			s.State, s.Resend, s.Tries = Undoing, true, 1
		}
	case InFlight:
		if p.Phase == Compensating {
			return refuse("step %s is to be undone when its outcome is known: cancel does not wait for it", n.Name)
		}
		return s.resend(n.Name, n.Kind)
	case Undoing:
		return s.resend(n.Name, n.Undo)
	case Idle:
		return refuse("step %s has not begun", n.Name)
	default:
		return refuse("step %s is %s", n.Name, s.State)
	}
	return nil
}

// resend has the last message of a step sent once more.
func (s *Step) resend(name string, kind Kind) error {
	if kind == Local {
		return refuse("step %s runs in the orchestrator's transaction: there is no message", name)
	}
	s.Resend = true
	return nil
}
