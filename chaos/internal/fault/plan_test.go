package fault

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/chaos/internal/site"
	"github.com/sagamill/sagamill/internal/failpoint"
)

// The storms that plans are drawn for.
var (
	shortStorm = record.Options{Storm: 160 * time.Second, KillEvery: 150 * time.Millisecond, BrokerKills: 1, Crashes: 3, Alarms: 5}
	longStorm  = record.Options{Storm: 30 * time.Minute, KillEvery: 160 * time.Millisecond, BrokerKills: 40, Crashes: 100, Alarms: 100}
	tinyStorm  = record.Options{Storm: 5 * time.Second, KillEvery: time.Second}
)

func TestThePlanIsAFunctionOfTheSeed(t *testing.T) {
	t.Parallel()
	a, b := PlanFaults(7, shortStorm), PlanFaults(7, shortStorm)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("one seed, two plans:\n%s", diff)
	}
	if cmp.Equal(a, PlanFaults(8, shortStorm)) {
		t.Error("two seeds, one plan")
	}
}

func TestAPlanHasWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	for _, o := range []record.Options{shortStorm, longStorm, tinyStorm} {
		for seed := range uint64(5) {
			check(t, seed, o)
		}
	}
}

func check(t *testing.T, seed uint64, o record.Options) {
	t.Helper()
	plan := PlanFaults(seed, o)
	struck, victims := map[string]int{}, map[string]int{}
	last := time.Duration(0)
	for i, p := range plan {
		struck[p.Fault]++
		if p.Fault == Kill {
			victims[p.Target]++
		}
		if p.N != i+1 || p.At < last || p.At+p.For > o.Storm {
			t.Fatalf("seed %d: %+v, after one at %s, in a storm of %s", seed, p, last, o.Storm)
		}
		last = p.At
	}
	if got, want := struck[Kill], int(o.Storm/o.KillEvery); got < want || got > want+1 {
		t.Errorf("seed %d, storm of %s: %d kills, want %d", seed, o.Storm, got, want)
	}
	for fault, want := range map[string]int{BrokerKill: o.BrokerKills, Crash: o.Crashes, BrokerAlarm: o.Alarms} {
		if struck[fault] != want {
			t.Errorf("seed %d, storm of %s: %d × %s, want %d", seed, o.Storm, struck[fault], fault, want)
		}
	}
	for _, k := range kinds {
		least := k.least
		if o.Storm >= short && k.exact == nil && k.takes != brokerBoot {
			least = leastInShort
		}
		if k.exact == nil && struck[k.name] < least {
			t.Errorf("seed %d, storm of %s: %d × %s, want %d", seed, o.Storm, struck[k.name], k.name, least)
		}
	}
	if o.Storm < short {
		return
	}
	for _, name := range site.Processes() {
		if fair := struck[Kill] / len(site.Processes()); victims[name] < fair/2 {
			t.Errorf("seed %d, storm of %s: %s is killed %d times of %d", seed, o.Storm, name, victims[name], struck[Kill])
		}
	}
}

// A queue that was declared shortly before the broker is killed may not come back.
func TestNothingIsDeletedBeforeABrokerKill(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		plan := PlanFaults(seed, shortStorm)
		for _, p := range plan {
			if p.Fault != BrokerKill {
				continue
			}
			for _, d := range plan {
				if strings.HasSuffix(d.Fault, "-delete") && d.At <= p.At && p.At-d.At < guard {
					t.Errorf("seed %d: %s of %s %s before the broker is killed", seed, d.Fault, d.Target, p.At-d.At)
				}
			}
		}
	}
}

// About as many faults are under way as two lanes allow.
func TestFaultsDoNotPileUp(t *testing.T) {
	t.Parallel()
	const most = 6 // some last longer than their lane is taken
	for seed := range uint64(5) {
		plan := PlanFaults(seed, shortStorm)
		for _, p := range plan {
			under := 0
			for _, other := range plan {
				if other.For > 0 && other.At <= p.At && p.At < other.At+other.For {
					under++
				}
			}
			if under > most {
				t.Errorf("seed %d: %d faults at %s", seed, under, p.At)
			}
		}
	}
}

func TestFusesAreAFunctionOfTheSeed(t *testing.T) {
	t.Parallel()
	a, b, other := PlanFuses(3), PlanFuses(3), PlanFuses(4)
	differ := false
	for _, process := range site.Processes() {
		for start := 1; start <= 50; start++ {
			if a(process, start) != b(process, start) {
				t.Fatalf("%s, start %d: %q and %q", process, start, a(process, start), b(process, start))
			}
			differ = differ || a(process, start) != other(process, start)
		}
	}
	if !differ {
		t.Error("two seeds, the same fuses")
	}
}

// By the seed alone, each action of each point is armed several times in the short form. Not every fuse strikes
// before its process dies: the armory arms the missing ones.
func TestFusesReachEveryPoint(t *testing.T) {
	t.Parallel()
	const (
		starts = 50 // of a process, in the short form
		least  = 2  // the armory adds missing strikes in the late phase
	)
	for seed := range uint64(3) {
		fuses, armed, total := map[string]int{}, 0, 0
		draw := PlanFuses(seed)
		for _, process := range site.Processes() {
			for start := 1; start <= starts; start++ {
				spec := draw(process, start)
				total++
				if strings.Contains(spec, "=error") && strings.Contains(spec, "=delay") {
					armed++
				}
				for entry := range strings.SplitSeq(spec, ";") {
					fuses[strings.TrimRight(entry, "0123456789:ms().")]++
				}
			}
		}
		for _, name := range Required() {
			if strings.Contains(name, "=") && fuses[name] < least {
				t.Errorf("seed %d: %s comes up %d times in %d starts", seed, name, fuses[name], total)
			}
		}
		if armed*100 < total*40 || armed*100 > total*70 {
			t.Errorf("seed %d: %d of %d starts are armed", seed, armed, total)
		}
	}
}

// Every failpoint is either in points or in unreached, so a new one must be classified.
func TestEveryPointIsThoughtOf(t *testing.T) {
	t.Parallel()
	for _, p := range failpoint.Points() {
		reached := slices.ContainsFunc(points, func(known point) bool { return known.name == p.Name })
		excused := false
		for prefix := range unreached {
			excused = excused || strings.HasPrefix(p.Name, prefix)
		}
		if reached == excused {
			t.Errorf("%s: struck %v, left out %v", p.Name, reached, excused)
		}
	}
}

// A fuse that a program cannot read would keep it from starting.
func TestFusesNameKnownPoints(t *testing.T) {
	t.Parallel()
	var known []string
	for _, p := range failpoint.Points() {
		known = append(known, p.Name)
	}
	draw := PlanFuses(1)
	for _, process := range site.Processes() {
		for start := 1; start <= 200; start++ {
			for entry := range strings.SplitSeq(draw(process, start), ";") {
				point, _, armed := strings.Cut(entry, "=")
				if armed && !slices.Contains(known, point) {
					t.Fatalf("%s, start %d: %q", process, start, entry)
				}
			}
		}
	}
}

func TestRequiredNamesEachOnce(t *testing.T) {
	t.Parallel()
	names := Required()
	slices.Sort(names)
	if all := len(names); len(slices.Compact(names)) != all {
		t.Error("a name is required twice")
	}
	if _, found := slices.BinarySearch(names, "outbox/before-adopt=kill"); found {
		t.Error("a point is required that no process comes to")
	}
}
