package operator

import (
	"bytes"
	"time"

	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/saga"
)

// An Outcome says what a redrive does with a dead letter.
type Outcome string

// The outcomes. After the first six the letter is retrying, and the consumer of its step
// does the rest.
const (
	OutcomeRun           Outcome = "run"             // its handler is entered
	OutcomeNothingToUndo Outcome = "nothing-to-undo" // a compensation: its action has not run and never will
	OutcomeWaits         Outcome = "waits"           // a compensation: it runs after its action, which is retrying too
	// OutcomeActionDead: a compensation becomes a dead letter again, because its action is one; redrive that.
	// In a step with CancelParked the outcome is nothing-to-undo instead.
	OutcomeActionDead  Outcome = "action-dead"
	OutcomeUndecodable Outcome = "undecodable" // a dead letter again: it cannot be read
	// OutcomeUnread: its consumer could not read the letter, or its type was edited. A consumer of its topic
	// reads it again.
	OutcomeUnread Outcome = "unread"

	OutcomeDuplicate  Outcome = "duplicate"  // removed: its step is done, or another copy will do it
	OutcomeSuperseded Outcome = "superseded" // removed: the compensation of its step came first

	OutcomeKeyReused Outcome = "key-reused" // stays: the identity was used for another payload
	OutcomeTooOld    Outcome = "too-old"    // stays, unless forced: the step's row is gone, so it may have run already
	// OutcomeSagaEnded: it stays, unless forced. The orchestrated saga of the action has ended, and nobody would undo it.
	OutcomeSagaEnded Outcome = "saga-ended"
	OutcomeBusy      Outcome = "busy" // stays: its step is locked, for example by its handler; redrive it again
)

// Outcomes counts letters by outcome.
type Outcomes map[Outcome]int

// Sent is the number of letters that are retrying now.
func (o Outcomes) Sent() (n int) {
	for outcome, letters := range o {
		if outcome.isSent() {
			n += letters
		}
	}
	return n
}

// Removed is the number of letters that are gone because nothing was left to do.
func (o Outcomes) Removed() int { return o[OutcomeDuplicate] + o[OutcomeSuperseded] }

// Left is the number of letters that stay dead letters.
func (o Outcomes) Left() int {
	return o[OutcomeKeyReused] + o[OutcomeTooOld] + o[OutcomeSagaEnded] + o[OutcomeBusy]
}

func (o Outcomes) addAll(other Outcomes) {
	for outcome, n := range other {
		o[outcome] += n
	}
}

func (o Outcome) isSent() bool {
	switch o {
	case OutcomeRun, OutcomeNothingToUndo, OutcomeWaits, OutcomeActionDead, OutcomeUndecodable, OutcomeUnread:
		return true
	}
	return false
}

// outcomeOf is the outcome of a redriven letter for a verdict of the state machine.
var outcomeOf = map[inbox.Verdict]Outcome{
	inbox.Run: OutcomeRun, inbox.Tombstone: OutcomeNothingToUndo, inbox.Wait: OutcomeWaits, inbox.Refuse: OutcomeActionDead,
	inbox.Duplicate: OutcomeDuplicate, inbox.Superseded: OutcomeSuperseded, inbox.Reused: OutcomeKeyReused,
}

// A candidate is a letter as a redrive judges it.
type candidate struct {
	id int64
	inbox.Kind
	inbox.Identity
	digest  []byte
	written time.Time   // when the message was written, or earlier
	reread  bool        // only its consumer knows whether it can read it now
	ended   saga.Status // how its saga has ended; "": it has not, or that is not known

	// Only a preview sets these.
	cancelParked bool // option of its step
	unreadable   bool // the consumer cannot read it
	nameless     bool // its identity is not stored yet: the consumer sets it
}

// A stepStanding is the row of a step, with the messages of it that are retrying.
type stepStanding struct {
	inbox.Cell
	copies map[inbox.Kind][]byte // the digest of each that is retrying

	moved, forced bool // the row has to be moved to State, or to be inserted
}

// A policy says how old letters without a row of their step are redriven, and those of sagas that have ended.
type policy struct {
	horizon *time.Time // rows of the inbox from before it may be removed; nil: none is
	force   bool
}

// decideOutcome returns the outcome of l and moves s to the state of the step after it. It asks the state
// machine of the consumer, first for the step with l retrying. If l does not run there, it asks for the step as
// it is.
func (s *stepStanding) decideOutcome(l *candidate, p policy) Outcome {
	if s.State == inbox.Absent && p.horizon != nil && l.written.Before(*p.horizon) {
		if !p.force || l.nameless {
			return OutcomeTooOld
		}
		s.forceRow(l)
	}
	a := inbox.Arrival{Kind: l.Kind, Digest: l.digest, Parked: true, CancelParked: l.cancelParked}
	next := s.withRetrying(l)
	verdict := inbox.Decide(next, a)
	if verdict != inbox.Run {
		next = s.Cell
		verdict = inbox.Decide(next, a)
	}
	outcome := outcomeOf[verdict]
	copied, taken := s.copies[l.Kind]
	switch {
	case taken && (outcome.isSent() || l.nameless) && bytes.Equal(copied, l.digest):
		return OutcomeDuplicate
	case taken && (outcome.isSent() || l.nameless):
		return OutcomeKeyReused
	case outcome == OutcomeRun && l.unreadable:
		return OutcomeUndecodable
	case !outcome.isSent():
		return outcome
	case outcome == OutcomeRun && l.ended != "" && !p.force:
		return OutcomeSagaEnded
	}
	s.moved = s.moved || next.State != s.State
	s.Cell = next
	s.copies[l.Kind] = l.digest
	if outcome == OutcomeRun && l.reread {
		return OutcomeUnread
	}
	return outcome
}

// withRetrying is the row of s once its dead message l is retrying. A nameless message is
// not the one that the row died of.
func (s *stepStanding) withRetrying(l *candidate) inbox.Cell {
	next := s.Cell
	switch {
	case l.nameless:
	case l.Kind == inbox.Action && s.State == inbox.Dead:
		next.State = inbox.Retrying
	case l.Kind == inbox.Compensation && s.State == inbox.UndoDead:
		next.State = inbox.Undoing
	}
	return next
}

// forceRow gives a step without a row one that lets l run. For a compensation only the
// operator's word says that its action has run: the action gets the digest of no payload, so
// that a late copy of it becomes a dead letter.
func (s *stepStanding) forceRow(l *candidate) {
	s.forced = true
	s.Cell = inbox.Cell{State: inbox.Retrying, Digest: l.digest}
	if l.Kind == inbox.Compensation {
		s.Cell = inbox.Cell{State: inbox.Undoing, Digest: make([]byte, len(l.digest)), UndoDigest: l.digest}
	}
}
