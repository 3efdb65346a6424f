package consumer

import (
	"time"

	"github.com/sagamill/sagamill/internal/inbox"
)

// The words of the state machine, which is in package inbox.
type (
	kind    = inbox.Kind
	state   = inbox.State
	verdict = inbox.Verdict
)

const (
	action       = inbox.Action
	compensation = inbox.Compensation

	absent      = inbox.Absent
	open        = inbox.Open
	retrying    = inbox.Retrying
	dead        = inbox.Dead
	done        = inbox.Done
	refused     = inbox.Refused
	void        = inbox.Void
	undoing     = inbox.Undoing
	undoDead    = inbox.UndoDead
	compensated = inbox.Compensated

	run        = inbox.Run
	duplicate  = inbox.Duplicate
	superseded = inbox.Superseded
	tombstone  = inbox.Tombstone
	wait       = inbox.Wait
	refuse     = inbox.Refuse
	queue      = inbox.Queue
	reused     = inbox.Reused
	outlived   = inbox.Outlived
)

// parkedState is the state of a step whose message has not run to success: it
// is parked, or a dead letter.
func parkedState(k kind, isDead bool) state { return inbox.ParkedState(k, isDead) }

// cell is a row of the inbox as its lock found it.
type cell struct {
	state        state
	attempts     int
	undoAttempts int
	digest       []byte // nil until an action was recorded
	undoDigest   []byte // nil until a compensation was recorded
	horizon      time.Time
}

// entries are those of the handler for k.
func (c *cell) entries(k kind) int {
	if k == compensation {
		return c.undoAttempts
	}
	return c.attempts
}

// arrival is a message that wants to move a cell.
type arrival struct {
	kind         kind
	digest       []byte
	parked       bool // it is the parked copy, not a delivery
	cancelParked bool // Step.CancelParked
	behind       bool // an earlier message of the key has to run first
	since        time.Time
}

// decide is the step's state machine. All that it knows was read under the
// row's lock.
func decide(c cell, a arrival) verdict {
	return inbox.Decide(
		inbox.Cell{State: c.state, Attempts: c.attempts, Digest: c.digest, UndoDigest: c.undoDigest},
		inbox.Arrival{Kind: a.kind, Digest: a.digest, Parked: a.parked, CancelParked: a.cancelParked, Behind: a.behind, TooOld: tooOld(c, a)})
}
