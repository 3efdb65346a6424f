package consumer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/suites/consumerstorm"
)

// racesOfEach is how many keys each race is run with.
const racesOfEach = 4

// A race is two messages that come to a cell at once.
type race struct {
	cell *cell
	both [2]string
}

func races() (all []race) {
	names := []string{"action", "compensation", "other action", "other compensation"}
	for _, c := range cells() {
		for i, one := range names {
			for _, other := range names[i:] {
				all = append(all, race{c, [2]string{one, other}})
			}
		}
	}
	return all
}

func (r race) key(i int) string {
	return strings.ReplaceAll(fmt.Sprint(r.cell.name, "/", r.both[0], "/", r.both[1], "/", i), " ", "-")
}

// specOf is the cell as the specification has it; nil where only a crash leads
// there.
func (c *cell) specOf(limit int) *spec {
	if strings.HasPrefix(c.name, "open") {
		return nil
	}
	b := &cellBuilder{steps: map[string][]setup{}}
	c.build(b)
	s := newSpec(limit)
	for _, step := range b.steps[""] {
		s.arrive(arrivalOf(step.arrival, step.end))
	}
	if len(b.ran) > 0 {
		s.due(actionType, succeeds)
	}
	return s
}

func arrivalOf(name string, end callResult) specArrival {
	amounts := map[string]int{"action": 1, "compensation": 2, "other action": 9, "other compensation": 8}
	kind := actionType
	if strings.HasSuffix(name, "compensation") {
		kind = undoType
	}
	return specArrival{kind: kind, amount: amounts[name], end: end}
}

// outcomes are what the race may come to: one after the other.
func (r race) outcomes(limit int) (specs []*spec) {
	for _, order := range [][2]string{r.both, {r.both[1], r.both[0]}} {
		s := r.cell.specOf(limit)
		for _, arrival := range order {
			s.arrive(arrivalOf(arrival, succeeds))
		}
		specs = append(specs, s)
	}
	return specs
}

// Two messages of one identity come to two consumers at once, in every cell.
// What they come to is what one after the other would have come to, in one of the
// two orders.
func TestEveryCellRaced(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, batch)
			keys := map[string]*cell{}
			published := map[string]consumerstorm.Message{}
			var sides [2][]*message.Message
			for _, r := range races() {
				for i := range racesOfEach {
					key := r.key(i)
					keys[key] = r.cell
					for side, arrival := range r.both {
						msg := arrivals[arrival](key)
						sides[side] = append(sides[side], msg)
						published[msg.UUID] = storedMessage(msg)
					}
				}
			}
			build(t, s, withoutCrashes(keys))
			s.raceSides(t, sides)
			got := s.looks(t)
			for _, r := range races() {
				for i := range racesOfEach {
					if r.cell.specOf(s.limit) == nil {
						continue
					}
					l, want := seen(got[r.key(i)]), r.outcomes(s.limit)
					if !slices.ContainsFunc(want, func(s *spec) bool { return s.matches(l, batch != 1) }) {
						t.Errorf("%s: %s, want one of %v", r.key(i), l.exact(), want)
					}
				}
			}
			s.judgeCells(t, keys, published)
		})
	}
}

// withoutCrashes leaves out what takes a process for each key.
func withoutCrashes(keys map[string]*cell) map[string]*cell {
	built := map[string]*cell{}
	for key, c := range keys {
		if c.name != "open after a crash" {
			built[key] = c
		}
	}
	return built
}

// raceSides gives each of two consumers its messages, both in the same order.
func (s *stage) raceSides(t *testing.T, sides [2][]*message.Message) {
	t.Helper()
	var queues [2]*queue
	var stops [2]func()
	for i := range sides {
		queues[i] = newQueue()
		stops[i] = s.run(t, queues[i], s.step(always(succeeds)))
	}
	for i := range sides[0] {
		queues[0].publish(sides[0][i])
		queues[1].publish(sides[1][i])
	}
	for i := range sides {
		queues[i].drained(t)
		stops[i]()
	}
}

// judgeCells adds what built the cells to what was published.
func (s *stage) judgeCells(t *testing.T, keys map[string]*cell, published map[string]consumerstorm.Message) {
	t.Helper()
	for key := range keys {
		for _, arrival := range []string{"action", "compensation"} {
			if msg := arrivals[arrival](key); seenIn(keys[key].is, arrival) {
				published[msg.UUID] = storedMessage(msg)
			}
		}
	}
	s.judge(t, published, consumerstorm.Limits{Attempts: s.limit, MayDie: func(consumerstorm.Parked) bool { return true }})
}

// seenIn reports whether arrival has left a trace in the look of a cell.
func seenIn(s standing, arrival string) bool {
	traces := map[string][]string{"action": {"act", "action"}, "compensation": {"undo", "compensation"}}
	return slices.ContainsFunc(traces[arrival], func(trace string) bool {
		return strings.Contains(s.effects, trace) || strings.Contains(s.parked, trace)
	})
}

// A parked action, or a parked compensation, is due while messages of its
// identity come: however they meet, the result is sound, and each took effect
// once.
func TestParkedMessagesRaced(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, batch)
			keys := map[string]*cell{}
			published := map[string]consumerstorm.Message{}
			var sides [2][]*message.Message
			for _, c := range cells() {
				if c.name != "retrying" && c.name != "undoing" {
					continue
				}
				for i := range 30 {
					key := fmt.Sprint(c.name, i)
					keys[key] = c
					sides[0] = append(sides[0], arrivals["compensation"](key))
					sides[1] = append(sides[1], arrivals["action"](key))
				}
			}
			for _, msg := range slices.Concat(sides[0], sides[1]) {
				published[msg.UUID] = storedMessage(msg)
			}
			build(t, s, keys)
			s.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp()")
			s.raceSides(t, sides)
			s.settle(t)
			got := s.looks(t)
			for key := range keys {
				if l := seen(got[key]); l.standing() != (standing{state: "compensated", effects: "act 1, undo 2"}) || l.undos > 2 || l.entries > 2 {
					t.Errorf("%s: %+v after %d and %d entries", key, l.standing(), l.entries, l.undos)
				}
			}
			s.judge(t, published, consumerstorm.Limits{Attempts: s.limit, Drained: true})
		})
	}
}
