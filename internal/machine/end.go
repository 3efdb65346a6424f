package machine

// An EndCall is the call of the plan's OnEnd: the instance ends in the transaction in which the call succeeds.
type EndCall struct {
	Tries  int    `json:"tries,omitempty"`  // failed calls since a person last reset them
	Due    Millis `json:"due,omitempty"`    // end of the wait for the next try; 0: now, or never
	Stuck  bool   `json:"stuck,omitempty"`  // a person must act
	Reason string `json:"reason,omitempty"` // of the last failure
}

// isDue reports whether the call can be made now.
func (c *EndCall) isDue() bool { return !c.Stuck && c.Due == 0 }

// isWaiting reports whether the call has failed, and is to be tried again.
func (c *EndCall) isWaiting() bool { return c.Stuck || c.Due != 0 }

// Outcome returns the phase in which the instance ends if nothing else happens: "" while steps are left.
func (m *Machine) Outcome(p *Progress) Phase {
	var tasks []Task
	switch {
	case p.Phase == Running && m.planForward(p, &m.root, &tasks) && !p.hasUnstoredResult():
		return Completed
	case p.Phase == Compensating && m.planBackward(p, &m.root, &tasks):
		return Compensated
	}
	return ""
}

// endPhase ends the phase if no step is left in it. An instance with an OnEnd ends by the event EndDone instead.
func (m *Machine) endPhase(p *Progress) {
	outcome := m.Outcome(p)
	if outcome != "" && (!m.plan.OnEnd || p.Back > 0) {
		m.endInPhase(p, outcome)
	}
}

// endInPhase ends the instance, or pauses it at the step to which it went back.
func (m *Machine) endInPhase(p *Progress, outcome Phase) {
	if outcome == Completed {
		p.Phase, p.Paused, p.End = Completed, false, EndCall{}
		return
	}
	m.endCompensation(p)
}

// noteEndCall applies the outcome of a call of OnEnd: an EndDone, EndFailed or EndBroken.
func (m *Machine) noteEndCall(p *Progress, e Event) error {
	if err := m.checkTask(p, Task{Kind: OnEnd}); err != nil {
		return err
	}
	if e.Kind == EndDone {
		m.endInPhase(p, m.Outcome(p))
		return nil
	}
	p.End.Tries++
	p.End.Reason = e.Reason
	if e.Kind == EndBroken || p.End.Tries >= defaultRetry.Attempts {
		p.End.Stuck = true
		return nil
	}
	p.End.Due = e.At + defaultRetry.waitAfter(p.End.Tries)
	return nil
}

// hasUnstoredResult reports whether the result of a step is not yet in the state of the definition.
func (p *Progress) hasUnstoredResult() bool {
	for i := range p.Steps {
		if len(p.Steps[i].Result) > 0 {
			return true
		}
	}
	return false
}

// endCompensation ends the instance. If it went back to a step, it pauses there instead.
func (m *Machine) endCompensation(p *Progress) {
	if p.Back == 0 {
		p.Phase, p.Paused, p.End = Compensated, false, EndCall{}
		for i := range p.Steps {
			s := &p.Steps[i]
			s.Message, s.Due, s.Result = nil, 0, nil
			if s.State == InFlight { // it has no compensation, so the saga does not wait for it
				s.State = Unknown
			}
		}
		return
	}
	for i := p.Back; i < len(p.Steps); i++ {
		s := &p.Steps[i]
		*s = Step{Attempt: s.Attempt} // the next attempt has another number
	}
	p.Phase, p.Paused, p.Back = Running, true, 0
}
