package pgtest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/migrations"
)

// A schema has sixty relations. To create and drop them costs the server more than most tests do. If a test
// leaves the definition of its schema as the migrations made it, the schema is emptied, renamed and given to
// another test. Leftovers of the first test, such as the session of a killed process, do not find it under
// the new name.
type schema struct {
	name      string
	own       []string // statements behind the migrations
	digest    string   // of its definition
	tables    []string
	rows      map[string][]byte // those of the migrations, as COPY writes them
	sequences []int64
	values    []*int64 // that the migrations left them with; nil: never called
}

// schemas are those of this process.
var schemas struct {
	mu    sync.Mutex
	used  int       // by tests
	spare []*schema // dropped when no test uses one
}

// adminConns bounds the sessions of [admin], because many packages' tests share a server of 100 connections.
const adminConns = 4

// errAltered reports a schema that differs from the one that the migrations make.
var errAltered = errors.New("altered")

// sqlDescribe returns a digest of the definition of the schema $1 without its name, and its sequences with
// their last values. A row of a catalog counts by its oid and its xmin, which each change of it replaces. Rows of
// pg_class count by their contents, because TRUNCATE replaces them too. A table that was analyzed counts as altered,
// because the plans of its statements change. Arrays of oids make the server use the catalogs' indexes.
const sqlDescribe = `
WITH relation AS MATERIALIZED (SELECT * FROM pg_class WHERE relnamespace = $1::regnamespace),
	oids AS MATERIALIZED (SELECT array_agg(oid) AS oids FROM relation)
SELECT md5(concat_ws(',',
	(SELECT string_agg(concat_ws(' ', oid, relname, reltype, relowner, relam, reltoastrelid, relhasindex, relpersistence, relkind, relnatts, relchecks,
		relhasrules, relhastriggers, relrowsecurity, relforcerowsecurity, relreplident, relacl, reloptions, relpartbound), ';' ORDER BY oid) FROM relation),
	(SELECT concat_ws(' ', count(*), sum(attrelid::bigint * attnum), sum(xmin::text::bigint), max(xmin::text::bigint)) FROM pg_attribute WHERE attrelid = ANY (oids)),
	(SELECT concat_ws(' ', sum(oid::bigint), sum(xmin::text::bigint)) FROM pg_attrdef WHERE adrelid = ANY (oids)),
	(SELECT concat_ws(' ', sum(indexrelid::bigint), sum(xmin::text::bigint)) FROM pg_index WHERE indrelid = ANY (oids)),
	(SELECT concat_ws(' ', sum(oid::bigint), sum(xmin::text::bigint)) FROM pg_constraint WHERE conrelid = ANY (oids)),
	(SELECT concat_ws(' ', sum(oid::bigint), sum(xmin::text::bigint)) FROM pg_trigger WHERE tgrelid = ANY (oids)),
	(SELECT count(*) FROM pg_statistic WHERE starelid = ANY (oids)),
	(SELECT sum(objid::bigint * classid::bigint) FROM pg_depend WHERE refclassid = 'pg_namespace'::regclass AND refobjid = $1::regnamespace),
	(SELECT sum(p.xmin::text::bigint) FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
		WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = $1::regnamespace AND d.classid = 'pg_proc'::regclass),
	(SELECT nspacl::text FROM pg_namespace WHERE oid = $1::regnamespace))),
	ARRAY(SELECT oid::bigint FROM relation WHERE relkind = 'S' ORDER BY 1),
	ARRAY(SELECT pg_sequence_last_value(oid) FROM relation WHERE relkind = 'S' ORDER BY oid)
FROM oids`

const (
	sqlListTables = `SELECT relname::text FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind = 'r' ORDER BY 1`

	// sqlListWritten leaves out tables without a row since they were made or truncated.
	sqlListWritten = `
SELECT relname::text FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0 ORDER BY 1`

	sqlSetSequences = `
SELECT setval(seqrelid::regclass, coalesce(value, seqstart), value IS NOT NULL)
FROM unnest($1::bigint[], $2::bigint[]) s (sequence, value) JOIN pg_sequence ON seqrelid = sequence`
)

// Schema gives t a migrated schema, and a pool on its database, until the test ends. An earlier test may have
// used the schema: see [NewSchema]. own are statements that make the test's tables, with {schema} in the
// place of its name. If the test makes other objects later, the schema is dropped afterwards.
func Schema(t testing.TB, own ...string) (*pgxpool.Pool, string) {
	t.Helper()
	s := takeSpare(own)
	if s == nil {
		s = &schema{name: Name(), own: own}
	}
	t.Cleanup(func() { s.giveBack(t) }) // before Pool, so that it runs after the pool is closed: an open transaction would block it
	if s.digest == "" {
		s.makeSchema(t)
	}
	return Pool(t, URL()), s.name
}

// NewSchema is [Schema] for a test that looks at plans, at the server's statistics or at sizes: no other test
// has used the schema.
func NewSchema(t testing.TB) (*pgxpool.Pool, string) {
	t.Helper()
	s := Name()
	DropSchema(t, s)
	migrateSchema(t, s)
	return Pool(t, URL()), s
}

func migrateSchema(t testing.TB, schema string) {
	t.Helper()
	if err := migrations.Up(t.Context(), Direct(), schema); err != nil {
		t.Fatalf("no test database (run `make test`, or set DATABASE_URL): %v", err)
	}
}

// takeSpare returns a free schema with the same tables, or nil.
func takeSpare(own []string) *schema {
	schemas.mu.Lock()
	defer schemas.mu.Unlock()
	schemas.used++
	i := slices.IndexFunc(schemas.spare, func(s *schema) bool { return slices.Equal(s.own, own) })
	if i < 0 {
		return nil
	}
	s := schemas.spare[i]
	schemas.spare = slices.Delete(schemas.spare, i, i+1)
	return s
}

// giveBack ends the use of s by t, and drops the schemas that no later test will use.
func (s *schema) giveBack(t testing.TB) {
	err := errAltered
	if !t.Failed() && s.digest != "" {
		err = s.resetSchema()
	}
	if err != nil {
		dropSchema(t, s.name)
	}
	schemas.mu.Lock()
	schemas.used--
	if err == nil {
		schemas.spare = append(schemas.spare, s)
	}
	var last []*schema
	if schemas.used == 0 {
		last, schemas.spare = schemas.spare, nil
	}
	schemas.mu.Unlock()
	for _, s := range last {
		dropSchema(t, s.name)
	}
}

// makeSchema makes the tables of s and records their state.
func (s *schema) makeSchema(t testing.TB) {
	t.Helper()
	migrateSchema(t, s.name)
	if err := transact(t.Context(), s.noteContents); err != nil {
		t.Fatalf("make schema %s: %v", s.name, err)
	}
}

// noteContents makes the test's tables and records the contents of all tables.
func (s *schema) noteContents(ctx context.Context, tx pgx.Tx) (err error) {
	for _, statement := range s.own {
		if _, err := tx.Exec(ctx, strings.ReplaceAll(statement, "{schema}", s.name)); err != nil {
			return err
		}
	}
	if s.tables, err = s.listNames(ctx, tx, sqlListTables); err != nil {
		return err
	}
	written, err := s.listNames(ctx, tx, sqlListWritten)
	if err != nil {
		return err
	}
	s.rows = make(map[string][]byte)
	for _, table := range written {
		var rows bytes.Buffer
		if _, err := tx.Conn().PgConn().CopyTo(ctx, &rows, "COPY "+s.name+"."+table+" TO STDOUT"); err != nil {
			return err
		}
		s.rows[table] = rows.Bytes()
	}
	return tx.QueryRow(ctx, sqlDescribe, s.name).Scan(&s.digest, &s.sequences, &s.values)
}

// resetSchema restores the rows that the migrations made, and renames s. It waits for open transactions on
// its tables. After an error s can only be dropped.
func (s *schema) resetSchema() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	name := Name()
	err := transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "LOCK TABLE "+s.qualified(s.tables)); err != nil {
			return err
		}
		now := schema{name: s.name}
		if err := tx.QueryRow(ctx, sqlDescribe, s.name).Scan(&now.digest, &now.sequences, &now.values); err != nil {
			return err
		}
		if now.digest != s.digest {
			return errAltered
		}
		if err := s.emptyTables(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "ALTER SCHEMA "+s.name+" RENAME TO "+name)
		return err
	})
	if err == nil {
		s.name = name
	}
	return err
}

// emptyTables removes all rows that s has not recorded.
func (s *schema) emptyTables(ctx context.Context, tx pgx.Tx) error {
	written, err := s.listNames(ctx, tx, sqlListWritten)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "TRUNCATE "+s.qualified(written)+" CASCADE"); err != nil {
		return err
	}
	for table, rows := range s.rows {
		if _, err := tx.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(rows), "COPY "+s.name+"."+table+" FROM STDIN"); err != nil {
			return err
		}
	}
	_, err = tx.Exec(ctx, sqlSetSequences, s.sequences, s.values)
	return err
}

// listNames returns the names of tables.
func (s *schema) listNames(ctx context.Context, tx pgx.Tx, query string) ([]string, error) {
	rows, _ := tx.Query(ctx, query, s.name)
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (s *schema) qualified(tables []string) string {
	return s.name + "." + strings.Join(tables, ", "+s.name+".")
}

// admin returns the pool that manages the schemas of this process, past a pooler. A session of its own for each test
// would cost the server more than the work.
var admin = sync.OnceValues(func() (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(Direct())
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns, config.MinIdleConns = adminConns, 0, 0
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // a prepared statement would name one schema
	return pgxpool.NewWithConfig(context.Background(), config)
})

// transact does work in a transaction of [admin].
func transact(ctx context.Context, work func(context.Context, pgx.Tx) error) error {
	pool, err := admin()
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return work(ctx, tx) })
}
