package consumer_test

import (
	"fmt"
	"slices"
	"strings"
)

// A spec is one step of one saga as the specification has it: what it is in,
// what is parked, and what has been done. It knows nothing of transactions: it
// says what is left when each message has been dealt with, one after the other.
type spec struct {
	limit int // entries into each handler

	state      string // "absent" is no row
	act, undo  int    // amounts that the row remembers; 0: none
	acts       int    // entries that count
	undos      int
	parkedAct  *specParked
	parkedUndo *specParked
	dead       []string
	effects    []string
}

// A specParked is a message that will run again.
type specParked struct {
	amount, attempts int
	reason           string
}

// A specArrival is a message from the broker, and how a handler would end now.
type specArrival struct {
	kind        string
	amount      int
	redelivered bool
	end         callResult
}

func newSpec(limit int) *spec { return &spec{limit: limit, state: "absent"} }

// arrive deals with a delivery.
func (s *spec) arrive(a specArrival) {
	if a.kind == actionType {
		s.actionArrives(a)
	} else {
		s.compensationArrives(a)
	}
}

func (s *spec) actionArrives(a specArrival) {
	switch {
	case s.state == "void":
		if a.redelivered && s.acts == 0 { // an effect elsewhere may be left: a person is told, once
			s.bury(actionType, "superseded", 0)
			s.acts = 1
		}
	case s.act != 0 && s.act != a.amount:
		s.bury(actionType, "key-reused", 0)
	case s.state == "compensated": // superseded
	case s.state == "absent":
		s.act = a.amount
		s.runAction(a.amount, s.acts+1, a.end)
	}
}

func (s *spec) compensationArrives(a specArrival) {
	if s.undo != 0 && s.undo != a.amount {
		s.bury(undoType, "key-reused", 0)
		return
	}
	switch s.state {
	case "absent":
		s.state, s.undo = "void", a.amount
	case "done":
		if s.undo != 0 {
			return // it waited for the action: the parked copy wins
		}
		s.undo = a.amount
		s.runCompensation(a.amount, s.undos+1, a.end)
	case "retrying":
		s.undo = a.amount
		if s.parkedUndo == nil {
			s.parkedUndo = &specParked{amount: a.amount, reason: "waits-for-action"}
		}
	case "dead":
		s.bury(undoType, "action-dead", 0)
	}
}

// due runs the parked message of kind, if there is one.
func (s *spec) due(kind string, end callResult) {
	if p := s.parkedAct; kind == actionType && p != nil {
		s.parkedAct = nil
		if s.state == "retrying" {
			s.runAction(p.amount, p.attempts+1, end)
		}
	}
	if kind == undoType && s.parkedUndo != nil {
		s.dueCompensation(end)
	}
}

func (s *spec) dueCompensation(end callResult) {
	p := s.parkedUndo
	switch s.state {
	case "retrying": // waits on
	case "dead":
		s.parkedUndo = nil
		s.bury(undoType, "action-dead", p.attempts)
	case "done", "undoing":
		s.parkedUndo = nil
		s.runCompensation(p.amount, p.attempts+1, end)
	default: // another copy was quicker
		s.parkedUndo = nil
	}
}

// runAction enters the handler for the attempt-th time.
func (s *spec) runAction(amount, attempt int, end callResult) {
	s.acts = attempt
	switch {
	case end == succeeds:
		s.state = "done"
		s.effects = append(s.effects, fmt.Sprint("act ", amount))
	case end == gives:
		s.state = "dead"
		s.bury(actionType, "terminal", attempt)
	case attempt >= s.limit:
		s.state = "dead"
		s.bury(actionType, "attempts-exhausted", attempt)
	default:
		s.state = "retrying"
		s.parkedAct = &specParked{amount, attempt, "failed"}
	}
}

func (s *spec) runCompensation(amount, attempt int, end callResult) {
	s.undos = attempt
	switch {
	case end == succeeds:
		s.state = "compensated"
		s.effects = append(s.effects, fmt.Sprint("undo ", amount))
	case end == gives:
		s.state = "undo-dead"
		s.bury(undoType, "terminal", attempt)
	case attempt >= s.limit:
		s.state = "undo-dead"
		s.bury(undoType, "attempts-exhausted", attempt)
	default:
		s.state = "undoing"
		if s.parkedUndo != nil { // one that waited learns of the attempt
			attempt = max(attempt, s.parkedUndo.attempts)
		}
		s.parkedUndo = &specParked{amount, attempt, "failed"}
	}
}

func (s *spec) bury(kind, reason string, attempts int) {
	s.dead = append(s.dead, fmt.Sprint("dead ", kind, " ", reason, " ", attempts))
}

// parked returns what is parked and what is dead, sorted, each with its attempts.
func (s *spec) parked() []string {
	all := slices.Clone(s.dead)
	if p := s.parkedAct; p != nil {
		all = append(all, fmt.Sprint("retrying action ", p.reason, " ", p.attempts))
	}
	if p := s.parkedUndo; p != nil {
		all = append(all, fmt.Sprint("retrying compensation ", p.reason, " ", p.attempts))
	}
	slices.Sort(all)
	return all
}

// String is everything that can be seen, and compares with that of a look.
func (s *spec) String() string {
	return fmt.Sprintf("%s %d %d %q %q", s.state, s.acts, s.undos, s.effects, s.parked())
}

// matches reports whether l is what s says. An attempt that succeeded and was lost
// with the batch that it was in has been counted too, within the limit.
func (s *spec) matches(l *look, batches bool) bool {
	own := *l
	if batches && slices.ContainsFunc(l.effects, func(e string) bool { return strings.HasPrefix(e, "act") }) && l.attempts <= s.limit {
		own.attempts = min(l.attempts, s.acts)
	}
	if batches && slices.ContainsFunc(l.effects, func(e string) bool { return strings.HasPrefix(e, "undo") }) && l.undone <= s.limit {
		own.undone = min(l.undone, s.undos)
	}
	return own.exact() == s.String()
}

// exact is the look as [spec.String] has it.
func (l *look) exact() string {
	parked := slices.Sorted(slices.Values(l.parked))
	return fmt.Sprintf("%s %d %d %q %q", l.state, l.attempts, l.undone, l.effects, parked)
}
