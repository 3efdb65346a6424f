package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/keysql"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A SchemaStatus is the state of one schema: its parts, and counts of what is in them. Each of Requests, Outbox, Inbox
// and Sagas is nil if the schema does not have the part, or if the part could not be read.
type SchemaStatus struct {
	migrations.Applied
	Requests *RequestStats
	Outbox   *outbox.Stats
	Inbox    *consumer.Stats
	Sagas    *saga.Stats

	Unreadable []UnreadablePart
	Hidden     string // table of which row-level security hides rows from the role; "": none
}

// An UnreadablePart is a part of a schema that could not be read.
type UnreadablePart struct {
	Part   migrations.Part
	Denied bool // the role may not read it
	Err    error
}

// RequestStats count the idempotency keys that are in progress, among the 10,000 keys that expire last.
type RequestStats struct {
	InProgress int

	// Abandoned are those whose lease is over: their process has died, or hangs. Their requests have committed nothing,
	// and a retry of the request takes the key over. OldestAbandoned is how long ago the first of these leases ended.
	Abandoned       int
	OldestAbandoned time.Duration

	// Unswept is how long ago the key expired that expired first and is still stored; 0: there is none.
	Unswept time.Duration
	// Unknown are those whose outcome is unknown, which no retry runs again: see [Keys]. It counts at most
	// [outbox.CountLimit]. OldestUnknown is how long ago the first of their leases ended.
	Unknown       int
	OldestUnknown time.Duration
}

// countedRequests is how many keys are looked at. Those in progress began last, so they are among the first.
const countedRequests = 10_000

// ErrNoSchema reports a schema without tables of this module.
var ErrNoSchema = errors.New("operator: no tables of sagamill in this schema")

// OverviewOptions change what [ReadOverview] reads. The zero value reads all.
type OverviewOptions struct {
	Schemas []string          // default: all that have tables of this module
	Parts   []migrations.Part // default: all
}

// ReadOverview reads the status of schemas in the database of db, ordered by name; opts may be nil. Its error is an
// [ErrNoSchema] if one of the named schemas has no tables of this module. A part that cannot be read does
// not hide the others: see SchemaStatus.Unreadable. The grants of PREFIX_reader, as [migrations.Roles] prints them, read all.
//
// It takes no lock and reads at most [outbox.CountLimit] rows of each kind, along an index, and fewer keys. A schema with that many rows
// takes about 0.15 s. The parts are read one after the other, not in one snapshot.
func ReadOverview(ctx context.Context, db *pgxpool.Pool, opts *OverviewOptions) ([]SchemaStatus, error) {
	o := OverviewOptions{}
	if opts != nil {
		o = *opts
	}
	applied, err := migrations.ListApplied(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("operator: read overview: %w", err)
	}
	if len(o.Schemas) > 0 {
		if applied, err = pickApplied(applied, o.Schemas); err != nil {
			return nil, err
		}
	}
	var all []SchemaStatus
	for _, a := range applied {
		s := readStatus(ctx, db, a, o.Parts)
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("operator: read overview of schema %s: %w", a.Schema, err)
		}
		all = append(all, s)
	}
	return all, nil
}

// pickApplied returns those of all that are named, in the order of the names.
func pickApplied(all []migrations.Applied, names []string) (picked []migrations.Applied, err error) {
	for _, name := range names {
		i := slices.IndexFunc(all, func(a migrations.Applied) bool { return a.Schema == name })
		if i < 0 {
			return nil, fmt.Errorf("%w: %q; has it been migrated?", ErrNoSchema, name)
		}
		picked = append(picked, all[i])
	}
	return picked, nil
}

// readStatus reads parts of one schema, or all of its parts. A missing table is an error of its part: it is being dropped, or a newer
// migration creates it.
func readStatus(ctx context.Context, db *pgxpool.Pool, a migrations.Applied, parts []migrations.Part) SchemaStatus {
	s := SchemaStatus{Applied: a}
	for _, part := range a.Parts {
		if len(parts) > 0 && !slices.Contains(parts, part) {
			continue
		}
		var err error
		switch part {
		case migrations.Idempotency:
			s.Requests, err = pointerTo(readRequests(ctx, db, a.Schema))
		case migrations.Outbox:
			s.Outbox, err = pointerTo(outbox.ReadStats(ctx, db, a.Schema))
		case migrations.Inbox:
			s.Inbox, err = pointerTo(consumer.ReadStats(ctx, db, a.Schema))
		case migrations.Saga:
			s.Sagas, err = pointerTo(saga.ReadStats(ctx, db, a.Schema))
		}
		if err != nil {
			s.Unreadable = append(s.Unreadable, UnreadablePart{part, isDenied(err), err})
		}
	}
	var hidden *pg.HiddenError
	if err := pg.CheckHidden(ctx, db, sqlschema.Bind(a.Schema, sqlFindHidden)); errors.As(err, &hidden) {
		s.Hidden = hidden.Table
	}
	return s
}

// sqlFindHidden finds a table of which row-level security hides rows from the role of the overview.
var sqlFindHidden = pg.SQLFindHidden(sqlschema.Tables...)

// pointerTo returns a pointer to stats, or nil with an error.
func pointerTo[T any](stats T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return &stats, nil
}

// isDenied reports whether PostgreSQL refused a statement because the role lacks a privilege.
func isDenied(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "42501"
}

// sqlReadRequests counts the keys in progress among the $1 that expire last, without those whose outcome is unknown, and up
// to $2 of these, by an index of the records that do not expire. It takes no lock. Both read along an index, so the limits
// bound the rows that are read.
var sqlReadRequests = `
SELECT k.*, u.*, (SELECT ` + sqlOldest("min(expires_at)") + ` FROM (
	SELECT expires_at FROM {schema}.idempotency_key WHERE expires_at < 'infinity' ORDER BY expires_at LIMIT 1) AS oldest)
FROM (
	SELECT count(*), count(*) FILTER (WHERE abandoned), ` + sqlOldest("min(lease_until)") + `
	FROM (SELECT state, lease_until, state = 1 AND lease_until <= clock_timestamp() AS abandoned, ` + keysql.IsUnknown + ` AS unknown
		FROM {schema}.idempotency_key ORDER BY expires_at DESC LIMIT $1) AS newest
	WHERE state = 1 AND NOT unknown) k,
(SELECT count(*), ` + sqlOldest("min(lease_until)") + `
	FROM (SELECT lease_until FROM {schema}.idempotency_key WHERE ` + keysql.IsUnknown + ` LIMIT $2) AS open) u`

// sqlOldest returns an expression for how many seconds ago a time was, 0 if there is none.
func sqlOldest(time string) string {
	return `greatest(coalesce(extract(epoch FROM clock_timestamp() - ` + time + `), 0), 0)::float8`
}

func readRequests(ctx context.Context, db *pgxpool.Pool, schema string) (s RequestStats, err error) {
	var oldest, unknown, unswept float64
	err = pg.NewOwn(db).InTx(ctx, pg.BeginLimitedRead(ctx, ""), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, pg.ReadByIndex); err != nil {
			return err
		}
		return tx.QueryRow(ctx, newOverviewQueries(schema).readRequests, countedRequests, outbox.CountLimit).Scan(&s.InProgress, &s.Abandoned, &oldest, &s.Unknown, &unknown, &unswept)
	})
	s.OldestUnknown = time.Duration(unknown * float64(time.Second))
	s.OldestAbandoned, s.Unswept = time.Duration(oldest*float64(time.Second)), time.Duration(unswept*float64(time.Second))
	if err != nil {
		return s, fmt.Errorf("operator: read idempotency keys: %w", sqlschema.Explain(err))
	}
	return s, nil
}

// overviewQueries are the statements of ReadOverview for a schema.
type overviewQueries struct{ readRequests string }

func newOverviewQueries(schema string) overviewQueries {
	return overviewQueries{readRequests: sqlschema.Bind(schema, sqlReadRequests)}
}

// A ProblemKind says what is wrong in a schema.
type ProblemKind string

// The kinds, in the order in which [SchemaStatus.Problems] returns them.
const (
	ProblemMigration    ProblemKind = "migration"    // migrations that this binary knows are missing in the schema
	ProblemHidden       ProblemKind = "hidden"       // row-level security hides rows of a table from the role
	ProblemGrant        ProblemKind = "grant"        // the role may not read the version or a part: the overview is incomplete
	ProblemRepair       ProblemKind = "repair"       // a part could not be read for another reason
	ProblemSweeper      ProblemKind = "sweeper"      // a key has expired for longer than a sweeper leaves it
	ProblemSequence     ProblemKind = "sequence"     // the sequence of the outbox's ids is behind its rows, and no relay raises it
	ProblemRelay        ProblemKind = "relay"        // messages are stored, and no relay is active
	ProblemBroker       ProblemKind = "broker"       // a relay is active, and the oldest message has waited for too long
	ProblemTransaction  ProblemKind = "transaction"  // a transaction that has written has been open for minutes
	ProblemRefused      ProblemKind = "refused"      // the broker refuses messages, or takes none of a topic
	ProblemOutboxDead   ProblemKind = "outbox-dead"  // dead letters that the broker refused
	ProblemConsumer     ProblemKind = "consumer"     // a parked message has been due for too long
	ProblemDead         ProblemKind = "dead"         // dead letters of steps
	ProblemOrchestrator ProblemKind = "orchestrator" // an instance has been due for too long
	ProblemStuck        ProblemKind = "saga-stuck"   // an instance is stuck
	ProblemPaused       ProblemKind = "saga-paused"  // a person has paused an instance, and nobody has resumed it
	ProblemHeld         ProblemKind = "saga-held"    // a dead letter at a participant holds up an instance
	ProblemUnknown      ProblemKind = "unknown"      // the outcome of a request is unknown, and waits for a decision
)

// How long something may wait before it is a problem: the thresholds of docs/monitoring/alerts.yml. A sweeper comes every
// five minutes by default.
const (
	sweepPatience       = time.Hour
	outboxPatience      = 30 * time.Second
	duePatience         = time.Minute
	transactionPatience = 5 * time.Minute
)

// A Problem is a condition of a schema that a person has to look at.
type Problem struct {
	Kind   ProblemKind
	Count  int           // messages, instances or keys; 0 where they are not counted. A count of [outbox.CountLimit] is a lower bound
	Oldest time.Duration // how long the first of them has waited; 0: not known
}

// Problems returns the problems of the schema, causes before their consequences. It is empty if there are none.
func (s *SchemaStatus) Problems() (all []Problem) {
	add := func(found bool, kind ProblemKind, count int, oldest time.Duration) {
		if found {
			all = append(all, Problem{kind, count, oldest})
		}
	}
	add(!s.Denied && s.Version < migrations.Newest(), ProblemMigration, 0, 0)
	denied := func(p UnreadablePart) bool { return p.Denied }
	add(s.Hidden != "", ProblemHidden, 0, 0)
	add(s.Hidden == "" && (s.Denied || slices.ContainsFunc(s.Unreadable, denied)), ProblemGrant, 0, 0)
	add(slices.ContainsFunc(s.Unreadable, func(p UnreadablePart) bool { return !p.Denied }), ProblemRepair, 0, 0)
	if r := s.Requests; r != nil {
		add(r.Unswept > sweepPatience, ProblemSweeper, 0, r.Unswept)
	}
	if o := s.Outbox; o != nil {
		add(o.SequenceBehind > 0, ProblemSequence, 0, 0)
		add(o.Stored > 0 && o.Holder == "", ProblemRelay, o.Stored, o.Oldest)
		add(o.Holder != "" && o.Oldest > outboxPatience, ProblemBroker, o.Stored, o.Oldest)
		add(o.OldestWriter > transactionPatience, ProblemTransaction, 0, o.OldestWriter)
		add(o.Refused+o.Waiting > 0, ProblemRefused, o.Refused+o.Waiting, 0)
		add(o.Dead > 0, ProblemOutboxDead, o.Dead, o.OldestDead)
	}
	if i := s.Inbox; i != nil {
		add(i.Overdue > duePatience, ProblemConsumer, i.Retrying, i.Overdue)
		add(i.Dead > 0, ProblemDead, i.Dead, oldestDead(i))
	}
	if g := s.Sagas; g != nil {
		add(g.Overdue > duePatience, ProblemOrchestrator, 0, g.Overdue)
		add(g.Stuck > 0, ProblemStuck, g.Stuck, g.OldestStuck)
		add(g.Paused > 0, ProblemPaused, g.Paused, g.OldestPaused)
		add(g.Held > 0, ProblemHeld, g.Held, g.OldestHeld)
	}
	if r := s.Requests; r != nil {
		add(r.Unknown > 0, ProblemUnknown, r.Unknown, r.OldestUnknown)
	}
	return all
}

// oldestDead returns how long ago the first of the dead letters was parked.
func oldestDead(s *consumer.Stats) (oldest time.Duration) {
	for i := range s.Parked {
		if s.Parked[i].Dead {
			oldest = max(oldest, s.Parked[i].Oldest)
		}
	}
	return oldest
}
