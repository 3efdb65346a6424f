package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// CountLimit is up to how many messages of a kind [Stats] count. A number that
// reaches it says "at least so many". It bounds what a look at an outbox costs:
// counting a million messages would take the database a third of a second each time.
const CountLimit = 100_000

// Stats describe an outbox. They are read from the database, so that any process
// sees the same, whichever has the active [Relay].
type Stats struct {
	Stored  int           // committed, to be published next; the numbers of messages are exact below [CountLimit]
	Oldest  time.Duration // age of the oldest of them; 0 if there is none
	Delayed int           // not due yet, or just so
	Waiting int           // behind a held message of their ordering key, or because their topic stalls
	Refused int           // refused by the broker, backing off
	Dead    int           // refused until the attempts were used up; a person is needed

	Holder string // the active relay: host, process, and a random part; empty: there is none
	Epoch  int64  // how often the active relay has changed

	Leaves map[string]int64 // bytes of each table of the log, with indexes

	// OldestWriter is how long the oldest transaction is open that has written
	// anything in this database, and WriterPID its server process. Messages of
	// such a transaction are published when it commits; as long as it is open,
	// the tables that it has written to cannot be emptied.
	OldestWriter time.Duration
	WriterPID    int
}

// ReadStats reads the stats of the outbox in schema, by default sagamill. It is
// for who has no [Relay].
func ReadStats(ctx context.Context, db *pgxpool.Pool, schema string) (Stats, error) {
	schema = cmp.Or(schema, sqlschema.Default)
	if err := sqlschema.Check(schema); err != nil {
		return Stats{}, fmt.Errorf("outbox: %w", err)
	}
	return (&Relay{db: db, sql: newQueries(schema)}).Stats(ctx)
}

// Stats reads them.
func (r *Relay) Stats(ctx context.Context) (s Stats, err error) {
	err = pgx.BeginTxFunc(ctx, r.db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, r.sql.readRelay).Scan(&s.Epoch, &s.Holder); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, r.sql.planByIndex); err != nil {
			return err
		}
		if err := r.countStored(ctx, tx, &s); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, r.sql.countHeld, CountLimit).Scan(&s.Delayed, &s.Waiting, &s.Refused, &s.Dead); err != nil {
			return err
		}
		return r.readSizes(ctx, tx, &s)
	})
	if err != nil {
		return Stats{}, fmt.Errorf("outbox: read stats: %w", sqlschema.Explain(err))
	}
	return s, nil
}

func (r *Relay) countStored(ctx context.Context, tx pgx.Tx, s *Stats) error {
	var age float64
	defer func() { s.Oldest = time.Duration(age * float64(time.Second)) }()
	at, _, err := r.readCursor(ctx, tx)
	if err != nil {
		return err
	}
	newest := at.from
	if at.to != nil {
		newest = *at.to
	}
	return tx.QueryRow(ctx, r.sql.countDifference, newest.xmaxText(), newest.xip, at.from.xmaxText(), at.from.xip,
		at.toText(), at.last, CountLimit).Scan(&s.Stored, &age)
}

func (r *Relay) readSizes(ctx context.Context, tx pgx.Tx, s *Stats) error {
	var sizes []int64
	if err := tx.QueryRow(ctx, r.sql.leafSizes).Scan(&sizes); err != nil {
		return err
	}
	s.Leaves = make(map[string]int64, len(leaves))
	for i, size := range sizes {
		s.Leaves[leaves[i]] = size
	}
	var age float64
	err := tx.QueryRow(ctx, r.sql.oldestWriter).Scan(&age, &s.WriterPID)
	s.OldestWriter = time.Duration(age * float64(time.Second))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// Counters are what one [Relay] has done since it was made.
type Counters struct {
	Active      bool   // it is the active one
	Published   uint64 // messages confirmed and not returned
	Refused     uint64 // refusals
	Dead        uint64 // messages that became dead letters
	Queued      uint64 // messages that were held behind a refused or deferred one
	Deferred    uint64 // times that a message was kept aside because its topic took none
	Stalled     int    // topics that this relay keeps aside now; 0 after a start, until it has tried them
	Unavailable uint64 // calls of the Publisher without an answer for some message

	// Confirm is how long calls of the Publisher took: until every message of the
	// call was confirmed or refused, or it was given up.
	Confirm Latency
}

// A Latency is how long something took, as a histogram. Its bounds are 1, 2.5, 5,
// 10, 25, 50, 100, 250 and 500 ms, 1, 2.5, 5, 10 and 30 s.
type Latency struct {
	Buckets []Bucket
	Count   uint64 // of all, those above the largest bound too
	Sum     time.Duration
}

// A Bucket counts what took AtMost so long, what is in the buckets before it
// included.
type Bucket struct {
	AtMost time.Duration
	Count  uint64
}

// Counters reads them without asking the database. It takes no lock that a relay
// at work could wait for.
func (r *Relay) Counters() Counters {
	c := &r.counters
	return Counters{
		Active: c.leads.Load(), Published: c.published.Load(), Refused: c.refused.Load(), Dead: c.dead.Load(),
		Queued: c.queued.Load(), Deferred: c.deferred.Load(), Stalled: len(r.topics.stalledNames()),
		Unavailable: c.unavailable.Load(), Confirm: c.latency(),
	}
}
