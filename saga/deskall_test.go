package saga_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// What hangs because its commands were lost goes on when all of it is retried, and does nothing twice. Nested instances
// are decided about for themselves.
func TestRetryingAllThatHang(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	stay := saga.Must(saga.Define("stay", 1, book("hotel")))
	def := saga.Must(saga.Define("trip", 1, book("flight"), saga.Step[trip]{Name: "stay", Do: saga.Nested(stay, func(s *trip) trip { return *s }, nil)}))
	d.orchestrate(def)
	d.participate(d.booking("flight"))
	keys := []string{"a", "b", "c"}
	for _, key := range keys {
		start(d.place, def, key, trip{Item: "x"})
	}
	for _, key := range keys { // nobody has a queue for the hotel: its commands are lost
		d.sees(saga.Address{Key: key, Path: "2.1"}, "hotel running")
	}
	d.await("the relay has read all commands for the hotel", func() bool {
		var held int
		if err := d.db.QueryRow(t.Context(), "SELECT count(*) FROM "+d.schema+".outbox_held WHERE topic = 'hotel.book'").Scan(&held); err != nil {
			t.Fatal(err)
		}
		return held == len(keys)
	})
	d.exec("UPDATE {schema}.saga SET updated_at = clock_timestamp() - interval '1 hour'")
	d.exec("DELETE FROM {schema}.outbox_held")
	hangs, retry := operator.InstanceFilter{Silent: time.Minute}, operator.Decision{Verb: operator.VerbRetry, Step: "hotel", By: "ann", Why: "its queue was deleted"}
	want := operator.Decisions{Decided: 3, Refused: map[string]int{`there is no step "hotel" in trip, version 1`: 3}}
	got, err := d.n.PreviewAll(t.Context(), hangs, retry, nil)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("PreviewAll: error %v (-want +got):\n%s", err, diff)
	}
	d.participate(d.booking("hotel"))
	got, err = d.n.DecideAll(t.Context(), hangs, retry, nil)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("DecideAll: error %v (-want +got):\n%s", err, diff)
	}
	for _, key := range keys {
		d.until(key, saga.StatusCompleted)
		if got := d.effects(key); got != fmt.Sprint([]string{"flight", "hotel"}) {
			t.Errorf("done for %s is %s", key, got)
		}
		if j := d.getAt(saga.Address{Key: key, Path: "2.1"}).Journal; len(j) != 1 || j[0].Why != "its queue was deleted" {
			t.Errorf("the journal of %s has %+v", key, j)
		}
	}
}
