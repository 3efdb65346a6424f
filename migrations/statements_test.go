package migrations_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// firstRecorded is the first migration with recorded statements: the first that a binary before the next one
// knows.
const firstRecorded = 5

// narrowed are constraints and unique indexes that a later migration brings to a table which
// older binaries write, by name. Who adds one shows that what they write fulfils it, and says
// here why.
var narrowed = map[string]string{
	"parked_earlier_failures_check": "older binaries do not know its column, whose default is an array",
}

// generations returns the directories of recorded statements, and the migration that each is
// of: NNN for those of the binaries that know no later one, NNN-vX.Y.Z for a release's.
func generations(t *testing.T) map[string]int {
	t.Helper()
	dirs, err := filepath.Glob("testdata/statements/*")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, dir := range dirs {
		var n int
		if _, err := fmt.Sscanf(filepath.Base(dir), "%3d", &n); err != nil || n < firstRecorded || n > len(landed(t)) {
			t.Errorf("%s is not of a migration that there is", dir)
		}
		all[dir] = n
	}
	for n := firstRecorded; n <= len(landed(t)); n++ {
		if _, ok := all[fmt.Sprintf("testdata/statements/%03d", n)]; !ok {
			t.Errorf("no statements are recorded for migration %03d (make statements), or somebody has removed them", n)
		}
	}
	return all
}

// A binary that does not know the newest migrations works on: the tables accept all of its statements.
func TestOlderBinariesWorkOnNewerTables(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	conn := connect(t)
	for dir, n := range generations(t) {
		old := at(t, pgtest.URL(), n)
		for newer := n; newer <= len(landed(t)); newer++ {
			for _, wrong := range broken(t, conn, dir, old, at(t, pgtest.URL(), newer)) {
				t.Errorf("migration %03d breaks binaries that know %s: %s", newer, filepath.Base(dir), wrong)
			}
		}
	}
}

// The newest release is what runs beside the next one.
func TestTheStatementsOfTheNewestReleaseAreKept(t *testing.T) {
	t.Parallel()
	changes, err := os.ReadFile("../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	if release := unkept(string(changes), slices.Collect(maps.Keys(generations(t)))); release != "" {
		t.Errorf("no directory of testdata/statements is of release v%s: docs/upgrading.md says how to make it", release)
	}
}

// unkept returns the newest release of a change log, if none of the directories is of it.
func unkept(changelog string, dirs []string) string {
	release := regexp.MustCompile(`(?m)^## \[(\d+\.\d+\.\d+)\]`).FindStringSubmatch(changelog)
	if release == nil || slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasSuffix(dir, "-v"+release[1]) }) {
		return ""
	}
	return release[1]
}

func TestAReleaseWithoutItsStatementsIsFound(t *testing.T) {
	t.Parallel()
	const released = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-01\n\n## [0.1.0] - 2026-12-01\n"
	for _, tt := range []struct {
		changelog string
		dirs      []string
		want      string
	}{
		{"# Changelog\n\n## [Unreleased]\n", []string{"008"}, ""},
		{released, []string{"008", "008-v0.1.0"}, "0.2.0"},
		{released, []string{"008-v0.1.0", "009-v0.2.0"}, ""},
		{released, []string{"008-v10.2.0"}, "0.2.0"},
	} {
		if got := unkept(tt.changelog, tt.dirs); got != tt.want {
			t.Errorf("of %q: %q, want %q", tt.dirs, got, tt.want)
		}
	}
}

// Changes that a migration may make to the tables of a running binary, and changes that it may not.
func TestAMigrationThatBreaksOlderBinariesIsFound(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	conn, n := connect(t), len(landed(t))
	dir, old := fmt.Sprintf("testdata/statements/%03d", n), at(t, pgtest.URL(), n)
	for _, tt := range []struct{ next, want string }{
		{"ALTER TABLE {{.schema}}.inbox ADD COLUMN next int; CREATE TABLE {{.schema}}.next (id int PRIMARY KEY)", ""},
		{"ALTER TABLE {{.schema}}.parked ADD COLUMN next int NOT NULL DEFAULT 7", ""},
		{"ALTER TABLE {{.schema}}.inbox ALTER digest DROP NOT NULL", ""},
		{"CREATE INDEX next ON {{.schema}}.saga (updated_at)", ""},
		{"ALTER TABLE {{.schema}}.inbox RENAME COLUMN digest TO hash", "consumer.sql: queries.claimMany"},
		{"ALTER TABLE {{.schema}}.outbox DROP COLUMN causation_id", "outbox.sql: queries.insertMessages"},
		{"DROP TABLE {{.schema}}.saga_journal", "operator.sql: instanceQueries.insertJournal"},
		{"ALTER TABLE {{.schema}}.idempotency_key ALTER resp_status TYPE text", "idempg.sql: queries."},
		{"ALTER TABLE {{.schema}}.inbox ADD COLUMN next int NOT NULL", "inbox.next is new"},
		{"ALTER TABLE {{.schema}}.parked ALTER digest SET NOT NULL", "parked.digest may no longer be null"},
		{"ALTER TABLE {{.schema}}.parked ALTER attempts DROP DEFAULT", "parked.attempts has lost its default"},
		{"ALTER TABLE {{.schema}}.saga ALTER tries TYPE bigint", "saga.tries is bigint"},
		{"ALTER TABLE {{.schema}}.inbox ADD CONSTRAINT next CHECK (attempts < 9)", "inbox.next is a new constraint"},
		{"CREATE UNIQUE INDEX next ON {{.schema}}.parked (message_id)", "next is a new unique index"},
	} {
		t.Run(tt.next, func(t *testing.T) {
			name := at(t, pgtest.URL(), n)
			if err := migrations.UpWith(t.Context(), pgtest.URL(), name, withNext(t, tt.next)); err != nil {
				t.Fatal(err)
			}
			got := strings.Join(broken(t, conn, dir, old, name), "\n")
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

// broken returns what a binary whose statements are in dir, and that knows the tables of
// schema old, cannot do in newer.
func broken(t *testing.T, conn *pgx.Conn, dir, old, newer string) (wrong []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.sql"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%s has the statements of %d packages, want at least 4 (%v)", dir, len(files), err)
	}
	for _, file := range files {
		statements, err := pgtest.Recorded(file)
		if err != nil || len(statements) == 0 {
			t.Fatalf("%s: %d statements, %v", file, len(statements), err)
		}
		for _, name := range slices.Sorted(maps.Keys(statements)) {
			if err := sameStatement(t, conn, statements[name], old, newer); err != nil {
				wrong = append(wrong, fmt.Sprintf("%s: %s: %v", filepath.Base(file), name, err))
			}
		}
	}
	rows, _ := conn.Query(t.Context(), sqlListNarrowed, old, newer, slices.AppendSeq([]string{}, maps.Keys(narrowed)))
	narrower, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return append(wrong, narrower...)
}

// sameStatement returns an error if statement is another one in newer than in old: pgx
// encodes and decodes values by the types that PREPARE tells.
func sameStatement(t *testing.T, conn *pgx.Conn, statement, old, newer string) error {
	t.Helper()
	var types [2]string
	for i, schema := range []string{old, newer} {
		prepared, err := conn.PgConn().Prepare(t.Context(), "", strings.ReplaceAll(statement, "{schema}", schema), nil)
		if err != nil {
			return err
		}
		types[i] = fmt.Sprint(prepared.ParamOIDs)
		for _, f := range prepared.Fields {
			types[i] += fmt.Sprint(" ", f.Name, " ", f.DataTypeOID)
		}
	}
	if types[0] != types[1] {
		return fmt.Errorf("takes or returns other types")
	}
	return nil
}

// sqlListNarrowed lists restrictions in the tables of schema $1 that $2 adds, except the constraints and
// indexes $3. PREPARE does not see them, and a binary that knows $1 alone may fail on them.
const sqlListNarrowed = `
WITH col AS (
	SELECT c.relnamespace::regnamespace::text AS schema, c.relname, a.attname, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull,
		a.atthasdef OR a.attidentity <> '' AS filled
	FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
	WHERE c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped AND c.relnamespace IN (($1::text)::regnamespace, ($2::text)::regnamespace)),
con AS (
	SELECT n.connamespace::regnamespace::text AS schema, c.relname, n.conname, replace(pg_get_constraintdef(n.oid), n.connamespace::regnamespace::text, '') AS def
	FROM pg_constraint n JOIN pg_class c ON c.oid = n.conrelid
	WHERE n.contype <> 'n' AND n.connamespace IN (($1::text)::regnamespace, ($2::text)::regnamespace)),
uni AS (
	SELECT c.relnamespace::regnamespace::text AS schema, t.relname, c.relname AS index, replace(pg_get_indexdef(c.oid), c.relnamespace::regnamespace::text, '') AS def
	FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
	WHERE i.indisunique AND c.relnamespace IN (($1::text)::regnamespace, ($2::text)::regnamespace))
SELECT CASE
	WHEN o.attname IS NULL THEN format('%s.%s is new, NOT NULL and has no default: an INSERT that does not know it fails', n.relname, n.attname)
	WHEN n.attnotnull AND NOT o.attnotnull THEN format('%s.%s may no longer be null', n.relname, n.attname)
	WHEN o.type <> n.type THEN format('%s.%s is %s and was %s', n.relname, n.attname, n.type, o.type)
	ELSE format('%s.%s has lost its default', n.relname, n.attname) END
FROM col n LEFT JOIN col o ON o.schema = $1 AND (o.relname, o.attname) = (n.relname, n.attname)
WHERE n.schema = $2 AND EXISTS (SELECT FROM col t WHERE t.schema = $1 AND t.relname = n.relname)
	AND (o.attname IS NULL AND n.attnotnull AND NOT n.filled OR n.attnotnull AND NOT o.attnotnull OR o.type <> n.type OR n.attnotnull AND o.filled AND NOT n.filled)
UNION ALL
SELECT format('%s.%s is a new constraint: does all that older binaries write fulfil it? (narrowed in statements_test.go)', n.relname, n.conname)
FROM con n WHERE n.schema = $2 AND n.conname <> ALL ($3) AND EXISTS (SELECT FROM col t WHERE t.schema = $1 AND t.relname = n.relname)
	AND NOT EXISTS (SELECT FROM con o WHERE o.schema = $1 AND (o.relname, o.def) = (n.relname, n.def))
UNION ALL
SELECT format('%s is a new unique index of %s: does all that older binaries write fulfil it? (narrowed in statements_test.go)', n.index, n.relname)
FROM uni n WHERE n.schema = $2 AND n.index <> ALL ($3) AND EXISTS (SELECT FROM col t WHERE t.schema = $1 AND t.relname = n.relname)
	AND NOT EXISTS (SELECT FROM uni o WHERE o.schema = $1 AND (o.relname, o.def) = (n.relname, n.def))
ORDER BY 1`
