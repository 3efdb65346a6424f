package faulttest

import (
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// sqlHolders reads the sessions, other than this one, that hold a lock in the schema
// $1, or wait for one.
const sqlHolders = `
FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid() AND a.backend_type = 'client backend' AND EXISTS (
	SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE l.pid = a.pid AND n.nspname = $1 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))`

const (
	sqlListHolders = `SELECT format('session %s, %s: %s', a.pid, a.state, left(a.query, 100))` + sqlHolders
	sqlEndIdle     = `SELECT pg_terminate_backend(a.pid)::text` + sqlHolders + ` AND a.state LIKE 'idle in transaction%' AND ($2 = '' OR a.application_name = $2)`
)

// EndIdle ends the idle sessions that hold a lock in schema, as the server does when a process hangs for
// long. It ends those of an application, or of every one if application is "". They have ended when EndIdle
// returns.
func EndIdle(t testing.TB, db *pgxpool.Pool, schema, application string) {
	t.Helper()
	Await(t, "idle sessions have ended", func() bool { return len(texts(t, db, sqlEndIdle, schema, application)) == 0 }, nil)
}

// AtRest fails the test unless, soon, no session holds a lock in schema.
func AtRest(t testing.TB, db *pgxpool.Pool, schema string) {
	t.Helper()
	var holders []string
	Await(t, "no session holds a lock", func() bool {
		holders = texts(t, db, sqlListHolders, schema)
		return len(holders) == 0
	}, func() string { return strings.Join(holders, "\n") })
}

func texts(t testing.TB, db *pgxpool.Pool, query string, args ...any) []string {
	t.Helper()
	rows, _ := db.Query(t.Context(), query, args...)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Named returns databaseURL with an application name, by which pg_stat_activity shows the sessions.
func Named(databaseURL, name string) string {
	u, err := url.Parse(databaseURL)
	if err != nil || u.Scheme == "" {
		panic("faulttest: the database's address is no URL")
	}
	q := u.Query()
	q.Set("application_name", name)
	u.RawQuery = q.Encode()
	return u.String()
}
