package main

import (
	"context"
	"time"

	"github.com/sagamill/sagamill/bench/internal/proctime"
)

// An effort is what the sagas of a place have cost so far: processor time, and work of its server and connections.
type effort struct {
	statements   int64 // of the server, by any client, without those that read efforts; 0 without pg_stat_statements
	writes       int64 // transactions and subtransactions of the server that wrote
	logged       int64 // bytes in the server's write-ahead log
	trips        int64 // round trips of the place's connections
	transactions int64 // that have ended on the place's connections, also those that only read
	used         proctime.Usage
}

// readEffort reads the counters.
func (p *place) readEffort(ctx context.Context) (e effort, err error) {
	statements := "0"
	if p.counting {
		statements = "(SELECT coalesce(sum(calls), 0)::bigint FROM public.pg_stat_statements)"
	}
	err = p.all.QueryRow(ctx, `
		SELECT `+statements+`, pg_snapshot_xmax(pg_current_snapshot())::text::bigint, (pg_current_wal_insert_lsn() - '0/0')::bigint`,
	).Scan(&e.statements, &e.writes, &e.logged)
	if p.counting {
		e.statements -= p.reads
	}
	p.reads++
	e.trips, e.transactions = p.count.Trips.Load(), p.count.Transactions.Load()
	e.used = proctime.ReadUsage()
	return e, err
}

// countStatements makes the server count statements, for which its settings must load pg_stat_statements.
func (p *place) countStatements(ctx context.Context) error {
	_, err := p.all.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements SCHEMA public")
	p.counting = err == nil
	return err
}

// subtractEffort returns e without before.
func (e effort) subtractEffort(before effort) effort {
	return effort{
		e.statements - before.statements, e.writes - before.writes, e.logged - before.logged, e.trips - before.trips,
		e.transactions - before.transactions, e.used.UsedSince(before.used),
	}
}

func (e effort) addEffort(f effort) effort {
	return effort{
		e.statements + f.statements, e.writes + f.writes, e.logged + f.logged, e.trips + f.trips,
		e.transactions + f.transactions, e.used.AddUsage(f.used),
	}
}

// total is the processor time of all parties.
func (e effort) total() time.Duration { return e.used.Client + e.used.Database + e.used.Broker }
