package migrations_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/migrations"
)

// landed returns the names of the migrations there are.
func landed(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(migrations.Files, "*.sql")
	if err != nil || len(names) < 5 {
		t.Fatalf("migrations: %v, %v", names, err)
	}
	return names
}

// upTo returns the first n migrations.
func upTo(t *testing.T, n int) fstest.MapFS {
	t.Helper()
	some := fstest.MapFS{}
	for _, name := range landed(t)[:n] {
		content, err := fs.ReadFile(migrations.Files, name)
		if err != nil {
			t.Fatal(err)
		}
		some[name] = &fstest.MapFile{Data: content}
	}
	return some
}

// withNext returns the migrations and one more, the next, which consists of statements.
func withNext(t *testing.T, statements string) fstest.MapFS {
	t.Helper()
	n := len(landed(t))
	all := upTo(t, n)
	all[fmt.Sprintf("%03d_next.sql", n+1)] = &fstest.MapFile{Data: []byte(statements)}
	return all
}

// at returns the name of a schema that has had the first n migrations.
func at(t *testing.T, url string, n int) string {
	t.Helper()
	name := schema(t)
	if err := migrations.UpTo(t.Context(), url, name, int32(n)); err != nil {
		t.Fatalf("Up to %d: %v", n, err)
	}
	return name
}

// load stores rows of every table in every state that the first n migrations know, what
// later ones have brought first.
func load(t *testing.T, conn *pgx.Conn, name string, n int) {
	t.Helper()
	for i := n; i > 0; i-- {
		content, err := os.ReadFile(fmt.Sprintf("testdata/rows/%03d.sql", i))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.PgConn().Exec(t.Context(), strings.ReplaceAll(string(content), "{schema}", name)).ReadAll(); err != nil {
			t.Fatalf("rows of %03d: %v", i, err)
		}
	}
}

type (
	row     map[string]any
	content map[string][]row // by table
)

// dump returns all rows of a schema but its version.
func dump(t *testing.T, conn *pgx.Conn, name string) content {
	t.Helper()
	rows, _ := conn.Query(t.Context(), `SELECT relname::text FROM pg_class
WHERE relnamespace = ($1::text)::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'schema_version'`, name)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	all := content{}
	for _, table := range names {
		rows, _ := conn.Query(t.Context(), "SELECT to_jsonb(t) FROM "+name+"."+table+" t")
		if all[table], err = pgx.CollectRows(rows, pgx.RowTo[row]); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// like returns of c what the tables and columns of older hold, as sorted text. A table without
// rows tells no columns, and counts as it is.
func (c content) like(older content) map[string][]string {
	text := map[string][]string{}
	for table, known := range older {
		text[table] = []string{}
		for _, r := range c[table] {
			kept := row{}
			for column, value := range r {
				if len(known) == 0 {
					kept[column] = value
				} else if _, ok := known[0][column]; ok {
					kept[column] = value
				}
			}
			line, _ := json.Marshal(kept) // it was JSON
			text[table] = append(text[table], string(line))
		}
		slices.Sort(text[table])
	}
	return text
}

// sqlDescribe lists the definition of a schema, a line each, without the order of columns.
const sqlDescribe = `
SELECT replace(line, $1::text, 'SCHEMA') FROM (
	SELECT format('column %s.%s %s not null %s default %s identity %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
		pg_get_expr(d.adbin, d.adrelid), a.attidentity) AS line
	FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
	WHERE c.relnamespace = ($1::text)::regnamespace AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
	UNION ALL
	SELECT format('constraint %s.%s %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint WHERE connamespace = ($1::text)::regnamespace AND contype <> 'n'
	UNION ALL
	SELECT format('index %s', pg_get_indexdef(indexrelid)) FROM pg_index JOIN pg_class c ON c.oid = indrelid WHERE c.relnamespace = ($1::text)::regnamespace
	UNION ALL
	SELECT format('%s %s %s %s', relkind, relname, reloptions, relpersistence) FROM pg_class WHERE relnamespace = ($1::text)::regnamespace) lines
ORDER BY 1`

func describe(t *testing.T, conn *pgx.Conn, name string) []string {
	t.Helper()
	rows, _ := conn.Query(t.Context(), sqlDescribe, name)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func version(t *testing.T, conn *pgx.Conn, name string) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT version FROM "+name+".schema_version").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
