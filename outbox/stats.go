package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// CountLimit is up to how many messages of a kind [Stats] count. A number that reaches it means "at
// least so many". It bounds the cost of a look at an outbox: counting a million messages would take
// the database a third of a second each time.
const CountLimit = 100_000

// Stats describe an outbox. They are read from the database, so that all processes see the same, and
// not only the one with the active [Relay].
type Stats struct {
	Stored  int           // committed, to be published next; the numbers of messages are exact below [CountLimit]
	Oldest  time.Duration // age of the oldest of them; 0 if there is none
	Delayed int           // not due yet, or just so
	Waiting int           // behind a held message of their ordering key, or because their topic stalls
	Refused int           // refused by the broker, backing off
	Dead    int           // refused until the attempts were used up; a person is needed

	// OldestDead is how long the dead letter that was refused first has waited for a person. 0 if there is none.
	OldestDead time.Duration

	Holder string // the active relay: host, process, and a random part; empty: there is none
	Epoch  int64  // how often the active relay has changed

	// LastHolder is Holder or, if no relay is active, the relay whose lease ran out because it died or hangs. Lease is
	// the time until the lease ends. If it is negative, the lease ended that long ago. After a relay has stopped and
	// given its lease back, LastHolder is "" and Lease is 0.
	LastHolder string
	Lease      time.Duration

	Leaves map[string]int64 // bytes of each table of the log, with indexes

	// SequenceBehind is by how much the sequence of ids is behind the largest id, as after a data-only restore. The next
	// relay that takes over raises the sequence before it publishes; 0 is as it should be.
	SequenceBehind int64

	// OldestWriter is the age of the oldest open transaction that has written anything in this
	// database, and WriterPID its server process. Messages of such a transaction are published
	// when it commits. While it is open, the tables that it has written to cannot be emptied.
	OldestWriter time.Duration
	WriterPID    int
}

// ReadStats reads the stats of the outbox in schema, by default sagamill. It needs no [Relay].
func ReadStats(ctx context.Context, db *pgxpool.Pool, schema string) (Stats, error) {
	schema = cmp.Or(schema, sqlschema.Default)
	if err := sqlschema.Check(schema); err != nil {
		return Stats{}, fmt.Errorf("outbox: %w", err)
	}
	return (&Relay{core: core{db: pg.NewOwn(db), sql: newQueries(schema), opts: RelayOptions{Schema: schema}}}).Stats(ctx)
}

// Stats reads the stats of the relay's outbox, from one snapshot of the database.
func (r *Relay) Stats(ctx context.Context) (s Stats, err error) {
	err = r.db.InTx(ctx, pg.BeginLimitedRead(ctx, pgx.RepeatableRead), func(tx pgx.Tx) error {
		if err := r.readHolder(ctx, tx, &s); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, pg.ReadByIndex); err != nil {
			return err
		}
		if err := r.countStored(ctx, tx, &s); err != nil {
			return err
		}
		var oldest float64
		if err := tx.QueryRow(ctx, r.sql.countHeld, CountLimit).Scan(&s.Delayed, &s.Waiting, &s.Refused, &s.Dead, &oldest); err != nil {
			return err
		}
		s.OldestDead = time.Duration(oldest * float64(time.Second))
		last, largest, err := pg.OutboxSequence.Read(ctx, tx, r.opts.Schema)
		if err != nil {
			return err
		}
		s.SequenceBehind = max(0, largest-last)
		return r.readLeafSizes(ctx, tx, &s)
	})
	if err != nil {
		return Stats{}, fmt.Errorf("outbox: read stats: %w", sqlschema.Explain(err))
	}
	return s, nil
}

// readHolder reads which relay is active, or was, and what is left of its lease.
func (r *Relay) readHolder(ctx context.Context, tx pgx.Tx, s *Stats) error {
	var left float64
	err := tx.QueryRow(ctx, r.sql.readRelay).Scan(&s.Epoch, &s.LastHolder, &left)
	if s.Lease = time.Duration(left * float64(time.Second)); s.Lease > 0 {
		s.Holder = s.LastHolder
	}
	return err
}

func (r *Relay) countStored(ctx context.Context, tx pgx.Tx, s *Stats) error {
	var age float64
	defer func() { s.Oldest = time.Duration(age * float64(time.Second)) }()
	at, _, err := r.readCheckpoint(ctx, tx)
	if err != nil {
		return err
	}
	newest := at.newestSnapshot()
	return tx.QueryRow(ctx, r.sql.countDifference, newest.xmaxText(), newest.xip, at.from.xmaxText(), at.from.xip,
		at.toText(), at.last, CountLimit).Scan(&s.Stored, &age)
}

func (r *Relay) readLeafSizes(ctx context.Context, tx pgx.Tx, s *Stats) error {
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

// Counters count what one [Relay] has done since it was made.
type Counters struct {
	Active      bool   // it is the active one
	Published   uint64 // messages confirmed and not returned
	Refused     uint64 // refusals
	Dead        uint64 // messages that became dead letters
	Queued      uint64 // messages that were held behind a refused or deferred one
	Deferred    uint64 // times that a message was kept aside because its topic took none
	Stalled     int    // topics that this relay keeps aside now; 0 after a start, until it has tried them
	Unavailable uint64 // calls of the Publisher in which some message was neither published nor refused; deferred messages count

	// Confirm is how long calls of the Publisher took: until every message of the call was confirmed
	// or refused, or the relay gave it up.
	Confirm Latency
}

// A Latency is a histogram of durations. Its bounds are 1, 2.5, 5, 10, 25, 50, 100, 250 and 500 ms,
// 1, 2.5, 5, 10 and 30 s.
type Latency struct {
	Buckets []Bucket
	Count   uint64 // of all, those above the largest bound too
	Sum     time.Duration
}

// A Bucket counts durations of AtMost so long, those in the buckets before it included.
type Bucket struct {
	AtMost time.Duration
	Count  uint64
}

// Counters reads the counters without asking the database. It takes no lock that a relay at work
// could wait for.
func (r *Relay) Counters() Counters {
	c := &r.counters
	return Counters{
		Active: c.leads.Load(), Published: c.published.Load(), Refused: c.refused.Load(), Dead: c.dead.Load(),
		Queued: c.queued.Load(), Deferred: c.deferred.Load(), Stalled: len(r.topics.stalledNames()),
		Unavailable: c.unavailable.Load(), Confirm: c.readLatency(),
	}
}

// counters are the relay's own, behind [Counters].
type counters struct {
	leads                     atomic.Bool
	published, refused        atomic.Uint64
	dead, queued, unavailable atomic.Uint64
	deferred                  atomic.Uint64
	notified                  atomic.Uint64 // notifications of messages received

	callTime atomic.Int64
	calls    [len(latencyBounds) + 1]atomic.Uint64 // by duration; the last: longer than all bounds
}

// latencyBounds are the upper bounds of the histogram of calls of the publisher.
var latencyBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
}

// countCall counts a call of the publisher that gave results after d.
func (c *counters) countCall(d time.Duration, results []error) {
	bucket := 0
	for bucket < len(latencyBounds) && d > latencyBounds[bucket] {
		bucket++
	}
	c.calls[bucket].Add(1)
	c.callTime.Add(int64(d))
	for _, err := range results {
		if err != nil && !errors.Is(err, ErrRefused) {
			c.unavailable.Add(1)
			return
		}
	}
}

// readLatency reads how long the calls took.
func (c *counters) readLatency() Latency {
	l := Latency{Buckets: make([]Bucket, len(latencyBounds)), Sum: time.Duration(c.callTime.Load())}
	for i, bound := range latencyBounds {
		l.Count += c.calls[i].Load()
		l.Buckets[i] = Bucket{AtMost: bound, Count: l.Count}
	}
	l.Count += c.calls[len(latencyBounds)].Load()
	return l
}

// countSettled counts the messages of p that were published, and those that wait.
func (c *counters) countSettled(p *page) {
	n, waiting := 0, 0
	for i := range p.items {
		switch p.items[i].outcome {
		case published:
			n++
		case queued:
			waiting++
		}
	}
	c.published.Add(uint64(n))
	c.queued.Add(uint64(waiting))
}

// sqlReadRelay reads which relay was active last, and the seconds that are left of its lease, without a lock.
const sqlReadRelay = `
SELECT epoch, holder, CASE WHEN holder <> '' THEN extract(epoch FROM lease_until - clock_timestamp()) ELSE 0 END::float8
FROM {schema}.outbox_relay`

// sqlCountDifference counts what is not published. $1 (xmax) and $2 (in progress) are of the
// newest snapshot in the cursor. If that is its to, it is $5, $3 and $4 are of its from, and the
// ids of the difference after $6 are left. $7 limits each part.
const sqlCountDifference = `
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
FROM ({leaves}) d`

// sqlCountLeaf has a part for each index condition. The parts exclude each other, and come in
// the order of transactions, so that the oldest message is among the first. Published messages
// of a difference are passed over within the index (xid, id); ORDER BY, and id + 0, keep the
// planner from taking the index on id.
const sqlCountLeaf = `
	(SELECT created_at FROM {schema}.{leaf} WHERE xid >= $1::text::xid8 LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.{leaf} WHERE xid = ANY ($2::text[]::xid8[]) LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.{leaf}
	WHERE xid >= $3::text::xid8 AND xid < pg_snapshot_xmax($5::text::pg_snapshot)
		AND id > $6 AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) ORDER BY xid, id LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.{leaf}
	WHERE xid = ANY ($4::text[]::xid8[]) AND id + 0 > $6 AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) LIMIT $7)`

// sqlCountHeld counts by state, up to $1 each. It also reads the age in seconds of the first dead letter, from the
// beginning of its index. No index has the waiting messages alone, so they are counted together with the refused ones.
// A refused message that a person has made due at infinity is never tried, and counts as waiting.
const sqlCountHeld = sqlHeldTopics + `,
refused AS MATERIALIZED (SELECT count(*) AS n FROM (
	SELECT FROM topics t, LATERAL (SELECT FROM {schema}.outbox_held
		WHERE ` + outboxsql.Retried + ` AND due_at < 'infinity' AND topic = t.topic AND state = 'refused' LIMIT $1) h
	LIMIT $1) h)
SELECT (SELECT count(*) FROM (SELECT FROM {schema}.outbox_held WHERE state = 'delayed' LIMIT $1) h),
	(SELECT count(*) FROM (
		SELECT FROM {schema}.outbox_held WHERE state IN ('refused', 'waiting') LIMIT $1 + (SELECT n FROM refused)) h) - n,
	n,
	(SELECT count(*) FROM (SELECT FROM {schema}.outbox_held WHERE state = 'dead' LIMIT $1) h),
	coalesce(extract(epoch FROM clock_timestamp() - (SELECT refused_at FROM {schema}.outbox_held
		WHERE state = 'dead' ORDER BY refused_at LIMIT 1)), 0)::float8
FROM refused`

// sqlLeafSizes reads the bytes of each leaf with its indexes.
const sqlLeafSizes = `
SELECT ARRAY[pg_total_relation_size('{schema}.outbox_0'), pg_total_relation_size('{schema}.outbox_1'),
	pg_total_relation_size('{schema}.outbox_2'), pg_total_relation_size('{schema}.outbox_other')]`

// sqlOldestWriter reads the age in seconds, and the server process, of the oldest open
// transaction that may still add messages. A role that may not see other roles' sessions sees
// its own only.
const sqlOldestWriter = `
SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8, pid
FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND datname = current_database()
ORDER BY xact_start LIMIT 1`
