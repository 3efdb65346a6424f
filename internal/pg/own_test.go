package pg_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A hiddenTable is a table with one row, which row-level security hides from the role of own.
type hiddenTable struct {
	own  pg.Own
	pool *pgxpool.Pool
	role *pgtest.Outsider
	sql  func(statement string) string
}

func newHiddenTable(t *testing.T) *hiddenTable {
	t.Helper()
	pool, schema := pgtest.Schema(t, "CREATE TABLE {schema}.entry (n int PRIMARY KEY)", "INSERT INTO {schema}.entry VALUES (1)")
	role := pgtest.NewOutsider(t, pool, schema)
	role.Hide(t, "entry")
	return &hiddenTable{pg.NewOwn(role.Pool), role.Pool, role, func(s string) string { return sqlschema.Bind(schema, s) }}
}

// eachWay are the ways in which Own reads.
func (h *hiddenTable) eachWay(ctx context.Context) map[string]func() error {
	read := h.sql("SELECT n FROM {schema}.entry WHERE n = $1")
	var n int
	return map[string]func() error{
		"Exec":                    func() error { _, err := h.own.Exec(ctx, read, 1); return err },
		"QueryRow":                func() error { return h.own.QueryRow(ctx, read, 1).Scan(&n) },
		"QueryRow with an option": func() error { return h.own.QueryRow(ctx, read, pgx.QueryExecModeCacheDescribe, 1).Scan(&n) },
		"Collect":                 func() error { _, err := pg.Collect(ctx, h.own, pgx.RowTo[int], read, 1); return err },
		"Query": func() error {
			rows, _ := h.own.Query(ctx, read, pgx.QueryExecModeCacheDescribe, 1)
			_, err := pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		},
		"Send": func() error {
			b := &pgx.Batch{}
			b.Queue(read, 1)
			return h.own.Send(ctx, b)
		},
		"InTx": func() error {
			return h.own.InTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error { return tx.QueryRow(ctx, read, 1).Scan(&n) })
		},
		"InTx, limited": func() error {
			return h.own.InTx(ctx, pg.BeginLimitedRead(ctx, ""), func(tx pgx.Tx) error { return tx.QueryRow(ctx, read, 1).Scan(&n) })
		},
	}
}

// No way to read takes a hidden row for an absent one. The session's own setting is as before, for its handlers.
func TestOwnSeesWhatIsHidden(t *testing.T) {
	t.Parallel()
	h := newHiddenTable(t)
	for name, read := range h.eachWay(t.Context()) {
		if err := read(); err == nil || !strings.Contains(err.Error(), "row-level security") {
			t.Errorf("%s = %v, want an error that says that rows are hidden", name, err)
		}
	}
	for range h.pool.Config().MaxConns {
		var setting string
		if err := h.pool.QueryRow(t.Context(), "SHOW row_security").Scan(&setting); err != nil || setting != "on" {
			t.Errorf("row_security is %q afterwards, %v", setting, err)
		}
	}
	h.role.Show(t, "entry")
	for name, read := range h.eachWay(t.Context()) {
		if err := read(); err != nil {
			t.Errorf("%s of a visible row: %v", name, err)
		}
	}
}

// CheckHidden tells a hidden row from an absent one, in a transaction that must not have the setting.
func TestCheckHidden(t *testing.T) {
	t.Parallel()
	h := newHiddenTable(t)
	find := h.sql(pg.SQLFindHidden("missing", "entry"))
	var hidden *pg.HiddenError
	if err := pg.CheckHidden(t.Context(), h.pool, find); !errors.As(err, &hidden) || !errors.Is(err, pg.ErrHidden) || !strings.HasSuffix(hidden.Table, ".entry") {
		t.Errorf("hidden rows: %v", err)
	}
	h.role.Show(t, "entry")
	if err := pg.CheckHidden(t.Context(), h.pool, find); err != nil {
		t.Errorf("visible rows: %v", err)
	}
}

// A session that was opened while the database was read-only does not stay in the pool.
func TestAReadOnlySessionLeavesThePool(t *testing.T) {
	t.Parallel()
	h := newHiddenTable(t)
	h.role.Show(t, "entry")
	h.role.Exec(t, "ALTER ROLE {role} SET default_transaction_read_only = on")
	insert := h.sql("INSERT INTO {schema}.entry SELECT max(n) + 1 FROM {schema}.entry")
	b := &pgx.Batch{}
	b.Queue(insert)
	ways := map[string]func() error{
		"Exec":       func() error { _, err := h.own.Exec(t.Context(), insert); return err },
		"Send":       func() error { return h.own.Send(t.Context(), b) },
		"InTx":       func() error { return h.own.InPlainTx(t.Context(), h.execIn(t, insert)) },
		"InSharedTx": func() error { return h.own.InSharedTx(t.Context(), pgx.TxOptions{}, h.execIn(t, insert)) },
	}
	for name, write := range ways {
		if err := write(); !pg.IsOfSession(err) || !pg.IsAway(err) {
			t.Errorf("%s while the database is read-only = %v, want 25006", name, err)
		}
	}
	h.role.Exec(t, "ALTER ROLE {role} RESET default_transaction_read_only")
	for name, write := range ways {
		if err := write(); err != nil {
			t.Errorf("%s afterwards = %v", name, err)
		}
	}
}

func (h *hiddenTable) execIn(t *testing.T, sql string) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), sql)
		return err
	}
}
