package machine_test

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/sagamill/sagamill/internal/machine"
)

// A planner draws plans that Compile accepts.
type planner struct {
	t     *rapid.T
	left  int // steps to be drawn
	names int
	pivot bool // there is to be one, and there is none yet
	after bool // it has been drawn
}

func drawPlan(t *rapid.T) machine.Plan {
	g := &planner{t: t, left: rapid.IntRange(1, 6).Draw(t, "steps"), pivot: rapid.Bool().Draw(t, "pivot")}
	p := machine.Plan{Name: "saga", Version: 1, Deadline: g.millis("saga's deadline", 200), OnEnd: rapid.Bool().Draw(t, "on-end")}
	p.Nodes = g.nodes(1, false)
	return p
}

func (g *planner) one(in int, label string) bool {
	return rapid.IntRange(1, in).Draw(g.t, label) == in
}

// millis draws 0 half of the time.
func (g *planner) millis(label string, most int) time.Duration {
	return max(0, time.Duration(rapid.IntRange(-most, most).Draw(g.t, label))) * time.Millisecond
}

func (g *planner) nodes(depth int, parallel bool) []machine.Node {
	var list []machine.Node
	for len(list) == 0 || g.left > 0 && (depth == 1 || !g.one(3, "enough")) {
		list = append(list, g.node(depth, parallel))
	}
	return list
}

func (g *planner) node(depth int, parallel bool) machine.Node {
	g.names++
	n := machine.Node{Name: fmt.Sprintf("s%d", g.names)}
	if depth > 4 || g.left < 2 || !g.one(3, "composite") {
		g.left--
		g.leaf(&n, parallel)
		return n
	}
	n.Kind = rapid.SampledFrom([]machine.Kind{machine.All, machine.All, machine.Seq}).Draw(g.t, "kind")
	n.Nodes = g.nodes(depth+1, parallel || n.Kind == machine.All)
	return n
}

func (g *planner) leaf(n *machine.Node, parallel bool) {
	n.Kind = rapid.SampledFrom([]machine.Kind{machine.Remote, machine.Remote, machine.Local, machine.Nested}).Draw(g.t, "kind")
	n.Topic, n.Type, n.Saga = "commands", n.Name, "inner"
	n.Conditional = g.one(5, "conditional")
	if n.Kind != machine.Local {
		n.Deadline = g.millis("deadline", 50)
	}
	n.Retry = g.retry(0)
	switch {
	case g.after:
		n.Retry = g.retry(2)
	case g.pivot && !parallel && g.one(3, "pivot"):
		n.Pivot, g.pivot, g.after = true, false, true
	default:
		g.undo(n)
	}
	g.policies(n)
}

func (g *planner) policies(n *machine.Node) {
	policies := []machine.Policy{"", machine.PolicyWait}
	if !n.Pivot && !g.after {
		policies = append(policies, machine.PolicyUndo)
	}
	if n.Kind == machine.Remote {
		n.OnDeadLetter = rapid.SampledFrom(policies).Draw(g.t, "on-dead-letter")
	}
	if n.Deadline > 0 {
		n.OnDeadline = rapid.SampledFrom(policies).Draw(g.t, "on-deadline")
	}
}

func (g *planner) undo(n *machine.Node) {
	n.Undo = rapid.SampledFrom([]machine.Kind{n.Kind, n.Kind, n.Kind, ""}).Draw(g.t, "undo")
	switch n.Undo {
	case machine.Remote:
		n.UndoTopic = "compensations"
	case machine.Local:
		n.UndoRetry = g.retry(0)
	}
}

func (g *planner) retry(least int) machine.Retry {
	return machine.Retry{Attempts: rapid.IntRange(least, 3).Draw(g.t, "attempts"), Base: g.millis("base", 10)}
}

// A shape answers questions about a plan in another way than the machine does:
// from the paths to its leaves.
type shape struct {
	leaves []machine.Node
	paths  [][]place
	names  []string // of all nodes
}

type place struct {
	in    machine.Kind // the node around
	index int
}

func shapeOf(nodes []machine.Node) *shape {
	s := &shape{}
	s.add(nodes, nil, machine.Seq)
	return s
}

func (s *shape) add(nodes []machine.Node, path []place, in machine.Kind) {
	for i, n := range nodes {
		here := append(append([]place{}, path...), place{in, i})
		s.names = append(s.names, n.Name)
		if len(n.Nodes) > 0 {
			s.add(n.Nodes, here, n.Kind)
			continue
		}
		s.leaves, s.paths = append(s.leaves, n), append(s.paths, here)
	}
}

// before reports whether step a has to end before step b begins.
func (s *shape) before(a, b int) bool {
	x, y := s.paths[a-1], s.paths[b-1]
	for i := range min(len(x), len(y)) {
		if x[i].index != y[i].index {
			return x[i].in == machine.Seq && x[i].index < y[i].index
		}
	}
	return false
}

func (s *shape) pivot() int {
	for i, n := range s.leaves {
		if n.Pivot {
			return i + 1
		}
	}
	return 0
}
