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

// A cell is a state of a step's row, how it comes about, and what each arrival changes. An arrival that is
// neither in becomes nor in parks changes nothing.
type cell struct {
	name    string
	build   func(*cellBuilder)
	is      standing
	becomes map[string]standing
	parks   map[string]string // the parked message that is added
}

// after returns what must be seen when arrival has been dealt with.
func (c *cell) after(arrival string) standing {
	if s, changed := c.becomes[arrival]; changed {
		return s
	}
	if parked, added := c.parks[arrival]; added {
		return c.is.withParked(parked)
	}
	return c.is
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
	return []*cell{
		{name: "absent", is: standing{state: "absent"}, build: func(*cellBuilder) {}, becomes: map[string]standing{
			"action": {state: "done", effects: "act 1"}, "compensation": {state: "void"}, "other action": {state: "done", effects: "act 9"}, "other compensation": {state: "void"},
		}},
		{name: "open", is: standing{state: "open"}, build: (*cellBuilder).open, becomes: map[string]standing{
			"action": {state: "done", effects: "act 1"}, "compensation": {state: "void"}, "other action": {state: "done", effects: "act 9"}, "other compensation": {state: "void"},
		}},
		{name: "open after a crash", is: standing{state: "open"}, build: (*cellBuilder).crash,
			becomes: map[string]standing{"action": {state: "done", effects: "act 1"}, "other action": {state: "done", effects: "act 9"}},
			parks:   map[string]string{"compensation": waitingUndo, "other compensation": waitingUndo}},
		{name: "retrying", is: standing{state: "retrying", parked: parkedAction}, build: (*cellBuilder).failAction,
			parks: map[string]string{"compensation": waitingUndo, "other action": reusedAction, "other compensation": waitingUndo}},
		{name: "retrying with a waiting compensation", is: standing{state: "retrying", parked: parkedAction + "; " + waitingUndo},
			build: func(b *cellBuilder) { b.failAction(); b.ok("compensation") },
			parks: map[string]string{"other action": reusedAction, "other compensation": reusedUndo}},
		{name: "dead", is: standing{state: "dead", parked: "dead action terminal"}, build: func(b *cellBuilder) { b.end("action", gives) },
			parks: map[string]string{"compensation": "dead compensation action-dead", "other action": reusedAction, "other compensation": "dead compensation action-dead"}},
		{name: "done", is: standing{state: "done", effects: "act 1"}, build: func(b *cellBuilder) { b.ok("action") },
			becomes: map[string]standing{"compensation": {state: "compensated", effects: "act 1, undo 2"}, "other compensation": {state: "compensated", effects: "act 1, undo 8"}},
			parks:   map[string]string{"other action": reusedAction}},
		{name: "done with a waiting compensation", is: standing{state: "done", effects: "act 1", parked: waitingUndo},
			build: func(b *cellBuilder) { b.failAction(); b.ok("compensation"); b.runParked() },
			parks: map[string]string{"other action": reusedAction, "other compensation": reusedUndo}},
		{name: "void", is: standing{state: "void"}, build: func(b *cellBuilder) { b.ok("compensation") }, parks: map[string]string{"other compensation": reusedUndo}},
		{name: "undoing", is: standing{state: "undoing", effects: "act 1", parked: "retrying compensation failed"},
			build: func(b *cellBuilder) { b.ok("action"); b.end("compensation", fails) },
			parks: map[string]string{"other action": reusedAction, "other compensation": reusedUndo}},
		{name: "undo-dead", is: standing{state: "undo-dead", effects: "act 1", parked: "dead compensation terminal"},
			build: func(b *cellBuilder) { b.ok("action"); b.end("compensation", gives) },
			parks: map[string]string{"other action": reusedAction, "other compensation": reusedUndo}},
		{name: "compensated", is: standing{state: "compensated", effects: "act 1, undo 2"},
			build: func(b *cellBuilder) { b.ok("action"); b.ok("compensation") },
			parks: map[string]string{"other action": reusedAction, "other compensation": reusedUndo}},
	}
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
		if l := seen(got[key]); l.standing() != c.is {
			t.Fatalf("cell %s was built as %+v, want %+v", c.name, l.standing(), c.is)
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
				if l := seen(got[key]); l.standing() != w.standing || l.entries+l.undos != w.entries {
					t.Errorf("%s: %+v after %d entries, want %+v after %d", key, l.standing(), l.entries+l.undos, w.standing, w.entries)
				}
			}
		})
	}
}

// A wanted is what must be seen of a key, and how often handlers were entered for
// it.
type wanted struct {
	standing standing
	entries  int
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
			entries := c.after(arrival).countEffects() - c.is.countEffects()
			want[key] = wanted{c.after(arrival), entries}
		}
	}
	return keys, msgs, want
}
