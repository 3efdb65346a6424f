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
		Claim: "G1.1", File: "small/small.go", Old: "\treturn 2 * n\n", New: "\treturn 3 * n\n", Why: "it triples",
		Test: mutate.Test{Package: "small", Name: test}, Limit: mutate.DefaultLimit,
	}
}

// A mutant is killed by a test that fails, and by nothing else; verdicts are told in
// the order of the list; and the tree is as it was.
func TestMutantsAreJudged(t *testing.T) {
	t.Parallel()
	root := smallModule(t)
	garbled, hanging, expected := mutant("TestSees"), mutant("TestHangs"), mutant("TestHangs")
	garbled.New = "\treturn 3 n\n"
	hanging.Limit, expected.Limit, expected.Hangs = time.Second, time.Second, true
	cases, err := prepare(root, []mutate.Mutant{
		mutant("TestLooksAway"), mutant("TestSees"), expected, hanging, mutant("TestDies"), garbled,
		mutant("TestSkips"), mutant("TestFails"), mutant("TestIsNot"),
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
		"9 mutants of 1 guarantees: 2 killed, 1 survived, 6 errors",
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
	cases := []trial{{Mutant: mutant("TestSees")}, {Mutant: mutant("TestSees")}}
	var out strings.Builder
	if !report(&out, false, cases, verdicts) || !strings.Contains(out.String(), "2 killed, 0 survived, 0 errors") {
		t.Errorf("it says:\n%s", &out)
	}
}

// A list whose lines are gone is told as a whole, and nothing is run.
func TestAListThatIsOutOfDate(t *testing.T) {
	t.Parallel()
	gone, moved := mutant("TestSees"), mutant("TestSees")
	gone.Old, moved.File = "\treturn n + n\n", "small/moved.go"
	_, err := prepare(smallModule(t), []mutate.Mutant{gone, mutant("TestSees"), moved})
	if err == nil || strings.Count(err.Error(), "out of date") != 2 {
		t.Errorf("prepare = %v, want both mutants that are out of date", err)
	}
}

func TestPick(t *testing.T) {
	t.Parallel()
	all := []mutate.Mutant{{Claim: "G1.1"}, {Claim: "G1.10"}, {Claim: "G10.1"}}
	for only, want := range map[string]int{"": 3, "G1": 2, "G1.1": 1, "G10": 1, "G2": 0} {
		if got := len(pick(all, only)); got != want {
			t.Errorf("%d mutants of %q, want %d", got, only, want)
		}
	}
}
