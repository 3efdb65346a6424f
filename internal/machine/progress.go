package machine

import "encoding/json"

// Phase is where an instance as a whole is.
type Phase string

// The phases. The last two are final.
const (
	Running      Phase = "running"
	Compensating Phase = "compensating"
	Completed    Phase = "completed"
	Compensated  Phase = "compensated"
)

// Ended reports whether p is final.
func (p Phase) Ended() bool { return p == Completed || p == Compensated }

// State is where a step of an instance is.
type State string

// The states of a step.
const (
	Idle     State = ""         // its turn has not come
	InFlight State = "running"  // its command was sent, or its function runs
	Waiting  State = "waiting"  // to be tried again, at Due
	Done     State = "done"     //
	Skipped  State = "skipped"  // its condition did not hold: there is nothing to undo
	Rejected State = "rejected" // nothing was done
	Unknown  State = "unknown"  // it may have been done, and is undone if that can be
	Stuck    State = "stuck"    // a person must look at it; see Doubt

	Undoing     State = "undoing"      // its compensation was sent
	UndoWaiting State = "undo-waiting" // to be tried again, at Due
	UndoStuck   State = "undo-stuck"   // a person must look at it
	Undone      State = "undone"
)

// Progress is how far an instance has come. Its steps are in the plan's order.
type Progress struct {
	Phase  Phase  `json:"phase"`
	Reason string `json:"reason,omitempty"` // why it compensates
	Paused bool   `json:"paused,omitempty"` // no step begins or is undone, and no time runs out until it is resumed
	Revoke bool   `json:"revoke,omitempty"` // the saga that this one is nested in undoes it
	Back   int    `json:"back,omitempty"`   // compensate what comes after this step, and then pause; 0: all
	Now    Millis `json:"now,omitempty"`    // of the last event
	Steps  []Step `json:"steps"`
}

// A Step is one of an instance.
type Step struct {
	State   State  `json:"state,omitempty"`
	Attempt int    `json:"attempt,omitempty"` // at the action: the number of its command, part of its identity
	Tries   int    `json:"tries,omitempty"`   // attempts since somebody last gave it new ones, at the action or at undoing it
	Due     Millis `json:"due,omitempty"`     // when the wait or the deadline is over; 0: now, or never
	Doubt   bool   `json:"doubt,omitempty"`   // of one that is stuck, or passes for done: it may have been done
	Resend  bool   `json:"resend,omitempty"`  // the last message is to be sent once more
	Reason  string `json:"reason,omitempty"`  // of the last failure

	Began     Millis `json:"began,omitempty"` // the first attempt at the action
	Sent      Millis `json:"sent,omitempty"`  // the last attempt at anything
	Ended     Millis `json:"ended,omitempty"` // the action
	UndoBegan Millis `json:"undo_began,omitempty"`
	UndoEnded Millis `json:"undo_ended,omitempty"`

	// Message is the body of what was sent and is not answered, so that it can be
	// sent again as it was: under the same key another body would be refused. As
	// JSON in JSON, spaces and the order of names would not survive.
	Message []byte `json:"message,omitempty"`
	// Result is what is still to be put into the instance's state: a person has
	// said it. Override says that one has.
	Result   json.RawMessage `json:"result,omitempty"`
	Override bool            `json:"override,omitempty"`
}

// Begin returns the progress of an instance that has just started.
func (m *Machine) Begin() Progress {
	return Progress{Phase: Running, Steps: make([]Step, len(m.leaves))}
}

// Fits reports whether p can be the progress of an instance of m.
func (m *Machine) Fits(p *Progress) bool { return len(p.Steps) == len(m.leaves) }

// Stuck reports whether a person must look at the instance.
func (p *Progress) Stuck() bool {
	for i := range p.Steps {
		if s := p.Steps[i].State; s == Stuck || s == UndoStuck {
			return true
		}
	}
	return false
}

// Why returns why the instance is where it is: what a person must look at, or else why it
// compensates; "" if there is nothing to say.
func (m *Machine) Why(p *Progress) string {
	for i := range p.Steps {
		s, name := &p.Steps[i], m.leaves[i].Name
		switch {
		case p.Phase.Ended():
		case s.State == Stuck:
			return "step " + name + ": " + s.Reason
		case s.State == UndoStuck:
			return "compensation of step " + name + ": " + s.Reason + ", after " + p.Reason
		}
	}
	return p.Reason
}

// Due returns when the next event of kind [Timer] has something to do; 0: never,
// unless something else happens first.
func (m *Machine) Due(p *Progress) Millis {
	if p.Paused || p.Phase.Ended() {
		return 0
	}
	var due Millis
	earlier := func(at Millis) {
		if at > 0 && (due == 0 || at < due) {
			due = at
		}
	}
	for i := range p.Steps {
		earlier(p.Steps[i].Due)
	}
	if m.plan.Deadline > 0 && (m.revocable(p) || m.awaits(p)) {
		earlier(MillisOf(m.plan.Deadline))
	}
	return due
}

// awaits reports whether p compensates, and first waits for a step in flight.
func (m *Machine) awaits(p *Progress) bool {
	if p.Phase != Compensating {
		return false
	}
	for i := range p.Steps {
		if p.Steps[i].State == InFlight && m.leaves[i].Undo != "" {
			return true
		}
	}
	return false
}

// revocable reports whether the saga runs forward and could still compensate.
func (m *Machine) revocable(p *Progress) bool {
	return p.Phase == Running && !m.committed(p)
}

// committed reports whether the pivot has been sent and not been rejected: from
// then on the saga only goes forward.
func (m *Machine) committed(p *Progress) bool {
	if m.pivot == 0 {
		return false
	}
	switch s := &p.Steps[m.pivot-1]; s.State {
	case Idle, Waiting, Rejected:
		return false
	case Stuck:
		return s.Doubt
	default:
		return true
	}
}

// behind reports whether the step of an id only goes forward.
func (m *Machine) behind(id int) bool { return m.pivot != 0 && id > m.pivot }
