package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/tools/mutate"
)

const product = `package small

// Double returns n twice.
func Double(n int) int {
	return 2 * n
}
`

const tests = `package small

import (
	"os"
	"testing"
	"time"
)

func TestSees(t *testing.T) {
	if got := Double(2); got != 4 {
		t.Errorf("Double(2) = %d, want 4", got)
	}
}

func TestLooksAway(t *testing.T) { Double(2) }

func TestHangs(t *testing.T) {
	if Double(2) != 4 {
		<-time.After(time.Hour)
	}
}

func TestDies(t *testing.T) {
	if Double(2) != 4 {
		os.Exit(3)
	}
}

func TestSkips(t *testing.T) { t.Skip("not here") }

func TestFails(t *testing.T) { t.Error("always") }
`

// smallModule writes a module of one package and returns its root.
func smallModule(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "small"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"go.mod": "module example.org/small\n\ngo 1.26\n", "small/small.go": product, "small/small_test.go": tests,
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// mutant makes tripling of doubling, which test is to notice.
func mutant(test string) mutate.Mutant {
	return mutate.Mutant{
		Claim: "G1.1", Why: "it triples", Limit: mutate.DefaultLimit,
		Changes: []mutate.Change{{File: "small/small.go", Old: "\treturn 2 * n\n", New: "\treturn 3 * n\n"}},
		Traps:   []mutate.Trap{{Test: mutate.Test{Package: "small", Name: test}}},
	}
}

// bug is a mutant of two changes, in a file of the product and in a new one. Its second trap fails in another way
// than it says.
func bug() mutate.Mutant {
	m := mutant("TestSees")
	m.Claim, m.Bug, m.Why = "", "a-bug", "it squares"
	m.Changes[0].New = "\treturn square(n) + 1\n"
	m.Changes = append(m.Changes, mutate.Change{File: "small/square.go", New: "package small\n\nfunc square(n int) int { return n * n }\n"})
	m.Traps[0].Says = "Double(2) = 5"
	m.Traps = append(m.Traps, mutate.Trap{Test: m.Traps[0].Test, Says: "Double(2) = 6"})
	return m
}

// Only a test that fails kills a mutant. Verdicts are printed in the order of the list, and the tree stays as
// it was.
func TestMutantsAreJudged(t *testing.T) {
	t.Parallel()
	root := smallModule(t)
	garbled, hanging, expected := mutant("TestSees"), mutant("TestHangs"), mutant("TestHangs")
	garbled.Changes[0].New = "\treturn 3 n\n"
	hanging.Limit, expected.Limit, expected.Hangs = time.Second, time.Second, true
	cases, err := prepare(root, []mutate.Mutant{
		mutant("TestLooksAway"), mutant("TestSees"), expected, hanging, mutant("TestDies"), garbled,
		mutant("TestSkips"), mutant("TestFails"), mutant("TestIsNot"), bug(),
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBench(root, "go", 2)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	var out strings.Builder
	if report(&out, true, cases, b.judgeAll(t.Context(), cases)) {
		t.Error("all are killed")
	}
	at := 0
	for _, want := range []string{
		`G1.1   small/small.go:5 "it triples" SURVIVED small.TestLooksAway`,
		`"it triples" killed by small.TestSees in `,
		"\tsmall_test.go:11: Double(2) = 6, want 4\n",
		"killed by small.TestHangs in ",
		"ERROR: the test does not end in time",
		"ERROR: the test ends its process without having failed",
		"ERROR: the list is wrong: small does not compile",
		"ERROR: without the change, small.TestSkips is skipped",
		"ERROR: without the change, small.TestFails fails",
		"ERROR: without the change, small.TestIsNot does not exist",
		`a-bug  small/small.go:5 "it squares" killed by small.TestSees in `,
		`a-bug  small/small.go:5 "it squares" SURVIVED small.TestSees: it fails, but not with "Double(2) = 6":`,
		"10 mutants of 1 guarantees: 2 killed, 2 survived, 6 errors",
	} {
		i := strings.Index(out.String()[at:], want)
		if i < 0 {
			t.Fatalf("no %q behind the first %d bytes of:\n%s", want, at, &out)
		}
		at += i
	}
	if src, err := os.ReadFile(filepath.Join(root, "small/small.go")); err != nil || string(src) != product {
		t.Errorf("the product is %q now, %v", src, err)
	}
}

// Mutants that are all killed are a success.
func TestAllAreKilled(t *testing.T) {
	t.Parallel()
	verdicts := make(chan verdict, 2)
	verdicts <- verdict{index: 0, fate: killed}
	verdicts <- verdict{index: 1, fate: killed}
	close(verdicts)
	cases := []trial{{Mutant: mutant("TestSees"), last: true}, {Mutant: mutant("TestSees"), last: true}}
	var out strings.Builder
	if !report(&out, false, cases, verdicts) || !strings.Contains(out.String(), "2 killed, 0 survived, 0 errors") {
		t.Errorf("it says:\n%s", &out)
	}
}

// All mutants whose lines are gone are reported at once, and nothing is run.
func TestAListThatIsOutOfDate(t *testing.T) {
	t.Parallel()
	gone, moved := mutant("TestSees"), mutant("TestSees")
	added := mutant("TestSees")
	gone.Changes[0].Old, moved.Changes[0].File, added.Changes[0].Old = "\treturn n + n\n", "small/moved.go", ""
	_, err := prepare(smallModule(t), []mutate.Mutant{gone, mutant("TestSees"), moved, added})
	if err == nil || strings.Count(err.Error(), "out of date") != 3 {
		t.Errorf("prepare = %v, want the three mutants that are out of date", err)
	}
}

func TestPick(t *testing.T) {
	t.Parallel()
	all := []mutate.Mutant{{Claim: "G1.1"}, {Claim: "G1.10"}, {Claim: "G10.1"}, {Bug: "a-bug"}, {Bug: "b-bug"}}
	for only, want := range map[string]int{"": 5, "G1": 2, "G1.1": 1, "G10": 1, "G2": 0, "a-bug": 1, "bugs": 2} {
		if got := len(pick(all, only)); got != want {
			t.Errorf("%d mutants of %q, want %d", got, only, want)
		}
	}
}
