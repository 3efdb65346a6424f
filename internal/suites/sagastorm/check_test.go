package sagastorm

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
)

// An instance is a row of the table saga.
type instance struct {
	Key, Path, Name, Status, Reason, Progress, Root string
	Tries                                           int
}

// An effect is what a handler or a local step has left. Their order is that of the
// ids, which is that of what led to what.
type effect struct {
	ID                 int64
	Key, N, Step, Kind string
}

// A deed is one attempt at one step that has effects.
type deed struct{ n, step string }

// An account is what was done for a key.
type account struct {
	key     string
	b       begun
	k       kind
	effects map[deed][]effect
	known   map[deed]bool // those that an instance has asked for
	wrong   []string
}

// check returns what is wrong with the instances and their effects, one line each.
func (s *storm) check() (wrong []string, err error) {
	instances, err := collect[instance](s, "SELECT key, path, name, status, reason, progress, root::text AS root, tries FROM "+s.config.Schema+".saga ORDER BY key, path")
	if err != nil {
		return nil, err
	}
	effects, err := collect[effect](s, "SELECT id, key, n, step, kind FROM "+s.config.Schema+".storm_effect ORDER BY id")
	if err != nil {
		return nil, err
	}
	letters, err := collect[struct{ Text string }](s, "SELECT step || ' ' || key || ' ' || n || ' ' || reason || ' ' || error FROM "+s.config.Schema+".parked WHERE state = 'dead' AND step LIKE 'saga-%'")
	for _, l := range letters {
		wrong = append(wrong, "a dead letter of an orchestrator: "+l.Text)
	}
	for key, b := range s.begun {
		a := &account{key: key, b: b, k: s.kinds[b.kind], effects: map[deed][]effect{}, known: map[deed]bool{}}
		for _, e := range effects {
			if d := (deed{e.N, e.Step}); e.Key == key {
				a.effects[d] = append(a.effects[d], e)
			}
		}
		a.check(s, instances)
		wrong = append(wrong, a.wrong...)
	}
	return wrong, err
}

func collect[T any](s *storm, statement string) ([]T, error) {
	rows, _ := s.pool.Query(s.Context(), statement)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

func (a *account) complain(format string, args ...any) {
	a.wrong = append(a.wrong, fmt.Sprintf("%s (%s, %v): ", a.key, a.b.kind, a.b.ends)+fmt.Sprintf(format, args...))
}

func (a *account) check(s *storm, instances []instance) {
	roots := 0
	for _, i := range instances {
		if i.Key != a.key {
			continue
		}
		if i.Path == "" {
			roots++
			a.ended(i)
		}
		a.compare(s.kinds[i.Name], i)
		if i.Tries != 0 {
			a.complain("%d tries are not forgotten", i.Tries)
		}
	}
	if roots != 1 {
		a.complain("%d instances", roots)
	}
	for d := range a.effects {
		if !a.known[d] {
			a.complain("step %s %s has left something, and nobody has asked for it", d.step, d.n)
		}
	}
	a.ordered()
	a.pivoted()
}

// ended compares how the saga ended with what its steps come to.
func (a *account) ended(i instance) {
	want := a.want()
	if !slices.Contains(want, i.Status) {
		a.complain("is %s (%s), want %v", i.Status, i.Reason, want)
	}
	if i.Status != "completed" && i.Reason == "" {
		a.complain("is %s, and does not say why", i.Status)
	}
}

// want returns how the saga may end.
func (a *account) want() []string {
	for _, name := range a.k.names {
		end := a.b.ends[name]
		no := end == reject || end == dead || end == once
		local := name == "y" || name == "z"
		switch {
		case local && end != reject, name == "p" && end == once, name == "f" && end == once:
		case end == dead && a.b.kind == "pay":
			return []string{"running"} // held
		case end == dead && a.b.kind == "line":
			return []string{"running", "compensated"} // by the deadline of another step
		case a.b.kind == "pay" && (name == "f" || name == "z") && no:
			return []string{"stuck"}
		case no:
			return []string{"compensated"}
		}
	}
	if a.k.exact {
		return []string{"completed"}
	}
	return []string{"completed", "compensated"} // a deadline may pass over a fault
}

// compare compares what the machine says of each step with what was done.
func (a *account) compare(k kind, i instance) {
	var p machine.Progress
	if err := json.Unmarshal([]byte(i.Progress), &p); err != nil {
		a.complain("progress: %v", err)
		return
	}
	m := flow.FlowOfPlan(k.plan).Machine
	for id := 1; id <= m.Steps(); id++ {
		node, step := m.Step(id), &p.Steps[id-1]
		for attempt := 1; attempt <= step.Attempt && node.Kind != machine.Nested; attempt++ {
			d := deed{flow.Mark(i.Root, flow.N(i.Path, id, attempt)), node.Name}
			if node.Kind == machine.Local {
				d.n = fmt.Sprint("local.", attempt)
			}
			a.known[d] = true
			done, undone := a.once(d)
			state := step.State
			if attempt < step.Attempt {
				state = machine.Rejected
			}
			if !agrees(state, node.Undo != "", step.Doubt, step.Held, done, undone) {
				a.complain("step %s %s is %q, and was done %d times and undone %d times; the instance is %s", d.step, d.n, state, done, undone, i.Status)
			}
		}
	}
}

// agrees reports whether a step at rest may have been done and undone so often.
func agrees(state machine.State, undoable, doubt, held bool, done, undone int) bool {
	if held {
		state = machine.Rejected // its dead letter has done nothing
	}
	switch state {
	case machine.Done:
		return done == 1 && undone == 0
	case machine.Undone:
		return done == undone
	case machine.Unknown, machine.InFlight:
		return !undoable && undone == 0 // nobody waits for what cannot be undone
	case machine.Stuck:
		return undone == 0 && (doubt || done == 0)
	case machine.Rejected, machine.Waiting:
		return done == 0 && undone == 0
	default:
		return false
	}
}

// once counts the effects of an attempt, of each kind there is one at most.
func (a *account) once(d deed) (done, undone int) {
	for _, e := range a.effects[d] {
		if e.Kind == "do" {
			done++
			if undone > 0 {
				a.complain("step %s %s was done after it was undone", d.step, d.n)
			}
		} else {
			undone++
			if done == 0 {
				a.complain("step %s %s was undone, and had not been done", d.step, d.n)
			}
		}
	}
	if done > 1 || undone > 1 {
		a.complain("step %s %s was done %d times and undone %d times", d.step, d.n, done, undone)
	}
	return done, undone
}

// ordered checks that steps which follow each other were done in this order and
// undone in the reverse.
func (a *account) ordered() {
	for _, chain := range a.k.chains {
		for i, first := range chain {
			for _, second := range chain[i+1:] {
				if _, last := a.span(first, "do"); last > 0 {
					if begin, _ := a.span(second, "do"); begin > 0 && begin < last {
						a.complain("step %s was done before step %s", second, first)
					}
				}
				if begin, _ := a.span(first, "undo"); begin > 0 {
					if _, last := a.span(second, "undo"); last > begin {
						a.complain("step %s was undone before step %s", first, second)
					}
				}
			}
		}
	}
}

// span returns the first and the last effect of a step; 0: there is none.
func (a *account) span(step, kind string) (first, last int64) {
	for d, all := range a.effects {
		for _, e := range all {
			if d.step == step && e.Kind == kind {
				if first == 0 || e.ID < first {
					first = e.ID
				}
				last = max(last, e.ID)
			}
		}
	}
	return first, last
}

// pivoted checks that nothing was undone of a saga that only goes forward.
func (a *account) pivoted() {
	if a.k.pivot == "" {
		return
	}
	if done, _ := a.span(a.k.pivot, "do"); done == 0 {
		return
	}
	for _, name := range a.k.names {
		if undone, _ := a.span(name, "undo"); undone > 0 {
			a.complain("step %s was undone, and the pivot is done", name)
		}
	}
}
