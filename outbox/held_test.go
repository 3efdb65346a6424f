package outbox

import (
	"fmt"
	"testing"
	"time"
)

// due makes every held message that backs off or is delayed due.
func (f *fixture) due(t *testing.T) {
	t.Helper()
	f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp() WHERE state IN ('delayed', 'refused')")
}

// Held messages are in flight within the window as well: what a killed relay
// has published and not noted is published again.
func TestHeldMessagesKeepToTheWindow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 40 {
		m := msg(fmt.Sprint("k", i), "x")
		m.Delay = time.Hour
		f.write(t, m)
	}
	f.due(t)
	l := f.leader(t, RelayOptions{Window: 10})
	for range 5 { // nobody publishes
		if _, err := l.round(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	if l.inFlight == 0 || l.inFlight > 10 {
		t.Errorf("%d messages are in flight, want up to 10", l.inFlight)
	}
}
