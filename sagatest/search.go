package sagatest

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/guard"
)

// A search goes through the schedules of a system, depth first, with one more fault in each round.
type search struct {
	*system
	opts  ExploreOptions
	seed  maphash.Seed
	first any // the world at the beginning

	limit int // of faults in this round
	most  int // longest schedule of the round; 0: any
	seen  map[uint64][][faultKinds]int
	path  []int // the index of each event in the list at that point
	found []int

	schedules, states, events int
	ends                      ends
	ended                     bool // a schedule of any round
	sample                    sample
}

func newSearch[W, S any](t testing.TB, m Model[W, S], opts *ExploreOptions, planted bug) *search {
	t.Helper()
	sys := prepareModel(t, m, planted)
	return &search{system: sys, opts: opts.withDefaults(), seed: maphash.MakeSeed(), first: sys.box.keep()}
}

// searchAll returns the smallest schedule that breaks a rule, or nil.
func (x *search) searchAll() *finding {
	for x.limit = 0; x.limit <= x.opts.Faults && x.found == nil && !x.limitReached(); x.limit++ {
		x.schedules, x.states, x.ends = 0, 0, ends{}
		x.searchRound()
	}
	if x.found == nil {
		return nil
	}
	x.limit--
	f := x.searchAgain()
	if f.broken == "" {
		x.fail("a schedule that has broken something does not do so again: the handlers keep something that is not in the world")
	}
	return x.shrinkFinding(x.shortenPath(f))
}

// searchRound goes through all schedules of up to limit faults, until one breaks a rule.
func (x *search) searchRound() {
	x.seen, x.found = map[uint64][][faultKinds]int{}, nil
	defer x.branchWorld()()
	s := x.startSchedule()
	if s.broken != "" { // a local step comes first
		x.found = []int{}
		return
	}
	x.visitState(s, x.hashState(s, x.seed))
}

// searchAgain runs the found schedule again.
func (x *search) searchAgain() *finding {
	return x.runSchedule(deviationsOf(x.found))
}

// deviationsOf returns a schedule that names every event.
func deviationsOf(path []int) map[int]int {
	deviations := map[int]int{}
	for at, i := range path {
		deviations[at] = i
	}
	return deviations
}

// shortenStates limits the search for a shorter schedule.
const shortenStates = 20_000

// shortenPath looks for schedules with as many faults and fewer events, because a search depth first finds long ones
// before short ones.
func (x *search) shortenPath(f *finding) *finding {
	x.states, x.opts.MaxStates = 0, shortenStates
	for !x.limitReached() && len(f.lines) > 2 {
		x.most = len(f.lines) - 2 // the first line is no event
		x.searchRound()
		if x.found == nil {
			break
		}
		if g := x.searchAgain(); g.broken != "" {
			f = g
		}
	}
	x.most = 0
	return f
}

func (x *search) limitReached() bool { return x.states >= x.opts.MaxStates }

// startSchedule returns the state at the beginning, and restores the world of then.
func (x *search) startSchedule() *modelState {
	x.box.set(x.first)
	s := &modelState{host: &host{rows: map[string]*instance{}}, cells: map[cellKey]cell{}, facts: map[factKey]fact{}}
	x.watchSavepoints(s)
	work, err := s.host.beginOutermost(x.ctx, x.tx, x.flow, "test", "key", x.system.start())
	if err != nil {
		x.fail("the saga cannot be started: %s", explainError(err, x.tx != nil, "Model.Tx"))
	}
	x.publishAll(s, x.commitSession(s, work))
	return s
}

// branchWorld returns a function that rolls back all later changes of the tables.
func (x *search) branchWorld() (undo func()) {
	commit := x.beginSavepoint()
	return func() { commit(false) }
}

// visitState goes through all events that can follow s. The world is that of s.
func (x *search) visitState(s *modelState, hash uint64) {
	if x.most > 0 {
		s.used[noFault] = len(x.path) // reached with fewer events it is another state
	}
	if x.rememberState(hash, s.used) || x.limitReached() {
		return
	}
	x.states++
	world, moves := x.box.keep(), false
	for i, e := range x.system.listEvents(s) {
		if !x.canAfford(s, e) {
			continue
		}
		if moves = moves || e.fault == noFault && x.most > 0; x.most > 0 && len(x.path) >= x.most {
			continue
		}
		x.box.set(world)
		undo := x.branchWorld()
		next := s.cloneState()
		x.performEvent(next, e)
		x.events++
		x.path = append(x.path, i)
		if x.judgeState(next, true); next.broken != "" {
			x.found = slices.Clone(x.path)
		} else {
			reached := x.hashState(next, x.seed)
			moves = moves || e.fault == noFault && reached != hash
			x.visitState(next, reached)
		}
		x.path = x.path[:len(x.path)-1]
		undo()
		if x.found != nil {
			return
		}
	}
	if !moves {
		x.box.set(world)
		x.countEnd(s)
		if x.rested != nil {
			x.rested(s)
		}
		if x.judgeState(s, false); s.broken != "" {
			x.found = slices.Clone(x.path)
		}
	}
}

// judgeState checks the rules that hold always, or those at the end of a schedule.
func (x *search) judgeState(s *modelState, always bool) {
	if !always {
		x.judgeRest(s)
	}
	if err := guard.Call(func() error { return x.check(always, s) }); err != nil {
		s.noteBroken("%s", explainError(err, x.tx != nil, "Model.Tx"))
	}
	if len(x.path) > x.opts.MaxSteps {
		s.noteBroken("the saga has not come to an end after %d events", x.opts.MaxSteps)
	}
}

// rememberState reports whether a state was reached before with at least as many faults left, and else stores it.
func (x *search) rememberState(hash uint64, used [faultKinds]int) bool {
	for _, before := range x.seen[hash] {
		if noMore(before, used) {
			return true
		}
	}
	x.seen[hash] = append(x.seen[hash], used)
	return false
}

func noMore(a, b [faultKinds]int) bool {
	for i := range a {
		if a[i] > b[i] {
			return false
		}
	}
	return true
}

// canAfford reports whether the round has a fault left for e.
func (x *search) canAfford(s *modelState, e event) bool {
	if e.fault == noFault {
		return true
	}
	most := [faultKinds]int{
		duplication: x.opts.Duplicates, crash: x.opts.Crashes, failing: x.opts.Errors, early: x.opts.Timers, cancelling: x.opts.Cancels,
	}
	return s.countFaults() < x.limit && s.used[e.fault] < most[e.fault]
}

// A finding is a schedule, its events, and the rule that it breaks.
type finding struct {
	deviations map[int]int // index of each event that is not the usual one, by place
	lines      []string
	broken     string
}

// runSchedule runs one schedule from the beginning until it breaks a rule, or to its end.
func (x *search) runSchedule(deviations map[int]int) *finding {
	defer x.branchWorld()()
	f := &finding{deviations: map[int]int{}, lines: []string{"the saga is started"}}
	s := x.startSchedule()
	x.path = nil
	for at := 0; s.broken == ""; at++ {
		all := x.system.listEvents(s)
		chosen := x.usualEvent(s, all)
		if i, deviates := deviations[at]; deviates && i < len(all) && i != chosen {
			chosen, f.deviations[at] = i, i
		}
		if chosen < 0 {
			x.judgeState(s, false)
			break
		}
		x.path = append(x.path, chosen)
		f.lines = append(f.lines, x.performEvent(s, all[chosen]))
		x.judgeState(s, true)
	}
	x.path = nil
	f.broken = s.broken
	return f
}

// usualEvent returns the first event without a fault that changes something, or -1.
func (x *search) usualEvent(s *modelState, all []event) int {
	hash, world := x.hashState(s, x.seed), x.box.keep()
	for i, e := range all {
		if e.fault != noFault {
			break
		}
		undo, next := x.branchWorld(), s.cloneState()
		x.performEvent(next, e)
		reached := x.hashState(next, x.seed)
		undo()
		x.box.set(world)
		if reached != hash {
			return i
		}
	}
	return -1
}

// shrinkFinding removes deviations from f, or moves them forward, as long as the rule still breaks.
func (x *search) shrinkFinding(f *finding) *finding {
	for better := true; better; {
		better = false
		for _, at := range slices.Sorted(maps.Keys(f.deviations)) {
			for _, change := range []func(d map[int]int){
				func(d map[int]int) { delete(d, at) },
				func(d map[int]int) { d[at-1] = d[at]; delete(d, at) },
			} {
				d := maps.Clone(f.deviations)
				change(d)
				if g := x.runSchedule(d); g.broken != "" && g.sizeOf() < f.sizeOf() {
					f, better = g, true
					break
				}
			}
			if better {
				break
			}
		}
	}
	return f
}

func (f *finding) sizeOf() int { return 100*len(f.deviations) + len(f.lines) }

// reportFinding describes a finding, for people.
func (x *search) reportFinding(f *finding) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s", f.broken, f.listLines())
	fmt.Fprintf(&b, "again: sagatest.Replay(t, model, %q)", f.scheduleText())
	return b.String()
}

// listLines returns the events, one on each line.
func (f *finding) listLines() string {
	var b strings.Builder
	for i, line := range f.lines {
		fmt.Fprintf(&b, "%4d. %s\n", i+1, line)
	}
	return b.String()
}

// scheduleText returns the schedule of f, for [Replay].
func (f *finding) scheduleText() string {
	var parts []string
	for _, at := range slices.Sorted(maps.Keys(f.deviations)) {
		parts = append(parts, fmt.Sprintf("%d:%d", at, f.deviations[at]))
	}
	return strings.Join(parts, " ")
}

// parseSchedule reverses scheduleText.
func parseSchedule(text string) (map[int]int, error) {
	deviations := map[int]int{}
	for _, part := range strings.Fields(text) {
		left, right, _ := strings.Cut(part, ":")
		at, err := strconv.Atoi(left)
		if err != nil {
			return nil, err
		}
		if deviations[at], err = strconv.Atoi(right); err != nil {
			return nil, err
		}
	}
	return deviations, nil
}
