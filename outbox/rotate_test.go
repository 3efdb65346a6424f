package outbox

import (
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
