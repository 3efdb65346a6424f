package migrations_test

import (
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// sqlWiden is a next migration that changes rows, and whose lower half takes them back: a state of the inbox that older
// binaries do not know, and a column that has a value in each row.
const sqlWiden = `
ALTER TABLE {{.schema}}.inbox DROP CONSTRAINT inbox_state_check, ADD CONSTRAINT inbox_state_check CHECK (state <> '') NOT VALID, ADD COLUMN next int;
UPDATE {{.schema}}.inbox SET next = attempts;

---- create above / drop below ----

UPDATE {{.schema}}.inbox SET state = 'done' WHERE state = 'skipped';
ALTER TABLE {{.schema}}.inbox DROP COLUMN next, DROP CONSTRAINT inbox_state_check, ADD CONSTRAINT inbox_state_check
    CHECK (state IN ('open', 'retrying', 'dead', 'done', 'refused', 'void', 'undoing', 'undo-dead', 'compensated'));
`

// Rows of every table in every state that a version knows are there after Up, as they were: up to the newest migration,
// and to one that follows it.
func TestUpKeepsEveryRow(t *testing.T) {
	t.Parallel()
	next := withNext(t, sqlWiden)
	for n := 1; n <= len(landed(t)); n++ {
		t.Run(fmt.Sprint("from ", n), func(t *testing.T) {
			t.Parallel()
			conn, name := connect(t), at(t, pgtest.URL(), n)
			load(t, conn, name, n)
			before := dump(t, conn, name)
			for step, up := range []func() error{
				func() error { return migrations.Up(t.Context(), pgtest.URL(), name) },
				func() error { return migrations.UpWith(t.Context(), pgtest.URL(), name, next) },
			} {
				if err := up(); err != nil {
					t.Fatalf("Up, step %d: %v", step, err)
				}
				if diff := cmp.Diff(before.like(before), dump(t, conn, name).like(before)); diff != "" {
					t.Errorf("after Up, step %d (-before +after):\n%s", step, diff)
				}
			}
			var unset int
			if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM "+name+".inbox WHERE next IS DISTINCT FROM attempts").Scan(&unset); err != nil || unset > 0 {
				t.Errorf("%d rows without the new column's value, %v", unset, err)
			}
		})
	}
}

// After Down to a version the tables are those of that version, with all rows that it can
// hold, and Up brings them back.
func TestDownKeepsWhatTheOlderVersionHolds(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	next := withNext(t, sqlWiden)
	for n := 1; n <= len(landed(t)); n++ {
		t.Run(fmt.Sprint("to ", n), func(t *testing.T) {
			t.Parallel()
			conn, name, fresh := connect(t), at(t, pgtest.URL(), len(landed(t))), at(t, pgtest.URL(), n)
			if err := migrations.UpWith(t.Context(), pgtest.URL(), name, next); err != nil {
				t.Fatal(err)
			}
			load(t, conn, name, len(landed(t)))
			if _, err := conn.Exec(t.Context(), "INSERT INTO "+name+".inbox (scope, key, step, n, state, digest) VALUES ('s', 'k', 'step', 'skipped', 'skipped', sha256('a'))"); err != nil {
				t.Fatal(err)
			}
			before := dump(t, conn, name)
			if err := migrations.DownWith(t.Context(), pgtest.URL(), name, next, int32(n)); err != nil {
				t.Fatalf("Down: %v", err)
			}
			if diff := cmp.Diff(describe(t, conn, fresh), describe(t, conn, name)); diff != "" {
				t.Errorf("the tables after Down (-fresh +down):\n%s", diff)
			}
			older := dump(t, conn, name)
			if diff := cmp.Diff(withoutSkipped(before).like(older), older.like(older)); diff != "" {
				t.Errorf("after Down (-before +after):\n%s", diff)
			}
			if err := migrations.UpWith(t.Context(), pgtest.URL(), name, next); err != nil {
				t.Fatalf("Up: %v", err)
			}
			if diff := cmp.Diff(older.like(older), dump(t, conn, name).like(older)); diff != "" {
				t.Errorf("after Up (-down +up):\n%s", diff)
			}
		})
	}
}

// withoutSkipped returns the rows of c as the lower half of sqlWiden leaves them.
func withoutSkipped(c content) content {
	held := content{}
	for table, rows := range c {
		for _, r := range rows {
			was := maps.Clone(r)
			if table == "inbox" && was["state"] == "skipped" {
				was["state"] = "done"
			}
			held[table] = append(held[table], was)
		}
	}
	return held
}

// A schema without the mark of this numbering of migrations is refused with a reason, and stays as it is.
func TestASchemaOfAPreReleaseIsRefused(t *testing.T) {
	t.Parallel()
	for _, version := range []int{3, 11} {
		conn, name := connect(t), at(t, pgtest.URL(), len(landed(t)))
		if _, err := conn.Exec(t.Context(), fmt.Sprintf("COMMENT ON TABLE %[1]s.schema_version IS NULL; UPDATE %[1]s.schema_version SET version = %[2]d", name, version),
			pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		before := describe(t, conn, name)
		_, _, versionErr := migrations.Version(t.Context(), pgtest.URL(), name)
		for what, err := range map[string]error{
			"Up": migrations.Up(t.Context(), pgtest.URL(), name), "Down": migrations.Down(t.Context(), pgtest.URL(), name, 0), "Version": versionErr,
			"Up with a part": migrations.Up(t.Context(), pgtest.URL(), name, migrations.Outbox),
		} {
			if err == nil || !strings.Contains(err.Error(), "pre-release") || !strings.Contains(err.Error(), fmt.Sprintf("version %d ", version)) ||
				!strings.Contains(err.Error(), "docs/upgrading.md") {
				t.Errorf("%s at version %d = %v, want an error that says what to do", what, version, err)
			}
		}
		if diff := cmp.Diff(before, describe(t, conn, name)); diff != "" {
			t.Errorf("the tables after the refusals (-before +after):\n%s", diff)
		}
	}
}

// A migration that ends with its session, when all of it is done but the version, has done
// nothing.
func TestAKilledMigrationLeavesAWholeVersion(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	for n := 1; n <= len(landed(t)); n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			conn, name := connect(t), at(t, pgtest.URL(), n-1)
			load(t, conn, name, n-1)
			rows, tables := dump(t, conn, name), describe(t, conn, name)
			if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock(hashtext($1))", name); err != nil {
				t.Fatal(err)
			}
			up := make(chan error, 1)
			go func() {
				up <- migrations.UpPatiently(t.Context(), pgtest.URL(), name, halting(t, n), time.Minute, 0, 1)
			}()
			watch := connect(t)
			faulttest.Await(t, "the migration is killed where it halts", func() (killed bool) {
				err := watch.QueryRow(t.Context(), `SELECT coalesce(bool_and(pg_terminate_backend(pid)), false) FROM pg_locks
WHERE locktype = 'advisory' AND NOT granted AND objsubid = 1 AND objid::bigint = hashtext($1)::bigint & 4294967295`, name).Scan(&killed)
				if err != nil {
					t.Fatal(err)
				}
				return killed
			}, nil)
			if err := <-up; err == nil {
				t.Error("Up of a migration that was killed succeeded")
			}
			if got := version(t, conn, name); got != n-1 {
				t.Errorf("version %d, want %d", got, n-1)
			}
			if diff := cmp.Diff(tables, describe(t, conn, name)); diff != "" {
				t.Errorf("tables (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(rows.like(rows), dump(t, conn, name).like(rows)); diff != "" {
				t.Errorf("rows (-before +after):\n%s", diff)
			}
			if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
				t.Errorf("Up after the kill: %v", err)
			}
		})
	}
}

// halting returns the first n migrations; the last waits at its end for a lock of the test.
func halting(t *testing.T, n int) fs.FS {
	t.Helper()
	some := upTo(t, n)
	last := landed(t)[n-1]
	up, down, ok := strings.Cut(string(some[last].Data), "---- create above / drop below ----")
	if !ok {
		t.Fatalf("%s has no way down", last)
	}
	some[last] = &fstest.MapFile{Data: []byte(up + "SELECT pg_advisory_xact_lock(hashtext('{{.schema}}'));\n---- create above / drop below ----" + down)}
	return some
}
