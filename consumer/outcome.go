package consumer

import (
	"bytes"
	"cmp"
	"time"
)

// An Outcome is what becomes of a dead letter that is redriven.
type Outcome string

// The outcomes. After the first six the letter goes round: the consumer of its
// step does the rest.
const (
	OutcomeRun         Outcome = "run"             // its handler is entered
	OutcomeNothing     Outcome = "nothing-to-undo" // a compensation: its action has not run, and never will
	OutcomeWaits       Outcome = "waits"           // a compensation: it runs behind its action, which goes round too
	OutcomeActionDead  Outcome = "action-dead"     // a compensation: a dead letter again, for its action is one; redrive that (a step with CancelParked: nothing-to-undo)
	OutcomeUndecodable Outcome = "undecodable"     // a dead letter again: it cannot be read
	OutcomeUnread      Outcome = "unread"          // could not be read when it came: a consumer of its topic reads it again

	OutcomeDuplicate  Outcome = "duplicate"  // removed: its step is done, or another copy will do it
	OutcomeSuperseded Outcome = "superseded" // removed: its step's compensation came first

	OutcomeKeyReused Outcome = "key-reused" // stays: the identity was used for another payload
	OutcomeTooOld    Outcome = "too-old"    // stays, unless forced: the step's row is gone, so it may have run already
	OutcomeBusy      Outcome = "busy"       // stays: its step is locked, such as by a handler that runs; say it again
)

// Outcomes counts letters by what becomes of them.
type Outcomes map[Outcome]int

// Sent is how many go round.
func (o Outcomes) Sent() (n int) {
	for outcome, letters := range o {
		if outcome.sent() {
			n += letters
		}
	}
	return n
}

// Removed is how many are gone, having nothing left to do.
func (o Outcomes) Removed() int { return o[OutcomeDuplicate] + o[OutcomeSuperseded] }

// Left is how many stay what they are.
func (o Outcomes) Left() int { return o[OutcomeKeyReused] + o[OutcomeTooOld] + o[OutcomeBusy] }

func (o Outcomes) add(other Outcomes) {
	for outcome, n := range other {
		o[outcome] += n
	}
}

func (o Outcome) sent() bool {
	switch o {
	case OutcomeRun, OutcomeNothing, OutcomeWaits, OutcomeActionDead, OutcomeUndecodable, OutcomeUnread:
		return true
	}
	return false
}

// outcomeOf is what a verdict on a redriven letter comes to.
var outcomeOf = map[verdict]Outcome{
	run: OutcomeRun, tombstone: OutcomeNothing, wait: OutcomeWaits, refuse: OutcomeActionDead,
	duplicate: OutcomeDuplicate, superseded: OutcomeSuperseded, reused: OutcomeKeyReused,
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
func (s *standing) redrive(l *heldLetter, p policy) Outcome {
	if s.state == absent && p.horizon != nil && l.written.Before(*p.horizon) {
		if !p.force || l.nameless {
			return OutcomeTooOld
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
	outcome := outcomeOf[v]
	copied, taken := s.copies[l.kind]
	switch {
	case taken && (outcome.sent() || l.nameless) && bytes.Equal(copied, l.digest):
		return OutcomeDuplicate
	case taken && (outcome.sent() || l.nameless):
		return OutcomeKeyReused
	case outcome == OutcomeRun && l.unreadable:
		return OutcomeUndecodable
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
