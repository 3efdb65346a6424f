package sagatest

import (
	"fmt"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/saga"
)

// noteBroken notes a broken rule, unless there is one already.
func (s *modelState) noteBroken(format string, args ...any) {
	if s.broken == "" {
		s.broken = fmt.Sprintf(format, args...)
	}
}

// judgeHandler checks the facts after a handler has committed.
func (h *handling) judgeHandler() {
	f := h.s.facts[factKey{h.e.to.name, h.e.Key, h.e.N}]
	what := fmt.Sprintf("of step %s, %s,", h.e.to.name, h.e.N)
	switch {
	case f.done > 1:
		h.s.noteBroken("the action %s is done twice", what)
	case f.undone > 1:
		h.s.noteBroken("the compensation %s is done twice", what)
	case f.overdone:
		h.s.noteBroken("the action %s is done after its compensation", what)
	case h.e.to.kind == inbox.Compensation:
		h.judgeOrder()
	}
}

// judgeOrder checks that a compensation which has just committed comes in reverse order, and before the pivot.
func (h *handling) judgeOrder() {
	a, err := flow.ParseN(h.e.N)
	row := h.s.host.rows[a.Path]
	if err != nil || row == nil {
		return // its key is not a saga's
	}
	defined := h.definitionOf(row)
	for id := 1; id <= defined.Machine.Steps(); id++ {
		n := defined.Machine.Step(id)
		f := h.s.factsOf(flow.N(a.Path, id, row.Progress.Steps[id-1].Attempt))
		switch {
		case f.done == 0:
		case n.Pivot:
			h.s.noteBroken("step %s is undone after the pivot, %s, is done", h.e.Step, n.Name)
		case n.Undo == machine.Remote && f.undone == 0 && mustFollow(defined.Machine.Plan().Nodes, h.e.Step, n.Name):
			h.s.noteBroken("step %s is undone before %s, which comes after it", h.e.Step, n.Name)
		}
	}
}

// definitionOf returns the author's definition of an instance, without the changes of a planted bug.
func (sys *system) definitionOf(row *instance) *flow.Flow {
	if row.Path == "" {
		return sys.true
	}
	return row.flow
}

// mustFollow reports whether the step then comes after first, not beside it.
func mustFollow(nodes []machine.Node, first, then string) bool {
	sequence := true
	var walk func(nodes []machine.Node, sequence bool) (hasFirst, hasThen, ordered bool)
	walk = func(nodes []machine.Node, sequence bool) (hasFirst, hasThen, ordered bool) {
		for i := range nodes {
			n := &nodes[i]
			f, t, o := n.Name == first, n.Name == then, false
			if len(n.Nodes) > 0 {
				f, t, o = walk(n.Nodes, n.Kind == machine.Seq)
			}
			ordered = ordered || o || sequence && hasFirst && t
			hasFirst, hasThen = hasFirst || f, hasThen || t
		}
		return hasFirst, hasThen, ordered
	}
	_, _, ordered := walk(nodes, sequence)
	return ordered
}

// factsOf adds up the facts about the command with an n, of all participants.
func (s *modelState) factsOf(n string) (all fact) {
	for key, f := range s.facts {
		if key.n == n {
			all.done, all.undone = all.done+f.done, all.undone+f.undone
		}
	}
	return all
}

// judgeRest checks the end of a schedule.
func (sys *system) judgeRest(s *modelState) {
	for _, path := range s.host.sortedPaths() {
		row := s.host.rows[path]
		p, f := &row.Progress, sys.definitionOf(row)
		status := statusOf(p)
		switch {
		case isHeldUp(p) && s.dead > 0, status == saga.StatusPaused:
		case !p.Phase.Ended() && s.heldUpWithin(path):
		case !p.Phase.Ended():
			s.noteBroken("saga %s waits for ever: it is %s%s", f.Name(), status, describeWaiting(f, p))
		}
		for id := 1; id <= f.Machine.Steps(); id++ {
			if f.Machine.Step(id).Kind == machine.Remote {
				sys.judgeRestOf(s, path, id)
			}
		}
	}
}

// isHeldUp reports whether a saga is stuck, or held by a dead letter: an operator has to act.
func isHeldUp(p *machine.Progress) bool { return statusOf(p) == saga.StatusStuck || p.Held() }

// heldUpWithin reports whether a saga that is nested in the one of a path is stuck or held.
func (s *modelState) heldUpWithin(path string) bool {
	for _, inner := range s.host.sortedPaths() {
		a, err := flow.ParseN(inner)
		if err == nil && inner != path && a.Path == path && (s.heldUpWithin(inner) || isHeldUp(&s.host.rows[inner].Progress)) {
			return true
		}
	}
	return false
}

// judgeRestOf compares the state of a step with the facts.
func (sys *system) judgeRestOf(s *modelState, path string, id int) {
	p := &s.host.rows[path].Progress
	n, step := sys.definitionOf(s.host.rows[path]).Machine.Step(id), &p.Steps[id-1]
	for attempt := 1; attempt <= step.Attempt; attempt++ {
		f := s.factsOf(flow.N(path, id, attempt))
		switch last := attempt == step.Attempt; {
		case p.Phase == machine.Compensated && n.Undo != "" && f.done > f.undone:
			s.noteBroken("the saga is compensated, and step %s is not undone", n.Name)
		case p.Phase == machine.Completed && f.undone > 0:
			s.noteBroken("the saga is completed, and step %s is undone", n.Name)
		case last && step.State == machine.Done && !step.Override && f.done == 0:
			s.noteBroken("the saga takes step %s for done, and it is not", n.Name)
		}
	}
}

// describeWaiting lists the steps that wait for a reply.
func describeWaiting(f *flow.Flow, p *machine.Progress) (text string) {
	for i := range p.Steps {
		if s := p.Steps[i].State; s == machine.InFlight || s == machine.Undoing {
			text += fmt.Sprintf(", step %s is %s and nobody answers", f.Machine.Step(i+1).Name, s)
		}
	}
	return text
}
