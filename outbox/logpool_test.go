package outbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/outboxsql"
)

// The session in which a leader reads the log has the settings of outboxsql.PlanByIndex.
func TestTheLogIsReadInASessionThatPlansByIndex(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	own := f.relay(t, RelayOptions{}).openLogPool(t.Context())
	if own == nil {
		t.Fatal("the leader has no connection for the log")
	}
	defer own.Close()
	var want, got []string
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), outboxsql.PlanByIndex); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), sqlShowSettings).Scan(&want)
	})
	if err = errors.Join(err, own.QueryRow(t.Context(), sqlShowSettings).Scan(&got)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the session differs from the transaction in one of %q", slices.Sorted(maps.Keys(outboxsql.LogSettings)))
	}
}

// sqlShowSettings reads how statements are planned.
const sqlShowSettings = `
SELECT array_agg(name || '=' || setting ORDER BY name) FROM pg_settings WHERE category LIKE 'Query Tuning%' OR name LIKE 'jit%'`

// A leader reads the log through the service's pool if it may not, or cannot, open a session with settings.
func TestALeaderWithoutASessionForTheLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, tt := range map[string]struct {
		options RelayOptions
		before  func(context.Context, *pgx.ConnConfig) error
		after   func(context.Context, *pgx.Conn) error
	}{
		"behind a pooler": {options: RelayOptions{NoListen: true}},
		"a pooler that refuses settings": {before: func(_ context.Context, c *pgx.ConnConfig) error {
			if c.RuntimeParams["enable_seqscan"] != "" {
				return errors.New("unsupported startup parameter")
			}
			return nil
		}},
		"a pooler that drops one": {after: func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET jit = on")
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := f.pool.Config()
			config.BeforeConnect, config.AfterConnect = tt.before, tt.after
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			own := newFixtureOn(t, pool, f.schema)
			r := own.relay(t, tt.options)
			if opened := r.openLogPool(t.Context()); opened != nil {
				opened.Close()
				t.Error("the leader has a session for the log")
			}
		})
	}
}

// The relay's pool keeps the settings that it has, and its hooks run for the session of the log as well.
func TestTheSessionForTheLogLeavesThePoolAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := f.pool.Config()
	connected := make(chan bool, 10)
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		connected <- conn.Config().RuntimeParams["enable_seqscan"] == "off"
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	own := newFixtureOn(t, pool, f.schema).relay(t, RelayOptions{}).openLogPool(t.Context())
	if own == nil {
		t.Fatal("the leader has no connection for the log")
	}
	defer own.Close()
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []bool
	for len(connected) > 0 {
		got = append(got, <-connected)
	}
	if want := []bool{true, false}; !slices.Equal(got, want) {
		t.Errorf("the hook has found settings: %t; want %t, in the session of the log only", got, want)
	}
}

// A leader that loses the session for the log, and cannot open another, goes on with the service's pool.
func TestALeaderLosesTheSessionForTheLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := f.pool.Config()
	var full atomic.Bool
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		if full.Load() && c.RuntimeParams["enable_seqscan"] != "" {
			return errors.New("sorry, too many clients already")
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	l := newFixtureOn(t, pool, f.schema).leader(t, RelayOptions{})
	if l.log.own = l.openLogPool(t.Context()); l.log.own == nil {
		t.Fatal("the leader has no connection for the log")
	}
	defer l.log.closeOwn()
	f.write(t, msg("k", "1"))
	var backend int
	if err := l.log.own.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	if _, err := f.pool.Exec(t.Context(), "SELECT pg_terminate_backend($1, 10000)", backend); err != nil {
		t.Fatal(err)
	}
	failures := 0
	for ; failures < 5; failures++ {
		rows, _, err := l.log.readPage(t.Context(), l.log.newReadBatch(), maxPage, maxPageBytes)
		if err == nil {
			if len(rows) != 1 {
				t.Errorf("read %d messages, want 1", len(rows))
			}
			break
		}
	}
	if failures < 1 || failures > 2 || l.log.own != nil {
		t.Errorf("%d reads failed, and the leader has a session for the log: %t; want one or two, and none", failures, l.log.own != nil)
	}
}

// A pool closes a connection to a server that does not answer after 15 s. Neither a leader's next read nor the end of its
// tenure waits for that.
func TestALeaderDoesNotWaitForASessionThatHangs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := f.pool.Config()
	answers := make(chan struct{})
	config.BeforeClose = func(*pgx.Conn) { <-answers }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	l := newFixtureOn(t, pool, f.schema).leader(t, RelayOptions{})
	own := l.openLogPool(t.Context())
	if own == nil {
		t.Fatal("the leader has no connection for the log")
	}
	defer own.Close() // returns when the connection is closed
	defer close(answers)
	l.log.own = own
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	read := make(chan error, 1)
	go func() {
		_, _, err := l.log.readPage(ctx, l.log.newReadBatch(), maxPage, maxPageBytes)
		read <- err
	}()
	eventually(t, "the read has returned", func() bool { return len(read) > 0 })
	if err := <-read; !errors.Is(err, context.Canceled) || l.log.own != nil {
		t.Errorf("the read: %v, and the leader has a session for the log: %t; want the end of the context, and none", err, l.log.own != nil)
	}
}
