package pg_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// read runs a statement in a transaction that begins as ctx says. The end of ctx does not cancel it: the server has to.
func read(ctx context.Context, t *testing.T, isolation pgx.TxIsoLevel, statement string) (value string, err error) {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.URL())
	err = pgx.BeginTxFunc(t.Context(), pool, pg.BeginLimitedRead(ctx, isolation), func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), statement).Scan(&value)
	})
	return value, err
}

const sqlReadSettings = `SELECT concat_ws(', ', current_setting('transaction_isolation'), current_setting('transaction_read_only'), 'jit ' || current_setting('jit'), current_setting('max_parallel_workers_per_gather') || ' workers')`

func TestTheServerKeepsTheDeadline(t *testing.T) {
	t.Parallel()
	limited, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	var canceled *pgconn.PgError
	if _, err := read(limited, t, "", "SELECT pg_sleep(600)::text"); !errors.As(err, &canceled) || canceled.Code != "57014" {
		t.Errorf("a long statement = %v, want 57014", err)
	}
	within, cancelWithin := context.WithTimeout(t.Context(), time.Hour)
	defer cancelWithin()
	for isolation, want := range map[pgx.TxIsoLevel]string{"": "read committed, on, jit off, 0 workers", pgx.RepeatableRead: "repeatable read, on, jit off, 0 workers"} {
		for name, ctx := range map[string]context.Context{"a deadline": within, "no deadline": t.Context()} {
			if got, err := read(ctx, t, isolation, sqlReadSettings); err != nil || got != want {
				t.Errorf("with %s: %q, %v; want %q", name, got, err, want)
			}
		}
	}
	if got, err := read(within, t, "", "SHOW statement_timeout"); err != nil || got == "0" || strings.HasPrefix(got, "-") {
		t.Errorf("statement_timeout = %q, %v", got, err)
	}
}
