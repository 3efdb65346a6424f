package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/tools/mutate"
)

// bugsPlanted is how many bugs the list of mutants has. A bug may be added; none may be lost.
const bugsPlanted = 13

// relayTargets is a separate module. docs/guarantees.md names its tests as well.
const relayTargets = "internal/suites/relaytargets"

// allTests are the tests that documents may name, with their packages.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	for _, dir := range []string{"", relayTargets} {
		all, err := parseModule(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		for name := range qualifiedTestsOf(all, dir) {
			tests[name] = true
		}
	}
	return tests
}

// documents are README.md, CONTRIBUTING.md, SECURITY.md, those of the examples, and all below docs, by name.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, pattern := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/*/README.md", "docs/*.md", "docs/decisions/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %d documents, %v", pattern, len(names), err)
		}
		for _, name := range names {
			doc, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			docs[strings.TrimPrefix(filepath.ToSlash(name), root+"/")] = string(doc)
		}
	}
	return docs
}

// A test that any other document names exists, too.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	tests := allTests(t)
	for name, doc := range documents(t) {
		for _, wrong := range checkTestNames(name, doc, tests) {
			t.Error(wrong)
		}
	}
}

// A Go or SQL file that a document names exists.
func TestDocumentsNameFilesThatExist(t *testing.T) {
	t.Parallel()
	exists := func(name string) bool {
		folder, _, _ := strings.Cut(name, "/")
		if _, err := os.Stat(filepath.Join(root, folder)); err != nil {
			return true // of another module, such as nats-io/nats.go
		}
		_, err := os.Stat(filepath.Join(root, name))
		return err == nil
	}
	for name, doc := range documents(t) {
		for _, wrong := range checkFileNames(name, doc, exists) {
			t.Error(wrong)
		}
	}
}

func TestCheckFileNames(t *testing.T) {
	t.Parallel()
	exists := func(name string) bool { return name == "outbox/relay.go" || name == "migrations/roles.sql" }
	doc := "`outbox/relay.go` `migrations/roles.sql` `relay.go` `outbox/gone.go` `outbox/relay.go.old` [x](outbox/gone.go)"
	got := strings.Join(checkFileNames("a.md", doc, exists), "; ")
	if want := "a.md: there is no file outbox/gone.go"; got != want {
		t.Errorf("checkFileNames = %q, want %q", got, want)
	}
}

// Every sentence of docs/guarantees.md names tests that exist, and the mutants break
// its claims.
func TestGuarantees(t *testing.T) {
	t.Parallel()
	tests := allTests(t)
	doc, err := os.ReadFile(filepath.Join(root, "docs/guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	claims, wrong := claimsOf(string(doc), tests)
	mutants, err := mutate.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range append(wrong, checkMutants(mutants, claims)...) {
		t.Error(w)
	}
}

// A mutant is made of lines that the product still has, once, and its test exists.
func TestMutantsAreUpToDate(t *testing.T) {
	t.Parallel()
	all, err := parsedModule()
	if err != nil {
		t.Fatal(err)
	}
	tests := qualifiedTestsOf(all, "")
	mutants, err := mutate.List()
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) (string, error) {
		src, err := os.ReadFile(filepath.Join(root, name))
		return string(src), err
	}
	bugs := map[string]bool{}
	for _, m := range mutants {
		changed, _, err := m.Apply(read)
		if err != nil {
			t.Error(err)
		}
		for _, trap := range m.Traps {
			if name := trap.Package + "." + trap.Test.Name; !tests[name] {
				t.Errorf("%s: %s does not exist", m.Name(), name)
			}
		}
		for file := range changed {
			if strings.HasSuffix(file, "_test.go") {
				t.Errorf("%s: %s is no line of the product", m.Name(), file)
			}
		}
		if m.Bug != "" {
			bugs[m.Bug] = true
		}
	}
	if len(bugs) != bugsPlanted {
		t.Errorf("the list has %d bugs, want %d: %v", len(bugs), bugsPlanted, bugs)
	}
}

// guaranteesDoc is one that is right, with two claims for each guarantee.
func guaranteesDoc() string {
	var b strings.Builder
	b.WriteString("# Guarantees\n\nHow to read this. It has sentences.\n\n")
	for g := 1; g <= guarantees; g++ {
		fmt.Fprintf(&b, "## G%d Name\n\n**You get this.**\n\n| | claim | tests |\n|---|---|---|\n", g)
		fmt.Fprintf(&b, "| G%d.1 | One thing is so. | `a/b.TestA` |\n| G%d.2 | Another is `so`. | `a/b.TestA` `c.FuzzB` |\n\n", g, g)
	}
	b.WriteString("## What is not promised\n\n- Anything else. See `c.FuzzB`.\n")
	return b.String()
}

func TestClaimsOf(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{"a/b.TestA": true, "c.FuzzB": true}
	for name, tt := range map[string]struct{ old, new, want string }{
		"good":             {"", "", ""},
		"missing":          {"## G10 Name", "## Ten", "9 guarantees"},
		"out of order":     {"## G2 Name", "## G7 Name", "guarantee 7 is the 2."},
		"two of one":       {"| G3.2 |", "| G3.1 |", "G3.1 is where G3.2 should be"},
		"no test":          {"| G3.1 | One thing is so. | `a/b.TestA` |", "| G3.1 | One thing is so. | none |", "G3.1 names no test"},
		"gone":             {"| G3.1 | One thing is so. | `a/b.TestA` |", "| G3.1 | One thing is so. | `a/b.TestC` |", "a/b.TestC does not exist"},
		"without package":  {"| G3.1 | One thing is so. | `a/b.TestA` |", "| G3.1 | One thing is so. | `TestA` |", "TestA, which is no test"},
		"two sentences":    {"| G3.1 | One thing is so.", "| G3.1 | One thing is so. And this.", "not one sentence"},
		"no sentence":      {"| G3.1 | One thing is so.", "| G3.1 | One thing", "not one sentence"},
		"not for users":    {"## G3 Name\n\n**You get this.**\n", "## G3 Name\n", "9 bold lines"},
		"a sentence apart": {"## G3 Name\n", "## G3 Name\n\nBy the way, this is so, too.\n", "names no test"},
		"gone in the rest": {"See `c.FuzzB`", "See `c.FuzzC`", "c.FuzzC does not exist"},
	} {
		doc := guaranteesDoc()
		if tt.old != "" && !strings.Contains(doc, tt.old) {
			t.Fatalf("%s: there is no %q", name, tt.old)
		}
		claims, wrong := claimsOf(strings.Replace(doc, tt.old, tt.new, 1), tests)
		got := strings.Join(wrong, "\n")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if tt.want == "" && (len(claims) != 2*guarantees || claims[3].id != "G2.2" || len(claims[3].tests) != 2) {
			t.Errorf("claims = %v", claims)
		}
	}
}

func TestCheckMutants(t *testing.T) {
	t.Parallel()
	claims, _ := claimsOf(guaranteesDoc(), map[string]bool{"a/b.TestA": true, "c.FuzzB": true})
	good := func() (all []mutate.Mutant) {
		for g := 1; g <= guarantees; g++ {
			for n := 1; n <= 2; n++ {
				all = append(all, mutate.Mutant{Claim: fmt.Sprintf("G%d.%d", g, n), Traps: []mutate.Trap{{Test: mutate.Test{Package: "a/b", Name: "TestA"}}}})
			}
		}
		return append(all, mutate.Mutant{Bug: "of-no-claim", Traps: []mutate.Trap{{Test: mutate.Test{Package: "d", Name: "TestD"}}}})
	}
	for name, tt := range map[string]struct {
		change func([]mutate.Mutant) []mutate.Mutant
		want   string
	}{
		"good":         {func(m []mutate.Mutant) []mutate.Mutant { return m }, ""},
		"one too few":  {func(m []mutate.Mutant) []mutate.Mutant { return m[1:] }, "G1 has 1 mutants"},
		"no claim":     {func(m []mutate.Mutant) []mutate.Mutant { m[0].Claim = "G1.9"; return m }, "does not have"},
		"another test": {func(m []mutate.Mutant) []mutate.Mutant { m[0].Traps[0].Name = "TestC"; return m }, "does not name a/b.TestC for G1.1"},
	} {
		got := strings.Join(checkMutants(tt.change(good()), claims), "\n")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
