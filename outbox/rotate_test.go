package outbox

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// leader makes a relay the active one without running it.
func (f *fixture) leader(t *testing.T, opts RelayOptions) *leader {
	t.Helper()
	opts.Lease = time.Hour
	r := f.relay(t, opts)
	tenure, err := lease{&r.core}.takeOver(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := newLeader(r, tenure, nil)
	l.prober.resumeAll = false
	return l
}

func (f *fixture) count(t *testing.T, table string) (n int) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+f.schema+"."+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A leaf is emptied while writers that commit at any moment write to it,
// whatever isolation the database has by default: had the look into the leaf an
// older snapshot than the lock on it, it would miss the last of them.
func TestALeafIsNeverEmptiedOfAnUnpublishedMessage(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			l := f.leader(t, RelayOptions{})
			f.exec(t, "ALTER TABLE {schema}.outbox ALTER COLUMN leaf DROP DEFAULT") // all to the catch-all
			l.db = pg.NewOwn(poolWith(t, func(c *pgx.ConnConfig) { c.RuntimeParams["default_transaction_isolation"] = isolation }))

			const writers, perWriter = 4, 150
			var writing sync.WaitGroup
			for range writers {
				writing.Go(func() {
					for range perWriter {
						f.write(t, msg("k", "x"))
					}
				})
			}
			done := make(chan struct{})
			go func() { writing.Wait(); close(done) }()
			for tried := 0; ; tried++ {
				select {
				case <-done:
					if got := f.count(t, "outbox"); got != writers*perWriter {
						t.Errorf("after %d attempts at emptying the leaf %d of %d messages are left", tried, got, writers*perWriter)
					}
					return
				default:
					l.space.emptyLeaf(t.Context(), len(leaves)-1, l.settler.at)
				}
			}
		})
	}
}

// A leaf is checked only after the last transaction that writes to it has ended. A transaction that commits
// during that wait keeps its message.
func TestALeafIsLookedIntoBehindItsWriters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.leader(t, RelayOptions{})
	l.sql.lockSoon = "SELECT set_config('lock_timeout', '30s', $1::text IS NOT NULL)" // there is time to commit
	f.exec(t, "ALTER TABLE {schema}.outbox ALTER COLUMN leaf DROP DEFAULT")           // all to the catch-all
	writing, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer writing.Rollback(context.WithoutCancel(t.Context()))
	if err := f.writer.Write(t.Context(), writing, msg("k", "x")); err != nil {
		t.Fatal(err)
	}
	emptied := make(chan bool, 1)
	go func() { emptied <- l.space.emptyLeaf(t.Context(), len(leaves)-1, l.settler.at) }()
	eventually(t, "the leaf is waited for", func() bool {
		var waiting bool
		err := f.pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = $1::regclass)",
			f.schema+"."+leaves[len(leaves)-1]).Scan(&waiting)
		return err == nil && waiting
	})
	if err := writing.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if <-emptied || f.count(t, "outbox") != 1 {
		t.Errorf("%d messages are left, want the one that was not published", f.count(t, "outbox"))
	}
}

// poolWith is a pool whose connections are changed.
func poolWith(t *testing.T, change func(*pgx.ConnConfig)) *pgxpool.Pool {
	t.Helper()
	config := pgtest.DirectConfig(t)
	change(config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// brisk is a relay that changes leaves with every few messages.
func (f *fixture) brisk(t *testing.T, opts RelayOptions) *Relay {
	t.Helper()
	opts.RotateBytes, opts.PollMax = 1, 10*time.Millisecond
	r := f.relay(t, opts)
	r.limits.rotate, r.limits.cursors = 5*time.Millisecond, 20
	return r
}

// empty reports whether the leaves have neither rows nor size.
func (f *fixture) empty(t *testing.T, some ...int) bool {
	t.Helper()
	for _, i := range some {
		var size int
		if err := f.pool.QueryRow(t.Context(), "SELECT pg_table_size('"+f.schema+"."+leaves[i]+"')").Scan(&size); err != nil {
			t.Fatal(err)
		}
		if size > emptyLeafSize {
			return false
		}
	}
	return true
}

// A transaction that stays open keeps the leaf that it has written to, and no
// other: messages go to the others in turns.
func TestALongWriterKeepsOneLeaf(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	open, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Rollback(t.Context()) }()
	if err := f.writer.Write(t.Context(), open, msg("open", "open")); err != nil {
		t.Fatal(err)
	}
	start(t, f.brisk(t, RelayOptions{}))
	for i := range 20 {
		f.write(t, msg("k", fmt.Sprint(i)))
		eventually(t, "the message is published and the leaves are empty", func() bool {
			return len(f.broker.payloads()) == 1+i && f.empty(t, 1, 2, 3)
		})
	}
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.write(t, msg("k", "last"))
	eventually(t, "all leaves are empty", func() bool { return len(f.broker.payloads()) == 22 && f.empty(t, 0, 1, 2, 3) })
}

// The default is an hour.
func TestPublishedMessagesAreKeptForTheRetention(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	preset, err := NewRelay(f.pool, f.broker, nil)
	if err != nil || preset.opts.Retention != time.Hour {
		t.Errorf("by default messages are kept for %s: %v", preset.opts.Retention, err)
	}
	r := f.brisk(t, RelayOptions{Retention: time.Hour})
	r.signals.rested.Enable()
	stop := start(t, r)
	for i := range 10 {
		f.write(t, msg("k", fmt.Sprint(i)))
		eventually(t, "publish", func() bool { return len(f.broker.payloads()) == 1+i })
	}
	r.signals.passed.Enable()
	for range 20 { // rounds in which leaves are looked at
		r.signals.passed.Wait(t)
	}
	stop()
	if got := f.count(t, "outbox"); got != 10 {
		t.Errorf("%d messages are kept, want 10", got)
	}
	f.exec(t, "UPDATE {schema}.outbox SET created_at = created_at - interval '1 hour'")
	start(t, f.brisk(t, RelayOptions{Retention: time.Hour}))
	eventually(t, "the old ones are gone", func() bool { return f.count(t, "outbox") == 0 })
}

// An open snapshot does not keep leaves from being emptied, and leaves no dead rows: there is no bloat.
func TestAnOpenSnapshotCausesNoBloat(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.NewSchema(t) // whose statistics are of this test alone
	f := newFixtureOn(t, pool, schema)
	snapshot, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snapshot.Rollback(t.Context()) }()
	if _, err := snapshot.Exec(t.Context(), "SELECT txid_current()"); err != nil {
		t.Fatal(err)
	}
	r := f.brisk(t, RelayOptions{Window: 10})
	r.limits.cursors = 3
	start(t, r)
	const n = 300
	for i := range n {
		f.write(t, msg(fmt.Sprint("k", i), "x"))
	}
	eventually(t, "all is published and the leaves are empty", func() bool { return len(f.broker.payloads()) == n && f.empty(t, 0, 1, 2, 3) })
	var dead, inserted, cursors int
	eventually(t, "statistics of the cursors", func() bool { // a session reports them about every second
		err := f.pool.QueryRow(t.Context(), `SELECT sum(pg_stat_get_dead_tuples(oid)), sum(pg_stat_get_tuples_inserted(oid)) FROM pg_class
			WHERE relnamespace = $1::text::regnamespace AND relname ~ '^outbox_(0|1|2|other|cursor_0|cursor_1)$'`, f.schema).Scan(&dead, &inserted)
		return err == nil && inserted > n
	})
	if dead != 0 {
		t.Errorf("%d dead tuples in the log, want none", dead)
	}
	cursors = f.count(t, "outbox_cursor_0") + f.count(t, "outbox_cursor_1")
	if cursors > 3*int(r.limits.cursors) {
		t.Errorf("%d cursors are kept, want up to twice %d", cursors, r.limits.cursors)
	}
}

// A backup locks every table for reading, as long as it takes: nothing is
// emptied, everything is published.
func TestABackupDoesNotHoldUpTheRelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	start(t, f.brisk(t, RelayOptions{}))
	f.write(t, msg("k", "0"))
	eventually(t, "publish before", func() bool { return len(f.broker.payloads()) == 1 })
	backup, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = backup.Rollback(t.Context()) }()
	tables := []string{"outbox", "outbox_held", "outbox_relay", "outbox_tenure", "outbox_cursor_0", "outbox_cursor_1"}
	for _, table := range append(tables, leaves[:]...) {
		if _, err := backup.Exec(t.Context(), "LOCK TABLE "+f.schema+"."+table+" IN ACCESS SHARE MODE"); err != nil {
			t.Fatal(err)
		}
	}
	const n = 100
	for i := range n {
		f.write(t, msg("k", fmt.Sprint(1+i)))
	}
	eventually(t, "publish meanwhile", func() bool { return len(f.broker.payloads()) == 1+n })
	if err := backup.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the leaves are emptied afterwards", func() bool { return f.empty(t, 0, 1, 2, 3) })
}

// Emptying a leaf does not wait for a transaction that uses it, because writers would wait behind it.
func TestALeafInUseIsLeftAloneAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.leader(t, RelayOptions{})
	open, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Rollback(t.Context()) }()
	for _, table := range []string{"outbox_1", "outbox_cursor_1"} {
		if _, err := open.Exec(t.Context(), "LOCK TABLE "+f.schema+"."+table+" IN ACCESS SHARE MODE"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if l.space.emptyLeaf(ctx, 1, l.settler.at) {
		t.Error("a leaf was emptied that somebody reads")
	}
	l.settler.marks = l.settler.turnAt
	if l.settler.turnCursors(ctx); l.settler.which != 0 {
		t.Error("a table of cursors was emptied that somebody reads")
	}
	if err := ctx.Err(); err != nil {
		t.Errorf("they were waited for: %v", err)
	}
}

// Leaves and tables of cursors are emptied for good with the cursor that says
// so, although that does not wait for the disk: a crash right behind brings back
// neither.
func TestACrashBehindATruncationLosesNothing(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	server := privateServer(t, "wal_writer_delay=10s", "autovacuum=off")
	f := server.fixture(t)
	r := f.brisk(t, RelayOptions{Window: 5, Lanes: 2})
	start(t, r)
	written, crashes := 0, 0
	for ; crashes < 3; crashes++ {
		stop := make(chan struct{})
		var writing sync.WaitGroup
		writing.Go(func() {
			for {
				pause := time.Duration(0)
				if written%100 == 0 && written-len(f.broker.firsts()) > 500 {
					pause = 5 * time.Millisecond // what is written faster than published takes long in the end
				}
				select {
				case <-stop:
					return
				case <-time.After(pause):
				}
				if pause > 0 {
					continue
				}
				f.write(t, msg(fmt.Sprint("k", written%7), fmt.Sprint(written)))
				written++
			}
		})
		turns := f.leaf(t)
		eventually(t, "leaves are emptied", func() bool { return f.leaf(t) > turns+3 })
		close(stop)
		writing.Wait()
		server.Crash()
		server.Start(t)
		eventually(t, "the server is back", func() bool { return f.pool.Ping(t.Context()) == nil })
	}
	eventually(t, "all is published and the leaves are empty", func() bool { return len(f.broker.firsts()) == written && f.empty(t, 0, 1, 2, 3) })
	last := map[string]int{}
	for _, p := range f.broker.firsts() {
		n, _ := strconv.Atoi(p)
		key := fmt.Sprint("k", n%7)
		if n < last[key] {
			t.Errorf("%d was published after %d", n, last[key])
		}
		last[key] = n
	}
	t.Logf("%d messages, %d published again in %d crashes", written, len(f.broker.payloads())-written, crashes)
}

// leaf returns how often leaves have changed.
func (f *fixture) leaf(t *testing.T) (n int) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), "SELECT last_value FROM "+f.schema+".outbox_leaf").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
