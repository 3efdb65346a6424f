package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/bench/internal/proctime"
)

// An effort is what the sagas of a place have cost so far: processor time, and work of its server and connections.
type effort struct {
	statements   int64 // on the connections of the place
	writes       int64 // transactions and subtransactions of the server that wrote
	logged       int64 // bytes in the server's write-ahead log
	trips        int64 // round trips of the place's connections
	transactions int64 // that have ended on the place's connections, also those that only read
	used         proctime.Usage
}

// readEffort reads the counters.
func (p *place) readEffort(ctx context.Context) (e effort, err error) {
	err = p.all.QueryRow(ctx, `
		SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, (pg_current_wal_insert_lsn() - '0/0')::bigint`,
	).Scan(&e.writes, &e.logged)
	e.statements, e.trips, e.transactions = p.count.Statements.Load(), p.count.Trips.Load(), p.count.Transactions.Load()
	e.used = proctime.ReadUsage()
	return e, err
}

// beginListing makes the server forget the statements that it has counted, if they are to be listed. Its settings must
// load pg_stat_statements.
func (p *place) beginListing(ctx context.Context) error {
	if !p.listing {
		return nil
	}
	_, err := p.all.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements SCHEMA public")
	if err == nil {
		_, err = p.all.Exec(ctx, "SELECT public.pg_stat_statements_reset()")
	}
	return err
}

// listStatements prints the statements since beginListing: for each of n, how many there were, and for how many
// microseconds the server executed them. The server does not count a prepared BEGIN, COMMIT or SAVEPOINT that is
// executed again, and counts no parsing, planning, commit or network.
func (p *place) listStatements(ctx context.Context, n float64) error {
	if !p.listing {
		return nil
	}
	rows, _ := p.all.Query(ctx, `
		SELECT calls, total_exec_time * 1000, wal_records > 0, regexp_replace(query, '\s+', ' ', 'g') FROM public.pg_stat_statements
		WHERE query NOT LIKE '%pg_stat_statements%' ORDER BY calls DESC, query`) // ForEachRow returns the error
	var calls int64
	var micros, all float64
	var logs bool
	var text string
	_, err := pgx.ForEachRow(rows, []any{&calls, &micros, &logs, &text}, func() error {
		all += micros
		if each := float64(calls) / n; each >= leastListed {
			fmt.Printf("  %6.2f  %6.1f µs  log %-5t  %s\n", each, micros/n, logs, text[:min(len(text), maxListed)])
		}
		return nil
	})
	fmt.Printf("     all  %6.1f µs\n", all/n)
	return err
}

const (
	leastListed = 0.005 // of a statement for each saga
	maxListed   = 160   // bytes of a statement
)

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
