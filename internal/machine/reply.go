package machine

import "fmt"

// reply deals with an answer, or with the lack of one.
func (m *Machine) reply(p *Progress, s *Step, e Event) error {
	if e.Attempt != s.Attempt {
		return ErrLate
	}
	n := m.leaves[e.Step-1]
	if e.Undo {
		return s.undoReply(n, e)
	}
	if s.State == Done && s.Override && len(s.Result) > 0 {
		return s.answered(e)
	}
	if s.State != InFlight && s.State != Unknown && !(s.State == Stuck && s.Doubt) {
		return ErrLate // Unknown: its compensation has not been sent yet
	}
	switch e.Kind {
	case Replied:
		s.finish(Done, e.At)
	case Refused:
		m.refused(p, s, e)
	case Failed:
		m.failed(p, s, e)
	case Overdue:
		if s.State != InFlight {
			return ErrLate
		}
		if n.Kind == Local {
			return fmt.Errorf("machine: step %s ends in the transaction that it begins in and cannot be overdue", n.Name)
		}
		s.doubt(p, e.Reason)
	}
	return nil
}

// answered deals with an answer to a step whose result a person has said, before that is in
// the state: what is so counts. If it were passed over and the person's result did not fit,
// nobody would answer the message a second time.
func (s *Step) answered(e Event) error {
	switch e.Kind {
	case Replied:
		s.finish(Done, e.At)
		s.Result, s.Override, s.Reason = nil, false, ""
	case Refused:
		s.Doubt, s.Message = false, nil // it has done nothing: if the result does not fit, it can be done anew
	default:
		return ErrLate
	}
	return nil
}

// doubt notes that it is not known what came of a step: it is undone, if that is
// where the saga is going, and else for a person to look at.
func (s *Step) doubt(p *Progress, reason string) {
	if p.Phase == Compensating {
		s.stick(Unknown, reason)
		s.Tries, s.Doubt = 0, false
		return
	}
	s.stick(Stuck, reason)
	s.Doubt = true
}

// unfit deals with a result, given by a person, that the state has no place for.
func (m *Machine) unfit(p *Progress, s *Step, e Event) {
	s.Result, s.Override = nil, false
	switch {
	case s.Doubt:
		s.doubt(p, e.Reason)
	case p.Phase == Compensating:
		s.finish(Rejected, e.At)
	default:
		s.stick(Stuck, e.Reason)
	}
}

// finish ends the action.
func (s *Step) finish(as State, at Millis) {
	s.State, s.Ended, s.Due, s.Tries, s.Message, s.Doubt, s.Resend = as, at, 0, 0, nil, false, false
}

func (s *Step) stick(as State, reason string) {
	s.State, s.Reason, s.Due, s.Resend = as, reason, 0, false
}

// undoReply deals with an answer to a compensation.
func (s *Step) undoReply(n *Node, e Event) error {
	if s.State != Undoing && s.State != UndoStuck {
		return ErrLate
	}
	switch {
	case e.Kind == Replied:
		s.State, s.UndoEnded, s.Due, s.Message, s.Reason, s.Resend = Undone, e.At, 0, nil, "", false
	case s.State == UndoStuck:
		s.Reason = e.Reason
	case n.Undo == Local && e.Kind != Overdue && s.Tries < n.UndoRetry.Attempts:
		s.State, s.Reason, s.Due = UndoWaiting, e.Reason, e.At+n.UndoRetry.wait(s.Tries)
	default: // a participant tries for itself before it gives up
		s.stick(UndoStuck, e.Reason)
	}
	return nil
}

// refused deals with a step that has done nothing, by its own decision.
func (m *Machine) refused(p *Progress, s *Step, e Event) {
	n := m.leaves[e.Step-1]
	attempts := n.Retry.Attempts
	if n.Kind == Local && !m.behind(e.Step) {
		attempts = 1 // its retry is for errors
	}
	m.again(p, s, e, attempts)
}

// failed deals with an error. A Local's transaction was rolled back, so that it
// has done nothing. What a participant or a nested saga has done is not known.
func (m *Machine) failed(p *Progress, s *Step, e Event) {
	n := m.leaves[e.Step-1]
	switch {
	case n.Kind == Local:
		m.again(p, s, e, n.Retry.Attempts)
	case s.State == Unknown:
		s.Reason = e.Reason // known already
	case m.behind(e.Step) || n.Pivot || s.State == Stuck:
		s.doubt(p, e.Reason)
	default:
		s.stick(Unknown, e.Reason)
		m.compensate(p, because("step "+n.Name+" failed", e.Reason), false)
	}
}

// again has a step that has done nothing tried again, as long as it has attempts.
func (m *Machine) again(p *Progress, s *Step, e Event, attempts int) {
	n := m.leaves[e.Step-1]
	s.Message, s.Reason, s.Doubt, s.Resend = nil, e.Reason, false, false
	switch {
	case p.Phase == Compensating:
		s.finish(Rejected, e.At)
	case s.Tries < attempts:
		s.State, s.Due = Waiting, e.At+n.Retry.wait(s.Tries)
	case m.behind(e.Step):
		s.stick(Stuck, e.Reason)
	default:
		s.finish(Rejected, e.At)
		m.compensate(p, because("step "+n.Name+" was rejected", e.Reason), false)
	}
}

// timer deals with whatever is due.
func (m *Machine) timer(p *Progress) {
	if p.Paused || p.Phase.Ended() {
		return
	}
	for i := range p.Steps {
		s, n := &p.Steps[i], m.leaves[i]
		if s.Due == 0 || s.Due > p.Now {
			continue
		}
		s.Due = 0
		if s.State != InFlight {
			continue // it waits no longer
		}
		reason := fmt.Sprintf("no reply within %s", n.Deadline)
		if n.Pivot || m.behind(i+1) {
			s.doubt(p, reason)
			continue
		}
		s.stick(Unknown, reason)
		m.compensate(p, fmt.Sprintf("step %s: %s", n.Name, reason), false)
	}
	if d := m.plan.Deadline; d > 0 && p.Now >= MillisOf(d) && (m.revocable(p) || m.awaits(p)) {
		m.compensate(p, fmt.Sprintf("the saga's deadline of %s has passed", d), true)
	}
}

// because says what has happened, and why if that is known.
func because(what, reason string) string {
	if reason == "" {
		return what
	}
	return what + ": " + reason
}

// compensate turns round. With giveUp nobody waits for steps in flight any more, and
// without it not for one whose message was to be sent again: no action is sent now, so
// a reply may never come.
func (m *Machine) compensate(p *Progress, reason string, giveUp bool) {
	if p.Phase == Running {
		p.Phase, p.Reason, p.Back = Compensating, reason, 0
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		switch {
		case s.State == Waiting, s.State == Stuck && !s.Doubt:
			s.finish(Rejected, p.Now)
		case s.State == Stuck, s.State == InFlight && (giveUp || s.Resend):
			s.State, s.Due, s.Doubt, s.Resend = Unknown, 0, false, false
		}
		if s.State == Done || s.State == Unknown {
			s.Tries = 0 // the compensation has its own
		}
	}
}

// revoke undoes a nested saga, also one that has completed. Done twice it does
// nothing more.
func (m *Machine) revoke(p *Progress, e Event) error {
	if m.pivot != 0 {
		return refuse("the saga has a pivot")
	}
	if p.Revoke || p.Phase == Compensated {
		p.Revoke = true
		return nil
	}
	p.Revoke = true
	if p.Phase == Completed {
		p.Phase = Running
	}
	p.Back, p.Paused = 0, false
	m.compensate(p, e.Reason, true)
	return nil
}
