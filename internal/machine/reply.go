package machine

import "fmt"

// applyReply moves a step by a reply, or by the lack of one.
func (m *Machine) applyReply(p *Progress, s *Step, e Event) error {
	if e.Attempt != s.Attempt {
		return ErrLate
	}
	n := m.steps[e.Step-1]
	if e.Undo {
		return s.applyUndoReply(n, e)
	}
	if s.State == Done && s.Override && len(s.Result) > 0 {
		return s.replyToOverride(e)
	}
	if s.State != InFlight && s.State != Unknown && !(s.State == Stuck && s.Doubt) {
		return ErrLate // of Unknown the compensation has not been sent yet
	}
	switch e.Kind {
	case Replied:
		if s.Held {
			s.Reason = ""
		}
		s.finishAction(Done, e.At)
	case Refused:
		m.applyRefusal(p, s, e)
	case Failed:
		m.applyFailure(p, s, e)
	case Held:
		s.holdStep(p, e.Reason)
	case Broken:
		m.applyMistake(p, s, e)
	case Overdue:
		if s.State != InFlight {
			return ErrLate
		}
		if n.Kind == Local {
			return fmt.Errorf("machine: step %s ends in the transaction that it begins in and cannot be overdue", n.Name)
		}
		s.markDoubtful(p, s.addReason(e.Reason))
	}
	return nil
}

// addReason returns why a step has no reply: a held one still has its dead letter.
func (s *Step) addReason(reason string) string {
	if s.Held {
		return s.Reason + ", " + reason
	}
	return reason
}

// replyToOverride takes the reply to a step that a person has skipped with a result, before the result is in the
// state. The reply counts. If it were ignored and the person's result did not fit, no second reply would come.
func (s *Step) replyToOverride(e Event) error {
	switch e.Kind {
	case Replied:
		s.finishAction(Done, e.At)
		s.Result, s.Override, s.Reason = nil, false, ""
	case Refused:
		s.Doubt, s.Message = false, nil // it did nothing: if the person's result does not fit, the step can run again
	default:
		return ErrLate
	}
	return nil
}

// markDoubtful notes that the outcome of a step is not known. A saga that compensates undoes it; else the step is
// stuck, and a person must act.
func (s *Step) markDoubtful(p *Progress, reason string) {
	if p.Phase == Compensating {
		s.stopWith(Unknown, reason)
		s.Tries, s.Doubt = 0, false
		return
	}
	s.stopWith(Stuck, reason)
	s.Doubt = true
}

// rejectResult takes back a person's result that does not fit into the state.
func (m *Machine) rejectResult(p *Progress, s *Step, e Event) {
	s.Result, s.Override = nil, false
	switch {
	case s.Doubt:
		s.markDoubtful(p, e.Reason)
	case p.Phase == Compensating:
		s.finishAction(Rejected, e.At)
	default:
		s.stopWith(Stuck, e.Reason)
	}
}

// finishAction ends the action.
func (s *Step) finishAction(as State, at Millis) {
	s.State, s.Ended, s.Due, s.Tries, s.Message = as, at, 0, 0, nil
	s.Doubt, s.Resend, s.Held = false, false, false
}

// stopWith gives the step a state in which no timer and no message is due.
func (s *Step) stopWith(as State, reason string) {
	s.State, s.Reason, s.Due, s.Resend, s.Held = as, reason, 0, false, false
}

// applyUndoReply moves a step by the reply to its compensation, or by the lack of one.
func (s *Step) applyUndoReply(n *Node, e Event) error {
	if s.State != Undoing && s.State != UndoStuck {
		return ErrLate
	}
	switch {
	case e.Kind == Replied:
		s.State, s.UndoEnded, s.Due, s.Message, s.Reason, s.Resend, s.NotDone = Undone, e.At, 0, nil, e.Reason, false, e.NotDone
	case s.State == UndoStuck:
		s.Reason = e.Reason
	case n.Undo == Local && e.Kind != Overdue && s.Tries < n.UndoRetry.Attempts:
		s.State, s.Reason, s.Due = UndoWaiting, e.Reason, e.At+n.UndoRetry.waitAfter(s.Tries)
	default: // a participant has used up its own attempts
		s.stopWith(UndoStuck, e.Reason)
	}
	return nil
}

// applyRefusal takes the decision of a participant, or of a local step, to do nothing.
func (m *Machine) applyRefusal(p *Progress, s *Step, e Event) {
	n := m.steps[e.Step-1]
	attempts := n.Retry.Attempts
	if n.Kind == Local && !m.behindPivot(e.Step) {
		attempts = 1 // its Retry is for errors
	}
	m.tryAgain(p, s, e, attempts)
}

// applyFailure takes an error. The transaction of a Local was rolled back, so it did nothing. A participant has a dead
// letter, whose effect is not known: the saga waits for its redrive, unless the plan says otherwise.
func (m *Machine) applyFailure(p *Progress, s *Step, e Event) {
	n := m.steps[e.Step-1]
	switch {
	case n.Kind == Local:
		m.tryAgain(p, s, e, n.Retry.Attempts)
	case n.OnDeadLetter == PolicyUndo && p.Phase == Running && s.State == InFlight:
		s.stopWith(Unknown, e.Reason)
		m.beginCompensation(p, joinReason("step "+n.Name+" failed", e.Reason), false)
	default:
		s.holdStep(p, e.Reason)
	}
}

// holdStep notes that an operator decides at the participant. A saga that compensates does not wait for that: it undoes
// the step.
func (s *Step) holdStep(p *Progress, reason string) {
	if s.State == InFlight && p.Phase == Compensating {
		s.stopWith(Unknown, reason)
		s.Tries = 0
		return
	}
	s.Reason, s.Held = reason, s.State == InFlight
}

// applyMistake applies a failure that comes from a mistake in a program: it compensates nothing. A person mends the mistake
// and has the step tried again.
func (m *Machine) applyMistake(p *Progress, s *Step, e Event) {
	switch {
	case s.State == Unknown:
		s.Reason = e.Reason // the saga compensates already
	case m.steps[e.Step-1].Kind == Local:
		s.Message = nil
		s.stopWith(Stuck, e.Reason)
	default:
		s.markDoubtful(p, e.Reason)
	}
}

// tryAgain gives a step that did nothing its next attempt, or ends the step if it has used up its attempts.
func (m *Machine) tryAgain(p *Progress, s *Step, e Event, attempts int) {
	n := m.steps[e.Step-1]
	s.Message, s.Reason, s.Doubt, s.Resend, s.Held = nil, e.Reason, false, false, false
	switch {
	case p.Phase == Compensating:
		s.finishAction(Rejected, e.At)
	case s.Tries < attempts:
		s.State, s.Due = Waiting, e.At+n.Retry.waitAfter(s.Tries)
	case m.behindPivot(e.Step):
		s.stopWith(Stuck, e.Reason)
	default:
		s.finishAction(Rejected, e.At)
		m.beginCompensation(p, joinReason("step "+n.Name+" was rejected", e.Reason), false)
	}
}

// applyTimer ends the waits and passes the deadlines that are due.
func (m *Machine) applyTimer(p *Progress) {
	if p.Paused || p.Phase.Ended() {
		return
	}
	if p.End.Due <= p.Now {
		p.End.Due = 0
	}
	for i := range p.Steps {
		s, n := &p.Steps[i], m.steps[i]
		if s.Due == 0 || s.Due > p.Now {
			continue
		}
		s.Due = 0
		if s.State != InFlight {
			continue // its wait for the next attempt is over
		}
		reason := s.addReason(fmt.Sprintf("no reply within %s", n.Deadline))
		switch {
		case n.OnDeadline == PolicyWait && p.Phase == Running:
			s.Reason = reason
			continue
		case n.Pivot || m.behindPivot(i+1):
			s.markDoubtful(p, reason)
			continue
		}
		s.stopWith(Unknown, reason)
		m.beginCompensation(p, fmt.Sprintf("step %s: %s", n.Name, reason), false)
	}
	if d := m.plan.Deadline; d > 0 && p.Now >= MillisOf(d) && (m.canStillCompensate(p) || m.awaitsReply(p)) {
		m.beginCompensation(p, fmt.Sprintf("the saga's deadline of %s has passed", d), true)
	}
}

// joinReason joins what happened and its reason, if that is known.
func joinReason(what, reason string) string {
	if reason == "" {
		return what
	}
	return what + ": " + reason
}

// beginCompensation makes the saga compensate. With giveUp it does not wait for steps in flight. Without giveUp it
// does, but not for a step whose message was to be sent again: no action is sent any more, so its reply may never come.
// Nor does it wait for a dead letter at a participant, or for a reply whose deadline has passed.
func (m *Machine) beginCompensation(p *Progress, reason string, giveUp bool) {
	if p.Phase == Running {
		p.Phase, p.Reason, p.Back, p.End = Compensating, reason, 0, EndCall{}
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		switch {
		case s.State == Waiting, s.State == Stuck && !s.Doubt:
			s.finishAction(Rejected, p.Now)
		case s.State == Stuck, s.State == InFlight && (giveUp || s.Resend || s.Held || m.steps[i].isAwaitedLonger(s)):
			s.State, s.Due, s.Doubt, s.Resend, s.Held = Unknown, 0, false, false, false
		}
		if s.State == Done || s.State == Unknown {
			s.Tries = 0 // the compensation has its own tries
		}
	}
}

// isAwaitedLonger reports whether the deadline of a step in flight has passed, and the plan lets the saga wait.
func (n *Node) isAwaitedLonger(s *Step) bool {
	return n.OnDeadline == PolicyWait && n.Deadline > 0 && s.Due == 0
}

// revokeInstance undoes a nested saga, also one that has completed. A second revocation changes nothing.
func (m *Machine) revokeInstance(p *Progress, e Event) error {
	if m.pivot != 0 {
		return refuseVerb("the saga has a pivot")
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
	m.beginCompensation(p, e.Reason, true)
	return nil
}
