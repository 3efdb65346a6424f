// Package inbox is the state machine of a step's row in the table inbox: [Decide] returns the verdict on a message by
// the row. It is pure. Package consumer runs it on rows that it has locked, package sagatest on rows in memory.
package inbox

import "bytes"

// Kind tells the two messages of a step apart.
type Kind string

// The kinds.
const (
	Action       Kind = "action"
	Compensation Kind = "compensation"
)

// State is the state of a row; migrations/003_inbox.sql says what each means.
type State string

// The states.
const (
	Absent      State = "" // there is no row
	Open        State = "open"
	Retrying    State = "retrying"
	Dead        State = "dead"
	Done        State = "done"
	Refused     State = "refused"
	Void        State = "void"
	Undoing     State = "undoing"
	UndoDead    State = "undo-dead"
	Compensated State = "compensated"
)

// ParkedState returns the state of a step whose message has failed: it is retrying, or a dead letter.
func ParkedState(k Kind, dead bool) State {
	switch {
	case k == Action && dead:
		return Dead
	case k == Action:
		return Retrying
	case dead:
		return UndoDead
	default:
		return Undoing
	}
}

// A Verdict says how to handle an arrival.
type Verdict string

// The verdicts.
const (
	Run        Verdict = "run"        // enter the handler
	Duplicate  Verdict = "duplicate"  // ack: it is done, or a parked copy is retrying
	Superseded Verdict = "superseded" // ack: the compensation came first
	Tombstone  Verdict = "tombstone"  // → void: there is nothing to undo, and the action must never run; its parked message is removed
	Wait       Verdict = "wait"       // park the compensation behind the action
	Refuse     Verdict = "refuse"     // dead letter: the dead action may have had an effect
	Queue      Verdict = "queue"      // park it behind an earlier message of its key
	Reused     Verdict = "reused"     // dead letter: the identity was used for another payload
	Outlived   Verdict = "outlived"   // dead letter: its row may have been removed
)

// A Cell is a locked row.
type Cell struct {
	State      State
	Attempts   int    // entries into the action's handler
	Digest     []byte // nil until an action was recorded
	UndoDigest []byte // nil until a compensation was recorded

	// NotDone says that the action, which is retrying or dead, is known to have had no effect. A caller that does not
	// know leaves it false.
	NotDone bool
}

// An Arrival is a message for the step of a cell.
type Arrival struct {
	Kind         Kind
	Digest       []byte
	Parked       bool // it is the parked copy, not a delivery
	CancelParked bool // the step's option
	Behind       bool // an earlier message of the key has to run first
	TooOld       bool // the step may once have had another row
}

// Decide returns the verdict on an arrival. It is a pure function of what was read under the row's lock.
func Decide(c Cell, a Arrival) Verdict {
	if a.TooOld {
		return Outlived
	}
	v := decideCompensation(c, a)
	if a.Kind == Action {
		v = decideAction(c, a)
	}
	if v == Run && a.Behind {
		return Queue
	}
	return v
}

func decideAction(c Cell, a Arrival) Verdict {
	switch {
	case differs(c.Digest, a.Digest):
		return Reused
	case c.State == Void || c.State == Compensated:
		return Superseded
	case c.State == Absent, c.State == Open, c.State == Retrying && a.Parked:
		return Run
	default: // done, refused, undoing, undo-dead; retrying and dead: the parked copy wins
		return Duplicate
	}
}

func decideCompensation(c Cell, a Arrival) Verdict {
	switch {
	case differs(c.UndoDigest, a.Digest):
		return Reused
	case c.State == Done && c.UndoDigest != nil && !a.Parked:
		// It was parked behind the action: the parked copy wins. If that copy is a dead letter, a person who redrives
		// the action has to redrive it too.
		return Duplicate
	case c.State == Done, c.State == Undoing && a.Parked:
		return Run
	case c.State == Void, c.State == Compensated, c.State == Undoing, c.State == UndoDead:
		return Duplicate
	case c.State == Absent, c.State == Refused, c.State == Open && c.Attempts == 0, a.CancelParked,
		(c.State == Retrying || c.State == Dead) && c.NotDone:
		return Tombstone
	case c.State == Dead:
		return Refuse
	default: // retrying, or open after a crash: an attempt may have had an effect
		return Wait
	}
}

func differs(recorded, arrived []byte) bool {
	return recorded != nil && !bytes.Equal(recorded, arrived)
}
