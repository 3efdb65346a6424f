package demo

import (
	"bytes"
	"fmt"
	"io"
)

// An Invariant is a statement that must be true of the result R of a demo.
type Invariant[R any] struct {
	Says  string
	Check func(R) []string // returns the contradictions
}

// maxShown limits how many contradictions of an invariant are printed.
const maxShown = 5

// JudgeResult prints which invariants hold, and returns how many do not.
func JudgeResult[R any](w io.Writer, r R, invariants []Invariant[R]) (violations int) {
	fmt.Fprintln(w, "\ninvariants")
	for _, i := range invariants {
		bad := i.Check(r)
		if len(bad) == 0 {
			fmt.Fprintln(w, "  holds     "+i.Says)
			continue
		}
		violations++
		fmt.Fprintf(w, "  VIOLATED  %s (%d times)\n", i.Says, len(bad))
		for _, b := range bad[:min(maxShown, len(bad))] {
			fmt.Fprintln(w, "            "+b)
		}
	}
	return violations
}

// FindDifferentReplies returns the placements whose clients got different replies.
func (p *Program) FindDifferentReplies(all []*Placement) (bad []string) {
	for _, placed := range all {
		for _, reply := range placed.Replies {
			if !bytes.Equal(reply, placed.Replies[0]) {
				bad = append(bad, fmt.Sprintf("%s %s: %q and %q", p.Noun, placed.ID, placed.Replies[0], reply))
			}
		}
	}
	return bad
}

// FindSharedIDs returns the placements whose ID an earlier one has.
func (p *Program) FindSharedIDs(all []*Placement) (bad []string) {
	seen := map[string]bool{}
	for _, placed := range all {
		if seen[placed.ID] {
			bad = append(bad, p.Noun+" "+placed.ID)
		}
		seen[placed.ID] = true
	}
	return bad
}
