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
	"github.com/sagamill/sagamill/internal/pg"
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
// the database, so every process sees the same. At most [outbox.CountLimit] instances of each status are looked at, those
// that began first: if a number is that, there may be more.
type Stats struct {
	Running, Compensating int
	Paused                int // by a person, until a person resumes it
	Stuck                 int // a person must act

	// Held counts the running instances held by a dead letter at a participant: the command of a step failed for good, or
	// [consumer.Park] asks for an operator.
	Held int

	// OldestStuck is how long the stuck instance that moved least recently has waited for a person. 0 if none is
	// stuck. OldestPaused is the same for a paused one, and OldestHeld for a held one.
	OldestStuck, OldestPaused, OldestHeld time.Duration

	// Silent is how long nothing has happened to the running or compensating instance that moved least recently. 0 if
	// there is none. As the two above, it may miss an instance that began by a clock that was more than 2 minutes ahead of the
	// database's.
	Silent time.Duration

	// Overdue is how long the instance that is due first has been due. If it grows, all orchestrators are busy, or
	// none runs that knows the version. 0 if none is due. It covers all instances, however many there are.
	Overdue time.Duration
}

// sqlReadStats counts the live instances of each status, and says in microseconds how long the one that moved least
// recently has not moved. Then come the same of those that are held, and how long the earliest due instance has been
// due. It takes no lock.
//
// Only one index has the order of each list, so the limit ($1) bounds what is read. The counts read the index, and only
// the pages that have changed since the last vacuum. For the oldest move, few rows are read: an instance begins before it
// moves. Its id says in milliseconds when it began, by a clock that may be wrong by two minutes. So the oldest move of the
// first 100 bounds when an instance with an older move can have begun.
const sqlReadStats = `
SELECT s.status, counted.instances, ` + sqlMovedAgo + `
FROM (VALUES ('running'), ('compensating'), ('paused'), ('stuck')) s (status)
CROSS JOIN LATERAL (SELECT count(*) AS instances FROM (
	SELECT FROM {schema}.saga WHERE ended_at IS NULL AND status = s.status ORDER BY id LIMIT $1) live) counted
CROSS JOIN LATERAL (SELECT min(updated_at) AS moved FROM (
	SELECT updated_at FROM {schema}.saga WHERE ended_at IS NULL AND status = s.status ORDER BY id LIMIT 100) live) early
CROSS JOIN LATERAL (SELECT min(updated_at) AS moved FROM (
	SELECT updated_at FROM {schema}.saga WHERE ended_at IS NULL AND status = s.status AND id <= ` + sqlLastBegun + `
	ORDER BY id LIMIT $1) live) others
UNION ALL
SELECT 'held', counted.instances, ` + sqlMovedAgo + `
FROM (SELECT count(*) AS instances FROM (
	SELECT FROM {schema}.saga WHERE ` + sqlIsHeld + ` ORDER BY root LIMIT $1) held) counted
CROSS JOIN LATERAL (SELECT min(updated_at) AS moved FROM (
	SELECT updated_at FROM {schema}.saga WHERE ` + sqlIsHeld + ` ORDER BY root LIMIT 100) held) early
CROSS JOIN LATERAL (SELECT min(updated_at) AS moved FROM (
	SELECT updated_at FROM {schema}.saga WHERE ` + sqlIsHeld + ` AND root <= ` + sqlLastBegun + `
	ORDER BY root LIMIT $1) held) others
UNION ALL
SELECT 'due', 0, coalesce(extract(epoch FROM clock_timestamp() - min(due_at)) * 1000000, 0)::bigint
FROM {schema}.saga WHERE due_at < 'infinity'`

// Parts of sqlReadStats.
const (
	sqlMovedAgo  = `coalesce(extract(epoch FROM clock_timestamp() - least(early.moved, others.moved)) * 1000000, 0)::bigint`
	sqlLastBegun = `(lpad(to_hex((extract(epoch FROM early.moved + interval '2 minutes') * 1000)::bigint), 12, '0') || repeat('f', 20))::uuid`
	sqlIsHeld    = `ended_at IS NULL AND status = 'running' AND reason <> '' AND tries = 0` // the index saga_held
)

// ReadStats reads the Stats of schema, by default sagamill. It needs no [Orchestrator].
func ReadStats(ctx context.Context, db *pgxpool.Pool, schema string) (Stats, error) {
	schema = cmp.Or(schema, sqlschema.Default)
	if err := sqlschema.Check(schema); err != nil {
		return Stats{}, fmt.Errorf("saga: %w", err)
	}
	return countLive(ctx, pg.NewOwn(db), sqlschema.Bind(schema, sqlReadStats))
}

// Stats reads them, as of one instant. With 100,000 live instances it takes the database about 20 ms. If most of them
// began long ago and still move often, it reads the rows of all of them, which takes about a tenth of a second.
func (o *Orchestrator) Stats(ctx context.Context) (Stats, error) {
	return countLive(ctx, o.db, o.sql.readStats)
}

func countLive(ctx context.Context, db pg.Own, statement string) (s Stats, err error) {
	err = db.InTx(ctx, pg.BeginLimitedRead(ctx, ""), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, pg.PlanByIndex); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, statement, pgx.QueryExecModeCacheDescribe, outbox.CountLimit)
		var status Status
		var count int
		var age int64
		_, err := pgx.ForEachRow(rows, []any{&status, &count, &age}, func() error {
			s.add(status, count, max(time.Duration(age)*time.Microsecond, 0))
			return nil
		})
		return err
	})
	if err != nil {
		return Stats{}, fmt.Errorf("saga: read stats: %w", sqlschema.Explain(err))
	}
	return s, nil
}

// add adds a row of sqlReadStats.
func (s *Stats) add(status Status, count int, age time.Duration) {
	switch status {
	case StatusRunning:
		s.Running, s.Silent = count, max(s.Silent, age)
	case StatusCompensating:
		s.Compensating, s.Silent = count, max(s.Silent, age)
	case StatusPaused:
		s.Paused, s.OldestPaused = count, age
	case StatusStuck:
		s.Stuck, s.OldestStuck = count, age
	case "held":
		s.Held, s.OldestHeld = count, age
	case "due":
		s.Overdue = age
	}
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
