package machine_test

import (
	"flag"
	"os"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

// TestMain raises the number of checks: they do no I/O. More are to be had with
// -rapid.checks.
func TestMain(m *testing.M) {
	flag.Parse()
	preset := map[string]string{"rapid.checks": "5000", "rapid.nofailfile": "true"}
	flag.Visit(func(f *flag.Flag) { delete(preset, f.Name) })
	for name, value := range preset {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// Whatever happens in which order: what must hold does, and once nothing more fails
// and all is answered, the instance ends, and the world is as the machine says.
func TestEveryInstanceEnds(t *testing.T) {
	t.Parallel()
	needtest.Shortened(t)
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t)
		s.check()
		for range rapid.IntRange(0, 80).Draw(t, "events") {
			s.act()
		}
		s.drain()
		s.checkEnd()
		for range 5 {
			s.act() // apply sees that nothing changes
		}
	})
}

// drain answers everything, and decides what people are asked.
func (s *sim) drain() {
	s.calm = true
	for range 200 + 100*s.m.Steps() {
		tasks := s.m.Next(&s.p)
		switch {
		case s.p.Phase.Ended():
			return
		case len(tasks) > 0:
			s.perform(tasks[0])
		case s.p.Paused:
			s.must(machine.Event{Kind: machine.Resume})
		case len(s.commands) > 0:
			s.deliverCommand(s.index(len(s.commands)), false)
		case len(s.replies) > 0:
			s.deliverReply(s.index(len(s.replies)), false)
		case s.m.Due(&s.p) > 0:
			s.timer(s.m.Due(&s.p))
		default:
			s.help()
		}
	}
	s.t.Fatalf("no end: %+v", s.p)
}

// help has a person look at a step that is stuck, or decide at the participant of one that is held.
func (s *sim) help() {
	if s.p.End.Stuck {
		s.person(machine.Event{Kind: machine.RetryNow})
		return
	}
	for i := range s.p.Steps {
		if s.p.Steps[i].Held {
			id := s.id(i + 1)
			s.deliver(command{id, false, s.bodies[command{identity: id}]}, s.decide)
			return
		}
		if st := s.p.Steps[i].State; st == machine.Stuck || st == machine.UndoStuck {
			kind := rapid.SampledFrom([]machine.EventKind{machine.Skip, machine.RetryNow}).Draw(s.t, "help")
			before := copied(s.p)
			s.person(machine.Event{Kind: kind, Step: i + 1})
			if reflect.DeepEqual(before, s.p) {
				s.t.Fatalf("step %d is stuck, and %s does not help: %+v", i+1, kind, s.p)
			}
			return
		}
	}
	s.t.Fatalf("it waits for ever, unseen: %+v", s.p)
}

// check is what holds after every event.
func (s *sim) check() {
	s.checkStates()
	s.checkSeen()
	s.checkNext()
	s.checkKept()
	s.checkCalls()
}

// checkCalls: an instance with an OnEnd ends by one call that succeeds, and one without has no call.
func (s *sim) checkCalls() {
	called := len(s.calls) > 0 && s.calls[len(s.calls)-1] == s.p.Phase
	switch {
	case s.m.Plan().OnEnd != called && s.p.Phase.Ended(), len(s.calls) > 1,
		s.p.Phase.Ended() && s.p.End != machine.EndCall{},
		s.p.End.Stuck && s.p.End.Due != 0,
		s.p.End.Due != 0 && s.p.Paused == false && s.m.Outcome(&s.p) == "":
		s.t.Fatalf("OnEnd was called for %v, the saga is %+v", s.calls, s.p)
	}
}

var forward = []machine.State{machine.Idle, machine.InFlight, machine.Waiting, machine.Done, machine.Skipped, machine.Stuck}

// checkStates: each phase has its states, and each state its fields.
func (s *sim) checkStates() {
	for i := range s.p.Steps {
		st := &s.p.Steps[i]
		is := func(states ...machine.State) bool { return slices.Contains(states, st.State) }
		switch {
		case s.p.Phase == machine.Running && !slices.Contains(forward, st.State),
			s.p.Phase == machine.Compensating && is(machine.Waiting, machine.Stuck),
			s.p.Phase == machine.Completed && !is(machine.Done, machine.Skipped),
			s.p.Phase == machine.Compensated && (is(machine.Waiting, machine.Stuck, machine.Undoing, machine.UndoWaiting, machine.UndoStuck) || s.undoable(i+1)),
			st.Due != 0 && (!is(machine.InFlight, machine.Waiting, machine.UndoWaiting) || s.p.Phase.Ended()),
			st.Resend && (!is(machine.InFlight, machine.Undoing) || len(st.Message) == 0),
			st.Held && !is(machine.InFlight),
			st.NotDone && (!is(machine.Undone) || s.remains(s.id(i+1))),
			st.Doubt && !is(machine.Stuck) && !(st.Override && is(machine.Done)),
			len(st.Result) > 0 && (!st.Override || !is(machine.Done) || s.p.Phase.Ended()),
			len(st.Message) > 0 && len(st.Result) == 0 && is(machine.Idle, machine.Waiting, machine.Done, machine.Skipped, machine.Rejected, machine.Undone),
			s.p.Phase.Ended() && (s.p.Paused || is(machine.InFlight)),
			s.leaves[i].Undo == "" && is(machine.Undoing, machine.UndoWaiting, machine.UndoStuck):
			s.t.Fatalf("in a saga that is %s, step %d is %+v", s.p.Phase, i+1, *st)
		}
	}
	if pivot := s.pivot(); pivot > 0 && s.p.Phase != machine.Running && s.p.Phase != machine.Completed {
		if st := s.p.Steps[pivot-1].State; st != machine.Idle && st != machine.Rejected {
			s.t.Fatalf("the pivot is %s, and the saga is %s", st, s.p.Phase)
		}
		if id := s.id(pivot); s.remains(id) && !s.decided[id] {
			s.t.Fatalf("the pivot has taken effect, and the saga is %s", s.p.Phase)
		}
	}
}

// checkSeen: the instance has ended, or somebody knows what it waits for.
func (s *sim) checkSeen() {
	p, seen := &s.p, false
	for i := range p.Steps {
		st := &p.Steps[i]
		undoing := st.State == machine.Undoing
		if st.State != machine.InFlight && !undoing {
			continue
		}
		seen = true
		local := s.leaves[i].Kind == machine.Local && !undoing || s.leaves[i].Undo == machine.Local && undoing // ends where it begins
		if !local && !st.Held && !st.Resend && st.Due == 0 && !p.Phase.Ended() && len(s.bodies) > 0 && !s.begins(i+1, undoing) && !s.underWay(s.id(i+1), undoing) {
			s.t.Fatalf("step %d is %s, and nobody is going to answer", i+1, st.State)
		}
	}
	if !seen && !p.Phase.Ended() && !p.Paused && !p.Stuck() && s.m.Due(p) == 0 && len(s.m.Next(p)) == 0 {
		s.t.Fatalf("nothing waits for anything: %+v", *p)
	}
}

// begins reports whether a message is just being sent: send comes after Apply.
func (s *sim) begins(step int, undo bool) bool {
	_, sent := s.bodies[command{identity: s.id(step), undo: undo}]
	return !sent
}

// checkNext compares Next with what the plan's paths say: what depends on something
// waits for it, and what does not is offered at once.
func (s *sim) checkNext() {
	got, want := s.m.Next(&s.p), s.wanted()
	if reflect.DeepEqual(got, want) {
		return
	}
	slices.SortFunc(got, func(a, b machine.Task) int { return a.ID - b.ID })
	if !slices.Equal(got, want) {
		s.t.Fatalf("Next = %v, want %v for %+v", got, want, s.p)
	}
}

func (s *sim) wanted() []machine.Task {
	if s.p.Phase.Ended() {
		return nil
	}
	for i := range s.p.Steps {
		if len(s.p.Steps[i].Result) > 0 {
			return []machine.Task{{ID: i + 1, Kind: machine.Fold}}
		}
	}
	var tasks []machine.Task
	for id := 1; id <= len(s.p.Steps) && !s.p.Paused; id++ {
		if kind := s.wantedOf(id); kind != "" {
			tasks = append(tasks, machine.Task{ID: id, Kind: kind})
		}
	}
	if len(tasks) == 0 && !s.p.Paused && s.m.Outcome(&s.p) != "" && !s.p.End.Stuck && s.p.End.Due == 0 {
		tasks = []machine.Task{{Kind: machine.OnEnd}}
	}
	return tasks
}

func (s *sim) wantedOf(id int) machine.TaskKind {
	st := &s.p.Steps[id-1]
	for other := range s.p.Steps {
		other++
		if s.p.Phase == machine.Running && s.before(other, id) && !s.ahead(other) || s.p.Phase == machine.Compensating && s.before(id, other) && !s.settled(other) {
			return ""
		}
	}
	switch {
	case st.Resend:
		return machine.Resend
	case s.p.Phase == machine.Running && (st.State == machine.Idle || st.State == machine.Waiting && st.Due == 0):
		return machine.Do
	case s.p.Phase == machine.Compensating && id > s.p.Back && st.State != machine.InFlight && (s.undoable(id) || st.State == machine.UndoWaiting && st.Due == 0):
		return machine.Undo
	}
	return ""
}

func (s *sim) ahead(id int) bool {
	state := s.p.Steps[id-1].State
	return state == machine.Done || state == machine.Skipped
}

// undoable reports whether a step may have been done and can be undone.
func (s *sim) undoable(id int) bool {
	st := &s.p.Steps[id-1]
	switch st.State {
	case machine.Done, machine.Unknown, machine.InFlight:
		return s.leaves[id-1].Undo != "" && (!st.Override || st.Doubt)
	}
	return false
}

func (s *sim) settled(id int) bool {
	switch s.p.Steps[id-1].State {
	case machine.Undoing, machine.UndoWaiting, machine.UndoStuck:
		return false
	}
	return id <= s.p.Back || !s.undoable(id)
}

// checkKept: going back to a step does not touch what comes before.
func (s *sim) checkKept() {
	n := len(s.kept)
	if n > 0 && s.p.Back != n && (s.p.Phase != machine.Running || s.p.Back != 0) {
		n, s.kept = 0, nil // cancelled on the way
	}
	if !reflect.DeepEqual(s.kept, s.p.Steps[:n:n]) && n > 0 {
		s.t.Fatalf("on the way back to step %d, what comes before is\n%+v, was\n%+v", n, s.p.Steps[:n], s.kept)
	}
	if s.p.Phase == machine.Running {
		s.kept = nil // it is there
	}
}

// checkEnd delivers what is still under way and compares the world with what the
// machine believes.
func (s *sim) checkEnd() {
	for _, c := range s.commands {
		s.deliver(c, s.decide)
	}
	for id := range s.rows {
		st := &s.p.Steps[id.step-1]
		current := id.attempt == st.Attempt && s.p.Phase == machine.Completed && st.State == machine.Done
		switch {
		case s.decided[id]:
		case !current && s.leaves[id.step-1].Undo != "" && s.remains(id):
			s.t.Fatalf("the saga is %s, step %d is %s, and the effect of attempt %d remains", s.p.Phase, id.step, st.State, id.attempt)
		case current && !st.Override && !s.remains(id):
			s.t.Fatalf("the saga is completed, and step %d, which is done, has had no effect", id.step)
		}
	}
}
