package fault

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/chaos/internal/site"
)

// The margins of a plan.
const (
	calm  = 2 * time.Second        // at the beginning, with kills only
	tail  = 500 * time.Millisecond // at the end, when every fault is over
	guard = 15 * time.Second       // before a kill of the broker, when no topology is deleted
)

// short is the shortest storm in which each fault is planned several times.
const (
	short        = time.Minute
	leastInShort = 3
)

// Each part of the plan has a separate stream of random numbers, so that its draws do not change another
// part's.
const (
	killStream = iota + 1
	faultStream
	laneStream
	fuseStream
	encoreStream
)

func randomStream(seed uint64, n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }

// PlanFaults returns the schedule of a storm: a pure function of the seed and o. Kills come at random moments,
// KillEvery apart on average. They strike all processes about equally often, but those of the busiest services
// half as often. About two other faults are under way at a time, and each kind comes at least once.
// BrokerKills, Crashes and Alarms come exactly as often as o says.
func PlanFaults(seed uint64, o record.Options) []record.Planned {
	plan := append(planKills(seed, o), planKinds(seed, o)...)
	slices.SortStableFunc(plan, func(a, b record.Planned) int { return int(a.At - b.At) })
	for i := range plan {
		plan[i].N = i + 1
	}
	return plan
}

// planKills returns the kills of a storm at uniformly distributed moments. A Poisson process has this
// distribution, given its number of events.
func planKills(seed uint64, o record.Options) (plan []record.Planned) {
	if o.KillEvery <= 0 {
		return nil
	}
	r := randomStream(seed, killStream)
	var bag []string
	for range int(math.Ceil(float64(o.Storm) / float64(o.KillEvery))) {
		if len(bag) == 0 {
			bag = shuffledRoles(r)
		}
		plan = append(plan, record.Planned{At: time.Duration(r.Int64N(int64(o.Storm))), Fault: Kill, Target: bag[0]})
		bag = bag[1:]
	}
	return plan
}

// shuffledRoles returns all processes in random order. Processes that a saga can do without for a while occur
// twice, because kills strike nothing where no work is done.
func shuffledRoles(r *rand.Rand) (bag []string) {
	bag = slices.Clone(site.Processes())
	for _, name := range site.Processes() {
		if !slices.Contains(busiest, site.ServiceOf(name)) {
			bag = append(bag, name)
		}
	}
	r.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
	return bag
}

// busiest are the services that clients call, and those that every order passes.
var busiest = []string{"order", "payment", "gateway", "shipping", "trip"}

// planKinds returns all faults except kills, in two lanes. Within a lane one fault follows the other.
func planKinds(seed uint64, o record.Options) []record.Planned {
	r := randomStream(seed, faultStream)
	var broker, others []draft
	for i := range kinds {
		k := &kinds[i]
		for range k.plannedCount(o) {
			d := k.drawFault(r, o)
			if k.broker {
				broker = append(broker, d)
			} else {
				others = append(others, d)
			}
		}
	}
	lanes := randomStream(seed, laneStream)
	var plan []record.Planned
	for _, lane := range [][]draft{broker, others} {
		placeInStorm(lanes, lane, o.Storm)
		for _, d := range lane {
			plan = append(plan, d.Planned)
		}
	}
	return plan
}

// plannedCount returns how often k comes in a storm.
func (k *kind) plannedCount(o record.Options) int {
	if k.exact != nil {
		return k.exact(o)
	}
	n := int(math.Round(k.rate * o.Storm.Seconds() / 100))
	if k.takes == brokerBoot || o.Storm < short {
		return max(n, k.least)
	}
	return max(n, leastInShort)
}

// A draft is a fault without a time.
type draft struct {
	record.Planned
	takes time.Duration
}

func (k *kind) drawFault(r *rand.Rand, o record.Options) draft {
	d := draft{Planned: record.Planned{Fault: k.name}, takes: k.takes}
	if k.target != nil {
		d.Target = k.target(r)
	}
	if k.args != nil {
		d.Args = k.args(r)
	}
	if k.longest > 0 {
		d.For = randomBetween(r, k.longest/3, min(k.longest, max(k.longest/3, o.Storm/4)))
	}
	if d.takes == 0 {
		d.takes = d.For
	}
	return d
}

// randomBetween returns a uniformly distributed time, rounded to the millisecond.
func randomBetween(r *rand.Rand, from, to time.Duration) time.Duration {
	return (from + time.Duration(r.Int64N(int64(to-from)+1))).Round(time.Millisecond)
}

// placeInStorm shuffles the faults of a lane and sets their times. Pauses between them are random. If the storm
// is too short for pauses, faults overlap.
func placeInStorm(r *rand.Rand, lane []draft, storm time.Duration) {
	r.Shuffle(len(lane), func(i, j int) { lane[i], lane[j] = lane[j], lane[i] })
	begin := min(calm, storm/10)
	free := storm - begin - tail
	pauses := make([]time.Duration, len(lane)+1)
	for _, d := range lane {
		free -= d.takes
	}
	if free > 0 {
		pauses = splitDuration(r, free, len(lane)+1)
	}
	schedule(lane, pauses, begin, storm)
	for range len(lane) { // each pass moves one deletion
		i, j := deletionBeforeKill(r, lane)
		if i < 0 {
			return
		}
		lane[i], lane[j] = lane[j], lane[i]
		schedule(lane, pauses, begin, storm)
	}
}

// splitDuration divides a time at random moments.
func splitDuration(r *rand.Rand, whole time.Duration, n int) []time.Duration {
	cuts := make([]time.Duration, n)
	for i := range cuts {
		cuts[i] = time.Duration(r.Int64N(int64(whole)))
	}
	slices.Sort(cuts)
	for i := n - 1; i > 0; i-- {
		cuts[i] -= cuts[i-1]
	}
	return cuts
}

// schedule sets the times of a lane. No fault begins before begin or lasts beyond the storm.
func schedule(lane []draft, pauses []time.Duration, begin, storm time.Duration) {
	total := time.Duration(0)
	for i, d := range lane {
		total += pauses[i] + d.takes
	}
	squeeze := min(1, float64(storm-begin-tail)/float64(max(total, 1)))
	at := time.Duration(0)
	for i := range lane {
		at += pauses[i]
		when := begin + time.Duration(float64(at)*squeeze)
		latest := storm - tail - max(lane[i].For, lane[i].takes)
		lane[i].At = max(min(when, latest), 0).Round(time.Millisecond)
		at += lane[i].takes
	}
}

// deletionBeforeKill finds a deletion i that comes too shortly before a kill of the broker, which may forget a
// redeclared queue. j is a fault to change places with. Both are -1 if there is no such deletion, or no place
// for it.
func deletionBeforeKill(r *rand.Rand, lane []draft) (i, j int) {
	guarded := func(i int) bool {
		return slices.ContainsFunc(lane, func(d draft) bool {
			return d.Fault == BrokerKill && lane[i].At <= d.At && d.At-lane[i].At < guard
		})
	}
	deletes := func(d draft) bool {
		return d.Fault == QueueDelete || d.Fault == BindingDelete || d.Fault == ExchangeDelete
	}
	for i := range lane {
		if !deletes(lane[i]) || !guarded(i) {
			continue
		}
		for _, j := range r.Perm(len(lane)) {
			if !deletes(lane[j]) && lane[j].Fault != BrokerKill && !guarded(j) {
				return i, j
			}
		}
	}
	return -1, -1
}

func randomLatency(r *rand.Rand) string {
	return randomBetween(r, 50*time.Millisecond, 500*time.Millisecond).String()
}

func bandwidth(r *rand.Rand) string { return fmt.Sprintf("%d KB/s", 4+r.IntN(60)) }

func everyThird(r *rand.Rand) string { return fmt.Sprintf("every %d", 1+r.IntN(3)) }
