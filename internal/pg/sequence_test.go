package pg_test

import (
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A handler's own table may have the name of one of ours: its taken ids are its own affair.
func TestATakenIDOfAnotherTable(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	own := pg.NewOwn(pool)
	other := pgtest.Name()
	pgtest.DropSchema(t, other)
	for _, statement := range []string{"CREATE SCHEMA " + other, "CREATE TABLE " + other + ".parked (id int PRIMARY KEY)"} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	_, err := own.Exec(t.Context(), "INSERT INTO "+other+".parked VALUES (1), (1)")
	if err == nil || strings.Contains(err.Error(), "sequence") || strings.Contains(err.Error(), "does not exist") {
		t.Errorf("in another schema: %v", err)
	}
	_, err = own.Exec(t.Context(), "INSERT INTO "+schema+".outbox_cursor_0 (epoch, seq, from_snapshot, last_id) VALUES (1, 1, '1:1:', 0), (1, 1, '1:1:', 0)")
	if err == nil || strings.Contains(err.Error(), "sequence") {
		t.Errorf("in a table without a sequence: %v", err)
	}
}
