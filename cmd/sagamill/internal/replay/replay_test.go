package replay

import (
	"bytes"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/operator"
)

// A replay that is stopped in the middle of its transaction loses that.
func TestAReplayMayNotHang(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.URL())
	limit := ""
	if err := beginLimited(t.Context(), pool, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&limit)
	}); err != nil || limit != "10s" {
		t.Errorf("the limit is %q, %v; want 10s", limit, err)
	}
}

// A long replay says how far it is, and how it goes on from there if nobody can ask it
// any more.
func TestAReplaySaysHowFarItIs(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	r := &rangeReplay{Call: &cli.Call{Stderr: &errs}, replayCall: &replayCall{Consent: &cli.Consent{}, after: cli.Positions{"a": 1}}}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for range 2 { // the second is within the second
		err := r.reportBatch("b", operator.RangeProgress{Batch: []operator.LoggedMessage{{ID: 6}, {ID: 7, CreatedAt: at}}, Replayed: 2, Found: 9, Last: 7})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, want := errs.String(), "schema b: 2 of 9, up to what was written at 2026-01-02T03:04:05Z; -after a:1,b:7 goes on from here\n"; got != want {
		t.Errorf("progress says %q, want %q", got, want)
	}
}
