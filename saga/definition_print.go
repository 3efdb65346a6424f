package saga

import (
	"fmt"
	"strings"

	"github.com/sagamill/sagamill/internal/machine"
)

// String returns the plan for people, one step on each line.
func (d *Definition[S]) String() string {
	p := d.flow.Machine.Plan()
	var s strings.Builder
	fmt.Fprintf(&s, "saga %s, version %d", p.Name, p.Version)
	if p.Deadline > 0 {
		fmt.Fprintf(&s, ", within %s", p.Deadline)
	}
	s.WriteByte('\n')
	writeNodeLines(&s, p.Nodes, "  ")
	return s.String()
}

func writeNodeLines(s *strings.Builder, nodes []machine.Node, indent string) {
	for _, n := range nodes {
		fmt.Fprintf(s, "%s%s: %s\n", indent, n.Name, describeNode(&n))
		writeNodeLines(s, n.Nodes, indent+"  ")
	}
}

// describeNode returns what a node does, in words.
func describeNode(n *machine.Node) string {
	words := []string{map[machine.Kind]string{
		machine.Remote: "on " + n.Type, machine.Local: "here", machine.Nested: "saga " + n.Saga,
		machine.All: "all of", machine.Seq: "one after the other",
	}[n.Kind]}
	add := func(ok bool, word string) {
		if ok {
			words = append(words, word)
		}
	}
	add(n.Undo == machine.Remote, "undone on "+n.UndoType)
	add(n.Undo == machine.Local, "undone here")
	add(n.Undo == machine.Nested, "undone as a whole")
	add(n.Pivot, "pivot")
	add(n.Conditional, "if asked for")
	add(n.Deadline > 0, "within "+n.Deadline.String())
	add(n.OnDeadline == Wait, "then keeps waiting")
	add(n.OnDeadLetter == Undo, "compensates on a dead letter")
	add(n.Retry.Attempts > 1, fmt.Sprintf("up to %d attempts", n.Retry.Attempts))
	return strings.Join(words, ", ")
}

// Mermaid returns a picture of the plan as a Mermaid flow chart. Solid arrows are the way forward, dotted ones lead to
// the compensation of a step.
func (d *Definition[S]) Mermaid() string { return mermaid.drawPlan(d.flow.Machine.Plan()) }

// DOT returns the same picture in the language of Graphviz.
func (d *Definition[S]) DOT() string { return dot.drawPlan(d.flow.Machine.Plan()) }

// A notation is the syntax of a language of pictures. Names are of a-z, 0-9 and -, in quotes or as part of an
// identifier; labels are quoted.
type notation struct {
	head, foot                     func(p *machine.Plan) string
	step, pivot, local, gate, undo string // of an identifier and a label
	arrow, undone                  string // of two identifiers
	escape                         *strings.Replacer
}

var mermaid = notation{
	head: func(p *machine.Plan) string {
		return fmt.Sprintf("---\ntitle: %s, version %d\n---\nflowchart LR\n", p.Name, p.Version)
	},
	foot: func(*machine.Plan) string { return "" },
	step: "  %s[\"%s\"]\n", pivot: "  %s{{\"%s\"}}\n", local: "  %s(\"%s\")\n", gate: "  %s((\"%s\"))\n", undo: "  %s>\"%s\"]\n",
	arrow: "  %s --> %s\n", undone: "  %s -.-> %s\n",
	escape: strings.NewReplacer(`"`, "#quot;"),
}

var dot = notation{
	head: func(p *machine.Plan) string {
		return fmt.Sprintf("digraph \"%s\" {\n  label=\"%s, version %d\"; rankdir=LR;\n", p.Name, p.Name, p.Version)
	},
	foot: func(*machine.Plan) string { return "}\n" },
	step: "  %s [shape=box, label=\"%s\"];\n", pivot: "  %s [shape=hexagon, label=\"%s\"];\n", local: "  %s [shape=box, style=rounded, label=\"%s\"];\n",
	gate: "  %s [shape=circle, label=\"%s\"];\n", undo: "  %s [shape=cds, style=dashed, label=\"%s\"];\n",
	arrow: "  %s -> %s;\n", undone: "  %s -> %s [style=dashed];\n",
	escape: strings.NewReplacer(`"`, `\"`, `\`, `\\`),
}

// A sketch is a picture that is being drawn.
type sketch struct {
	notation
	strings.Builder
	nodes int
}

func (n notation) drawPlan(p machine.Plan) string {
	s := sketch{notation: n}
	s.WriteString(n.head(&p))
	begin := s.drawShape(s.gate, "start")
	end := s.drawShape(s.gate, "end")
	for _, last := range s.drawSequence(p.Nodes, []string{begin}) {
		s.writeFormatted(s.arrow, last, end)
	}
	s.WriteString(n.foot(&p))
	return s.String()
}

func (s *sketch) writeFormatted(format string, args ...any) { fmt.Fprintf(s, format, args...) }

func (s *sketch) drawShape(shape, label string) string {
	id := fmt.Sprint("n", s.nodes)
	s.nodes++
	s.writeFormatted(shape, id, s.escape.Replace(label))
	return id
}

// drawSequence draws nodes one after the other, behind those of from, and returns the last ones.
func (s *sketch) drawSequence(nodes []machine.Node, from []string) []string {
	for i := range nodes {
		from = s.drawPlanNode(&nodes[i], from)
	}
	return from
}

func (s *sketch) drawPlanNode(n *machine.Node, from []string) (last []string) {
	switch n.Kind {
	case machine.Seq:
		return s.drawSequence(n.Nodes, from)
	case machine.All:
		for i := range n.Nodes {
			last = append(last, s.drawPlanNode(&n.Nodes[i], from)...)
		}
		return last
	}
	shape := s.step
	switch {
	case n.Pivot:
		shape = s.pivot
	case n.Kind == machine.Local:
		shape = s.local
	}
	label := n.Name
	if n.Kind == machine.Nested {
		label += ": saga " + n.Saga
	}
	if n.Conditional {
		label += "?"
	}
	id := s.drawShape(shape, label)
	for _, f := range from {
		s.writeFormatted(s.arrow, f, id)
	}
	if n.Undo == machine.Remote || n.Undo == machine.Local {
		s.writeFormatted(s.undone, id, s.drawShape(s.undo, "undo "+n.Name))
	}
	return []string{id}
}
