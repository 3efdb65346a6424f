package judge

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// goals are the figures to reach, for a short run or for one of half an hour.
type goals struct{ kills, sagas, ambiguous, duplicates float64 }

var (
	shortGoals = goals{1000, 20_000, 50, 1000}
	longGoals  = goals{10_000, 300_000, 1000, 20_000}
)

const (
	plannedKills = 0.9 // part of the goal that is scheduled: failpoints kill, too
	completedPct = 60  // percent of the trips that must complete and do so before their deadlines
	amplified    = 1.5 // publications of a message, at most, on average
)

// goalsForRun returns the goals of the largest preset that the run reaches. A run smaller than the short preset
// gets its goals too, but they are not binding.
func goalsForRun(o record.Options) (g goals, bound bool) {
	kills := float64(o.Storm) / float64(max(o.KillEvery, 1))
	for _, g := range []goals{longGoals, shortGoals} {
		if float64(o.Sagas) >= g.sagas && kills >= plannedKills*g.kills {
			return g, true
		}
	}
	return shortGoals, false
}

// fillFigures fills in the figures of the verdict.
func (c *run) fillFigures(v *Verdict) {
	v.Took = c.tookText()
	v.Faults, v.Roles = c.countFaults()
	v.Points = c.pointCounts()
	v.Ends = c.endCounts()
	for _, s := range c.samples {
		v.Seconds = append(v.Seconds, Second{At: s.At, Done: s.Done, Backlog: sumCounts(s.Backlog), Ready: sumCounts(s.Ready)})
	}
	g, sized := goalsForRun(c.run.Options)
	least := func(name string, value, goal float64, bound bool) {
		v.Figures = append(v.Figures, Figure{Name: name, Value: value, Goal: goal, OK: value >= goal, Bound: bound})
	}
	most := func(name string, value, goal float64, ok bool) {
		v.Figures = append(v.Figures, Figure{Name: name, Value: value, Goal: goal, Most: true, OK: ok && value <= goal, Bound: true})
	}
	count := func(ids ...string) (n float64) {
		for _, i := range v.Invariants {
			if slices.Contains(ids, i.ID) {
				n += float64(i.Count)
			}
		}
		return n
	}
	least("sigkills", float64(c.countKills()), g.kills, sized)
	least("sagas", float64(c.countEnded()), g.sagas, sized)
	if percent, any := c.tripsCompleted(); any {
		least("trips-completed-percent", percent, completedPct, sized)
	}
	least("ambiguous-commits", float64(c.final.CommitsLost+c.final.RepliesLost), g.ambiguous, sized)
	least("ambiguous-commits-done", float64(c.final.RepliesLost), 1, true)
	least("ambiguous-commits-undone", float64(c.final.CommitsLost), 1, true)
	least("duplicates-absorbed", float64(c.absorbed()), g.duplicates, sized)
	if n := c.publishes(); n > 0 {
		v.Figures = append(v.Figures, Figure{Name: "publishes-per-message", Value: n, Goal: amplified, Most: true, OK: n <= amplified})
	}
	least("replayed", float64(c.replayed()), float64(min(c.run.Options.Replays, 1)), true)
	most("lost", count("I2", "I9"), 0, true)
	most("doubled", count("I1"), 0, true)
	most("unbalanced", count("I3", "I5"), 0, true)
	most("stuck", float64(c.countStuck()), 0, true)
	most("drain-seconds", c.drainTime().Seconds(), c.run.Options.DrainWithin().Seconds(), c.final.Drained > 0)
}

// missedNames names the figures that miss binding goals. Invariants already count the cases of which there must
// be none.
func missedNames(figures []Figure) (names []string) {
	for _, f := range figures {
		if f.Bound && !f.OK && !f.Most {
			names = append(names, "the goal of "+f.Name)
		}
	}
	return names
}

// tripsCompleted returns how many percent of the trips that must complete have completed, without those that
// were late. any is false if there are none.
func (c *run) tripsCompleted() (percent float64, any bool) {
	var must, have int
	for _, t := range c.trips {
		if t.mustComplete() {
			must++
			if t.finalStatus() == completed {
				have++
			}
		}
	}
	return 100 * float64(have) / float64(max(must, 1)), must > 0
}

func sumCounts(all map[string]int) (n int) {
	for _, v := range all {
		n += v
	}
	return n
}

// countKills counts the processes that SIGKILL has ended, sent by the harness or by their own failpoints.
func (c *run) countKills() (n int) {
	for _, r := range secondOf(c.countFaults()) {
		n += r.Kills + r.Fuses
	}
	return n
}

func secondOf[A, B any](_ A, b B) B { return b }

// countEnded counts the sagas that have ended.
func (c *run) countEnded() (n int) {
	for _, o := range c.orders {
		if s := o.finalStatus(); s == completed || s == cancelled {
			n++
		}
	}
	for _, t := range c.trips {
		if s := t.finalStatus(); s == completed || s == compensated {
			n++
		}
	}
	return n
}

// countStuck counts the sagas that have not ended.
func (c *run) countStuck() int { return len(c.orders) + len(c.trips) - c.countEnded() }

// absorbed counts the duplicates published in the storm whose step every service had already ended.
func (c *run) absorbed() (n int) {
	for _, i := range c.injected {
		if i.Kind == record.Duplicate && i.Handled && c.duringStorm(i.At) {
			n++
		}
	}
	return n
}

// publishes returns how often relays have published a message, on average. A relay that dies before it records
// its progress leaves its messages to the next one.
func (c *run) publishes() float64 {
	relays := c.final.Received
	for _, i := range c.injected {
		if i.Kind != record.Replayed {
			relays--
		}
	}
	if len(c.messages) == 0 || relays <= 0 {
		return 0
	}
	return float64(relays) / float64(len(c.messages))
}

// replayed counts the messages of the history that were published again at the end.
func (c *run) replayed() (n int) {
	for _, i := range c.injected {
		if i.Kind == record.Replayed {
			n++
		}
	}
	return n
}

func (c *run) countFaults() ([]FaultCount, []RoleCount) {
	faults, roles := map[string]*FaultCount{}, map[string]*RoleCount{}
	for _, e := range c.events {
		switch e.Fault {
		case record.Phase, record.Start:
			continue
		case record.Exit:
			countEvent(roles, e)
			continue
		}
		f := faults[e.Fault]
		if f == nil {
			f = &FaultCount{Fault: e.Fault}
			faults[e.Fault] = f
		}
		switch {
		case e.Err != "":
			f.Failed++
			continue
		case e.Hits == 0:
			f.Idle++
			continue
		case c.wasBusy(e):
			f.Busy++
		}
		f.Struck++
		f.Hits += e.Hits
	}
	return sortedByName(faults, func(f *FaultCount) string { return f.Fault }), sortedByName(roles, func(r *RoleCount) string { return r.Role })
}

// countEvent adds an exit to the counts of its role.
func countEvent(roles map[string]*RoleCount, e record.Event) {
	role, _, _ := strings.Cut(e.Target, "-")
	r := roles[role]
	if r == nil {
		r = &RoleCount{Role: role}
		roles[role] = r
	}
	switch {
	case strings.HasPrefix(e.Args, byItself):
		r.Own++
	case strings.HasPrefix(e.Args, byFuse):
		r.Fuses++
	case strings.HasPrefix(e.Args, killed):
		r.Kills++
	default:
		r.Stops++
	}
}

func sortedByName[T any](all map[string]*T, name func(*T) string) []T {
	values := slices.SortedFunc(maps.Values(all), func(a, b *T) int { return cmp.Compare(name(a), name(b)) })
	list := make([]T, len(values))
	for i, v := range values {
		list[i] = *v
	}
	return list
}

func (c *run) pointCounts() (all []PointCount) {
	for _, name := range slices.Sorted(maps.Keys(c.points)) {
		all = append(all, PointCount{name, c.points[name]})
	}
	return all
}

func (c *run) endCounts() []EndCount {
	all := map[string]*EndCount{}
	add := func(saga string, p *placed, status string) {
		kind := "(unknown)"
		if p != nil {
			kind = p.kind
		}
		e := all[saga+" "+kind]
		if e == nil {
			e = &EndCount{Saga: saga, Kind: kind, Ends: map[string]int{}}
			all[saga+" "+kind] = e
		}
		e.N++
		e.Ends[status]++
	}
	for _, o := range c.orders {
		add(record.Order, o.placed, o.finalStatus())
	}
	for _, t := range c.trips {
		add(record.Trip, t.placed, t.finalStatus())
	}
	return sortedByName(all, func(e *EndCount) string { return e.Saga + " " + e.Kind })
}
