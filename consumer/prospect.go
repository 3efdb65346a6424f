package consumer

import (
	"bytes"
	"cmp"
	"time"
)

// A Prospect is what becomes of a dead letter that is redriven.
type Prospect string

// The prospects. After the first six the letter goes round: the consumer of its
// step does the rest.
const (
	ProspectRun         Prospect = "run"             // its handler is entered
	ProspectNothing     Prospect = "nothing-to-undo" // a compensation: its action has not run, and never will
	ProspectWaits       Prospect = "waits"           // a compensation: it runs behind its action, which goes round too
	ProspectActionDead  Prospect = "action-dead"     // a compensation: a dead letter again, for its action is one; redrive that (a step with CancelParked: nothing-to-undo)
	ProspectUndecodable Prospect = "undecodable"     // a dead letter again: it cannot be read
	ProspectUnread      Prospect = "unread"          // could not be read when it came, or its type was edited: a consumer of its topic reads it again

	ProspectDuplicate  Prospect = "duplicate"  // removed: its step is done, or another copy will do it
	ProspectSuperseded Prospect = "superseded" // removed: its step's compensation came first

	ProspectKeyReused Prospect = "key-reused" // stays: the identity was used for another payload
	ProspectTooOld    Prospect = "too-old"    // stays, unless forced: the step's row is gone, so it may have run already
	ProspectBusy      Prospect = "busy"       // stays: its step is locked, such as by a handler that runs; say it again
)

// Prospects counts letters by what becomes of them.
type Prospects map[Prospect]int

// Sent is how many go round.
func (o Prospects) Sent() (n int) {
	for outcome, letters := range o {
		if outcome.sent() {
			n += letters
		}
	}
	return n
}

// Removed is how many are gone, having nothing left to do.
func (o Prospects) Removed() int { return o[ProspectDuplicate] + o[ProspectSuperseded] }

// Left is how many stay what they are.
func (o Prospects) Left() int { return o[ProspectKeyReused] + o[ProspectTooOld] + o[ProspectBusy] }

func (o Prospects) add(other Prospects) {
	for outcome, n := range other {
		o[outcome] += n
	}
}

func (o Prospect) sent() bool {
	switch o {
	case ProspectRun, ProspectNothing, ProspectWaits, ProspectActionDead, ProspectUndecodable, ProspectUnread:
		return true
	}
	return false
}

// prospectOf is what a verdict on a redriven letter comes to.
var prospectOf = map[verdict]Prospect{
	run: ProspectRun, tombstone: ProspectNothing, wait: ProspectWaits, refuse: ProspectActionDead,
	duplicate: ProspectDuplicate, superseded: ProspectSuperseded, reused: ProspectKeyReused,
}

func (id identity) compare(other identity) int {
	return cmp.Or(cmp.Compare(id.scope, other.scope), cmp.Compare(id.key, other.key), cmp.Compare(id.step, other.step), cmp.Compare(id.n, other.n))
}

// A heldLetter is what a redrive has to know of a letter.
type heldLetter struct {
	id int64
	kind
	identity
	digest  []byte
	written time.Time // when the message was, or before

	// Only Plan knows these.
	cancelParked bool // of its step
	unreadable   bool // the consumer will not understand it
	retyped      bool // its type was edited, and the step's types are not known
	nameless     bool // its identity is not stored yet: its consumer gives it that
}

// A standing is where a step stands: its row, and which of its messages go round.
type standing struct {
	cell
	copies map[kind][]byte // the digest of each that is retrying

	moved, forced bool // the row is to be moved to state, or stored
}

// A policy is how letters are redriven.
type policy struct {
	horizon *time.Time // rows of the inbox from before it may be gone; nil: none is
	force   bool
}

// redrive says what becomes of l and moves s to where the step stands behind it.
// It asks the consumer's own state machine, first for a step that goes round
// again, then, if that leads nowhere, for the step as it is.
func (s *standing) redrive(l *heldLetter, p policy) Prospect {
	if s.state == absent && p.horizon != nil && l.written.Before(*p.horizon) {
		if !p.force || l.nameless {
			return ProspectTooOld
		}
		s.force(l)
	}
	a := arrival{kind: l.kind, digest: l.digest, parked: true, cancelParked: l.cancelParked}
	next := s.revived(l)
	v := decide(next, a)
	if v != run {
		next = s.cell
		v = decide(next, a)
	}
	outcome := prospectOf[v]
	copied, taken := s.copies[l.kind]
	switch {
	case taken && (outcome.sent() || l.nameless) && bytes.Equal(copied, l.digest):
		return ProspectDuplicate
	case taken && (outcome.sent() || l.nameless):
		return ProspectKeyReused
	case outcome == ProspectRun && l.unreadable:
		return ProspectUndecodable
	case !outcome.sent():
		return outcome
	}
	s.moved = s.moved || next.state != s.state
	s.cell = next
	s.copies[l.kind] = l.digest
	return outcome
}

// revived is s's row if its dead message, l, goes round again. A message without a
// name is not the one that the row is dead of.
func (s *standing) revived(l *heldLetter) cell {
	next := s.cell
	switch {
	case l.nameless:
	case l.kind == action && s.state == dead:
		next.state = retrying
	case l.kind == compensation && s.state == undoDead:
		next.state = undoing
	}
	return next
}

// force gives a step without a row one that lets l run. Nothing is known of the
// action that a compensation is to undo but that somebody says it has run: its
// digest is that of no payload, so that a late copy of it is a dead letter.
func (s *standing) force(l *heldLetter) {
	s.forced = true
	s.cell = cell{state: retrying, digest: l.digest}
	if l.kind == compensation {
		s.cell = cell{state: undoing, digest: make([]byte, len(l.digest)), undoDigest: l.digest}
	}
}
