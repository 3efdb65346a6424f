package machine

import "encoding/json"

// applyVerb carries out the verb of a person.
func (m *Machine) applyVerb(p *Progress, e Event) error {
	switch e.Kind {
	case Pause:
		if p.Paused {
			return refuseVerb("it is paused already")
		}
		p.Paused = true
		return nil
	case Resume:
		if !p.Paused {
			return refuseVerb("it is not paused")
		}
		p.Paused = false
		if p.Phase == Running {
			p.Reason = "" // the reason was that of going back
		}
		return nil
	case Cancel:
		return m.cancelInstance(p, e)
	case GoBack:
		return m.compensateTo(p, e)
	}
	if e.Step == 0 {
		if e.Kind == RetryNow {
			return m.retryAllSteps(p)
		}
		return refuseVerb("%s needs the name of a step", e.Kind)
	}
	switch e.Kind {
	case Skip:
		return m.skipStep(p, e)
	case Reject:
		return m.rejectStep(p, e)
	default:
		return m.retryStep(p, e.Step)
	}
}

// cancelInstance compensates everything that was done, and does not wait for steps in flight.
func (m *Machine) cancelInstance(p *Progress, e Event) error {
	switch {
	case p.Phase == Compensating && p.Back > 0:
		p.Back, p.Reason, p.Paused = 0, joinReason("cancelled", e.Reason), false
		return nil
	case p.Phase == Compensating && !m.awaitsReply(p):
		return refuseVerb("it is compensating already: %s", p.Reason)
	case m.pastPivot(p):
		return refuseVerb("the pivot, %s, has been sent: the saga only goes forward", m.steps[m.pivot-1].Name)
	}
	p.Paused = false
	m.beginCompensation(p, joinReason("cancelled", e.Reason), true)
	return nil
}

// compensateTo undoes what comes after a step, and then pauses.
func (m *Machine) compensateTo(p *Progress, e Event) error {
	to, ok := m.findNode(e.Name, m.root)
	switch {
	case !ok:
		return refuseVerb("there is no step %q, or it is one of several in parallel", e.Name)
	case p.Phase == Compensating:
		return refuseVerb("it is compensating already: %s", p.Reason)
	case m.pastPivot(p):
		return refuseVerb("the pivot, %s, has been sent: the saga only goes forward", m.steps[m.pivot-1].Name)
	case !m.planForward(p, &to, new([]Task)):
		return refuseVerb("step %s is not done itself", e.Name)
	}
	begun := false
	for i := to.last; i < len(p.Steps); i++ {
		begun = begun || p.Steps[i].State != Idle
	}
	if !begun {
		return refuseVerb("nothing after step %s has begun", e.Name)
	}
	m.beginCompensation(p, joinReason("back to step "+e.Name, e.Reason), true)
	p.Back, p.Paused = to.last, false
	return nil
}

// skipStep makes a step count as done, or as undone if it is being undone.
func (m *Machine) skipStep(p *Progress, e Event) error {
	s, name := &p.Steps[e.Step-1], m.steps[e.Step-1].Name
	switch s.State {
	case InFlight, Waiting, Stuck:
		if p.Phase == Compensating {
			return refuseVerb("step %s is to be undone when its outcome is known: cancel does not wait for it", name)
		}
		if len(e.Result) > 0 && !json.Valid(e.Result) {
			return refuseVerb("the result for step %s is not JSON", name)
		}
		s.passForDone(e, p.Now)
	case Undoing, UndoWaiting, UndoStuck, Unknown:
		if len(e.Result) > 0 {
			return refuseVerb("step %s is being undone, which has no result", name)
		}
		s.State, s.UndoEnded, s.Due, s.Message, s.Override, s.Reason, s.Resend = Undone, p.Now, 0, nil, true, e.Reason, false
	case Idle:
		return refuseVerb("step %s has not begun", name)
	default:
		return refuseVerb("step %s is %s", name, s.State)
	}
	return nil
}

// passForDone makes s count as done. It keeps the message until the result is in the state.
func (s *Step) passForDone(e Event, now Millis) {
	doubt, message := s.State == InFlight || s.Doubt, s.Message
	s.finishAction(Done, now)
	s.Override, s.Doubt, s.Reason = true, doubt, e.Reason
	if len(e.Result) > 0 {
		s.Result, s.Message = e.Result, message
	}
}

// rejectStep makes a step count as one that did nothing, for good.
func (m *Machine) rejectStep(p *Progress, e Event) error {
	s, name := &p.Steps[e.Step-1], m.steps[e.Step-1].Name
	switch {
	case m.behindPivot(e.Step):
		return refuseVerb("step %s comes after the pivot: the saga only goes forward, and the step can be skipped", name)
	case s.State == InFlight || s.State == Waiting || s.State == Stuck || s.State == Unknown:
		m.tryAgain(p, s, e, 0)
		s.Override = true
		return nil
	case s.State == Idle:
		return refuseVerb("step %s has not begun", name)
	default:
		return refuseVerb("step %s is %s", name, s.State)
	}
}

// retryAllSteps retries every step that is stuck or waits, and the call of OnEnd.
func (m *Machine) retryAllSteps(p *Progress) error {
	retried := p.End.isWaiting()
	if retried {
		p.End = EndCall{}
	}
	for id := 1; id <= len(p.Steps); id++ {
		s := p.Steps[id-1].State
		if s == Waiting || s == Stuck || s == UndoWaiting || s == UndoStuck {
			retried = m.retryStep(p, id) == nil || retried
		}
	}
	if !retried {
		return refuseVerb("no step is stuck, or waits to be tried again: name a step to have its last message sent once more")
	}
	return nil
}

// retryStep gives a step a new attempt at once, with all its tries. If the outcome of the last attempt is not known, it
// sends that attempt's message again.
func (m *Machine) retryStep(p *Progress, id int) error {
	s, n := &p.Steps[id-1], m.steps[id-1]
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
			return refuseVerb("step %s is to be undone when its outcome is known: cancel does not wait for it", n.Name)
		}
		return s.resendMessage(n.Name, n.Kind)
	case Undoing:
		return s.resendMessage(n.Name, n.Undo)
	case Idle:
		return refuseVerb("step %s has not begun", n.Name)
	default:
		return refuseVerb("step %s is %s", n.Name, s.State)
	}
	return nil
}

// resendMessage asks for the step's last message to be sent again.
func (s *Step) resendMessage(name string, kind Kind) error {
	if kind == Local {
		return refuseVerb("step %s runs in the orchestrator's transaction: there is no message", name)
	}
	s.Resend = true
	return nil
}
