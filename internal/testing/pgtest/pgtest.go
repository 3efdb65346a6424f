// Package pgtest gives each test a private Postgres schema in the database that DATABASE_URL names.
//
// DATABASE_URL may lead through a pooler in transaction mode, as it does in `make test-pooler`. Then
// DATABASE_DIRECT_URL leads past it. Migrations, and other work that needs a session of the server, use the
// latter, as docs/deploy.md tells users to do.
package pgtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// cleanupTimeout bounds the removal of a test's schema or database. Dropping one waits for a checkpoint of
// the server, which other tests load.
const cleanupTimeout = 2 * time.Minute

// URL returns DATABASE_URL, or the usual address of Postgres on a developer's machine.
func URL() string {
	return cmp.Or(os.Getenv("DATABASE_URL"), "postgres://postgres@127.0.0.1:5432/test?sslmode=disable")
}

// Direct returns a URL of the same database whose connections are sessions of the server: past the pooler, or
// [URL] without one. It is for the work of tests themselves: migrations, roles, settings of sessions,
// prepared statements, a look at the server's processes.
func Direct() string { return cmp.Or(os.Getenv("DATABASE_DIRECT_URL"), URL()) }

// Pooled reports whether [URL] leads through a pooler.
func Pooled() bool { return Direct() != URL() }

// Name returns a unique name for a schema, a database, a queue or a key prefix.
func Name() string { return "t_" + strings.ToLower(rand.Text()[:14]) }

// Pool opens a pool on url, to be closed when the test ends.
func Pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	return PoolOf(t, poolConfig(t, url))
}

// PoolOf opens a pool of config, to be closed when the test ends.
func PoolOf(t testing.TB, config *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("open pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func poolConfig(t testing.TB, url string) *pgxpool.Config {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("parse database URL: %v", err)
	}
	config.MaxConns = 12 // many tests run at once on a server of 100 connections
	config.ConnConfig.ConnectTimeout = 10 * time.Second
	return config
}

// DirectConfig returns the configuration of a pool on [Direct], for a test that changes settings of its
// connections: a pooler refuses those.
func DirectConfig(t testing.TB) *pgxpool.Config {
	t.Helper()
	return poolConfig(t, Direct())
}

// ModeConfig returns the configuration of a pool whose connections use the exec mode mode. Some modes rely on
// prepared statements of earlier transactions. Such a pool leads past a pooler: it would not work behind one,
// and would disturb other clients there.
func ModeConfig(t testing.TB, mode pgx.QueryExecMode) *pgxpool.Config {
	t.Helper()
	config := poolConfig(t, URL())
	if mode == pgx.QueryExecModeCacheStatement || mode == pgx.QueryExecModeDescribeExec {
		config = DirectConfig(t)
	}
	config.ConnConfig.DefaultQueryExecMode = mode
	return config
}

// Database creates a database that is dropped when the test ends, for code
// that does not let the schema be chosen, and returns its URL.
func Database(t testing.TB) string {
	t.Helper()
	return inDatabase(t, URL(), createDatabase(t))
}

// DirectDatabase is [Database] past the pooler, for PostgreSQL's own programs.
func DirectDatabase(t testing.TB) string {
	t.Helper()
	return inDatabase(t, Direct(), createDatabase(t))
}

// DatabaseFor is [Database] for a program that migrates when it starts, which is impossible through a pooler.
// Behind a pooler, migrate migrates the database first, past it.
func DatabaseFor(t testing.TB, migrate func(ctx context.Context, url string) error) string {
	t.Helper()
	name := createDatabase(t)
	if Pooled() {
		if err := migrate(t.Context(), inDatabase(t, Direct(), name)); err != nil {
			t.Fatalf("migrate past the pooler: %v", err)
		}
	}
	return inDatabase(t, URL(), name)
}

// createDatabase creates a database that is dropped when the test ends, and returns its name.
func createDatabase(t testing.TB) string {
	t.Helper()
	name := Name()
	admin := func(statement string) {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		conn, err := pgx.Connect(ctx, Direct())
		if err != nil {
			t.Fatalf("no test database (run `make test`, or set DATABASE_URL): %v", err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	admin("CREATE DATABASE " + name)
	t.Cleanup(func() { admin("DROP DATABASE " + name + " WITH (FORCE)") })
	return name
}

// inDatabase returns server with the database called name.
func inDatabase(t testing.TB, server, name string) string {
	t.Helper()
	config, err := pgx.ParseConfig(server)
	if err != nil {
		t.Fatalf("parse DATABASE_URL: %v", err)
	}
	u, err := url.Parse(server)
	if err != nil || u.Scheme == "" {
		return fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s", config.Host, config.Port, config.User, config.Password, name)
	}
	u.Path = "/" + name
	return u.String()
}

// DropSchema drops schema when the test ends.
func DropSchema(t testing.TB, schema string) {
	t.Cleanup(func() { dropSchema(t, schema) })
}

// maxDrops is how often a DROP SCHEMA is tried that the server ends because of a deadlock. It locks the tables of a schema
// one after another, in another order than a statement that still runs there.
const maxDrops = 5

// dropSchema uses [admin], because the test's pool may be closed or broken by then.
func dropSchema(t testing.TB, schema string) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	pool, err := admin()
	for try := 1; err == nil; try++ {
		_, err = pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+schema+" CASCADE")
		var refused *pgconn.PgError
		if err == nil || try == maxDrops || !errors.As(err, &refused) || refused.Code != "40P01" {
			break
		}
		t.Logf("drop schema %s: %v: %s", schema, err, refused.Detail)
		err = nil
	}
	if err != nil {
		t.Errorf("drop schema %s: %v", schema, err)
	}
}

// PrepareAll lets the server parse and plan every statement in queries, a
// struct whose fields are strings and arrays of strings.
func PrepareAll(t *testing.T, queries any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), Direct())
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	eachStatement(queries, func(name, statement string) {
		if _, err := conn.Prepare(t.Context(), name, statement); err != nil {
			t.Errorf("prepare %s: %v", name, err)
		}
	})
}

// Statements returns the statements in queries by the names of their fields. An element of an array has its number
// behind the name.
func Statements(queries any) map[string]string {
	all := map[string]string{}
	eachStatement(queries, func(name, statement string) { all[name] = statement })
	return all
}

// eachStatement calls do for every statement in queries.
func eachStatement(queries any, do func(name, statement string)) {
	v := reflect.ValueOf(queries)
	for i := range v.NumField() {
		name, field := v.Type().Field(i).Name, v.Field(i)
		if field.Kind() != reflect.Array {
			do(name, field.String())
			continue
		}
		for j := range field.Len() {
			do(fmt.Sprint(name, j), field.Index(j).String())
		}
	}
}
