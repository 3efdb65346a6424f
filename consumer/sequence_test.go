package consumer

import (
	"strings"
	"sync/atomic"
	"testing"
)

// After a data-only restore the next parked messages may get ids that others have. None is lost: the sequence is raised
// when that is met, and the transaction runs again.
func TestAParkedIDThatIsTaken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var entries atomic.Int32
	c := f.consumer(t, Options{}, f.step(f.failing(9, "paid", &entries), nil))
	handle(t, c, act("a"), act("b"), act("c"))
	f.exec(t, "SELECT setval('{schema}.parked_id_seq', 1, false)")
	handle(t, c, act("d"))
	got := strings.Join(f.texts(t, "SELECT concat_ws(' ', key, id > 1000000) FROM {schema}.parked ORDER BY id"), ", ")
	if want := "a f, b f, c f, d t"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}
