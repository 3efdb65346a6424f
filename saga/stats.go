package saga

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// Stats describe the live instances of a schema, nested ones too, whichever orchestrator
// runs them. They are read from the database, so that every process sees the same.
// [outbox.CountLimit] instances are looked at and no more: if the numbers come to that in
// all, there may be others, of definitions that are behind those by name and version.
type Stats struct {
	Running, Compensating int
	Paused                int // by a person, until a person resumes it
	Stuck                 int // a person must look at it

	// OldestStuck is for how long nothing has happened to a stuck instance, of the one
	// for which that is longest: for how long it has waited for a person. 0 if none is stuck.
	OldestStuck time.Duration

	// Overdue is for how long the instance that an orchestrator is to look at next has been
	// due: all of them are busy, or none runs that knows its version. 0 if none is due. It is of
	// all instances, however many there are.
	Overdue time.Duration
}

// sqlReadByIndex lets a transaction's statements find rows by an index, in its order, whatever the
// planner believes about the table: only so does a limit bound what is read. The settings end with the transaction.
const sqlReadByIndex = `
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true)`

// sqlReadStats counts live instances by status. It takes no lock. They come in the order of
// the index that has no others, so that the limit ($1) bounds what is read.
const sqlReadStats = `
WITH live AS (
	SELECT status, updated_at FROM {schema}.saga WHERE ended_at IS NULL ORDER BY name, version LIMIT $1
)
SELECT count(*) FILTER (WHERE status = 'running'), count(*) FILTER (WHERE status = 'compensating'),
	count(*) FILTER (WHERE status = 'paused'), count(*) FILTER (WHERE status = 'stuck'),
	coalesce(extract(epoch FROM clock_timestamp() - min(updated_at) FILTER (WHERE status = 'stuck')) * 1000000, 0)::bigint,
	coalesce(extract(epoch FROM clock_timestamp() - (SELECT min(due_at) FROM {schema}.saga)) * 1000000, 0)::bigint
FROM live`

// Stats reads them. They are of one instant. Where 100,000 are looked at this takes the database about
// a tenth of a second.
func (o *Orchestrator) Stats(ctx context.Context) (s Stats, err error) {
	var oldest, due int64
	err = pgx.BeginTxFunc(ctx, o.db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, o.sql.readByIndex); err != nil {
			return err
		}
		return tx.QueryRow(ctx, o.sql.readStats, planned, outbox.CountLimit).Scan(&s.Running, &s.Compensating, &s.Paused, &s.Stuck, &oldest, &due)
	})
	if err != nil {
		return Stats{}, fmt.Errorf("saga: read stats: %w", sqlschema.Explain(err))
	}
	s.OldestStuck = max(time.Duration(oldest)*time.Microsecond, 0)
	s.Overdue = max(time.Duration(due)*time.Microsecond, 0)
	return s, nil
}
