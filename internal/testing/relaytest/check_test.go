package relaytest

import (
	"cmp"
	"strings"
	"testing"
)

// A delayed message comes behind what was written before it, wherever what was written
// after it is.
func TestCheckOfADelayedMessage(t *testing.T) {
	t.Parallel()
	all := map[string]Message{
		"1": {ID: "1", Key: "k", Version: 1}, "2": {ID: "2", Key: "k", Version: 2, Delayed: true},
		"3": {ID: "3", Key: "k", Version: 3}, "4": {ID: "4", Key: "other", Version: 4},
	}
	for order, want := range map[string]string{
		"1 2 3": "", "1 3 2": "", "2 1 3": "k v2, which was delayed, came before v1", "3 2 1": "k v1 came first after v3",
	} {
		e := Evidence{Committed: all, Arrivals: []Arrival{{ID: "4", Key: "other", Version: 4}}}
		for _, id := range strings.Fields(order) {
			e.Arrivals = append(e.Arrivals, Arrival{ID: id, Key: "k", Version: all[id].Version, Copy: id})
		}
		wrong := Check(e, []Licence{{}})
		if got := strings.Join(wrong, "; "); len(wrong) > 1 || (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("Check of %s = %q, want %q", order, got, cmp.Or(want, "nothing"))
		}
	}
}

// The checker finds each thing that it is there for, and nothing in a history
// that has only what is allowed.
func TestCheck(t *testing.T) {
	t.Parallel()
	first, second := Message{ID: "1", Key: "k", Version: 1}, Message{ID: "2", Key: "k", Version: 2}
	comes := func(m Message, copy string) Arrival {
		return Arrival{ID: m.ID, Key: m.Key, Version: m.Version, Relay: "a", Copy: copy}
	}
	again := comes(first, "a1")
	again.Redelivered = true
	overlapped := comes(second, "b2")
	overlapped.Overlapped = true
	other := comes(second, "a2")
	other.Version = 3
	for _, tt := range []struct {
		name     string
		arrivals []Arrival
		licence  Licence
		want     string // part of the one complaint; none if empty
	}{
		{"in order", []Arrival{comes(first, "a1"), comes(second, "a2")}, Licence{}, ""},
		{"redelivered", []Arrival{comes(first, "a1"), comes(second, "a2"), again}, Licence{}, ""},
		{"redelivered only", []Arrival{again, comes(second, "a2")}, Licence{}, ""},
		{"repeated, as it may be", []Arrival{comes(first, "a1"), comes(second, "a2"), comes(first, "b1")}, Licence{Repeats: 1}, ""},
		{"repeated", []Arrival{comes(first, "a1"), comes(second, "a2"), comes(first, "b1")}, Licence{}, "published again"},
		{"sent twice by the publisher", []Arrival{comes(first, "a1"), comes(first, "a1"), comes(second, "a2")}, Licence{}, "published again"},
		{"too many repeats", []Arrival{comes(first, "a1"), comes(second, "a2"), comes(first, "b1"), comes(second, "b2")}, Licence{Repeats: 1}, "published again"},
		{"lost", []Arrival{comes(first, "a1")}, Licence{}, "lost k v2"},
		{"out of order", []Arrival{comes(second, "a2"), comes(first, "a1")}, Licence{}, "k v1 came first after v2"},
		{"rolled back", []Arrival{comes(first, "a1"), comes(second, "a2"), comes(Message{ID: "3", Key: "k", Version: 3}, "a3")}, Licence{}, "rolled back"},
		{"unknown", []Arrival{comes(first, "a1"), comes(second, "a2"), comes(Message{ID: "4", Key: "k", Version: 4}, "a4")}, Licence{}, "nobody wrote"},
		{"changed", []Arrival{comes(first, "a1"), other}, Licence{}, "arrived as"},
		{"two at once", []Arrival{comes(first, "a1"), overlapped}, Licence{}, "another relay was at it"},
		{"two at once, as it may be", []Arrival{comes(first, "a1"), overlapped}, Licence{Overlap: true}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := Evidence{
				Committed: map[string]Message{"1": first, "2": second},
				Undone:    map[string]Message{"3": {ID: "3", Key: "k", Version: 3}},
				Arrivals:  tt.arrivals,
			}
			wrong := Check(e, []Licence{tt.licence})
			if got := strings.Join(wrong, "; "); len(wrong) > 1 || (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("Check = %q, want %q", got, cmp.Or(tt.want, "nothing"))
			}
		})
	}
}
