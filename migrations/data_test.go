package migrations_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// Rows of every table in every state that a version knows are there after Up, as they were.
func TestUpKeepsEveryRow(t *testing.T) {
	t.Parallel()
	for n := 1; n < len(landed(t)); n++ {
		t.Run(fmt.Sprint("from ", n), func(t *testing.T) {
			t.Parallel()
			conn, name := connect(t), at(t, pgtest.URL(), n)
			load(t, conn, name, n)
			before := dump(t, conn, name)
			if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
				t.Fatalf("Up: %v", err)
			}
			if diff := cmp.Diff(before.like(before), dump(t, conn, name).like(before)); diff != "" {
				t.Errorf("after Up (-before +after):\n%s", diff)
			}
		})
	}
}

// After Down to a version the tables are those of that version, with all rows that it can
// hold, and Up brings them back.
func TestDownKeepsWhatTheOlderVersionHolds(t *testing.T) {
	t.Parallel()
	newest := len(landed(t))
	for n := 1; n < newest; n++ {
		t.Run(fmt.Sprint("to ", n), func(t *testing.T) {
			t.Parallel()
			conn, name, fresh := connect(t), at(t, pgtest.URL(), newest), at(t, pgtest.URL(), n)
			load(t, conn, name, newest)
			before := dump(t, conn, name)
			if err := migrations.Down(t.Context(), pgtest.URL(), name, int32(n)); err != nil {
				t.Fatalf("Down: %v", err)
			}
			if diff := cmp.Diff(describe(t, conn, fresh), describe(t, conn, name)); diff != "" {
				t.Errorf("the tables after Down (-fresh +down):\n%s", diff)
			}
			older := dump(t, conn, name)
			if diff := cmp.Diff(asHeldBy(n, before).like(older), asHeldBy(n, older).like(older)); diff != "" {
				t.Errorf("after Down (-before +after):\n%s", diff)
			}
			if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
				t.Fatalf("Up: %v", err)
			}
			if diff := cmp.Diff(older.like(older), dump(t, conn, name).like(older)); diff != "" {
				t.Errorf("after Up (-down +up):\n%s", diff)
			}
		})
	}
}

// What was redriven before its time was kept, and is still to run, was redriven now: a call
// that may be under way since is waited for.
func TestWhatIsStillToRunWasRedrivenNow(t *testing.T) {
	t.Parallel()
	conn, name := connect(t), at(t, pgtest.URL(), 9)
	if _, err := conn.Exec(t.Context(), `INSERT INTO `+name+`.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, due_at, round)
		SELECT state, 'unknown', 't', convert_to(concat_ws(' ', state, round), 'UTF8'), '{}', '{}', 'p', 'unreadable', now(), round
		FROM unnest(ARRAY['dead', 'retrying']) AS state, generate_series(0, 1) AS round`); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
		t.Fatalf("Up: %v", err)
	}
	var got string
	if err := conn.QueryRow(t.Context(), "SELECT string_agg(convert_from(message_id, 'UTF8'), ', ') FROM "+name+".parked WHERE redriven_at IS NOT NULL").Scan(&got); err != nil || got != "retrying 1" {
		t.Errorf("redriven: %q, %v; want the one that is still to run", got, err)
	}
}

// asHeldBy returns the rows of c as version n has them: what it does not know is something
// else there, as the migrations' lower halves say.
func asHeldBy(n int, c content) content {
	held := content{}
	for table, rows := range c {
		for _, r := range rows {
			was := row{}
			for column, value := range r {
				was[column] = value
			}
			switch {
			case n < 8 && table == "inbox" && r["state"] == "refused":
				was["state"] = "done"
			case n < 6 && table == "parked" && r["state"] == "retrying" && r["key"] == nil:
				was["state"] = "dead"
			case n < 5 && table == "outbox_held" && r["id"] == float64(1004):
				was["state"], was["due_at"] = "delayed", "now"
			case n < 5 && table == "outbox_held" && r["id"] == float64(1005):
				was["state"], was["due_at"] = "refused", "now"
			case n < 5 && table == "outbox" && r["payload"] == fmt.Sprintf(`\x%x`, "published"):
				continue
			}
			held[table] = append(held[table], was)
		}
	}
	return held
}

// A migration that ends with its session, when all of it is done but the version, has done
// nothing.
func TestAKilledMigrationLeavesAWholeVersion(t *testing.T) {
	t.Parallel()
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
