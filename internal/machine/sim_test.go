package machine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"pgregory.net/rapid"

	"github.com/sagamill/sagamill/internal/machine"
)

// A sim is one instance in a world, driven at random.
type sim struct {
	t *rapid.T
	m *machine.Machine
	p machine.Progress
	world
	*shape
	calm bool // nothing fails any more

	bodies  map[command]string // what was sent first; the key has no body
	known   map[identity]bool  // the machine has been told that nothing was done
	decided map[identity]bool  // a person has said what came of it, and may be wrong
	kept    []machine.Step     // the steps up to the one to go back to, as they were
	calls   []machine.Phase    // of OnEnd that have succeeded, each with the phase after it
}

func newSim(t *rapid.T) *sim {
	plan := drawPlan(t)
	m, err := machine.Compile(plan)
	if err != nil {
		t.Fatalf("Compile(%+v): %v", plan, err)
	}
	return &sim{
		t: t, m: m, p: m.NewProgress(), shape: shapeOf(m.Plan().Nodes), world: world{rows: map[identity]*row{}},
		bodies: map[command]string{}, known: map[identity]bool{}, decided: map[identity]bool{},
	}
}

func (s *sim) chance(percent int, label string) bool {
	return rapid.IntRange(0, 99).Draw(s.t, label) >= 100-percent
}

// step draws the id of one.
func (s *sim) step() int { return rapid.IntRange(1, s.m.Steps()).Draw(s.t, "step") }

func (s *sim) id(step int) identity { return identity{step, s.p.Steps[step-1].Attempt} }

func copied(p machine.Progress) machine.Progress {
	p.Steps = slices.Clone(p.Steps)
	return p
}

// apply applies e and checks what must hold after every event.
func (s *sim) apply(e machine.Event) error {
	before := copied(s.p)
	e.At = max(e.At, s.p.Now)
	err := s.m.Apply(&s.p, e)
	s.t.Logf("%s step %d#%d undo=%t %s %s at %d: %v\n%v", e.Kind, e.Step, e.Attempt, e.Undo, e.Name, e.Result, e.At, err, view{s.m, &s.p})
	if (err != nil || before.Phase.Ended()) && !reflect.DeepEqual(before, s.p) {
		s.t.Fatalf("Apply(%+v) = %v changed\n%+v to\n%+v", e, err, before, s.p)
	}
	s.check()
	return err
}

// must applies an event that the machine has asked for.
func (s *sim) must(e machine.Event) {
	if err := s.apply(e); err != nil {
		s.t.Fatalf("Apply(%+v): %v", e, err)
	}
}

// act does one thing at random.
func (s *sim) act() {
	switch n := rapid.IntRange(0, 99).Draw(s.t, "act"); {
	case n < 30:
		if tasks := s.m.Next(&s.p); len(tasks) > 0 {
			s.perform(rapid.SampledFrom(tasks).Draw(s.t, "task"))
		}
	case n < 50:
		s.deliverCommand(s.index(len(s.commands)), s.chance(20, "duplicate"))
	case n < 70:
		s.deliverReply(s.index(len(s.replies)), s.chance(20, "duplicate"))
	case n < 80:
		s.tick()
	case n < 83:
		s.overdue(s.step())
	case n < 86:
		s.reload()
	case n < 90:
		s.disturb()
	default:
		s.verb()
	}
}

func (s *sim) index(n int) int {
	if n == 0 {
		return -1
	}
	return rapid.IntRange(0, n-1).Draw(s.t, "index")
}

// decide says what comes of a message or a function.
func (s *sim) decide() outcome {
	if s.calm {
		return succeeds
	}
	return rapid.SampledFrom([]outcome{succeeds, succeeds, succeeds, succeeds, refuses, fails, failsLate, holds, breaks}).Draw(s.t, "outcome")
}

// perform does a task as an orchestrator would: a function in its transaction, all
// else by a message.
func (s *sim) perform(task machine.Task) {
	if task.Kind == machine.OnEnd {
		s.callOnEnd()
		return
	}
	st, n := &s.p.Steps[task.ID-1], s.leaves[task.ID-1]
	switch task.Kind {
	case machine.Fold:
		kind := machine.Folded
		if !s.calm && s.chance(30, "unfit") {
			kind = machine.Unfit
		}
		s.must(machine.Event{Kind: kind, Step: task.ID, Reason: "no place for it"})
	case machine.Resend:
		undo := st.State == machine.Undoing
		s.send(task.ID, undo, string(st.Message))
		s.must(machine.Event{Kind: machine.Sent, Step: task.ID, Undo: undo})
	case machine.Undo:
		s.undo(task.ID, n)
	default:
		if n.Conditional && s.chance(30, "passed") {
			s.must(machine.Event{Kind: machine.Passed, Step: task.ID})
			return
		}
		s.do(task.ID, n)
	}
}

func (s *sim) do(step int, n machine.Node) {
	body := fmt.Sprintf("{ \"b\": %d, \"a\": \"<%d>\" }", step, s.p.Steps[step-1].Attempt+1)
	if n.Kind == machine.Local {
		s.must(machine.Event{Kind: machine.Sent, Step: step})
		s.function(step)
		return
	}
	s.must(machine.Event{Kind: machine.Sent, Step: step, Message: []byte(body)})
	s.send(step, false, body)
}

// callOnEnd has the function for the saga's end run.
func (s *sim) callOnEnd() {
	ends := s.m.Outcome(&s.p)
	switch s.decide() {
	case succeeds:
		s.calls = append(s.calls, ends)
		s.must(machine.Event{Kind: machine.EndDone})
	case breaks:
		s.must(machine.Event{Kind: machine.EndBroken, Reason: "because"})
	default:
		s.must(machine.Event{Kind: machine.EndFailed, Reason: "because"})
	}
}

// function has the function of a Local step run.
func (s *sim) function(step int) {
	e := machine.Event{Kind: machine.Replied, Step: step, Attempt: s.p.Steps[step-1].Attempt, Reason: "because"}
	switch s.decide() {
	case succeeds:
		s.row(s.id(step)).acted = true
	case refuses:
		e.Kind, s.known[s.id(step)] = machine.Refused, true
	case breaks:
		e.Kind, s.known[s.id(step)] = machine.Broken, true
	default:
		e.Kind, s.known[s.id(step)] = machine.Failed, true
	}
	s.must(e)
}

func (s *sim) undo(step int, n machine.Node) {
	id := s.id(step)
	if s.known[id] && !s.decided[id] {
		s.t.Fatalf("step %d is to be undone, and attempt %d has done nothing", step, id.attempt)
	}
	if _, sent := s.bodies[command{identity: id}]; !sent && n.Kind != machine.Local {
		s.t.Fatalf("step %d is to be undone, and was never sent", step)
	}
	if n.Undo != machine.Local {
		body := fmt.Sprintf("undo  %d", step) // not even JSON
		s.must(machine.Event{Kind: machine.Sent, Step: step, Undo: true, Message: []byte(body)})
		s.send(step, true, body)
		return
	}
	s.must(machine.Event{Kind: machine.Sent, Step: step, Undo: true})
	s.bodies[command{identity: id, undo: true}] = "function"
	s.must(machine.Event{Kind: s.row(id).compensate(s.decide), Step: step, Undo: true, Attempt: id.attempt, Reason: "because"})
}

// send puts a message on its way. An action never follows its compensation, and what
// is sent again is what was sent.
func (s *sim) send(step int, undo bool, body string) {
	id := s.id(step)
	_, undoSent := s.bodies[command{identity: id, undo: true}]
	if !undo && (undoSent || s.p.Phase != machine.Running) {
		s.t.Fatalf("the action of step %d#%d is sent while the saga is %s; compensation sent: %t", step, id.attempt, s.p.Phase, undoSent)
	}
	first, again := s.bodies[command{identity: id, undo: undo}]
	if body == "" || again && body != first {
		s.t.Fatalf("step %d#%d undo=%t is sent again as %q, and was %q", step, id.attempt, undo, body, first)
	}
	s.bodies[command{identity: id, undo: undo}] = body
	s.commands = append(s.commands, command{id, undo, body})
}

func (s *sim) deliverCommand(i int, again bool) {
	if i < 0 {
		return
	}
	c := s.commands[i]
	if !again {
		s.commands = slices.Delete(s.commands, i, i+1)
	}
	s.deliver(c, s.decide)
}

func (s *sim) deliverReply(i int, again bool) {
	if i < 0 {
		return
	}
	e := s.replies[i]
	if !again {
		s.replies = slices.Delete(s.replies, i, i+1)
	}
	switch err := s.apply(e); {
	case err == nil && e.Kind == machine.Refused && !e.Undo:
		s.known[identity{e.Step, e.Attempt}] = true
	case err != nil && !errors.Is(err, machine.ErrLate):
		s.t.Fatalf("Apply(%+v): %v", e, err)
	}
}

// tick lets time pass: to when something is due, or to any time.
func (s *sim) tick() {
	at := s.p.Now + machine.Millis(rapid.IntRange(0, 60).Draw(s.t, "passes"))
	if due := s.m.Due(&s.p); due > 0 && s.chance(50, "due") {
		at = max(due, s.p.Now)
	}
	s.timer(at)
}

// timer: what was due is so no longer, or a caller would go round for ever.
func (s *sim) timer(at machine.Millis) {
	s.must(machine.Event{Kind: machine.Timer, At: at})
	if due := s.m.Due(&s.p); due != 0 && due <= s.p.Now {
		s.t.Fatalf("after a timer at %d something is due at %d", at, due)
	}
}

func (s *sim) overdue(step int) {
	st := s.p.Steps[step-1]
	if st.State != machine.InFlight && st.State != machine.Undoing || s.p.Phase.Ended() {
		return
	}
	s.must(machine.Event{
		Kind: machine.Overdue, Step: step, Attempt: st.Attempt, Undo: st.State == machine.Undoing, Reason: "silence",
	})
}

// reload stores the progress and reads it again.
func (s *sim) reload() {
	text, err := json.Marshal(s.p)
	if err != nil {
		s.t.Fatalf("Marshal: %v", err)
	}
	var p machine.Progress
	if err := json.Unmarshal(text, &p); err != nil {
		s.t.Fatalf("Unmarshal: %v", err)
	}
	if !reflect.DeepEqual(p, s.p) {
		s.t.Fatalf("%s is read as\n%+v, was\n%+v", text, p, s.p)
	}
	s.p = p
}

// disturb applies any event to a copy: it may be accepted, but an error changes nothing.
func (s *sim) disturb() {
	e := machine.Event{
		Kind: rapid.SampledFrom([]machine.EventKind{
			machine.Sent, machine.Passed, machine.Folded, machine.Unfit, machine.Replied, machine.Refused, machine.Failed,
			machine.Held, machine.Broken, machine.Overdue, machine.EndDone, machine.EndFailed, machine.EndBroken, "nonsense",
		}).Draw(s.t, "kind"),
		Step: rapid.IntRange(-1, s.m.Steps()+1).Draw(s.t, "step"), Attempt: rapid.IntRange(0, 3).Draw(s.t, "attempt"),
		Undo: rapid.Bool().Draw(s.t, "undo"), At: machine.Millis(rapid.IntRange(0, 300).Draw(s.t, "at")),
	}
	p := copied(s.p)
	if err := s.m.Apply(&p, e); err != nil && !reflect.DeepEqual(p, s.p) {
		s.t.Fatalf("Apply(%+v) = %v changed\n%+v to\n%+v", e, err, s.p, p)
	}
}

// verb has a person decide something.
func (s *sim) verb() {
	e := machine.Event{
		Kind: rapid.SampledFrom([]machine.EventKind{
			machine.Pause, machine.Resume, machine.Resume, machine.Cancel, machine.GoBack, machine.GoBack, machine.Skip, machine.Skip, machine.Reject,
			machine.RetryNow, machine.RetryNow,
		}).Draw(s.t, "verb"),
		Step: rapid.IntRange(0, s.m.Steps()).Draw(s.t, "step"),
	}
	if e.Kind == machine.GoBack {
		e.Name = rapid.SampledFrom(append(s.names, "nobody")).Draw(s.t, "name")
	}
	if e.Kind == machine.Skip {
		e.Result = rapid.SampledFrom([]json.RawMessage{nil, nil, {}, json.RawMessage(`{"a":1}`), json.RawMessage(`null`), json.RawMessage(`x`)}).Draw(s.t, "result")
	}
	s.person(e)
}

// person applies a decision, and remembers for which attempts a person stands in.
func (s *sim) person(e machine.Event) {
	before := copied(s.p)
	if e.Kind == machine.Reject || e.Kind == machine.Skip && s.p.Phase == machine.Compensating {
		defer s.vouch(e, before)()
	}
	if e.Kind == machine.GoBack && s.p.Phase == machine.Running {
		s.kept = before.Steps[:s.last(e.Name)]
	}
	if err := s.apply(e); err != nil && !errors.Is(err, machine.ErrRefused) {
		s.t.Fatalf("Apply(%+v): %v", e, err)
	}
}

// vouch notes that a person says what came of an attempt. What it returns is for
// afterwards: if the machine has refused it, nobody has said so.
func (s *sim) vouch(e machine.Event, before machine.Progress) (settle func()) {
	if e.Step == 0 {
		return func() {}
	}
	id := s.id(e.Step)
	was := s.decided[id]
	s.decided[id] = true
	return func() {
		s.decided[id] = was || !reflect.DeepEqual(before, s.p)
	}
}

// last is the id of the last step in the node of a name.
func (s *sim) last(name string) int {
	for i := len(s.leaves); i > 0; i-- {
		if s.m.FindStep(name) == i || within(s.m.Plan().Nodes, name, s.leaves[i-1].Name) {
			return i
		}
	}
	return 0
}

// within reports whether step is in the node of that name.
func within(nodes []machine.Node, name, step string) bool {
	return slices.ContainsFunc(nodes, func(n machine.Node) bool {
		if n.Name == name {
			return slices.Contains(shapeOf(n.Nodes).names, step)
		}
		return within(n.Nodes, name, step)
	})
}
