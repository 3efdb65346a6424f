package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/target"
)

const (
	warmSlice = 500    // messages in the round that does not count
	minSlice  = 400    // in later rounds, when the rate is known
	maxSlice  = 40_000 // limits the time for making a backlog
)

// counts are the numbers of workers, lanes or outboxes.
var counts = []int{1, 2, 4}

// A sequence is the same work done by 1, 2 and 4 workers, lanes or outboxes.
type sequence struct {
	name string
	slow bool // also measured on the slow disk
	jobs func(p *place, n, count int) []job
	// open creates the places, and prepare the data for a slice of n messages. check returns an error unless
	// each message had its effect once.
	open    func(ctx context.Context, b *bench, s *private.Server, prefix string) (*place, error)
	prepare func(ctx context.Context, p *place, n, count int) error
	check   func(ctx context.Context, p *place, n, count int) error
	goals   map[string]float64 // of the ratio of four to one, by server
	cost    float64            // goal of the ratio of the processor time for one message, four to one; 0: none

	// length is how many times as long a slice is, 0 for 1, and warm the part of it that is not counted. Each process of
	// a service begins with connections whose server processes have no plan and no catalog in memory.
	length, warm float64
}

// series are in the order of a run. A series that cannot gain has the goal of losing nothing. Lanes hide the
// time of a sync.
var series = []sequence{
	{
		name: "consumers", slow: true, jobs: consumers, open: openQueue, prepare: prepareQueue, check: checkQueue,
		goals: map[string]float64{"native": 0.8, "slow": 0.8},
	},
	{
		name: "lanes", slow: true, jobs: lanesJobs, open: openQueue, prepare: prepareQueue, check: checkQueue,
		goals: map[string]float64{"native": 0.8, "slow": 1},
	},
	{
		name: "outboxes", jobs: outboxJobs, open: openOutboxes, prepare: prepareOutboxes, check: checkOutboxes,
		goals: map[string]float64{"native": 0.8},
	},
	{name: "relay-lanes", jobs: relayLanes, open: openOutboxes, prepare: prepareOutbox, check: checkOutboxes},
	{
		name: "relay-standby", jobs: standbyJobs, open: openOutboxes, prepare: prepareOutbox, check: checkOutboxes,
		goals: map[string]float64{"native": 0.8},
	},
	{
		name: "sagas", slow: true, jobs: sagaJobs, open: openServices, prepare: prepareServices, check: checkServices,
		goals: map[string]float64{"native": 0.9, "slow": 0.9}, cost: 1.25,
		length: 7, warm: 2.0 / 7,
	},
}

// A trial is a sequence on one server.
type trial struct {
	sequence
	server *private.Server
	rates  map[int][]float64 // of the rounds
	used   map[int][]float64 // processor time for one message, of the rounds
	total  map[int]outcome
}

// measureTrial alternates the counts until there are as many rounds as wanted, or the time is over. At least
// one round counts.
func (b *bench) measureTrial(ctx context.Context, t *trial, until time.Time) error {
	p, err := t.open(ctx, b, t.server, "scale_"+fieldName(t.name))
	if err != nil {
		return err
	}
	defer p.all.Close()
	t.rates, t.used, t.total = map[int][]float64{}, map[int][]float64{}, map[int]outcome{}
	size := map[int]int{}
	for round := range b.rounds + 1 {
		begun := time.Now()
		for _, count := range counts {
			n := int(warmSlice * cmp.Or(t.length, 1))
			if round > 0 {
				n = size[count]
			}
			o, err := b.measureSlices(ctx, t, p, n, count)
			if err != nil {
				return fmt.Errorf("%d at once: %w", count, err)
			}
			size[count] = min(max(int(o.messageRate()*b.slice.Seconds()*cmp.Or(t.length, 1)), minSlice), maxSlice)
			if round > 0 { // the first warms caches up and shows the rates
				t.rates[count], t.used[count] = append(t.rates[count], o.messageRate()), append(t.used[count], o.messageCost())
				t.total[count] = t.total[count].addOutcome(o)
			}
		}
		if took := time.Since(begun); round > 0 && time.Now().Add(took).After(until) {
			return nil
		}
	}
	return nil
}

const header = `
                            rate  ratio  processor µs for one      for one                      processors busy
server series        n       /s   to 1   workers postgres rabbit   trips commits syncs  bytes   here  else`

// printSeries prints the lines of the table.
func (t *trial) printSeries() {
	for _, count := range counts {
		o := t.total[count]
		ratio, _ := target.RatioOf(t.rates[count], t.rates[1])
		n := float64(o.all)
		micros := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(o.messages) }
		here := (o.used.Client + o.used.Database + o.used.Broker).Seconds() / o.took.Seconds()
		fmt.Printf("%-6s %-13s %d %8.0f %6.2f %9.0f %8.0f %6.0f %7.2f %7.3f %5.3f %6.0f %6.2f %5.2f of %d, %d rounds\n",
			t.server.Name, t.name, count, target.MedianOf(t.rates[count]), ratio,
			micros(o.used.Client), micros(o.used.Database), micros(o.used.Broker),
			float64(o.trips)/n, float64(o.seen.commits)/n, float64(o.seen.syncs)/n, float64(o.seen.bytes)/n,
			here, max(o.busy.Seconds()/o.took.Seconds()-here, 0), runtime.NumCPU(), len(t.rates[count]))
	}
}

// seriesTargets returns the ratios that have a goal.
func (t *trial) seriesTargets() []target.Target {
	goal, ok := t.goals[t.server.Name]
	most := counts[len(counts)-1]
	value, measured := target.RatioOf(t.rates[most], t.rates[1])
	if !ok || !measured {
		return nil
	}
	name := fmt.Sprintf("scale-%s-%s-%d/1", t.server.Name, t.name, most)
	targets := []target.Target{{Name: name, Value: value, Goal: goal}}
	if cost, measured := target.RatioOf(t.used[most], t.used[1]); measured && t.cost > 0 {
		targets = append(targets, target.Target{Name: name + "-processor", Value: cost, Goal: t.cost, AtMost: true})
	}
	return targets
}
