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
	add(n.Retry.Attempts > 1, fmt.Sprintf("up to %d attempts", n.Retry.Attempts))
	return strings.Join(words, ", ")
}
