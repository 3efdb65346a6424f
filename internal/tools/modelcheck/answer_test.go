package main

import (
	"errors"
	"strings"
	"testing"
)

// Output of spin 6.5.2.
const (
	cleanOutput = `
(Spin Version 6.5.2 -- 6 December 2019)
	+ Partial Order Reduction

Full statespace search for:
	never claim         	- (not selected)
	assertion violations	+
	cycle checks       	- (disabled by -DSAFETY)
	invalid end states	+

State-vector 124 byte, depth reached 281, errors: 0
   697140 states, stored
  2159505 states, matched
  2856645 transitions (= stored+matched)
pan: elapsed time 1.7 seconds
`
	assertionOutput = `pan:1: assertion violated confirmed_first (at depth 17)
pan: wrote relay.pml.trail

(Spin Version 6.5.2 -- 6 December 2019)
Warning: Search not completed
	+ Breadth-First Search
	+ Partial Order Reduction

Full statespace search for:
	never claim         	- (not selected)
	assertion violations	+

State-vector 124 byte, depth reached 17, errors: 1
     2263 states, stored
`
	cycleOutput = `pan:1: acceptance cycle (at depth 113)
pan: wrote consumer.pml.trail

(Spin Version 6.5.2 -- 6 December 2019)
Warning: Search not completed

Full statespace search for:
	never claim         	+ (ends)

State-vector 76 byte, depth reached 6512, errors: 1
     2331 states, stored (3357 visited)
`
)

func TestRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, output string
		want         answer
		property     string
	}{
		{"clean", cleanOutput, answer{states: 697140, whole: true}, ""},
		{"large", strings.Replace(cleanOutput, "697140", "1.2345678e+08", 1), answer{states: 123456780, whole: true}, ""},
		{"assertion", assertionOutput, answer{violation: "assertion violated confirmed_first", depth: 17, states: 2263}, "confirmed_first"},
		{"expression", strings.Replace(assertionOutput, "confirmed_first", "((a==1))", 1), answer{violation: "assertion violated ((a==1))", depth: 17, states: 2263}, "a==1"},
		{"cycle", cycleOutput, answer{violation: "acceptance cycle", depth: 113, states: 2331}, ends},
		{"stuck", strings.Replace(assertionOutput, "assertion violated confirmed_first", "invalid end state", 1), answer{violation: "invalid end state", depth: 17, states: 2263}, ""},
	} {
		got, err := readAnswer(tt.output)
		if err != nil || got != tt.want || got.property() != tt.property {
			t.Errorf("%s: %+v (property %q), %v; want %+v (%q)", tt.name, got, got.property(), err, tt.want, tt.property)
		}
	}
}

// A search that has not seen everything is not taken for one that has.
func TestReadCutShort(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, output string }{
		{"depth", "error: max search depth too small\n" + cleanOutput},
		{"depth, later versions", strings.Replace(cleanOutput, "\n\nFull", "\nWarning: Search not completed\n\nFull", 1)},
		{"memory", "pan: reached -DMEMLIM bound\n" + cleanOutput},
		{"memory, of the system", "pan: out of memory\n" + cleanOutput},
		{"bits", strings.Replace(cleanOutput, "Full statespace", "Bit statespace", 1)},
		{"hashes", strings.Replace(cleanOutput, "+ Partial", "+ Hash-Compact 4 bytes\n\t+ Partial", 1)},
		{"something else", strings.Replace(cleanOutput, "Full statespace search for:", "Partial search for:", 1)},
	} {
		a, err := readAnswer(tt.output)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if a.checkClean() == nil || a.checkRefutes("confirmed_first") == nil {
			t.Errorf("%s: %+v is taken for a whole search", tt.name, a)
		}
	}
}

func TestReadNothing(t *testing.T) {
	t.Parallel()
	for _, output := range []string{
		"", "pan: a program that crashed", strings.Replace(cleanOutput, "errors: 0", "errors: 2", 1),
		strings.Replace(cleanOutput, "697140 states, stored", "", 1), "pan:1: acceptance cycle (at depth 3)\n" + cleanOutput,
	} {
		if a, err := readAnswer(output); !errors.Is(err, errNoAnswer) {
			t.Errorf("%+v, %v; want %v of\n%s", a, err, errNoAnswer, output)
		}
	}
}

func TestRefutes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, output, property string
		refuted                bool
	}{
		{"its property", assertionOutput, "confirmed_first", true},
		{"another property", assertionOutput, "nothing_lost", false},
		{"no property", strings.Replace(assertionOutput, "assertion violated confirmed_first", "invalid end state", 1), "confirmed_first", false},
		{"not at all", cleanOutput, "confirmed_first", false},
		{"a run without end", cycleOutput, ends, true},
		{"a run without end, for something else", cycleOutput, "confirmed_first", false},
	} {
		a, err := readAnswer(tt.output)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if err := a.checkRefutes(tt.property); (err == nil) != tt.refuted {
			t.Errorf("%s: %v; want refuted %t", tt.name, err, tt.refuted)
		}
		if a.checkClean() == nil && a.violation != "" {
			t.Errorf("%s: a violation is clean", tt.name)
		}
	}
}
