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

// A search goes through the schedules of a system, depth first, with one more fault in
// each round.
type search struct {
	*system
	opts  ExploreOptions
	seed  maphash.Seed
	first any // the world at the beginning

	limit int // of faults in this round
	most  int // length of a schedule that is looked for; 0: any
	seen  map[uint64][][faultKinds]int
	path  []int // which of the events that could happen did
	found []int

	schedules, states, events int
	ends                      ends
	ended                     bool // a schedule of any round
	sample                    sample
}

func newSearch[W, S any](t testing.TB, m Model[W, S], opts *ExploreOptions, planted bug) *search {
	t.Helper()
	sys := newSystem(t, m, planted)
	return &search{system: sys, opts: opts.defaults(), seed: maphash.MakeSeed(), first: sys.box.keep()}
}

// run returns the smallest schedule that it has found to break something, or nil.
func (x *search) run() *finding {
	for x.limit = 0; x.limit <= x.opts.Faults && x.found == nil && !x.full(); x.limit++ {
		x.schedules, x.states, x.ends = 0, 0, ends{}
		x.round()
	}
	if x.found == nil {
		return nil
	}
	x.limit--
	f := x.again()
	if f.broken == "" {
		x.fail("a schedule that has broken something does not do so again: the handlers keep something that is not in the world")
	}
	return x.shrink(x.shorten(f))
}

// round goes through all schedules of up to limit faults, until something is found.
func (x *search) round() {
	x.seen, x.found = map[uint64][][faultKinds]int{}, nil
	defer x.branch()()
	s := x.start()
	if s.broken != "" { // a local step comes first
		x.found = []int{}
		return
	}
	x.visit(s, x.hash(s, x.seed))
}

// again runs the schedule that was found.
func (x *search) again() *finding {
	return x.attempt(deviate(x.found))
}

// deviate says of each event which one it is.
func deviate(path []int) map[int]int {
	deviations := map[int]int{}
	for at, i := range path {
		deviations[at] = i
	}
	return deviations
}

// shortenStates bounds what a smaller finding may cost.
const shortenStates = 20_000

// shorten looks for schedules with as many faults and fewer events. A search depth first
// finds long ones before short ones.
func (x *search) shorten(f *finding) *finding {
	x.states, x.opts.MaxStates = 0, shortenStates
	for !x.full() && len(f.lines) > 2 {
		x.most = len(f.lines) - 2 // the first line is no event
		x.round()
		if x.found == nil {
			break
		}
		if g := x.again(); g.broken != "" {
			f = g
		}
	}
	x.most = 0
	return f
}

func (x *search) full() bool { return x.states >= x.opts.MaxStates }

// start returns the state at the beginning, and makes the world what it was then.
func (x *search) start() *modelState {
	x.box.set(x.first)
	s := &modelState{host: &host{rows: map[string]*instance{}}, cells: map[cellKey]cell{}, facts: map[factKey]fact{}}
	x.watch(s)
	work, err := s.host.begin(x.ctx, x.tx, x.flow, "test", "key", x.system.start())
	if err != nil {
		x.fail("the saga cannot be started: %s", explain(err, x.tx != nil, "Model.Tx"))
	}
	x.publish(s, x.keep(s, work))
	return s
}

// branch returns what takes back all that is done to the tables after it.
func (x *search) branch() (undo func()) {
	commit := x.begin()
	return func() { commit(false) }
}

// visit goes through all that can happen from s on, whose world is the present one.
func (x *search) visit(s *modelState, hash uint64) {
	if x.most > 0 {
		s.used[noFault] = len(x.path) // what is reached sooner is another state
	}
	if x.known(hash, s.used) || x.full() {
		return
	}
	x.states++
	world, moves := x.box.keep(), false
	for i, e := range x.system.events(s) {
		if !x.affords(s, e) {
			continue
		}
		if moves = moves || e.fault == noFault && x.most > 0; x.most > 0 && len(x.path) >= x.most {
			continue
		}
		x.box.set(world)
		undo := x.branch()
		next := s.clone()
		x.happen(next, e)
		x.events++
		x.path = append(x.path, i)
		if x.judge(next, true); next.broken != "" {
			x.found = slices.Clone(x.path)
		} else {
			reached := x.hash(next, x.seed)
			moves = moves || e.fault == noFault && reached != hash
			x.visit(next, reached)
		}
		x.path = x.path[:len(x.path)-1]
		undo()
		if x.found != nil {
			return
		}
	}
	if !moves {
		x.box.set(world)
		x.end(s)
		if x.rested != nil {
			x.rested(s)
		}
		if x.judge(s, false); s.broken != "" {
			x.found = slices.Clone(x.path)
		}
	}
}

// judge asks for what must hold: always, or when nothing is left to happen.
func (x *search) judge(s *modelState, always bool) {
	if !always {
		x.rest(s)
	}
	if err := guard.Call(func() error { return x.check(always, s) }); err != nil {
		s.breaks("%s", explain(err, x.tx != nil, "Model.Tx"))
	}
	if len(x.path) > x.opts.MaxSteps {
		s.breaks("the saga has not come to an end after %d events", x.opts.MaxSteps)
	}
}

// known reports whether a state was reached before, with no fewer faults left.
func (x *search) known(hash uint64, used [faultKinds]int) bool {
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

// affords reports whether e may happen in this round.
func (x *search) affords(s *modelState, e event) bool {
	if e.fault == noFault {
		return true
	}
	most := [faultKinds]int{
		duplication: x.opts.Duplicates, crash: x.opts.Crashes, failing: x.opts.Errors, early: x.opts.Timers, cancelling: x.opts.Cancels,
	}
	return s.faults() < x.limit && s.used[e.fault] < most[e.fault]
}

// A finding is a schedule, what has happened in it, and what that breaks.
type finding struct {
	deviations map[int]int // where it is not the first thing that moves it on: which one
	lines      []string
	broken     string
}

// attempt runs one schedule from the beginning to where it breaks something, or to its end.
func (x *search) attempt(deviations map[int]int) *finding {
	defer x.branch()()
	f := &finding{deviations: map[int]int{}, lines: []string{"the saga is started"}}
	s := x.start()
	x.path = nil
	for at := 0; s.broken == ""; at++ {
		all := x.system.events(s)
		chosen := x.usual(s, all)
		if i, deviates := deviations[at]; deviates && i < len(all) && i != chosen {
			chosen, f.deviations[at] = i, i
		}
		if chosen < 0 {
			x.judge(s, false)
			break
		}
		x.path = append(x.path, chosen)
		f.lines = append(f.lines, x.happen(s, all[chosen]))
		x.judge(s, true)
	}
	x.path = nil
	f.broken = s.broken
	return f
}

// usual returns the first event that is no fault and changes something, or -1.
func (x *search) usual(s *modelState, all []event) int {
	hash, world := x.hash(s, x.seed), x.box.keep()
	for i, e := range all {
		if e.fault != noFault {
			break
		}
		undo, next := x.branch(), s.clone()
		x.happen(next, e)
		reached := x.hash(next, x.seed)
		undo()
		x.box.set(world)
		if reached != hash {
			return i
		}
	}
	return -1
}

// shrink leaves out of f, or moves forward, what it can do without.
func (x *search) shrink(f *finding) *finding {
	for better := true; better; {
		better = false
		for _, at := range slices.Sorted(maps.Keys(f.deviations)) {
			for _, change := range []func(d map[int]int){
				func(d map[int]int) { delete(d, at) },
				func(d map[int]int) { d[at-1] = d[at]; delete(d, at) },
			} {
				d := maps.Clone(f.deviations)
				change(d)
				if g := x.attempt(d); g.broken != "" && g.size() < f.size() {
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

func (f *finding) size() int { return 100*len(f.deviations) + len(f.lines) }

// report returns a finding for people.
func (x *search) report(f *finding) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s", f.broken, f.told())
	fmt.Fprintf(&b, "again: sagatest.Replay(t, model, %q)", f.schedule())
	return b.String()
}

// told returns what has happened, line by line.
func (f *finding) told() string {
	var b strings.Builder
	for i, line := range f.lines {
		fmt.Fprintf(&b, "%4d. %s\n", i+1, line)
	}
	return b.String()
}

// schedule returns f's as one text.
func (f *finding) schedule() string {
	var parts []string
	for _, at := range slices.Sorted(maps.Keys(f.deviations)) {
		parts = append(parts, fmt.Sprintf("%d:%d", at, f.deviations[at]))
	}
	return strings.Join(parts, " ")
}

// parseSchedule reverses schedule.
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
