package relaystorm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// evidence is a history at rest.
type evidence struct {
	committed, undone map[string]message
	arrivals          []arrival
}

// A licence is what a round's fault may have done to the messages that were
// committed in it.
type licence struct {
	repeats int  // publications beyond the first of each message
	overlap bool // two relays may have published at once
}

// check returns what is wrong with e, one line each. licences has one for each
// round.
func check(e evidence, licences []licence) []string {
	wrong := e.lost()
	wrong = append(wrong, e.foreign()...)
	wrong = append(wrong, e.disordered()...)
	repeats := e.repeats(len(licences))
	for round, l := range licences {
		if repeats[round] > l.repeats {
			wrong = append(wrong, fmt.Sprintf("round %d: %d messages were published again, at most %d may be", round, repeats[round], l.repeats))
		}
	}
	for _, a := range e.arrivals {
		if m := e.committed[a.id]; a.overlapped && !licences[m.round].overlap {
			wrong = append(wrong, fmt.Sprintf("round %d: %s published %s v%d while another relay was at it", m.round, a.relay, a.key, a.version))
		}
	}
	return wrong
}

// lost returns committed messages that have not arrived.
func (e evidence) lost() []string {
	arrived := make(map[string]bool)
	for _, a := range e.arrivals {
		arrived[a.id] = true
	}
	var wrong []string
	for _, m := range e.committed {
		if !arrived[m.id] {
			wrong = append(wrong, fmt.Sprintf("round %d: lost %s v%d", m.round, m.key, m.version))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// foreign returns arrivals of what nobody committed, or not like that.
func (e evidence) foreign() []string {
	var wrong []string
	for _, a := range e.arrivals {
		m, ok := e.committed[a.id]
		undone, rolledBack := e.undone[a.id]
		switch {
		case rolledBack:
			wrong = append(wrong, fmt.Sprintf("round %d: %s v%d arrived, which was rolled back", undone.round, a.key, a.version))
		case !ok:
			wrong = append(wrong, fmt.Sprintf("%s v%d arrived, which nobody wrote", a.key, a.version))
		case m.key != a.key || m.version != a.version:
			wrong = append(wrong, fmt.Sprintf("round %d: %s v%d arrived as %s v%d", m.round, m.key, m.version, a.key, a.version))
		}
	}
	return wrong
}

// disordered returns the first arrivals before which a later version of the
// same key had arrived.
func (e evidence) disordered() []string {
	var wrong []string
	last := make(map[string]int64)
	seen := make(map[string]bool)
	for i, a := range e.arrivals {
		if seen[a.id] {
			continue
		}
		seen[a.id] = true
		if a.version <= last[a.key] {
			wrong = append(wrong, fmt.Sprintf("round %d: %s v%d came first after v%d (delivery %d, by %s, redelivered %v)",
				e.committed[a.id].round, a.key, a.version, last[a.key], i, a.relay, a.redelivered))
		}
		last[a.key] = max(last[a.key], a.version)
	}
	return wrong
}

// repeats returns for each round how often its messages were published beyond
// once. What the broker delivers again is the same copy and says so; a copy that
// comes twice without a word was sent twice by the publisher.
func (e evidence) repeats(rounds int) []int {
	type publication struct{ id, copy string }
	arrived := make(map[string]bool)
	seen := make(map[publication]bool)
	counts := make([]int, rounds)
	for _, a := range e.arrivals {
		m, known := e.committed[a.id]
		p := publication{a.id, a.copy}
		if !known || a.redelivered && seen[p] {
			continue
		}
		if arrived[a.id] {
			counts[m.round]++
		}
		arrived[a.id], seen[p] = true, true
	}
	return counts
}

// The checker finds each thing that it is there for, and nothing in a history
// that has only what is allowed.
func TestCheck(t *testing.T) {
	t.Parallel()
	first, second := message{id: "1", key: "k", version: 1}, message{id: "2", key: "k", version: 2}
	comes := func(m message, copy string) arrival {
		return arrival{id: m.id, key: m.key, version: m.version, relay: "a", copy: copy}
	}
	again := comes(first, "a1")
	again.redelivered = true
	overlapped := comes(second, "b2")
	overlapped.overlapped = true
	other := comes(second, "a2")
	other.version = 3
	for _, tt := range []struct {
		name     string
		arrivals []arrival
		licence  licence
		want     string // part of the one complaint; none if empty
	}{
		{"in order", []arrival{comes(first, "a1"), comes(second, "a2")}, licence{}, ""},
		{"redelivered", []arrival{comes(first, "a1"), comes(second, "a2"), again}, licence{}, ""},
		{"redelivered only", []arrival{again, comes(second, "a2")}, licence{}, ""},
		{"repeated, as it may be", []arrival{comes(first, "a1"), comes(second, "a2"), comes(first, "b1")}, licence{repeats: 1}, ""},
		{"repeated", []arrival{comes(first, "a1"), comes(second, "a2"), comes(first, "b1")}, licence{}, "published again"},
		{"sent twice by the publisher", []arrival{comes(first, "a1"), comes(first, "a1"), comes(second, "a2")}, licence{}, "published again"},
		{"too many repeats", []arrival{comes(first, "a1"), comes(second, "a2"), comes(first, "b1"), comes(second, "b2")}, licence{repeats: 1}, "published again"},
		{"lost", []arrival{comes(first, "a1")}, licence{}, "lost k v2"},
		{"out of order", []arrival{comes(second, "a2"), comes(first, "a1")}, licence{}, "k v1 came first after v2"},
		{"rolled back", []arrival{comes(first, "a1"), comes(second, "a2"), comes(message{id: "3", key: "k", version: 3}, "a3")}, licence{}, "rolled back"},
		{"unknown", []arrival{comes(first, "a1"), comes(second, "a2"), comes(message{id: "4", key: "k", version: 4}, "a4")}, licence{}, "nobody wrote"},
		{"changed", []arrival{comes(first, "a1"), other}, licence{}, "arrived as"},
		{"two at once", []arrival{comes(first, "a1"), overlapped}, licence{}, "another relay was at it"},
		{"two at once, as it may be", []arrival{comes(first, "a1"), overlapped}, licence{overlap: true}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := evidence{
				committed: map[string]message{"1": first, "2": second},
				undone:    map[string]message{"3": {id: "3", key: "k", version: 3}},
				arrivals:  tt.arrivals,
			}
			wrong := check(e, []licence{tt.licence})
			if got := strings.Join(wrong, "; "); len(wrong) > 1 || (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("check = %q, want %q", got, cmp.Or(tt.want, "nothing"))
			}
		})
	}
}
