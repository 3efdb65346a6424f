package operator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/machine"
)

// After a data-only restore the next entries of a journal may get ids that others have. The sequence is raised when that
// is met. The verb has done nothing then, and says so, or runs again by itself.
func TestAJournalIDThatIsTaken(t *testing.T) {
	t.Parallel()
	again := func(t *testing.T, verb func() error) {
		t.Helper()
		if err := verb(); err == nil {
			return
		}
		if err := verb(); err != nil {
			t.Error(err)
		}
	}
	t.Run("saga", func(t *testing.T) {
		t.Parallel()
		c := newCrowd(t)
		for _, key := range []string{"a", "b", "c"} {
			c.put(t, key, at(machine.InFlight))
			if key == "c" {
				c.exec(t, "SELECT setval('{schema}.saga_journal_id_seq', 1, false)")
			}
			again(t, func() error {
				got, err := c.n.DecideAll(t.Context(), InstanceFilter{Silent: time.Minute}, retryHotel, nil)
				if err == nil && got.Decided != 1 {
					err = fmt.Errorf("%+v", got)
				}
				return err
			})
		}
		got := strings.Join(c.texts(t, "SELECT concat_ws(' ', verb, key, id > 1000000) FROM {schema}.saga_journal ORDER BY id"), ", ")
		if want := "retry a f, retry b f, retry c t"; got != want {
			t.Errorf("journal %q, want %q", got, want)
		}
	})
	t.Run("operator", func(t *testing.T) {
		t.Parallel()
		f := newLetterFixture(t)
		f.manyDead(t, 3)
		ann, err := NewDeadLetters(f.pool, Inbox, &Options{Schema: f.schema, By: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		for id := range int64(3) {
			if id == 2 {
				f.exec(t, "SELECT setval('{schema}.operator_journal_id_seq', 1, false)")
			}
			again(t, func() error {
				_, _, err := ann.Edit(t.Context(), id+1, Edit{Set: map[string]string{"x-own": "1"}})
				return err
			})
		}
		got := strings.Join(f.texts(t, "SELECT concat_ws(' ', verb, ids, id > 1000000) FROM {schema}.operator_journal ORDER BY id"), ", ")
		if want := "dead edit {1} f, dead edit {2} f, dead edit {3} t"; got != want {
			t.Errorf("journal %q, want %q", got, want)
		}
	})
}
