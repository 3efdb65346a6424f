package consumer

import (
	"bytes"
	"time"
)

// kind tells the two messages of a step apart.
type kind string

const (
	action       kind = "action"
	compensation kind = "compensation"
)

// state is the state of a row in the inbox; migrations/003_inbox.sql says what
// each means.
type state string

const (
	absent      state = "" // there is no row
	open        state = "open"
	retrying    state = "retrying"
	dead        state = "dead"
	done        state = "done"
	void        state = "void"
	undoing     state = "undoing"
	undoDead    state = "undo-dead"
	compensated state = "compensated"
)

// parkedState is the state of a step whose message has not run to success: it
// is parked, or a dead letter.
func parkedState(k kind, isDead bool) state {
	switch {
	case k == action && isDead:
		return dead
	case k == action:
		return retrying
	case isDead:
		return undoDead
	default:
		return undoing
	}
}

// verdict is what is to be done with an arrival.
type verdict string

const (
	run        verdict = "run"        // enter the handler
	duplicate  verdict = "duplicate"  // ack: it is done, or a parked copy will do it
	superseded verdict = "superseded" // ack: the compensation came first
	tombstone  verdict = "tombstone"  // → void: there is nothing to undo, and the action must not run any more
	wait       verdict = "wait"       // park the compensation behind the action
	refuse     verdict = "refuse"     // dead letter: whether the dead action had an effect is not known
	queue      verdict = "queue"      // park it behind an earlier message of its key
	reused     verdict = "reused"     // dead letter: the identity was used for another payload
	outlived   verdict = "outlived"   // dead letter: what the row once said may have been removed
)

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

// decide is the step's state machine. It is a pure function: all that it knows
// was read under the row's lock.
func decide(c cell, a arrival) verdict {
	if tooOld(c, a) {
		return outlived
	}
	v := decideCompensation(c, a)
	if a.kind == action {
		v = decideAction(c, a)
	}
	if v == run && a.behind {
		return queue
	}
	return v
}

func decideAction(c cell, a arrival) verdict {
	switch {
	case differs(c.digest, a.digest):
		return reused
	case c.state == void || c.state == compensated:
		return superseded
	case c.state == absent, c.state == open, c.state == retrying && a.parked:
		return run
	default: // done, undoing, undo-dead; retrying and dead: the parked copy wins
		return duplicate
	}
}

func decideCompensation(c cell, a arrival) verdict {
	switch {
	case differs(c.undoDigest, a.digest):
		return reused
	case c.state == done, c.state == undoing && a.parked:
		return run
	case c.state == void, c.state == compensated, c.state == undoing, c.state == undoDead:
		return duplicate
	case c.state == absent, c.state == open && c.attempts == 0, a.cancelParked:
		return tombstone
	case c.state == dead:
		return refuse
	default: // retrying, or open after a crash: an attempt may have had an effect
		return wait
	}
}

func differs(recorded, arrived []byte) bool {
	return recorded != nil && !bytes.Equal(recorded, arrived)
}
