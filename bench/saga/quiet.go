package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/target"
)

// quietSettings configure a server for loads that services really have. Its extension pg_stat_statements can list the
// statements of a saga.
var quietSettings = []string{
	"shared_buffers=1GB", "max_wal_size=4GB", "checkpoint_timeout=1h", "max_connections=700",
	"shared_preload_libraries=pg_stat_statements",
}

const (
	quietPart  = "quiet"
	quietSlice = 5 * time.Second
	quietMin   = 50   // sagas in a slice
	aloneMax   = 1500 // sagas in a slice of sagas that run one at a time
	aloneProbe = 20   // sagas that measure how long such a saga takes
	idleLength = 10 * time.Second
	idleWarm   = 2 * time.Second // in which polls back off
)

// A quietLoad is a load of the part quiet.
type quietLoad string

const (
	loadIdle      quietLoad = "idle"
	loadAlone     quietLoad = "one at a time"
	load10        quietLoad = "10/s"
	load60        quietLoad = "60/s"
	load150       quietLoad = "150/s"
	loadHalf      quietLoad = "half"
	loadSaturated quietLoad = "saturated"
)

// quietLoads are the loads of a round, in its order. All kinds have one load before any has the next. The rate of the
// saturated slice is the one of which the last load is a half.
var quietLoads = []quietLoad{loadAlone, load10, load60, load150, loadSaturated, loadHalf}

// loadNames returns the names of all loads.
func loadNames() []string {
	names := []string{string(loadIdle)}
	for _, load := range quietLoads {
		names = append(names, string(load))
	}
	return names
}

// A cost is what one saga costs at a load. Of idle services, it is what each service costs in a second.
type cost struct {
	processor                               float64 // of all parties, in microseconds
	statements, writes, trips, transactions float64
	logged                                  float64 // kB in the write-ahead log
	p50, p99                                float64 // milliseconds
}

// costEach divides e by n sagas, or by seconds.
func costEach(e effort, n float64) cost {
	return cost{
		processor: float64(e.total().Microseconds()) / n, statements: float64(e.statements) / n, writes: float64(e.writes) / n,
		trips: float64(e.trips) / n, transactions: float64(e.transactions) / n, logged: float64(e.logged) / n / 1000,
	}
}

// measureQuiet measures what a saga costs, and how long it takes, from no load to saturation.
func (b *bench) measureQuiet(ctx context.Context, server *private.Server, subjects []*subject) error {
	for _, s := range subjects {
		s.listing = b.listing
	}
	measures := func(load quietLoad) bool { return slices.Contains(b.loads, string(load)) }
	for round := range b.rounds {
		if measures(loadIdle) {
			if err := b.measureIdleRound(ctx, subjects); err != nil {
				return err
			}
		}
		for _, s := range subjects {
			if round > 0 || !measures(loadSaturated) {
				continue
			}
			if err := s.measureCapacity(ctx, quietSlice); err != nil {
				return err
			}
			fmt.Printf("quiet %-6s %-20s is %s, %d sagas in flight\n", server.Name, s.name, s.way, s.inFlight)
		}
		for _, load := range quietLoads {
			if !measures(load) {
				continue
			}
			for _, s := range subjects {
				if err := s.measureQuietLoad(ctx, load); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// measureIdleRound measures what the services of each subject ask of the servers without any saga. What the servers
// use without services is subtracted.
func (b *bench) measureIdleRound(ctx context.Context, subjects []*subject) error {
	if len(subjects) == 0 {
		return nil
	}
	nothing, err := subjects[0].spendIdle(ctx)
	if err != nil {
		return err
	}
	for _, s := range subjects {
		e, err := s.measureIdle(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		e = e.subtractEffort(nothing)
		seconds := idleLength.Seconds() * float64(len(services))
		c, percent := costEach(e, seconds), func(d time.Duration) float64 { return d.Seconds() / seconds * 100 }
		s.costs[loadIdle] = append(s.costs[loadIdle], c)
		fmt.Printf("quiet %-6s %-20s idle, each of %d services in a second: %.1f statements, %.1f transactions, %.1f of them writing; processor %.2f %%: client %.2f, database %.2f, broker %.2f\n",
			s.server.Name, s.name, len(services), c.statements, c.transactions, c.writes, c.percent(),
			percent(e.used.Client), percent(e.used.Database), percent(e.used.Broker))
	}
	return nil
}

// percent returns the share of a processor, for a cost in a second.
func (c cost) percent() float64 { return c.processor / 1e6 * 100 }

// spendIdle returns what is spent in idleLength.
func (p *place) spendIdle(ctx context.Context) (e effort, err error) {
	before, err := p.readEffort(ctx)
	if err != nil {
		return e, err
	}
	time.Sleep(idleLength)
	after, err := p.readEffort(ctx)
	return after.subtractEffort(before), err
}

// measureIdle returns what is spent in idleLength while the services run.
func (s *subject) measureIdle(ctx context.Context) (e effort, err error) {
	l := newLedger(1, 1)
	if err := errors.Join(s.way.clearSagas(ctx), s.purgeQueues()); err != nil {
		return e, err
	}
	stop, err := s.way.runServices(ctx, l.completed, l.reportFailure)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := s.runFirst(ctx, l); err != nil {
		return e, err
	}
	time.Sleep(idleWarm)
	if err := s.beginListing(ctx); err != nil {
		return e, err
	}
	if e, err = s.spendIdle(ctx); err != nil {
		return e, err
	}
	return e, s.listStatements(ctx, idleLength.Seconds()*float64(len(services)))
}

// offerQuiet returns the number of sagas of a slice at a load, how many may be in flight, and the load.
func (s *subject) offerQuiet(ctx context.Context, at quietLoad) (n, inFlight int, offer load, err error) {
	capacity := target.MedianOf(s.rates)
	rate, ok := map[quietLoad]float64{load10: 10, load60: 60, load150: 150, loadHalf: latencyLoad * capacity}[at]
	switch {
	case ok:
		return max(int(rate*quietSlice.Seconds()), quietMin), latencyInFlight, offerPaced(rate), nil
	case at == loadSaturated:
		return s.sagas, s.inFlight, offerSaturating, nil
	}
	o, err := s.measureSlice(ctx, aloneProbe, 1, offerSaturating)
	n = min(max(int(o.sagaRate()*quietSlice.Seconds()), quietMin), aloneMax)
	return n, 1, offerSaturating, err
}

// measureQuietLoad measures the cost of a saga at a load, and prints it.
func (s *subject) measureQuietLoad(ctx context.Context, at quietLoad) error {
	n, inFlight, offer, err := s.offerQuiet(ctx, at)
	if err != nil {
		return err
	}
	o, err := s.measureSlice(ctx, n, inFlight, offer)
	if err != nil {
		return err
	}
	c, micros := costEach(o.spent, float64(n)), func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(n) }
	c.p50, c.p99 = o.percentile(0.5), o.percentile(0.99)
	if at == loadSaturated {
		s.rates = []float64{o.sagaRate()}
	}
	s.costs[at] = append(s.costs[at], c)
	fmt.Printf("quiet %-6s %-20s %-13s %6.0f/s p50 %6.1f p99 %6.1f ms; %4.1f statements, %4.1f round trips, %4.1f transactions, %4.1f writing, %4.1f kB of log; processor µs %6.0f: client %.0f, database %.0f, broker %.0f\n",
		s.server.Name, s.name, at, o.sagaRate(), c.p50, c.p99, c.statements, c.trips, c.transactions, c.writes, c.logged,
		c.processor, micros(o.spent.used.Client), micros(o.spent.used.Database), micros(o.spent.used.Broker))
	return nil
}
