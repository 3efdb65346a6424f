package outbox

import (
	"testing"
	"time"
)

// An overtaken relay whose tables of cursors are due to take turns leaves them
// alone: the new one may note its cursor in the one that would be emptied.
func TestAnOvertakenRelayEmptiesNoTableOfCursors(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.leader(t, RelayOptions{})
	f.exec(t, "UPDATE {schema}.outbox_relay SET epoch = epoch + 1")
	f.exec(t, "INSERT INTO {schema}.outbox_cursor_1 (epoch, seq, from_snapshot, last_id) SELECT epoch, 0, '1:1:', 0 FROM {schema}.outbox_relay")
	l.marks = l.turnAt
	l.turnCursors(t.Context())
	if got := f.count(t, "outbox_cursor_1"); got != 1 {
		t.Errorf("%d cursors are left, want the new relay's", got)
	}
}

// A read of the log that takes longer than the lease, as the list of a long
// backlog does, does not cost the relay its lease: it would start the same read
// again for ever.
func TestAReadMayTakeLongerThanTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	active := f.relay(t, RelayOptions{Lease: time.Second})
	active.signals.rested.Enable()
	start(t, active)
	if err := active.signals.rested.Wait(t); err != nil {
		t.Fatal(err)
	}
	epoch := f.epoch(t)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+f.schema+".outbox_2"); err != nil {
		t.Fatal(err)
	}
	standby := f.relay(t, RelayOptions{Lease: time.Second})
	standby.signals.standby.Enable()
	start(t, standby)
	for range 3 * standbyLooks {
		standby.signals.standby.Wait(t)
	}
	f.write(t, msg("k", "1"))
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "publish", func() bool { return len(f.broker.payloads()) == 1 })
	if got := f.epoch(t); got != epoch {
		t.Errorf("epoch %d, want %d", got, epoch)
	}
}
