package machine

import (
	"encoding/json"
	"slices"
)

// Phase says where an instance as a whole is.
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

// State says where a step of an instance is.
type State string

// The states of a step.
const (
	Idle     State = ""         // its turn has not come
	InFlight State = "running"  // its command was sent, or its function runs
	Waiting  State = "waiting"  // to be tried again, at Due
	Done     State = "done"     //
	Skipped  State = "skipped"  // its condition did not hold: there is nothing to undo
	Rejected State = "rejected" // nothing was done
	Unknown  State = "unknown"  // it may have been done, and is undone if it has a compensation
	Stuck    State = "stuck"    // a person must act; see Doubt

	Undoing     State = "undoing"      // its compensation was sent
	UndoWaiting State = "undo-waiting" // to be tried again, at Due
	UndoStuck   State = "undo-stuck"   // a person must act
	Undone      State = "undone"
)

// Progress is how far an instance has come. Its steps are in the plan's order.
type Progress struct {
	Phase  Phase   `json:"phase"`
	Reason string  `json:"reason,omitempty"` // why it compensates
	Paused bool    `json:"paused,omitempty"` // until it is resumed, no step begins or is undone, and no deadline passes
	Revoke bool    `json:"revoke,omitempty"` // the saga that this one is nested in undoes it
	Back   int     `json:"back,omitempty"`   // compensate only what comes after this step, and then pause; 0: all
	Now    Millis  `json:"now,omitempty"`    // of the last event
	End    EndCall `json:"end,omitzero"`
	Steps  []Step  `json:"steps"`
}

// A Step is the state of one step of an instance.
type Step struct {
	State   State  `json:"state,omitempty"`
	Attempt int    `json:"attempt,omitempty"`  // at the action: the number of its command, part of its identity
	Tries   int    `json:"tries,omitempty"`    // attempts at the action, or at undoing it, since a person last reset them
	Due     Millis `json:"due,omitempty"`      // end of the wait, or the deadline; 0: now, or never
	Doubt   bool   `json:"doubt,omitempty"`    // of a step that is stuck, or was skipped: it may have been done
	Resend  bool   `json:"resend,omitempty"`   // the last message is to be sent once more
	Held    bool   `json:"held,omitempty"`     // its command is a dead letter at the participant
	NotDone bool   `json:"not_done,omitempty"` // of a step that is undone: its action has not happened
	Reason  string `json:"reason,omitempty"`   // of the last failure, of Held, or of the action that has not happened

	Began     Millis `json:"began,omitempty"` // the first attempt at the action
	Sent      Millis `json:"sent,omitempty"`  // the last attempt at anything
	Ended     Millis `json:"ended,omitempty"` // the action
	UndoBegan Millis `json:"undo_began,omitempty"`
	UndoEnded Millis `json:"undo_ended,omitempty"`

	// Message is the body of the unanswered message. It can be sent again byte for byte: the participant would refuse
	// another body under the same key. As JSON in JSON, spaces and the order of names would be lost.
	Message []byte `json:"message,omitempty"`
	// SentState and Body stand for Message in a stored progress: it is the instance's state, or JSON that keeps its bytes
	// within other JSON. Package sagarow sets and removes them.
	SentState bool            `json:"sent_state,omitempty"`
	Body      json.RawMessage `json:"body,omitempty"`
	// Result was given by a person, and is still to be put into the instance's state. Override says that a person
	// decided about the step.
	Result   json.RawMessage `json:"result,omitempty"`
	Override bool            `json:"override,omitempty"`
}

// NewProgress returns the progress of a new instance.
func (m *Machine) NewProgress() Progress {
	return Progress{Phase: Running, Steps: make([]Step, len(m.steps))}
}

// Fits reports whether p can be the progress of an instance of m.
func (m *Machine) Fits(p *Progress) bool { return len(p.Steps) == len(m.steps) }

// Stuck reports whether a person must act.
func (p *Progress) Stuck() bool {
	for i := range p.Steps {
		if s := p.Steps[i].State; s == Stuck || s == UndoStuck {
			return true
		}
	}
	return p.End.Stuck
}

// Held reports whether a dead letter at a participant holds up the instance.
func (p *Progress) Held() bool {
	return slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Held })
}

// Why returns the reason of a step that is stuck or held, or else of the compensation; "" if there is none.
func (m *Machine) Why(p *Progress) string {
	for i := range p.Steps {
		s, name := &p.Steps[i], m.steps[i].Name
		switch {
		case p.Phase.Ended():
		case s.State == Stuck, s.Held:
			return "step " + name + ": " + s.Reason
		case s.State == UndoStuck:
			return "compensation of step " + name + ": " + s.Reason + ", after " + p.Reason
		}
	}
	if p.End.Stuck {
		return "OnEnd: " + p.End.Reason
	}
	return p.Reason
}

// Due returns when the next event of kind [Timer] has something to do; 0: never, unless another event comes first.
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
	earlier(p.End.Due)
	if m.plan.Deadline > 0 && (m.canStillCompensate(p) || m.awaitsReply(p)) {
		earlier(MillisOf(m.plan.Deadline))
	}
	return due
}

// awaitsReply reports whether the compensation waits for a step in flight.
func (m *Machine) awaitsReply(p *Progress) bool {
	if p.Phase != Compensating {
		return false
	}
	for i := range p.Steps {
		if p.Steps[i].State == InFlight && m.steps[i].Undo != "" {
			return true
		}
	}
	return false
}

// canStillCompensate reports whether the saga runs forward and its pivot does not bind it yet.
func (m *Machine) canStillCompensate(p *Progress) bool {
	return p.Phase == Running && !m.pastPivot(p)
}

// pastPivot reports whether the pivot has been sent and not been rejected: the saga then only goes forward.
func (m *Machine) pastPivot(p *Progress) bool {
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

// behindPivot reports whether a step comes after the pivot.
func (m *Machine) behindPivot(id int) bool { return m.pivot != 0 && id > m.pivot }
