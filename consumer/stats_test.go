package consumer

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The parked messages are counted by step, kind, state and reason, and the age
// of the oldest of each is told.
func TestStats(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	step := f.step(scripted, scripted)
	c := f.consumer(t, Options{}, step)
	handle(t, c, newMessage("pay", "a", payment{10}), newMessage("pay", "b", payment{12}), newMessage("unpay", "b", payment{1}),
		newMessage("pay", "c", payment{11}), newMessage("pay", "d", payment{11}), newMessage("other", "x", payment{1}))
	f.exec(t, "UPDATE {schema}.parked SET first_at = clock_timestamp() - interval '1 hour', due_at = clock_timestamp() + interval '1 day'")
	f.exec(t, "UPDATE {schema}.parked SET first_at = clock_timestamp() - interval '2 hours', due_at = clock_timestamp() - interval '1 minute' WHERE key = 'a' OR key = 'd'")
	got, err := c.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const name = "process-payment"
	want := Stats{Retrying: 3, Dead: 3, Overdue: time.Minute, Parked: []ParkedStats{
		{Dead: true, Reason: ReasonTypeUnknown, Messages: 1, Oldest: time.Hour},
		{Step: name, Reason: ReasonFailed, Messages: 2, Oldest: 2 * time.Hour},
		{Step: name, Dead: true, Reason: ReasonTerminal, Messages: 2, Oldest: 2 * time.Hour},
		{Step: name, Undo: true, Reason: ReasonWaits, Messages: 1, Oldest: time.Hour},
	}}
	near := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < 30*time.Second })
	if diff := cmp.Diff(want, got, near, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
	if read, err := ReadStats(t.Context(), f.pool, f.schema); err != nil || cmp.Diff(got, read, near) != "" {
		t.Errorf("ReadStats = %+v, %v; want what Stats says", read, err)
	}
	if _, err := ReadStats(t.Context(), f.pool, "no such"); err == nil {
		t.Error("ReadStats of a schema with a blank = nil error")
	}
	f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp() + interval '1 day'")
	if got, err := c.Stats(t.Context()); err != nil || got.Overdue != 0 {
		t.Errorf("with nothing due: overdue for %s, %v; want 0", got.Overdue, err)
	}
}
