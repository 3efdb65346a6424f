package migrations_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

var allParts = []migrations.Part{migrations.Idempotency, migrations.Outbox, migrations.Inbox, migrations.Saga}

// tablesOf are those of each part and of what it needs.
var tablesOf = map[migrations.Part]string{
	migrations.Idempotency: "idempotency_key",
	migrations.Outbox:      "operator_journal outbox_0 outbox_1 outbox_2 outbox_cursor_0 outbox_cursor_1 outbox_held outbox_other outbox_relay outbox_tenure",
	migrations.Inbox:       "inbox inbox_horizon operator_journal parked",
	migrations.Saga: "inbox inbox_horizon operator_journal outbox_0 outbox_1 outbox_2 outbox_cursor_0 outbox_cursor_1 outbox_held outbox_other outbox_relay outbox_tenure " +
		"parked saga saga_definition saga_journal",
}

// tablesWith returns the tables of a schema with these parts.
func tablesWith(parts ...migrations.Part) []string {
	all := []string{"schema_version"}
	for _, p := range parts {
		all = append(all, strings.Fields(tablesOf[p])...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// up migrates a schema, and fails the test if its tables are not those of want then.
func up(t *testing.T, conn *pgx.Conn, name string, wanted, want []migrations.Part) {
	t.Helper()
	if err := migrations.Up(t.Context(), pgtest.URL(), name, wanted...); err != nil {
		t.Fatalf("Up %v: %v", wanted, err)
	}
	if got := tables(t, conn, name); !slices.Equal(got, tablesWith(want...)) {
		t.Errorf("tables after Up %v: %v, want those of %v", wanted, got, want)
	}
	if applied, known, err := migrations.Version(t.Context(), pgtest.URL(), name); err != nil || applied != known {
		t.Errorf("Version after Up %v = %d of %d, %v", wanted, applied, known, err)
	}
}

// subsets returns each selection of parts that is not empty.
func subsets() (all [][]migrations.Part) {
	for mask := 1; mask < 1<<len(allParts); mask++ {
		var some []migrations.Part
		for i, p := range allParts {
			if mask&(1<<i) != 0 {
				some = append(some, p)
			}
		}
		all = append(all, some)
	}
	return all
}

// Each selection of parts has the tables of its parts and of what they need, and no others,
// also when the SQL is printed; Down removes them.
func TestEachSubsetOfParts(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	conn := connect(t)
	for _, wanted := range subsets() {
		want := wanted
		if slices.Contains(wanted, migrations.Saga) {
			want = slices.Concat(wanted, []migrations.Part{migrations.Outbox, migrations.Inbox})
		}
		name, printed := schema(t), schema(t)
		up(t, conn, name, wanted, want)
		there, err := migrations.Parts(t.Context(), pgtest.URL(), name)
		for _, p := range allParts {
			if slices.Contains(there, p) != slices.Contains(want, p) || err != nil {
				t.Errorf("Parts after Up %v = %v, %v", wanted, there, err)
			}
		}

		var sql bytes.Buffer
		if err := migrations.Print(&sql, printed, wanted...); err != nil {
			t.Fatalf("Print %v: %v", wanted, err)
		}
		if _, err := conn.PgConn().Exec(t.Context(), sql.String()).ReadAll(); err != nil {
			t.Fatalf("run what Print %v has printed: %v", wanted, err)
		}
		described := strings.Join(describe(t, conn, name), "\n")
		if got := strings.Join(describe(t, conn, printed), "\n"); got != described {
			t.Errorf("what Print %v prints is not what Up applies:\n%s\nwant\n%s", wanted, got, described)
		}
		up(t, conn, printed, wanted, want)

		if err := migrations.Down(t.Context(), pgtest.URL(), name, 0); err != nil {
			t.Fatalf("Down of %v: %v", wanted, err)
		}
		if left := tables(t, conn, name); len(left) != 1 {
			t.Errorf("after Down of %v there is %v, want only the version table", wanted, left)
		}
		up(t, conn, name, wanted, want)
		if got := strings.Join(describe(t, conn, name), "\n"); got != described {
			t.Errorf("Up %v after Down made other tables", wanted)
		}
	}
}

// wholeSchema describes a schema that had all parts from the beginning.
func wholeSchema(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	name := schema(t)
	up(t, conn, name, nil, allParts)
	return strings.Join(describe(t, conn, name), "\n")
}

// withoutParts is describe without the column that says which parts there are.
func withoutParts(t *testing.T, conn *pgx.Conn, name string) string {
	t.Helper()
	return strings.Join(slices.DeleteFunc(describe(t, conn, name), func(line string) bool {
		return strings.HasPrefix(line, "column schema_version.parts ")
	}), "\n")
}

// A part that is added later gets the tables that it would have had from the beginning, at any version of the
// schema. The rows of the others stay.
func TestAPartIsAddedLater(t *testing.T) {
	t.Parallel()
	conn := connect(t)
	whole := wholeSchema(t, conn)
	for _, version := range []int32{0, 1, 2, 3, 4, migrations.Newest()} {
		name := schema(t)
		up(t, conn, name, []migrations.Part{migrations.Inbox}, []migrations.Part{migrations.Inbox})
		if err := migrations.Down(t.Context(), pgtest.URL(), name, version); err != nil {
			t.Fatal(err)
		}
		kept := version >= 3 // which makes the inbox
		if kept {
			if _, err := conn.Exec(t.Context(), strings.ReplaceAll(sqlInsertStep, "{schema}", name), "k"); err != nil {
				t.Fatal(err)
			}
		}
		two := []migrations.Part{migrations.Outbox, migrations.Inbox}
		wanted := two
		if version > 0 {
			wanted = two[:1] // what is there stays
		}
		up(t, conn, name, wanted, two)
		up(t, conn, name, two[1:], two)
		up(t, conn, name, []migrations.Part{migrations.Saga, migrations.Idempotency}, allParts)
		if got := withoutParts(t, conn, name); got != whole {
			t.Errorf("parts that were added at version %d are not what they are from the beginning:\n%s\nwant\n%s", version, got, whole)
		}
		var steps int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM "+name+".inbox").Scan(&steps); err != nil || (steps == 1) != kept {
			t.Errorf("%d rows of the inbox after parts were added at version %d, %v; want it kept: %t", steps, version, err, kept)
		}
		up(t, conn, name, nil, allParts)
	}
}

// A schema from before there were parts has all of them, and nothing takes them away.
func TestASchemaWithoutARecordHasAllParts(t *testing.T) {
	t.Parallel()
	conn := connect(t)
	whole := wholeSchema(t, conn)
	for _, n := range []int{1, 3, len(landed(t))} {
		name := at(t, pgtest.URL(), n)
		up(t, conn, name, []migrations.Part{migrations.Idempotency}, allParts)
		if got := strings.Join(describe(t, conn, name), "\n"); got != whole {
			t.Errorf("Up from version %d made another schema", n)
		}
		if there, err := migrations.Parts(t.Context(), pgtest.URL(), name); err != nil || !slices.Equal(there, allParts) {
			t.Errorf("Parts = %v, %v; want all", there, err)
		}
	}
}

// Processes that want different parts at once all get them, in a new schema and in one
// that has some.
func TestDifferentPartsAtOnce(t *testing.T) {
	t.Parallel()
	conn := connect(t)
	whole := wholeSchema(t, conn)
	for _, before := range [][]migrations.Part{nil, {migrations.Inbox}} {
		name := schema(t)
		if before != nil {
			up(t, conn, name, before, before)
		}
		var wg sync.WaitGroup
		errs := make([]error, 2*len(allParts))
		for i := range errs {
			wg.Go(func() { errs[i] = migrations.Up(t.Context(), pgtest.URL(), name, allParts[i%len(allParts)]) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Errorf("Up: %v", err)
		}
		if got := withoutParts(t, conn, name); got != whole {
			t.Errorf("parts that were made at once, of %v before, are not all that there are", before)
		}
	}
}

// A part whose tables cannot all be made leaves the schema as it was.
func TestAPartIsAddedAsAWhole(t *testing.T) {
	t.Parallel()
	conn := connect(t)
	name := schema(t)
	own := []migrations.Part{migrations.Idempotency}
	up(t, conn, name, own, own)
	if _, err := conn.Exec(t.Context(), "CREATE TABLE "+name+".inbox_horizon ()"); err != nil { // of 003
		t.Fatal(err)
	}
	before := strings.Join(describe(t, conn, name), "\n")
	if err := migrations.Up(t.Context(), pgtest.URL(), name, migrations.Inbox); err == nil || !strings.Contains(err.Error(), "inbox_horizon") {
		t.Errorf("Up = %v, want an error that names the table", err)
	}
	there, err := migrations.Parts(t.Context(), pgtest.URL(), name)
	if got := strings.Join(describe(t, conn, name), "\n"); got != before || !slices.Equal(there, own) || err != nil {
		t.Errorf("the schema is not as it was; parts %v, %v", there, err)
	}
	if _, err := conn.Exec(t.Context(), "DROP TABLE "+name+".inbox_horizon"); err != nil {
		t.Fatal(err)
	}
	up(t, conn, name, []migrations.Part{migrations.Inbox}, []migrations.Part{migrations.Idempotency, migrations.Inbox})
}

// An addition does not queue for a version table that a transaction keeps.
func TestAPartIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	conn := connect(t)
	name := schema(t)
	own := []migrations.Part{migrations.Idempotency}
	up(t, conn, name, own, own)
	tx, err := connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT version FROM "+name+".schema_version FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	add := func() error {
		return migrations.UpPatiently(t.Context(), pgtest.URL(), name, migrations.Files, 50*time.Millisecond, time.Millisecond, 3)
	}
	if err := add(); !errors.Is(err, migrations.ErrLocked) || !strings.Contains(err.Error(), "tried 3 times") {
		t.Errorf("Up = %v, want ErrLocked", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := add(); err != nil {
		t.Errorf("Up: %v", err)
	}
	up(t, conn, name, nil, allParts)
}

// The next migration changes the parts that a schema has, and a part that is added after it
// is as the newer tables are.
func TestTheNextMigrationKeepsToTheParts(t *testing.T) {
	t.Parallel()
	conn := connect(t)
	name := schema(t)
	own := []migrations.Part{migrations.Idempotency}
	up(t, conn, name, own, own)
	next := withNext(t, "{{if .inbox}}ALTER TABLE {{.schema}}.inbox ADD COLUMN next int;{{else}}SELECT;{{end}}")
	if err := migrations.UpParts(t.Context(), pgtest.URL(), name, next, migrations.Idempotency); err != nil {
		t.Fatalf("Up: %v", err)
	}
	err := migrations.Up(t.Context(), pgtest.URL(), name, migrations.Inbox) // by the older binary
	if err == nil || !strings.Contains(err.Error(), "newer than this binary") {
		t.Errorf("Up of another part by the older binary = %v, want a refusal", err)
	}
	if err := migrations.Up(t.Context(), pgtest.URL(), name, migrations.Idempotency); err != nil {
		t.Errorf("Up of a part that is there, by the older binary: %v", err)
	}
	if err := migrations.UpParts(t.Context(), pgtest.URL(), name, next, migrations.Inbox); err != nil {
		t.Fatalf("Up: %v", err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT next FROM "+name+".inbox"); err != nil {
		t.Error(err)
	}
}

func TestPartsAreChecked(t *testing.T) {
	t.Parallel()
	name := pgtest.Name()
	for _, p := range []migrations.Part{"", "journal", "outbox,inbox"} {
		for what, err := range map[string]error{
			"Up": migrations.Up(t.Context(), pgtest.URL(), name, p), "Print": migrations.Print(&bytes.Buffer{}, name, p),
			"Roles": migrations.Roles(&bytes.Buffer{}, name, "", p),
		} {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("no part %q: the parts are idempotency, outbox, inbox, saga", p)) {
				t.Errorf("%s of part %q: %v, want an error that lists the parts", what, p, err)
			}
		}
	}
	if there, err := migrations.Parts(context.Background(), pgtest.URL(), name); len(there) > 0 || err != nil {
		t.Errorf("Parts of a schema that is not there = %v, %v", there, err)
	}
}
