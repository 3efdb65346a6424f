package machine_test

import "github.com/sagamill/sagamill/internal/machine"

// An identity names one attempt at a step, as a participant's inbox does.
type identity struct{ step, attempt int }

// A row is what an inbox knows of one attempt.
type row struct {
	acted    bool // the action took effect
	undone   bool // and its compensation did
	void     bool // the compensation came first: a tombstone
	answered bool // the action is done, or has refused: it comes again in vain
}

// A command is on its way to a participant.
type command struct {
	identity
	undo bool
	body string
}

// An outcome is what a participant makes of a command.
type outcome int

const (
	succeeds outcome = iota
	refuses
	fails     // and has done nothing
	failsLate // after it has taken effect
	holds     // a person decides
	breaks    // by a mistake, and has done nothing
)

// A world is the participants with their inboxes, and what is under way to them
// and from them.
type world struct {
	rows     map[identity]*row
	commands []command
	replies  []machine.Event
}

func (w *world) row(id identity) *row {
	r, ok := w.rows[id]
	if !ok {
		r = &row{}
		w.rows[id] = r
	}
	return r
}

// remains reports whether an attempt has an effect that nothing has undone.
func (w *world) remains(id identity) bool {
	r := w.row(id)
	return r.acted && !r.undone
}

// deliver has the participant handle c; decide says what comes of it, where
// that is open.
func (w *world) deliver(c command, decide func() outcome) {
	r := w.row(c.identity)
	var kind machine.EventKind
	if c.undo {
		kind = r.compensate(decide)
	} else {
		kind = r.act(decide)
	}
	if kind != "" {
		notDone := c.undo && kind == machine.Replied && r.void
		w.replies = append(w.replies, machine.Event{Kind: kind, Step: c.step, Attempt: c.attempt, Undo: c.undo, Reason: "because", NotDone: notDone})
	}
}

// act returns "" where an inbox acks without a word. What has failed is a dead
// letter: when it comes again, it was redriven.
func (r *row) act(decide func() outcome) machine.EventKind {
	switch {
	case r.void || r.undone || r.answered:
		return "" // superseded, or a duplicate
	case r.acted:
		r.answered = true
		return machine.Replied
	}
	switch decide() {
	case refuses:
		r.answered = true
		return machine.Refused
	case fails:
		return machine.Failed
	case failsLate:
		r.acted = true
		return machine.Failed
	case holds:
		return machine.Held
	case breaks:
		return machine.Broken
	}
	r.acted, r.answered = true, true
	return machine.Replied
}

func (r *row) compensate(decide func() outcome) machine.EventKind {
	switch {
	case r.void || r.undone:
		return "" // a duplicate
	case !r.acted:
		r.void = true
	default:
		switch decide() {
		case refuses:
			return machine.Refused
		case fails, failsLate, holds, breaks:
			return machine.Failed
		}
		r.undone = true
	}
	return machine.Replied
}

// underWay reports whether an answer about an attempt may still come.
func (w *world) underWay(id identity, undo bool) bool {
	for _, c := range w.commands {
		if c.identity == id && c.undo == undo {
			return true
		}
	}
	for _, e := range w.replies {
		if e.Step == id.step && e.Attempt == id.attempt && e.Undo == undo {
			return true
		}
	}
	return false
}
