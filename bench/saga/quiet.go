package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/proctime"
	"github.com/sagamill/sagamill/bench/internal/target"
)

// quietSettings configure a server for loads that services really have. Statements are counted by its extension
// pg_stat_statements.
var quietSettings = []string{
	"shared_buffers=1GB", "max_wal_size=4GB", "checkpoint_timeout=1h", "max_connections=400",
	"shared_preload_libraries=pg_stat_statements",
}

const (
	quietPart  = "quiet"
	quietSlice = 5 * time.Second
	idleLength = 10 * time.Second
	idleWarm   = 2 * time.Second // in which polls back off
)

// quietRates are the loads in sagas a second. 0: one at a time.
var quietRates = []float64{0, 10, 60, 150}

// An effort is what sagas have cost a server of PostgreSQL so far, and the processors.
type effort struct {
	statements, writes, logged int64
	used                       proctime.Usage
}

// readEffort reads the counters of the server.
func (p *place) readEffort(ctx context.Context) (e effort, err error) {
	err = p.all.QueryRow(ctx, `
		SELECT (SELECT coalesce(sum(calls), 0)::bigint FROM public.pg_stat_statements), pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
			(pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&e.statements, &e.writes, &e.logged)
	e.used = proctime.ReadUsage()
	return e, err
}

func (e effort) since(before effort) effort {
	return effort{e.statements - before.statements - 1, e.writes - before.writes, e.logged - before.logged, e.used.UsedSince(before.used)}
}

// total is the processor time of all parties.
func (e effort) total() time.Duration { return e.used.Client + e.used.Database + e.used.Broker }

// measureQuiet measures what a saga costs, and how long it takes, at loads that are far from the capacity. It also
// measures services without any load.
func (b *bench) measureQuiet(ctx context.Context, _ *private.Server, subjects []*subject) error {
	for _, s := range subjects {
		if _, err := s.all.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements SCHEMA public"); err != nil {
			return err
		}
		if err := s.measureIdle(ctx); err != nil {
			return err
		}
		if err := s.measureCapacity(ctx, b.slice); err != nil {
			return err
		}
	}
	for _, s := range subjects {
		for _, rate := range quietRates {
			if err := s.measureQuietRate(ctx, rate); err != nil {
				return err
			}
		}
		if err := s.measureQuietRate(ctx, latencyLoad*target.MedianOf(s.rates)); err != nil {
			return err
		}
		o, err := s.measureSlice(ctx, s.sagas, s.inFlight, offerSaturating)
		if err != nil {
			return err
		}
		fmt.Printf("quiet %-6s %-20s saturated %.0f/s: %s\n", s.server.Name, s.name, o.sagaRate(), o)
	}
	return nil
}

// measureIdle prints what the services ask of the server without any saga.
func (s *subject) measureIdle(ctx context.Context) (err error) {
	l := newLedger(1, 1)
	if err := errors.Join(s.way.clearSagas(ctx), s.purgeQueues()); err != nil {
		return err
	}
	stop, err := s.way.runServices(ctx, l.completed, l.reportFailure)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := s.runFirst(ctx, l); err != nil {
		return err
	}
	time.Sleep(idleWarm)
	before, err := s.readEffort(ctx)
	if err != nil {
		return err
	}
	time.Sleep(idleLength)
	after, err := s.readEffort(ctx)
	if err != nil {
		return err
	}
	e := after.since(before)
	seconds := idleLength.Seconds()
	fmt.Printf("quiet %-6s %-20s idle: %.1f statements/s, %.1f writing transactions/s; processor %%: client %.2f, database %.2f, broker %.2f\n", s.server.Name, s.name,
		float64(e.statements)/seconds, float64(e.writes)/seconds, 100*e.used.Client.Seconds()/seconds, 100*e.used.Database.Seconds()/seconds, 100*e.used.Broker.Seconds()/seconds)
	return nil
}

// measureQuietRate prints the cost of a saga at a rate.
func (s *subject) measureQuietRate(ctx context.Context, rate float64) error {
	n, inFlight, offer, what := 300, 1, load(offerSaturating), "one at a time"
	if rate > 0 {
		n, inFlight, offer = max(int(rate*quietSlice.Seconds()), 50), latencyInFlight, offerPaced(rate)
		what = fmt.Sprintf("at %.0f/s", rate)
	}
	var before, after effort
	counted := func(ctx context.Context, w way, l *ledger, n int) (err error) {
		if before, err = s.readEffort(ctx); err != nil {
			return err
		}
		if err = offer(ctx, w, l, n); err == nil {
			err = l.waitUntilDone(ctx)
		}
		if err == nil {
			after, err = s.readEffort(ctx)
		}
		return err
	}
	o, err := s.measureSlice(ctx, n, inFlight, counted)
	if err != nil {
		return err
	}
	e, each := after.since(before), float64(n)
	steady := o.each[int(latencyWarm*float64(len(o.each))):]
	at := func(p float64) float64 { return target.Milliseconds(target.Percentile(steady, p)) }
	fmt.Printf("quiet %-6s %-20s %-14s p50 %5.1f p99 %5.1f ms; %4.1f statements, %4.1f writes, %5.1f kB of log; processor µs %6.0f: client %.0f, database %.0f, broker %.0f\n",
		s.server.Name, s.name, what, at(0.5), at(0.99), float64(e.statements)/each, float64(e.writes)/each, float64(e.logged)/each/1000,
		float64(e.total().Microseconds())/each, float64(e.used.Client.Microseconds())/each, float64(e.used.Database.Microseconds())/each, float64(e.used.Broker.Microseconds())/each)
	return nil
}
