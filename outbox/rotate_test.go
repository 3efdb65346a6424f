package outbox

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/pgtest"
)

// leader makes a relay the active one without running it.
func (f *fixture) leader(t *testing.T, opts RelayOptions) *leader {
	t.Helper()
	opts.Lease = time.Hour
	r := f.relay(t, opts)
	tenure, err := r.takeOver(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := &leader{
		r: r, tenure: tenure, done: make(chan struct{}, 1),
		reader:   logReader{db: r.db, sql: &r.sql, epoch: tenure.epoch, limit: r.limits.list, at: tenure.at},
		turnedAt: time.Now(), movedAt: time.Now(), turnAt: r.limits.cursors,
	}
	if err := l.openLanes(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
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
			l.r.db = poolWith(t, func(c *pgx.ConnConfig) { c.RuntimeParams["default_transaction_isolation"] = isolation })

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
					l.empty(t.Context(), len(leaves)-1)
				}
			}
		})
	}
}

// poolWith is a pool whose connections are changed.
func poolWith(t *testing.T, change func(*pgx.ConnConfig)) *pgxpool.Pool {
	t.Helper()
	config := pgtest.Pool(t, pgtest.URL()).Config()
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

// rows returns how many messages are in each leaf.
func (f *fixture) rows(t *testing.T) (n [len(leaves)]int) {
	t.Helper()
	for i, leaf := range leaves {
		n[i] = f.count(t, leaf)
	}
	return n
}

// empty reports whether the leaves have neither rows nor size.
func (f *fixture) empty(t *testing.T, some ...int) bool {
	t.Helper()
	for _, i := range some {
		var size int
		if err := f.pool.QueryRow(t.Context(), "SELECT pg_table_size('"+f.schema+"."+leaves[i]+"')").Scan(&size); err != nil {
			t.Fatal(err)
		}
		if size > emptyLeaf {
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
