package main

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
)

func kindNamed(name string) *kind {
	return &kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })]
}

// sound is a result in which everything holds: a trip that was completed, and one
// that was cancelled when it held something.
func sound() *result {
	whole := &placed{Placement: demo.Placement{ID: "a", Replies: [][]byte{[]byte("x"), []byte("x")}}, kind: kindNamed("with a car")}
	whole.last.Status = completed
	undone := &placed{Placement: demo.Placement{ID: "b", Replies: [][]byte{[]byte("y")}}, kind: kindNamed("cancelled"), deleted: http.StatusAccepted}
	undone.last.Status = compensated
	hold := func(item string, entries ...command.Entry) command.Ledger {
		return command.Ledger{Stock: []command.Stock{{Item: item, Capacity: 9, Free: 8}}, Entries: entries}
	}
	one := func(item, state string) command.Entry { return command.Entry{TripID: "a", Item: item, State: state} }
	return &result{patience: 5 * time.Second, trips: []*placed{whole, undone}, ledgers: map[string]command.Ledger{
		"flight": hold("LH100", one("LH100", "held"), command.Entry{TripID: "b", Item: "LH100", State: "released"}),
		"hotel":  hold("grand", one("grand", "held")), "car": hold("compact", one("compact", "held")),
		"ticketing": {Entries: []command.Entry{one("", "issued")}}, "mail": {Entries: []command.Entry{one("", "bounced"), one("", "sent")}},
		"trip": {Entries: []command.Entry{one("", "written")}},
	}}
}

// Each invariant must be able to fail, and a sound result must pass.
func TestInvariantsSeeWhatIsWrong(t *testing.T) {
	t.Parallel()
	if n := sound().judgeDemo(io.Discard); n != 0 {
		t.Errorf("%d violations in a sound result", n)
	}
	add := func(r *result, service string, e command.Entry) {
		l := r.ledgers[service]
		l.Entries = append(l.Entries, e)
		r.ledgers[service] = l
	}
	for name, tt := range map[string]struct {
		spoil func(*result)
		says  string
	}{
		"other reply":        {func(r *result) { r.trips[0].Replies[1] = []byte("z") }, "same reply"},
		"shared id":          {func(r *result) { r.trips[1].ID = "a" }, "share an id"},
		"still open":         {func(r *result) { r.trips[0].last.Status = "running" }, "every saga ended"},
		"undone for none":    {func(r *result) { undoLate(r, "the hotel is full", time.Minute) }, "every saga ended"},
		"undone too soon":    {func(r *result) { undoLate(r, "step hotel: no reply within 5s", 4*time.Second) }, "every saga ended"},
		"cancelled for none": {func(r *result) { r.trips[1].last.Status = completed }, "every saga ended"},
		"refused for none":   {func(r *result) { r.trips[1].deleted = http.StatusConflict }, "every saga ended"},
		"nothing held":       {func(r *result) { r.ledgers["hotel"].Entries[0].State = "released" }, "units are conserved"},
		"not given back":     {func(r *result) { r.ledgers["flight"].Entries[1].State = "held" }, "units are conserved"},
		"lost unit":          {func(r *result) { r.ledgers["flight"].Stock[0].Free-- }, "the stock"},
		"booked twice":       {func(r *result) { add(r, "car", command.Entry{TripID: "a", Item: "compact", State: "released"}) }, "same thing twice"},
		"second ticket":      {func(r *result) { add(r, "ticketing", command.Entry{TripID: "a", State: "issued"}) }, "one ticket"},
		"ticket for nobody":  {func(r *result) { add(r, "ticketing", command.Entry{TripID: "b", State: "issued"}) }, "one ticket"},
		"second mail":        {func(r *result) { add(r, "mail", command.Entry{TripID: "a", State: "sent"}) }, "one ticket"},
		"no itinerary":       {func(r *result) { delete(r.ledgers, "trip") }, "one ticket"},
		"unknown trip":       {func(r *result) { add(r, "mail", command.Entry{TripID: "ghost", State: "bounced"}) }, "no other trips"},
		"dead letter":        {func(r *result) { r.left = []string{"dead 1"} }, "nothing is left"},
	} {
		r := sound()
		tt.spoil(r)
		var out strings.Builder
		n := r.judgeDemo(&out)
		found := false
		for line := range strings.Lines(out.String()) {
			found = found || strings.Contains(line, "VIOLATED") && strings.Contains(line, tt.says)
		}
		if n == 0 || !found {
			t.Errorf("%s: %d violations, none that says %q:\n%s", name, n, tt.says, out.String())
		}
	}
}

// undoLate has the second trip undone without its customer's wish.
func undoLate(r *result, reason string, lasted time.Duration) {
	p := r.trips[1]
	p.kind, p.deleted, p.lasted, p.last.Reason = kindNamed("good"), 0, lasted, reason
}

// On a slow machine trips are compensated by their deadline. The demo counts them.
func TestADeadlineMayPass(t *testing.T) {
	t.Parallel()
	const hint = "-patience 30s gives them longer"
	var out strings.Builder
	if sound().judgeDemo(&out); strings.Contains(out.String(), hint) {
		t.Errorf("a demo without a late trip says:\n%s", out.String())
	}
	for _, reason := range []string{"step hotel: no reply within 5s", "the saga's deadline of 10s has passed"} {
		for _, deleted := range []int{0, http.StatusConflict} {
			r := sound()
			undoLate(r, reason, 5*time.Second)
			r.trips[1].deleted = deleted
			out.Reset()
			if n := r.judgeDemo(&out); n != 0 || !strings.Contains(out.String(), "because a deadline passed: 1.") || !strings.Contains(out.String(), hint) {
				t.Errorf("%s, DELETE %d: %d violations, want 0, and one late trip:\n%s", reason, deleted, n, out.String())
			}
		}
	}
}

func TestASmallLoadHasEveryKind(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, p := range newLoad("", len(kinds)).Items {
		seen[p.kind.name] = true
	}
	total := 0
	for _, k := range kinds {
		total += k.share
	}
	if len(seen) != len(kinds) || total != 100 {
		t.Errorf("%d kinds of %d, shares sum to %d", len(seen), len(kinds), total)
	}
}
