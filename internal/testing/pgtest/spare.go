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

// errAltered reports a schema that differs from the one that the migrations make.
var errAltered = errors.New("altered")

// sqlDescribe returns a digest of the definition of the schema $1 without its name, and its sequences with
// their last values. A table that was analyzed counts as altered, because the plans of its statements change.
const sqlDescribe = `
WITH relation AS (SELECT c.* FROM pg_class c WHERE c.relnamespace = $1::regnamespace)
SELECT md5(string_agg(part, ',' ORDER BY part)),
	ARRAY(SELECT oid::bigint FROM relation WHERE relkind = 'S' ORDER BY 1),
	ARRAY(SELECT pg_sequence_last_value(oid) FROM relation WHERE relkind = 'S' ORDER BY oid)
FROM (
	SELECT (to_jsonb(r) - '{relfilenode,relpages,reltuples,relallvisible,relallfrozen,relfrozenxid,relminmxid}'::text[])::text FROM relation r
	UNION ALL SELECT a::text FROM pg_attribute a JOIN relation r ON a.attrelid = r.oid
	UNION ALL SELECT d::text FROM pg_attrdef d JOIN relation r ON d.adrelid = r.oid
	UNION ALL SELECT i::text FROM pg_index i JOIN relation r ON i.indrelid = r.oid
	UNION ALL SELECT c::text FROM pg_constraint c WHERE c.connamespace = $1::regnamespace
	UNION ALL SELECT t::text FROM pg_trigger t JOIN relation r ON t.tgrelid = r.oid
	UNION ALL SELECT s.starelid::text FROM pg_statistic s JOIN relation r ON s.starelid = r.oid
	UNION ALL SELECT p.oid::text FROM pg_proc p WHERE p.pronamespace = $1::regnamespace
	UNION ALL SELECT t.oid::text FROM pg_type t WHERE t.typnamespace = $1::regnamespace
	UNION ALL SELECT n.nspacl::text FROM pg_namespace n WHERE n.oid = $1::regnamespace) parts (part)`

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

// transact does work in a transaction on a new connection.
func transact(ctx context.Context, work func(context.Context, pgx.Tx) error) error {
	config, err := pgxpool.ParseConfig(Direct()) // accepts the pool settings that a URL may have
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return work(ctx, tx) })
}
