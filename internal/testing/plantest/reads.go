package plantest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// patience is how long [Sessions] waits for the server to end a session.
const patience = time.Minute

// Sessions returns a pool of new sessions where pool has its own. Its statements are planned while they are executed for
// the first time, so it shows the plans that a service has. read ends the sessions, and returns how many rows of a table
// they have read. Other sessions on the server must have read few: a session reports what it has read now and then, and at
// its end.
func Sessions(t testing.TB, pool *pgxpool.Pool, schema string) (own *pgxpool.Pool, read func(table string) int) {
	t.Helper()
	config := pool.Config()
	config.ConnConfig.RuntimeParams["application_name"] = schema
	own, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return own, func(table string) (rows int) {
		t.Helper()
		own.Close()
		awaitEnd(t, pool, schema)
		const reads = `SELECT sum(read)::int FROM (
			SELECT seq_tup_read + n_tup_upd FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = $2
			UNION ALL
			SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = $1 AND relname = $2) r (read)`
		if err := pool.QueryRow(t.Context(), reads, schema, table).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
}

// awaitEnd returns when no session has a name.
func awaitEnd(t testing.TB, pool *pgxpool.Pool, name string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < patience; <-tick.C {
		var n int
		err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", name).Scan(&n)
		if err == nil && n == 0 {
			return
		}
	}
	t.Fatal("the sessions have not ended")
}
