package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

const (
	// batchSize is the number of letters that one transaction changes. It bounds how long
	// their rows, and those of their steps, are locked.
	batchSize = 500

	// batchTimeout bounds one batch.
	batchTimeout = time.Minute
)

// An engine commits batches: the changes of a verb and the row of the journal in one
// transaction each. One side has one engine, and Instances have one.
type engine struct {
	db            pg.Own
	by, why       string
	begin         string // the BEGIN statement, with a limit for an idle transaction
	beginRead     string // the BEGIN statement of a limited read; "": reads have no limit
	insertJournal string // of changes of messages; Instances have a journal of their own

	beforeCommit, afterCommit func() error // failpoints

	pause func(ctx context.Context, d time.Duration) error // between batches of a limited rate
}

// commitBatch runs change in one transaction. The journal gets a row if change returns ids:
// those of the letters that have changed.
func (e *engine) commitBatch(ctx context.Context, verb string, what map[string]string, change func(tx pgx.Tx) ([]int64, error)) error {
	return e.commitChange(ctx, func(tx pgx.Tx) error {
		ids, err := change(tx)
		if err == nil {
			err = e.writeJournal(ctx, tx, verb, what, ids)
		}
		return err
	})
}

// commitChange runs change in one transaction. If ctx ends after the change, the transaction commits all the same: else
// nobody would know whether it has, and somebody who stops a long run would count too few. After an error of COMMIT that
// does not come from the server, that is unknown.
func (e *engine) commitChange(ctx context.Context, change func(tx pgx.Tx) error) error {
	return e.db.OnConn(ctx, func(conn *pgx.Conn) error { return e.commitOn(ctx, conn, change) })
}

func (e *engine) commitOn(ctx context.Context, conn *pgx.Conn, change func(tx pgx.Tx) error) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: e.begin + "; " + pg.ShowAll + "; " + pg.SetPlanAnew})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after a COMMIT; if ctx has ended, it closes the connection
	if err = change(tx); err == nil {
		err = e.beforeCommit()
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	return e.afterCommit()
}

// A querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readLimited calls read, with the limit of [Options].ReadTimeout for each statement.
func (e *engine) readLimited(ctx context.Context, read func(db querier) error) error {
	if e.beginRead == "" {
		return read(e.db)
	}
	return e.db.InTx(ctx, pgx.TxOptions{BeginQuery: e.beginRead}, func(tx pgx.Tx) error { return read(tx) })
}

// writeJournal writes who did verb to ids, which what picked. Without ids it writes nothing.
func (e *engine) writeJournal(ctx context.Context, tx pgx.Tx, verb string, what map[string]string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, e.insertJournal, journal.Args(e.by, e.why, verb, what, ids)...); err != nil {
		return fmt.Errorf("write journal: %w", sqlschema.Explain(err))
	}
	return nil
}

// eachBatch calls do for one batch after another, each with the id behind which it begins,
// until a batch has fewer than size letters. do returns how many there were and the last id.
// So no letter is met twice, even if it fails again meanwhile.
func eachBatch(ctx context.Context, size int, do func(ctx context.Context, after int64) (n int, last int64, err error)) (total int, err error) {
	after := int64(0)
	for {
		n, last, err := runLimited(ctx, after, do)
		if err != nil {
			return total, err
		}
		if total += n; n < size {
			return total, nil
		}
		after = last
	}
}

func runLimited(ctx context.Context, after int64, do func(context.Context, int64) (int, int64, error)) (int, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	return do(ctx, after)
}

// A rate is a limit in letters per second; 0 is no limit.
type rate float64

// batchSize is the size of a batch: at a limited rate, at most the letters of a second.
func (r rate) batchSize(limit int) int {
	if r == 0 {
		return limit
	}
	return min(limit, max(1, int(r)))
}

// keepRate waits as long as n letters take at the rate r.
func (e *engine) keepRate(ctx context.Context, r rate, n int) {
	if r > 0 {
		_ = e.pause(ctx, r.timeOf(n))
	}
}

// timeOf returns how long n letters take. A rate near 0 gives the longest Duration, and none that overflows and is negative.
func (r rate) timeOf(n int) time.Duration {
	nanoseconds := float64(n) / float64(r) * float64(time.Second)
	if nanoseconds >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(nanoseconds)
}

// largest returns the largest of ids, and 0 of none.
func largest(ids []int64) int64 {
	if len(ids) == 0 {
		return 0
	}
	return slices.Max(ids)
}

// plannedAnew lets PostgreSQL plan a statement for its values each time. A generic plan would
// sort all letters for every batch.
const plannedAnew = pgx.QueryExecModeCacheDescribe

// formatAge returns d for the journal, and "" for 0.
func formatAge(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// A JournalEntry is one transaction of an operator that has changed messages. A call that
// changes many has several entries.
type JournalEntry struct {
	ID     int64
	At     time.Time
	By     string // the person, as stated in [Options]
	DBUser string // the login role, as the server reports it
	Verb   string // in the words of the command sagamill, such as "dead redrive"
	Why    string

	// What describes the choice of the messages. For a filter it is an object of texts, with the fields that
	// were set. It is empty if the messages were named by ids. For an edit it has names of headers and digests
	// of payloads.
	What json.RawMessage

	IDs []int64 // the messages that were changed, removed or replayed
}

// ReadJournal returns what operators have done to the messages of inbox and outbox in a
// schema, the newest entry first: those since then, and with an ID below before unless that is
// 0; at most limit, and at most [MaxList]. Only the owner of the tables can remove an entry.
// Decisions about sagas are in their own journal: see [Timeline].
func ReadJournal(ctx context.Context, db *pgxpool.Pool, opts *Options, since time.Time, before int64, limit int) ([]JournalEntry, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	rows, _ := pg.NewOwn(db).Query(ctx, newOutboxQueries(o.Schema).listJournal, timeOrNil(since), before, min(limit, MaxList))
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e JournalEntry, err error) {
		return e, row.Scan(&e.ID, &e.At, &e.By, &e.DBUser, &e.Verb, &e.What, &e.IDs, &e.Why)
	})
	if err != nil {
		return nil, fmt.Errorf("operator: read journal: %w", sqlschema.Explain(err))
	}
	return entries, nil
}
