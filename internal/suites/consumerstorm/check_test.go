package consumerstorm

import (
	"strings"
	"testing"
)

// The checker finds each thing that it is there for, and nothing in a history
// that has only what is allowed.
func TestCheck(t *testing.T) {
	t.Parallel()
	act, undo := Message{ID: "a", Key: "k", Kind: Action, Payload: []byte("1")}, Message{ID: "u", Key: "k", Kind: Compensation, Payload: []byte("2")}
	did := func(m Message) Effect { return Effect{Key: m.Key, Kind: m.Kind, MessageID: m.ID, Payload: m.Payload} }
	parked := func(m Message, state string, attempts int) Parked {
		return Parked{Key: m.Key, Kind: m.Kind, State: state, MessageID: m.ID, Payload: m.Payload, Attempts: attempts}
	}
	row := func(state string) []Row { return []Row{{Key: "k", State: state}} }
	entry := Entry{Key: "k", Kind: Action, MessageID: "a"}
	for _, tt := range []struct {
		name string
		e    Evidence
		want string // part of a complaint; none if empty
	}{
		{"done", Evidence{Published: []Message{act}, Rows: row("done"), Effects: []Effect{did(act)}}, ""},
		{"undone", Evidence{Published: []Message{act, undo}, Rows: row("compensated"), Effects: []Effect{did(act), did(undo)}}, ""},
		{"superseded", Evidence{Published: []Message{act}, Rows: row("void")}, ""},
		{"lost", Evidence{Published: []Message{act}}, "is lost"},
		{"lost compensation", Evidence{Published: []Message{act, undo}, Rows: row("done"), Effects: []Effect{did(act)}}, "is lost"},
		{"another tombstone", Evidence{Published: []Message{undo}, Rows: row("void")}, "is lost"},
		{"twice", Evidence{Published: []Message{act}, Rows: row("done"), Effects: []Effect{did(act), did(act)}}, "took effect twice"},
		{"late", Evidence{Published: []Message{act, undo}, Rows: row("compensated"), Effects: []Effect{did(undo), did(act)}}, "after the compensation"},
		{"foreign", Evidence{Rows: row("done"), Effects: []Effect{did(act)}}, "nobody published"},
		{"wrong row", Evidence{Published: []Message{act}, Rows: row("retrying"), Effects: []Effect{did(act)}}, "the row is retrying"},
		{"orphan", Evidence{Rows: row("retrying")}, "no action is parked"},
		{"still parked", Evidence{Published: []Message{act}, Rows: row("retrying"), Parked: []Parked{parked(act, "retrying", 1)}}, "still parked"},
		{"innocent", Evidence{Published: []Message{act}, Rows: row("dead"), Parked: []Parked{parked(act, "dead", 1)}}, "is a dead letter"},
		{"entered too often", Evidence{Published: []Message{act}, Rows: row("done"), Effects: []Effect{did(act)}, Entries: []Entry{entry, entry, entry}}, "entered 3 times"},
		{"counted too often", Evidence{Published: []Message{act}, Rows: row("retrying"), Parked: []Parked{parked(act, "retrying", 3)}}, "has 3 attempts"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(tt.e.Check(Limits{Attempts: 2, Drained: true}), "; ")
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("Check = %q, want %q", got, tt.want)
			}
		})
	}
}
