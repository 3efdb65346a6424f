package outbox

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/suites/roletest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// What SELECT on the tables allows is enough, and all of it is needed.
func TestALocatorGetsByWithItsGrants(t *testing.T) {
	t.Parallel()
	server := privateServer(t)
	tables := []string{
		"outbox_0", "outbox_1", "outbox_2", "outbox_other", "outbox_held", "outbox_relay", "outbox_cursor_0", "outbox_cursor_1",
	}
	f := server.fixture(t)
	f.keeping(t, toStep("k", "one"))
	as := f.as(t, server, "reader")
	if got := places(as.locate(t, LocateFilter{Key: "k"})); got != "one published" {
		t.Errorf("with all grants: %s", got)
	}
	l := f.letters(t)
	for _, table := range tables {
		as.roles.Without(t, "reader", roletest.Grant{Privilege: "SELECT", On: "{schema}." + table}, func() {
			err := pgx.BeginFunc(t.Context(), as.pool, func(tx pgx.Tx) error {
				_, err := l.Locate(t.Context(), tx, LocateFilter{Key: "k"})
				return err
			})
			if err == nil || !strings.Contains(err.Error(), roletest.Denied) {
				t.Errorf("without %s: %v", table, err)
			}
		})
	}
}

// The log is read once, held messages are read by the index of their keys, and for unpublished
// messages it makes no difference how much is published. The server is the test's own: a
// snapshot of another test keeps dead rows, which cost pages too.
func TestWhatLocateReads(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	server := privateServer(t)
	buffers, allowed := map[string][]int{}, map[string]int{}
	for _, published := range []int{1000, 30_000} {
		for name, statistics := range map[string]string{"fresh": "SELECT", "analyzed": "ANALYZE {schema}.outbox_0, {schema}.outbox_held"} {
			f := server.fixture(t)
			f.exec(t, "ALTER TABLE {schema}.outbox_0 SET (autovacuum_enabled = off)")
			f.exec(t, "ALTER TABLE {schema}.outbox_held SET (autovacuum_enabled = off)")
			f.fill(t, published)
			f.hold(t, 5000, "refused", "1 hour")
			f.hold(t, 500, "waiting", "0")
			f.exec(t, "UPDATE {schema}.outbox_held SET key = 'other' WHERE state = 'refused'")
			f.exec(t, "INSERT INTO {schema}.outbox_cursor_0 (epoch, seq, from_snapshot, last_id) SELECT 1, 0, pg_current_snapshot()::text, 0")
			f.write(t, msg("k", "x"))
			f.exec(t, statistics)
			locate := pgtest.Statement(t, "operator", "outboxQueries.locate", f.schema)
			locateUnpublished := pgtest.Statement(t, "operator", "outboxQueries.locateUnpublished", f.schema)
			all := f.explain(t, "", locate, "", "k", MaxList)
			if got := scans(all)["outbox_0"]; got != "Seq Scan " && got != "Bitmap Heap Scan " {
				t.Errorf("%s: the log is read by %q, want one scan", name, got)
			}
			if got := scans(all)["outbox_held"]; got == "" || strings.Contains(got, "Seq Scan") {
				t.Errorf("%s: held messages are read by %q, want indexes", name, got)
			}
			var pages int
			if err := f.pool.QueryRow(t.Context(), "SELECT (pg_table_size($1) + pg_table_size($2)) / 8192", f.schema+".outbox_0", f.schema+".outbox_held").Scan(&pages); err != nil {
				t.Fatal(err)
			}
			if most := pages + 5*501 + 100; all.Buffers() > most { // and a look into an index for each that waits
				t.Errorf("%s, %d published: %d buffers, want up to %d", name, published, all.Buffers(), most)
			}
			some := f.explain(t, outboxsql.PlanByIndex, locateUnpublished, "", "k", MaxList)
			if got := scans(some)["outbox_0"]; strings.Contains(got, "Seq Scan") {
				t.Errorf("%s: what is not published is read by %q", name, got)
			}
			buffers[name] = append(buffers[name], some.Buffers())
			var others int // transactions that were open when the cursor was noted: each is looked for in each index
			if err := f.pool.QueryRow(t.Context(), "SELECT count(x) FROM "+f.schema+".outbox_cursor_0, pg_snapshot_xip(from_snapshot::pg_snapshot) AS x").Scan(&others); err != nil {
				t.Fatal(err)
			}
			allowed[name] = 40 + 20*others // and an index has a level more
		}
	}
	for name, b := range buffers {
		t.Logf("%s: %d buffers", name, b)
		if b[1] > b[0]+allowed[name] {
			t.Errorf("%s: what is published costs: %d buffers, and then %d", name, b[0], b[1])
		}
	}
}
