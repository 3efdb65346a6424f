package outbox

import (
	"testing"
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
