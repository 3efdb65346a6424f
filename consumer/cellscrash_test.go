//go:build failpoints

package consumer_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// crashPoints are where a consumer dies in the course of a delivery.
var crashPoints = []string{"consumer/before-handler", "consumer/before-commit", "consumer/after-commit", "consumer/before-ack"}

// childrenAtOnce bounds the processes of a test.
const childrenAtOnce = 3

// A death is one key of the test below: a cell, an arrival and a point at which
// the process dies over it.
type death struct {
	cell    *cell
	arrival string
	point   string
}

func (d death) key() string {
	return strings.NewReplacer(" ", "-", "consumer/", "").Replace(d.cell.name + "/" + d.arrival + "/" + d.point)
}

func (d death) message() *message.Message { return arrivals[d.arrival](d.key()) }

// enters is how often the arrival makes a handler run.
func (d death) enters() int {
	if d.cell.is.effects == d.cell.after(d.arrival).effects {
		return 0
	}
	return 1
}

// deaths are all cells and arrivals, for one point.
func deaths(point string) (all []death) {
	for _, c := range cells() {
		for _, arrival := range slices.Sorted(maps.Keys(arrivals)) {
			if d := (death{c, arrival, point}); point != "consumer/before-handler" || d.enters() > 0 {
				all = append(all, d)
			}
		}
	}
	return all
}

// acceptable reports whether l is what the table says, after one death on the
// way. What is kept for a person may be there twice, once for each delivery; and
// of an action that came after its compensation, and may have died in its
// handler, a person is told.
func (d death) acceptable(l *look) bool {
	want := d.cell.after(d.arrival)
	got := *l
	got.parked = nil
	for _, p := range l.parked {
		if !slices.Contains(got.parked, p) {
			got.parked = append(got.parked, p)
		}
	}
	return got.standing() == want || d.cell.is == want && d.cell.name == "void" && got.standing() == want.withParked("dead action superseded")
}

// each runs do for every death, a few at once.
func each(all []death, do func(death)) {
	var group sync.WaitGroup
	slots := make(chan struct{}, childrenAtOnce)
	for _, d := range all {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			do(d)
		})
	}
	group.Wait()
}

// buildDeaths returns a stage with the cells of all.
func buildDeaths(t *testing.T, batch int, all []death) *stage {
	t.Helper()
	s := newStage(t, batch)
	s.limit = 10 // deaths are not what is counted here
	keys := map[string]*cell{}
	for _, d := range all {
		keys[d.key()] = d.cell
	}
	build(t, s, keys)
	return s
}

// Every cell, for every arrival, with a process that is killed over it at each
// point: delivered again, it comes to what the table says, and the handler was
// entered again only where its work was lost.
func TestEveryCellKilledAtEveryPoint(t *testing.T) {
	t.Parallel()
	for _, point := range crashPoints {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			all := deaths(point)
			s := buildDeaths(t, 1, all)
			var mu sync.Mutex
			var again []*message.Message
			each(all, func(d death) {
				msgs := []*message.Message{d.message()}
				c := startArmed(t, s, childConfig{How: succeeds, Batch: 1, Lanes: 1}, point+"=kill", msgs...)
				mu.Lock()
				defer mu.Unlock()
				if !c.killed() {
					t.Errorf("%s: the process was not killed: %s", d.key(), c.said)
				}
				again = append(again, c.redelivered(msgs)...)
			})
			s.deliver(t, always(succeeds), again...)
			lost := map[string]int{"consumer/before-commit": 2}[point] // entries where the first one's work was lost
			got := s.looks(t)
			for _, d := range all {
				l := seen(got[d.key()])
				want := d.enters() * max(1, lost)
				if entries := l.entries + l.undos; !d.acceptable(l) || entries != want {
					t.Errorf("%s: %+v after %d entries, want %+v after %d", d.key(), l.standing(), entries, d.cell.after(d.arrival), want)
				}
			}
		})
	}
}

// The same with all cells in the hands of the process that dies, so that those
// that share its transaction, or wait for it, die with it.
func TestEveryCellBesideADeath(t *testing.T) {
	t.Parallel()
	for _, point := range crashPoints {
		for hit := range 3 {
			t.Run(fmt.Sprint(point, " ", hit+1), func(t *testing.T) {
				t.Parallel()
				all := deaths("any")
				s := buildDeaths(t, 0, all)
				var msgs []*message.Message
				for _, d := range all {
					msgs = append(msgs, d.message())
				}
				c := startArmed(t, s, childConfig{How: succeeds, Lanes: 2}, fmt.Sprint(point, "=kill:", hit+1), msgs...)
				if !c.killed() && hit == 0 { // with batches there may be only one commit for each lane
					t.Errorf("the process was not killed: %s", c.said)
				}
				s.deliver(t, always(succeeds), c.redelivered(msgs)...)
				got := s.looks(t)
				for _, d := range all {
					l := seen(got[d.key()])
					if entries := l.entries + l.undos; !d.acceptable(l) || entries < d.enters() || entries > 2*d.enters() {
						t.Errorf("%s: %+v after %d entries, want %+v", d.key(), l.standing(), entries, d.cell.after(d.arrival))
					}
				}
			})
		}
	}
}

// Every point fails once, and the process lives. What the failure left parked
// comes to the same end.
func TestEveryCellWithAnErrorAtEveryPoint(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := deaths("errors")
			s := buildDeaths(t, batch, all)
			each(all, func(d death) {
				armed := strings.Join(crashPoints, "=error;") + "=error"
				startArmed(t, s, childConfig{How: succeeds, Batch: batch, Lanes: 1}, armed, d.message())
			})
			s.settle(t)
			got := s.looks(t)
			for _, d := range all {
				l := seen(got[d.key()])
				if want := settled(d.cell.after(d.arrival)); settled(l.standing()) != want {
					t.Errorf("%s: %+v, want what settles as %q", d.key(), l.standing(), want)
				}
			}
		})
	}
}

// settled is a look once everything that is parked has run, without what
// dead letters there are: an error may add copies.
func settled(s standing) string {
	state, parkedBefore := s.state, func(message string) bool { return strings.Contains(s.parked, message) }
	switch {
	case parkedBefore(waitingUndo) && (parkedBefore(parkedAction) || state == "done"), state == "undoing":
		return "compensated act undo"
	case parkedBefore(parkedAction):
		return "done act"
	}
	for _, verb := range []string{"act", "undo"} {
		if strings.Contains(s.effects, verb) {
			state += " " + verb
		}
	}
	return state
}

// A handler has committed its work by itself, and that its claim is taken back fails
// once. The failure is recorded all the same: a step of which half is committed is
// not done.
func TestAClaimThatIsNotTakenBackAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1)
	startArmed(t, s, childConfig{How: commits, Batch: 1, Lanes: 1}, "consumer/before-commit=error", identified(actionType, "k", 1))
	l := seen(s.looks(t)["k"])
	if got, want := l.standing(), (standing{"dead", "act 1", "dead action terminal"}); got != want || l.attempts != 1 {
		t.Errorf("%+v after %d attempts, want %+v after 1", got, l.attempts, want)
	}
}
