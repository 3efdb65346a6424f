package pgtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// These tests share the schemas of the process, so they are not parallel.

// lend runs use with a schema as a separate test would, and returns its name.
func lend(t *testing.T, use func(*testing.T, *pgxpool.Pool, string)) (name string) {
	t.Helper()
	t.Run("lend", func(t *testing.T) {
		var pool *pgxpool.Pool
		pool, name = Schema(t)
		use(t, pool, name)
	})
	return name
}

func execute(t *testing.T, pool *pgxpool.Pool, schema string, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := pool.Exec(t.Context(), strings.ReplaceAll(s, "{schema}", schema)); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func exists(t *testing.T, pool *pgxpool.Pool, schema string) (exists bool) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema).Scan(&exists); err != nil {
		t.Fatal(err)
	}
	return exists
}

// contents returns the rows of each table, the states of the sequences and the sizes.
func contents(t *testing.T, pool *pgxpool.Pool, schema string) map[string]string {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT relname::text, relkind::text FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'S')", schema)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	var name, kind string
	if _, err := pgx.ForEachRow(rows, []any{&name, &kind}, func() error { got[name] = kind; return nil }); err != nil {
		t.Fatal(err)
	}
	for name, kind := range got {
		columns := map[string]string{"r": "r::text", "S": "last_value::text || is_called"}[kind]
		query := fmt.Sprintf("SELECT coalesce(string_agg(%s, ',' ORDER BY 1), '') || ' of ' || pg_relation_size('%s.%s') FROM %[2]s.%[3]s r", columns, schema, name)
		var text string
		if err := pool.QueryRow(t.Context(), query).Scan(&text); err != nil {
			t.Fatal(err)
		}
		got[name] = text
	}
	return got
}

// The next test finds no rows of an earlier one, and finds the rows of the migrations.
func TestASpareSchemaIsAsGoodAsNew(t *testing.T) {
	Schema(t) // keeps spare schemas
	pool, pristine := NewSchema(t)
	want := contents(t, pool, pristine)
	first := lend(t, func(t *testing.T, pool *pgxpool.Pool, schema string) {
		execute(t, pool, schema,
			"INSERT INTO {schema}.inbox (scope, key, step, n, state, digest) VALUES ('s', 'k', 'pay', '', 'done', sha256('x'))",
			"UPDATE {schema}.outbox_relay SET epoch = 7, holder = 'h'",
			"DELETE FROM {schema}.inbox_horizon",
			"SELECT nextval('{schema}.outbox_leaf'), nextval('{schema}.outbox_id_seq')",
			"TRUNCATE {schema}.outbox_0")
	})
	lend(t, func(t *testing.T, pool *pgxpool.Pool, schema string) {
		if schema == first || exists(t, pool, first) {
			t.Errorf("schema %s has been given to two tests", first)
		}
		if d := cmp.Diff(want, contents(t, pool, schema)); d != "" {
			t.Errorf("a schema that a test has had (+) is not as a new one (-):\n%s", d)
		}
	})
}

// Each of these would be seen by the next test.
func TestAnAlteredSchemaIsDropped(t *testing.T) {
	keep, _ := Schema(t)
	for _, alteration := range []string{
		"CREATE TABLE {schema}.own ()",
		"DROP TABLE {schema}.saga_journal CASCADE",
		"CREATE VIEW {schema}.own AS SELECT 1",
		"CREATE TYPE {schema}.own AS ENUM ('a')",
		"CREATE FUNCTION {schema}.own() RETURNS int LANGUAGE sql AS 'SELECT 1'",
		"CREATE RULE own AS ON DELETE TO {schema}.inbox DO INSTEAD NOTHING",
		"CREATE INDEX own ON {schema}.inbox (key)",
		"DROP INDEX {schema}.outbox_held_dead",
		"ALTER TABLE {schema}.inbox ADD own int",
		"ALTER TABLE {schema}.inbox ADD CHECK (key <> 'own')",
		"ALTER TABLE {schema}.inbox ALTER created_at SET DEFAULT 'epoch'",
		"ALTER TABLE {schema}.inbox ALTER created_at DROP NOT NULL",
		"ALTER TABLE {schema}.inbox SET (autovacuum_enabled = off)",
		"ALTER TABLE {schema}.inbox ENABLE ROW LEVEL SECURITY",
		"ALTER TABLE {schema}.inbox SET UNLOGGED",
		"ALTER TABLE {schema}.inbox RENAME TO own",
		"GRANT SELECT ON {schema}.inbox TO public",
		"GRANT SELECT (key) ON {schema}.inbox TO public",
		"GRANT USAGE ON SCHEMA {schema} TO public",
		"ANALYZE {schema}.outbox_relay",
	} {
		name := lend(t, func(t *testing.T, pool *pgxpool.Pool, schema string) { execute(t, pool, schema, alteration) })
		if exists(t, keep, name) {
			t.Errorf("after %s: the schema is still there", alteration)
		}
		for _, s := range schemas.spare {
			t.Errorf("after %s: schema %s is to be used again", alteration, s.name)
		}
	}
}

// A process that was killed may leave a session that has not noticed yet.
func TestAnOldSessionDoesNotFindASpareSchema(t *testing.T) {
	Schema(t)
	conn, err := pgx.Connect(t.Context(), URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	const columns = "(scope, key, step, n, state, digest) VALUES ('s', 'k', 'pay', '', 'done', sha256('x'))"
	lend(t, func(t *testing.T, _ *pgxpool.Pool, schema string) {
		if _, err := conn.Prepare(t.Context(), "write", "INSERT INTO "+schema+".inbox "+columns); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "write"); err != nil {
			t.Fatal(err)
		}
	})
	lend(t, func(t *testing.T, pool *pgxpool.Pool, schema string) {
		var missing *pgconn.PgError
		if tag, err := conn.Exec(t.Context(), "write"); !errors.As(err, &missing) || missing.Code != "3F000" && missing.Code != "42P01" {
			t.Errorf("a statement prepared for an earlier test: %v, %v; want a missing schema", tag, err)
		}
		var rows int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM "+schema+".inbox").Scan(&rows); err != nil || rows != 0 {
			t.Errorf("%d rows of an earlier test, %v", rows, err)
		}
	})
}

func TestNoSpareSchemaStays(t *testing.T) {
	pool, _ := NewSchema(t)
	var spare string
	t.Run("tests", func(t *testing.T) {
		Schema(t)
		lend(t, func(*testing.T, *pgxpool.Pool, string) {})
		if len(schemas.spare) != 1 || !exists(t, pool, schemas.spare[0].name) {
			t.Fatalf("%d spare schemas while one is in use, want another one that exists", len(schemas.spare))
		}
		spare = schemas.spare[0].name
	})
	if len(schemas.spare) > 0 || schemas.used > 0 || exists(t, pool, spare) {
		t.Errorf("when no test uses one, %d schemas are spare and %d in use; the last spare one exists: %t", len(schemas.spare), schemas.used, exists(t, pool, spare))
	}
}
