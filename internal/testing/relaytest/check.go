package relaytest

import (
	"fmt"
	"slices"
)

// Evidence is a history at rest.
type Evidence struct {
	Committed, Undone map[string]Message // by id
	Arrivals          []Arrival
}

// A Licence is the effect that a round's fault may have had on the messages that were committed in it.
type Licence struct {
	Repeats int  // publications beyond the first of each message
	Overlap bool // two relays may have published at once
}

// Check returns the mistakes in e, one line each. licences has one entry for each round.
func Check(e Evidence, licences []Licence) []string {
	wrong := e.lostMessages()
	wrong = append(wrong, e.foreignMessages()...)
	wrong = append(wrong, e.disordered()...)
	repeats := e.Repeats(len(licences))
	for round, l := range licences {
		if repeats[round] > l.Repeats {
			wrong = append(wrong, fmt.Sprintf("round %d: %d messages were published again, at most %d may be", round, repeats[round], l.Repeats))
		}
	}
	for _, a := range e.Arrivals {
		if m := e.Committed[a.ID]; a.Overlapped && !licences[m.Round].Overlap {
			wrong = append(wrong, fmt.Sprintf("round %d: %s published %s v%d while another relay was at it", m.Round, a.Relay, a.Key, a.Version))
		}
	}
	return wrong
}

// lostMessages returns committed messages that have not arrived.
func (e Evidence) lostMessages() []string {
	arrived := make(map[string]bool)
	for _, a := range e.Arrivals {
		arrived[a.ID] = true
	}
	var wrong []string
	for _, m := range e.Committed {
		if !arrived[m.ID] {
			wrong = append(wrong, fmt.Sprintf("round %d: lost %s v%d", m.Round, m.Key, m.Version))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// foreignMessages returns arrivals of messages that were not committed, or that differ from the committed
// one.
func (e Evidence) foreignMessages() []string {
	var wrong []string
	for _, a := range e.Arrivals {
		m, ok := e.Committed[a.ID]
		undone, rolledBack := e.Undone[a.ID]
		switch {
		case rolledBack:
			wrong = append(wrong, fmt.Sprintf("round %d: %s v%d arrived, which was rolled back", undone.Round, a.Key, a.Version))
		case !ok:
			wrong = append(wrong, fmt.Sprintf("%s v%d arrived, which nobody wrote", a.Key, a.Version))
		case m.Key != a.Key || m.Version != a.Version:
			wrong = append(wrong, fmt.Sprintf("round %d: %s v%d arrived as %s v%d", m.Round, m.Key, m.Version, a.Key, a.Version))
		}
	}
	return wrong
}

// disordered returns the first arrivals that came after a later version of the same key. It also returns
// delayed ones that came before an earlier version.
func (e Evidence) disordered() []string {
	var wrong []string
	last := make(map[string]int64)
	seen := make(map[string]bool)
	for i, a := range e.Arrivals {
		if seen[a.ID] {
			continue
		}
		seen[a.ID] = true
		m := e.Committed[a.ID]
		switch {
		case m.Delayed && last[a.Key] < e.versionBefore(m):
			wrong = append(wrong, fmt.Sprintf("round %d: %s v%d, which was delayed, came before v%d (delivery %d, by %s)",
				m.Round, a.Key, a.Version, e.versionBefore(m), i, a.Relay))
		case !m.Delayed && a.Version <= last[a.Key]:
			wrong = append(wrong, fmt.Sprintf("round %d: %s v%d came first after v%d (delivery %d, by %s, redelivered %v)",
				m.Round, a.Key, a.Version, last[a.Key], i, a.Relay, a.Redelivered))
		}
		if !m.Delayed {
			last[a.Key] = max(last[a.Key], a.Version)
		}
	}
	return wrong
}

// versionBefore returns the last version of m's key that was written before it.
func (e Evidence) versionBefore(m Message) (version int64) {
	for _, other := range e.Committed {
		if other.Key == m.Key && !other.Delayed && other.Version < m.Version {
			version = max(version, other.Version)
		}
	}
	return version
}

// Repeats returns for each round the number of repeated publications of its messages. A redelivery by the
// broker is the same copy and is marked. The publisher has sent twice a message that arrives twice without
// that mark.
func (e Evidence) Repeats(rounds int) []int {
	type publication struct{ id, copy string }
	arrived := make(map[string]bool)
	seen := make(map[publication]bool)
	counts := make([]int, rounds)
	for _, a := range e.Arrivals {
		m, known := e.Committed[a.ID]
		p := publication{a.ID, a.Copy}
		if !known || a.Redelivered && seen[p] {
			continue
		}
		if arrived[a.ID] {
			counts[m.Round]++
		}
		arrived[a.ID], seen[p] = true, true
	}
	return counts
}
