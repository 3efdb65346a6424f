package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// An answer is the output of a verifier made by spin.
type answer struct {
	violation string // the violation: "assertion violated P", "acceptance cycle", ...; "" if nothing was found
	depth     int    // of the state where it shows, in steps
	states    int    // different ones that were stored
	whole     bool   // all states were searched, none of them by its hash alone, and nothing was cut short
}

var (
	violationLine = regexp.MustCompile(`(?m)^pan:\d+: (.+) \(at depth (\d+)\)$`)
	errorsLine    = regexp.MustCompile(`(?m)^State-vector \d+ byte, depth reached \d+, errors: (\d+)$`)
	statesLine    = regexp.MustCompile(`(?m)^\s*([0-9.e+]+) states, stored`)
)

// cutShort are signs of an incomplete search.
var cutShort = []string{
	"Search not completed", "max search depth too small", "out of memory", "MEMLIM", "Bit statespace", "Hash-Compact", "hash factor",
}

// errNoAnswer reports output without the verifier's account of its search.
var errNoAnswer = errors.New("spin's verifier has not said how its search ended")

// readAnswer makes an answer of a verifier's output.
func readAnswer(output string) (a answer, err error) {
	found := errorsLine.FindStringSubmatch(output)
	stored := statesLine.FindStringSubmatch(output)
	if found == nil || stored == nil {
		return a, fmt.Errorf("%w:\n%s", errNoAnswer, output)
	}
	states, err := strconv.ParseFloat(stored[1], 64) // large numbers are printed with an exponent
	if err != nil {
		return a, fmt.Errorf("number of states: %w", err)
	}
	a.states = int(states)
	if v := violationLine.FindStringSubmatch(output); v != nil {
		a.violation = v[1]
		a.depth, err = strconv.Atoi(v[2])
	}
	if (a.violation != "") != (found[1] != "0") {
		return a, fmt.Errorf("%w: %s errors, and the first is %q", errNoAnswer, found[1], a.violation)
	}
	a.whole = strings.Contains(output, "Full statespace search for:")
	for _, sign := range cutShort {
		a.whole = a.whole && !strings.Contains(output, sign)
	}
	return a, err
}

// property returns the property that the violation of a breaks, and "" if it breaks none.
func (a answer) property() string {
	if a.violation == "acceptance cycle" {
		return ends
	}
	name, ok := strings.CutPrefix(a.violation, "assertion violated ")
	if !ok {
		return ""
	}
	return strings.Trim(name, "()")
}

// checkClean returns an error unless a found no violation in any state.
func (a answer) checkClean() error {
	switch {
	case a.violation != "":
		return fmt.Errorf("%s after %d steps", a.violation, a.depth)
	case !a.whole:
		return fmt.Errorf("the search was cut short after %d states", a.states)
	}
	return nil
}

// checkRefutes returns an error unless a has found a violation of property.
func (a answer) checkRefutes(property string) error {
	switch {
	case a.violation == "" && !a.whole:
		return fmt.Errorf("not found, and the search was cut short after %d states", a.states)
	case a.violation == "":
		return fmt.Errorf("not found: %s holds in all %d states", property, a.states)
	case a.property() != property:
		return fmt.Errorf("breaks something else: %s after %d steps, not %s", a.violation, a.depth, property)
	}
	return nil
}
