package saga

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/limitedread"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// Status is where an instance is, for those who look for instances.
type Status string

// The statuses. The last two are final.
const (
	StatusRunning      Status = Status(sagarow.Running)
	StatusCompensating Status = Status(sagarow.Compensating)
	StatusPaused       Status = Status(sagarow.Paused) // by a person, until a person resumes it
	StatusStuck        Status = Status(sagarow.Stuck)  // a person must act
	StatusCompleted    Status = Status(sagarow.Completed)
	StatusCompensated  Status = Status(sagarow.Compensated)
)

// ErrNoInstance reports that there is no instance of that scope and key.
var ErrNoInstance = sagarow.ErrNoInstance

// counters are the numbers of an Orchestrator.
type counters struct{ completed, compensated, stuck, late atomic.Uint64 }

// Counters are what an Orchestrator has done since it was made. A transaction that was repeated counts twice.
type Counters struct {
	Completed, Compensated uint64 // instances that have ended so
	Stuck                  uint64 // times that an instance became stuck
	Late                   uint64 // replies for which no step waited
}

// Counters returns them. It is cheap, and may be called at any time.
func (o *Orchestrator) Counters() Counters {
	return Counters{o.counters.completed.Load(), o.counters.compensated.Load(), o.counters.stuck.Load(), o.counters.late.Load()}
}

// Stats describe the live instances of a schema, nested ones too, whichever orchestrator runs them. They are read from
// the database, so every process sees the same. At most [outbox.CountLimit] instances are counted, in the order of
// names and versions: if the numbers add up to that, there may be more.
type Stats struct {
	Running, Compensating int
	Paused                int // by a person, until a person resumes it
	Stuck                 int // a person must act

	// Held are those of the running ones that wait for a person at a participant: [consumer.Park] has made a dead letter
	// of their command.
	Held int

	// OldestStuck is how long the stuck instance that moved least recently has waited for a person. 0 if none is
	// stuck. OldestPaused is the same for a paused one.
	OldestStuck, OldestPaused time.Duration

	// Silent is how long nothing has happened to the running or compensating instance that moved least recently. 0 if
	// there is none.
	Silent time.Duration

	// Overdue is how long the instance that is due first has been due. If it grows, all orchestrators are busy, or
	// none runs that knows the version. 0 if none is due. It covers all instances, however many there are.
	Overdue time.Duration
}

// sqlReadByIndex makes a transaction's statements read rows by an index, in its order, whatever the planner believes
// about the table: only then does a limit bound the rows that are read. The settings end with the transaction.
const sqlReadByIndex = `
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true)`

// sqlReadStats counts live instances by status. It takes no lock. Its order is that of the index of live instances, so
// the limit ($1) bounds the rows that are read. A running instance has a reason while it is held, or after a failed try.
const sqlReadStats = `
WITH live AS (
	SELECT status, updated_at, status = 'running' AND reason <> '' AND tries = 0 AS held
	FROM {schema}.saga WHERE ended_at IS NULL ORDER BY name, version LIMIT $1
), counted AS (
	SELECT count(*) FILTER (WHERE status = 'running') AS running, count(*) FILTER (WHERE status = 'compensating') AS compensating,
		count(*) FILTER (WHERE status = 'paused') AS paused, count(*) FILTER (WHERE status = 'stuck') AS stuck,
		count(*) FILTER (WHERE held) AS held,
		min(updated_at) FILTER (WHERE status = 'stuck') AS stuck_since, min(updated_at) FILTER (WHERE status = 'paused') AS paused_since,
		min(updated_at) FILTER (WHERE status IN ('running', 'compensating')) AS silent_since
	FROM live
)
SELECT running, compensating, paused, stuck, held,
	coalesce(extract(epoch FROM clock_timestamp() - stuck_since) * 1000000, 0)::bigint,
	coalesce(extract(epoch FROM clock_timestamp() - paused_since) * 1000000, 0)::bigint,
	coalesce(extract(epoch FROM clock_timestamp() - silent_since) * 1000000, 0)::bigint,
	coalesce(extract(epoch FROM clock_timestamp() - (SELECT min(due_at) FROM {schema}.saga WHERE due_at < 'infinity')) * 1000000, 0)::bigint
FROM counted`

// ReadStats reads the Stats of schema, by default sagamill. It needs no [Orchestrator].
func ReadStats(ctx context.Context, db *pgxpool.Pool, schema string) (Stats, error) {
	schema = cmp.Or(schema, sqlschema.Default)
	if err := sqlschema.Check(schema); err != nil {
		return Stats{}, fmt.Errorf("saga: %w", err)
	}
	return countLive(ctx, db, sqlschema.Bind(schema, sqlReadStats))
}

// Stats reads them, as of one instant. With 100,000 live instances it takes the database about a tenth of a second.
func (o *Orchestrator) Stats(ctx context.Context) (Stats, error) {
	return countLive(ctx, o.db, o.sql.readStats)
}

func countLive(ctx context.Context, db *pgxpool.Pool, statement string) (s Stats, err error) {
	var stuck, paused, silent, due int64
	err = pgx.BeginTxFunc(ctx, db, limitedread.Begin(ctx, ""), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlReadByIndex); err != nil {
			return err
		}
		return tx.QueryRow(ctx, statement, pgx.QueryExecModeCacheDescribe, outbox.CountLimit).
			Scan(&s.Running, &s.Compensating, &s.Paused, &s.Stuck, &s.Held, &stuck, &paused, &silent, &due)
	})
	if err != nil {
		return Stats{}, fmt.Errorf("saga: read stats: %w", sqlschema.Explain(err))
	}
	age := func(microseconds int64) time.Duration { return max(time.Duration(microseconds)*time.Microsecond, 0) }
	s.OldestStuck, s.OldestPaused, s.Silent, s.Overdue = age(stuck), age(paused), age(silent), age(due)
	return s, nil
}

// An Address names an instance within a schema.
type Address struct {
	Scope string // may be left out if only one scope uses the key
	Key   string

	// Path says where the instance is nested: the n of its step in the saga around it. The path of
	// the outermost instance is "", or a dot and the incarnation of the request that began it. It
	// may be left out for the outermost instance of a key that was used once.
	Path string
}

// String returns the address for people.
func (a Address) String() string {
	s := a.Key
	if a.Scope != "" {
		s = a.Scope + "/" + s
	}
	switch a.Path {
	case "":
		return s
	case flow.Root(a.Path):
		return s + ", path " + a.Path
	}
	return s + ", nested at " + a.Path
}
