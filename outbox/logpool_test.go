package outbox

import (
	"context"
	"errors"
	"maps"
	"slices"
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
		t.Errorf("the session differs from the transaction in one of %q", slices.Sorted(maps.Keys(outboxsql.PlanSettings)))
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
	if first, second := <-connected, <-connected; !first || second {
		t.Errorf("settings in the session of the log: %t, in that of the pool: %t", first, second)
	}
}
