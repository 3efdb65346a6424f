package consumerstorm

import (
	"bytes"
	"fmt"
)

// Limits are the facts that a history may contain.
type Limits struct {
	Attempts int               // entries into each handler of a key, at most
	Drained  bool              // nothing may be left that will run again
	MayDie   func(Parked) bool // whether a dead letter is no surprise; nil: each is one
}

// A step is the evidence about one key.
type step struct {
	key       string
	row       *Row
	published []Message
	parked    []Parked
	effects   []Effect
	entries   map[string]int // by kind
}

// Check returns the mistakes in e, one line each.
func (e Evidence) Check(limits Limits) []string {
	var wrong []string
	for _, s := range e.stepsByIdentity() {
		wrong = append(wrong, s.effectsOnce()...)
		wrong = append(wrong, s.coherent()...)
		wrong = append(wrong, s.lostEffects()...)
		wrong = append(wrong, s.overBudget(limits)...)
		wrong = append(wrong, s.innocent(limits)...)
	}
	return wrong
}

// stepsByIdentity groups the evidence by key, in the order of publication. A dead letter without a key has
// the key "".
func (e Evidence) stepsByIdentity() []*step {
	var all []*step
	known := map[string]*step{}
	of := func(key string) *step {
		if known[key] == nil {
			known[key] = &step{key: key, entries: map[string]int{}}
			all = append(all, known[key])
		}
		return known[key]
	}
	for _, m := range e.Published {
		of(m.Key).published = append(of(m.Key).published, m)
	}
	for i := range e.Rows {
		of(e.Rows[i].Key).row = &e.Rows[i]
	}
	for _, p := range e.Parked {
		of(p.Key).parked = append(of(p.Key).parked, p)
	}
	for _, f := range e.Effects {
		of(f.Key).effects = append(of(f.Key).effects, f)
	}
	for _, n := range e.Entries {
		of(n.Key).entries[n.Kind]++
	}
	return all
}

func (s *step) complain(format string, args ...any) []string {
	return []string{fmt.Sprintf("key %s: ", s.key) + fmt.Sprintf(format, args...)}
}

// effectsOnce returns effects that came twice, in the wrong order or from a message that was not published.
func (s *step) effectsOnce() (wrong []string) {
	count := map[string]int{}
	for _, f := range s.effects {
		if count[f.Kind]++; count[f.Kind] > 1 {
			wrong = append(wrong, s.complain("the %s took effect twice", f.Kind)...)
		}
		if f.Kind == Action && count[Compensation] > 0 {
			wrong = append(wrong, s.complain("the action took effect after the compensation")...)
		}
		if f.Kind == Compensation && count[Action] == 0 {
			wrong = append(wrong, s.complain("the compensation undid what had not happened")...)
		}
		if !s.hasWritten(f) {
			wrong = append(wrong, s.complain("an effect of %s %s, which nobody published like that", f.Kind, f.MessageID)...)
		}
	}
	return wrong
}

func (s *step) hasWritten(f Effect) bool {
	for _, m := range s.published {
		if m.ID == f.MessageID && m.Kind == f.Kind && bytes.Equal(m.Payload, f.Payload) {
			return true
		}
	}
	return false
}

// effectsOf returns how many actions and compensations have taken effect in each state of a row.
var effectsOf = map[string][2]int{
	"open": {0, 0}, "retrying": {0, 0}, "dead": {0, 0}, "void": {0, 0},
	"done": {1, 0}, "undoing": {1, 0}, "undo-dead": {1, 0}, "compensated": {1, 1},
}

// coherent compares the row with the effects and with the parked messages.
func (s *step) coherent() []string {
	if s.row == nil {
		if len(s.effects) > 0 {
			return s.complain("%d effects and no row", len(s.effects))
		}
		return nil
	}
	var got [2]int
	for _, f := range s.effects {
		if f.Kind == Action {
			got[0]++
		} else {
			got[1]++
		}
	}
	want, known := effectsOf[s.row.State]
	if !known || got != want {
		return s.complain("the row is %s, and there are %d effects of the action and %d of the compensation", s.row.State, got[0], got[1])
	}
	return s.orphaned()
}

// orphaned returns a state that waits for a missing parked message.
func (s *step) orphaned() []string {
	needs := map[string][2]string{
		"retrying": {Action, "retrying"}, "dead": {Action, "dead"},
		"undoing": {Compensation, "retrying"}, "undo-dead": {Compensation, "dead"},
	}
	need, any := needs[s.row.State]
	if !any {
		return nil
	}
	for _, p := range s.parked {
		if p.Kind == need[0] && p.State == need[1] {
			return nil
		}
	}
	return s.complain("the row is %s, and no %s is parked as %s", s.row.State, need[0], need[1])
}

// lostEffects returns messages without a trace.
func (s *step) lostEffects() (wrong []string) {
	for _, m := range s.published {
		if !s.isSettled(m) {
			state := "absent"
			if s.row != nil {
				state = s.row.State
			}
			wrong = append(wrong, s.complain("the %s %s is lost (the row is %s)", m.Kind, m.ID, state)...)
		}
	}
	return wrong
}

// isSettled reports whether m has had its effect, will have it, cannot have it any more or waits for a
// person. Another message with the same payload is a copy of m.
func (s *step) isSettled(m Message) bool {
	for _, f := range s.effects {
		if f.Kind == m.Kind && bytes.Equal(f.Payload, m.Payload) {
			return true
		}
	}
	for _, p := range s.parked {
		if p.Kind == m.Kind && bytes.Equal(p.Payload, m.Payload) {
			return true
		}
	}
	switch {
	case s.row == nil || s.row.State != "void" && s.row.State != "compensated":
		return false
	case m.Kind == Action:
		return true // superseded
	default:
		sum := digestPayload(m.Payload)
		return bytes.Equal(s.row.UndoDigest, sum[:]) // the tombstone is its own
	}
}

// overBudget compares the entries with the limit, both the noted and the counted ones.
func (s *step) overBudget(limits Limits) (wrong []string) {
	for kind, n := range s.entries {
		if n > limits.Attempts+s.duplicates(kind) {
			wrong = append(wrong, s.complain("the %s was entered %d times, the limit is %d", kind, n, limits.Attempts)...)
		}
	}
	for _, p := range s.parked {
		if p.Attempts > limits.Attempts {
			wrong = append(wrong, s.complain("a parked %s has %d attempts, the limit is %d", p.Kind, p.Attempts, limits.Attempts)...)
		}
	}
	return wrong
}

// duplicates returns the number of copies beyond the first. The first delivery of each may die without a
// trace, while another is handled.
func (s *step) duplicates(kind string) (n int) {
	for _, m := range s.published {
		if m.Kind == kind {
			n += max(0, m.Copies-1)
		}
	}
	return n
}

// innocent returns dead letters without a planted cause, and messages that have not come to their end.
func (s *step) innocent(limits Limits) (wrong []string) {
	for _, p := range s.parked {
		switch {
		case p.State == "dead" && (limits.MayDie == nil || !limits.MayDie(p)):
			wrong = append(wrong, s.complain("the %s %s is a dead letter (%s after %d attempts)", p.Kind, p.MessageID, p.Reason, p.Attempts)...)
		case p.State == "retrying" && limits.Drained:
			wrong = append(wrong, s.complain("the %s %s is still parked (%s after %d attempts)", p.Kind, p.MessageID, p.Reason, p.Attempts)...)
		}
	}
	return wrong
}
