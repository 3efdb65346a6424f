package consumer_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

// The messages that arrive at a cell. Both kinds have another one, of the same
// identity with another payload.
var arrivals = map[string]func(key string) *message.Message{
	"action":             func(key string) *message.Message { return identified(actionType, key, 1) },
	"compensation":       func(key string) *message.Message { return identified(undoType, key, 2) },
	"other action":       func(key string) *message.Message { return identified(actionType, key, 9) },
	"other compensation": func(key string) *message.Message { return identified(undoType, key, 8) },
}

// A cell is a state of a step's row, how it comes about, and what follows from
// each arrival: state | effects | parked messages.
type cell struct {
	name  string
	build func(*cellBuilder)
	is    string
	want  map[string]string
}

// after is what must be seen when arrival has been dealt with: what there was,
// where the table says nothing.
func (c *cell) after(arrival string) string {
	if want := c.want[arrival]; want != "" {
		return want
	}
	return c.is
}

// with is c.is with one more parked message.
func with(is, parked string) string {
	if strings.HasSuffix(is, "| ") {
		return is + parked
	}
	return is + "; " + parked
}

const (
	parkedAction = "retrying action failed"
	waitingUndo  = "retrying compensation waits-for-action"
	reusedAction = "dead action key-reused"
	reusedUndo   = "dead compensation key-reused"
)

// cells is the table of the package's documentation, and the states between its
// lines.
func cells() []*cell {
	all := []*cell{
		{name: "absent", is: "absent |  | ", build: func(*cellBuilder) {}, want: map[string]string{
			"action": "done | act 1 | ", "compensation": "void |  | ", "other action": "done | act 9 | ", "other compensation": "void |  | ",
		}},
		{name: "open", is: "open |  | ", build: (*cellBuilder).open, want: map[string]string{
			"action": "done | act 1 | ", "compensation": "void |  | ", "other action": "done | act 9 | ", "other compensation": "void |  | ",
		}},
		{name: "open after a crash", is: "open |  | ", build: (*cellBuilder).crash, want: map[string]string{
			"action": "done | act 1 | ", "compensation": "open |  | " + waitingUndo,
			"other action": "done | act 9 | ", "other compensation": "open |  | " + waitingUndo,
		}},
		{name: "retrying", is: "retrying |  | " + parkedAction, build: (*cellBuilder).failAction, want: map[string]string{
			"compensation": "", "other action": reusedAction, "other compensation": "",
		}},
		{name: "retrying with a waiting compensation", is: "retrying |  | " + parkedAction + "; " + waitingUndo,
			build: func(b *cellBuilder) { b.failAction(); b.ok("compensation") },
			want:  map[string]string{"other action": reusedAction, "other compensation": reusedUndo}},
		{name: "dead", is: "dead |  | dead action terminal", build: func(b *cellBuilder) { b.end("action", gives) }, want: map[string]string{
			"compensation": "dead compensation action-dead", "other action": reusedAction, "other compensation": "dead compensation action-dead",
		}},
		{name: "done", is: "done | act 1 | ", build: func(b *cellBuilder) { b.ok("action") }, want: map[string]string{
			"compensation": "compensated | act 1, undo 2 | ", "other action": reusedAction, "other compensation": "compensated | act 1, undo 8 | ",
		}},
		{name: "done with a waiting compensation", is: "done | act 1 | " + waitingUndo,
			build: func(b *cellBuilder) { b.failAction(); b.ok("compensation"); b.runParked() },
			want:  map[string]string{"other action": reusedAction, "other compensation": reusedUndo}},
		{name: "void", is: "void |  | ", build: func(b *cellBuilder) { b.ok("compensation") }, want: map[string]string{"other compensation": reusedUndo}},
		{name: "undoing", is: "undoing | act 1 | retrying compensation failed",
			build: func(b *cellBuilder) { b.ok("action"); b.end("compensation", fails) },
			want:  map[string]string{"other action": reusedAction, "other compensation": reusedUndo}},
		{name: "undo-dead", is: "undo-dead | act 1 | dead compensation terminal",
			build: func(b *cellBuilder) { b.ok("action"); b.end("compensation", gives) },
			want:  map[string]string{"other action": reusedAction, "other compensation": reusedUndo}},
		{name: "compensated", is: "compensated | act 1, undo 2 | ",
			build: func(b *cellBuilder) { b.ok("action"); b.ok("compensation") },
			want:  map[string]string{"other action": reusedAction, "other compensation": reusedUndo}},
	}
	for _, c := range all {
		for arrival, want := range c.want {
			if want != "" && !strings.Contains(want, "|") {
				c.want[arrival] = with(c.is, want)
			}
		}
	}
	for _, c := range all {
		if c.name == "retrying" {
			c.want["compensation"], c.want["other compensation"] = with(c.is, waitingUndo), with(c.is, waitingUndo)
		}
	}
	return all
}

// A cellBuilder brings about states, of many keys at once: what it is told for
// each key it does in rounds.
type cellBuilder struct {
	steps   map[string][]setup // by key
	key     string
	ran     []string
	crashed []string
	opened  []string
}

// A setup is a delivery to a handler that ends in a certain way.
type setup struct {
	arrival string
	end     callResult
}

func (b *cellBuilder) end(arrival string, o callResult) {
	b.steps[b.key] = append(b.steps[b.key], setup{arrival, o})
}
func (b *cellBuilder) ok(arrival string) { b.end(arrival, succeeds) }
func (b *cellBuilder) failAction()       { b.end("action", fails) }
func (b *cellBuilder) runParked()        { b.ran = append(b.ran, b.key) }
func (b *cellBuilder) crash()            { b.crashed = append(b.crashed, b.key) }
func (b *cellBuilder) open()             { b.opened = append(b.opened, b.key) }

// build brings the keys of each cell into its state. A key is the number of its
// cell and what it is for.
func build(t *testing.T, s *stage, keys map[string]*cell) {
	t.Helper()
	b := &cellBuilder{steps: map[string][]setup{}}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		b.key = key
		keys[key].build(b)
	}
	for round := range 2 {
		var msgs []*message.Message
		ends := map[string]callResult{}
		for key, steps := range b.steps {
			if round < len(steps) {
				msgs = append(msgs, arrivals[steps[round].arrival](key))
				ends[key] = steps[round].end
			}
		}
		s.deliver(t, func(_, key string) callResult { return ends[key] }, msgs...)
	}
	s.dueOf(t, actionType, b.ran)
	for _, key := range b.opened { // no arrival that has ended leaves such a row
		s.exec(t, "INSERT INTO {schema}.inbox (scope, key, step, n, state) VALUES ('tenant', $1, 'pay', '', 'open')", key)
	}
	for _, key := range b.crashed {
		again := arrivals["action"](key)
		again.Metadata.Set(outbox.PropertyRedelivered, "true")
		if c := startChild(t, s, childConfig{How: kills, Batch: 1, Lanes: 1}, again); !c.killed() {
			t.Fatalf("the handler did not kill its process: %s", c.said)
		}
	}
	got := s.looks(t)
	for key, c := range keys {
		if l := seen(got[key]); l.String() != c.is {
			t.Fatalf("cell %s was built as %q, want %q", c.name, l, c.is)
		}
		if l := got[key]; c.name == "open after a crash" && l.attempts < 1 {
			t.Fatalf("the crashed attempt was not counted: %+v", l)
		}
	}
	s.exec(t, "TRUNCATE {schema}.storm_entry")
}

// seen is the look of a key of which there may be no trace.
func seen(l *look) *look {
	if l == nil {
		return &look{state: "absent"}
	}
	return l
}

// Every cell of the table, for every arrival, on a consumer that has them all in
// hand at once.
func TestEveryCell(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, batch)
			keys, msgs, want := everyCell()
			build(t, s, keys)
			s.deliver(t, always(succeeds), msgs...)
			got := s.looks(t)
			for key, w := range want {
				if l := seen(got[key]); l.String() != w.look || l.entries+l.undos != w.entries {
					t.Errorf("%s: %q after %d entries, want %q after %d", key, l, l.entries+l.undos, w.look, w.entries)
				}
			}
		})
	}
}

// A wanted is what must be seen of a key, and how often handlers were entered for
// it.
type wanted struct {
	look    string
	entries int
}

// everyCell returns a key for each cell and arrival, with the messages and what
// is to come of them.
func everyCell() (keys map[string]*cell, msgs []*message.Message, want map[string]wanted) {
	keys, want = map[string]*cell{}, map[string]wanted{}
	for _, c := range cells() {
		for _, arrival := range slices.Sorted(maps.Keys(arrivals)) {
			key := strings.ReplaceAll(c.name+"/"+arrival, " ", "-")
			keys[key] = c
			msgs = append(msgs, arrivals[arrival](key))
			entries := strings.Count(effectsOf(c.after(arrival)), " ") - strings.Count(effectsOf(c.is), " ")
			want[key] = wanted{c.after(arrival), (entries + 1) / 2}
		}
	}
	return keys, msgs, want
}

// effectsOf is the part of a look between the bars.
func effectsOf(look string) string { return strings.TrimSpace(strings.Split(look, "|")[1]) }
