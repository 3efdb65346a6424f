package archtest

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/internal/tools/mutate"
)

const (
	// guarantees is how many docs/guarantees.md has, and mutantsEach how many mutants
	// there are of each at least.
	guarantees  = 10
	mutantsEach = 2
)

var (
	guaranteeHeading = regexp.MustCompile(`^## G(\d+) `)
	claimRow         = regexp.MustCompile(`^\| (G\d+)\.(\d+) \| (.+) \| (.+) \|$`)
	quoted           = regexp.MustCompile("`([^`]+)`")
	qualifiedTest    = regexp.MustCompile(`^((?:[a-z0-9-]+/)*[a-z0-9-]+)\.((?:Test|Fuzz)[A-Z]\w*)$`)
	sentenceEnd      = regexp.MustCompile(`[.!?](?: |$)`)
)

// A claim is a sentence of docs/guarantees.md, with the tests that protect it.
type claim struct {
	id    string // G3.2
	tests []string
}

// claimsOf returns the claims in docs/guarantees.md, and what is wrong with it: in the
// section of a guarantee stands nothing but its table, each row of which is one sentence
// and names tests that exist, by package.
func claimsOf(doc string, tests map[string]bool) (claims []claim, wrong []string) {
	complain := func(format string, args ...any) {
		wrong = append(wrong, "docs/guarantees.md: "+fmt.Sprintf(format, args...))
	}
	section, row := 0, 0
	for line := range strings.SplitSeq(doc, "\n") {
		if heading := guaranteeHeading.FindStringSubmatch(line); heading != nil {
			section, row = section+1, 0
			if heading[1] != fmt.Sprint(section) {
				complain("guarantee %s is the %d.", heading[1], section)
			}
			continue
		}
		if strings.HasPrefix(line, "## ") {
			row = -1 // behind the guarantees
		}
		parts := claimRow.FindStringSubmatch(line)
		switch {
		case section == 0 || row < 0 || line == "" || line == "| | claim | tests |" || line == "|---|---|---|":
			continue
		case parts == nil:
			complain("a sentence outside of the table of G%d names no test: %q", section, line)
			continue
		}
		row++
		c := claim{id: parts[1] + "." + parts[2]}
		if want := fmt.Sprintf("G%d.%d", section, row); c.id != want {
			complain("%s is where %s should be", c.id, want)
		}
		if ends := sentenceEnd.FindAllStringIndex(parts[3], -1); len(ends) != 1 || ends[0][1] != len(parts[3]) {
			complain("%s is not one sentence: each has tests of its own", c.id)
		}
		for _, name := range quoted.FindAllStringSubmatch(parts[4], -1) {
			c.tests = append(c.tests, name[1])
		}
		if len(c.tests) == 0 {
			complain("%s names no test", c.id)
		}
		claims = append(claims, c)
	}
	if section != guarantees {
		complain("%d guarantees, want %d", section, guarantees)
	}
	return claims, append(append(wrong, checkClaimedTests(doc)...), checkTestNames("docs/guarantees.md", doc, tests)...)
}

// checkClaimedTests returns what the claims of docs/guarantees.md name that is no test with
// its package.
func checkClaimedTests(doc string) (wrong []string) {
	for line := range strings.SplitSeq(doc, "\n") {
		if parts := claimRow.FindStringSubmatch(line); parts != nil {
			for _, name := range quoted.FindAllStringSubmatch(parts[4], -1) {
				if !qualifiedTest.MatchString(name[1]) {
					wrong = append(wrong, fmt.Sprintf("docs/guarantees.md: %s.%s names %s, which is no test", parts[1], parts[2], name[1]))
				}
			}
		}
	}
	return wrong
}

// checkTestNames returns the tests that a document names, with their package, and that do not
// exist.
func checkTestNames(name, doc string, tests map[string]bool) (wrong []string) {
	for _, named := range quoted.FindAllStringSubmatch(doc, -1) {
		if qualifiedTest.MatchString(named[1]) && !tests[named[1]] {
			wrong = append(wrong, fmt.Sprintf("%s: %s does not exist", name, named[1]))
		}
	}
	return wrong
}

var namedFile = regexp.MustCompile("`(\\w[\\w.-]*/[\\w./-]*\\.(?:go|sql))`")

// checkFileNames returns the Go and SQL files that a document names, with their folder, and that do not exist.
func checkFileNames(name, doc string, exists func(string) bool) (wrong []string) {
	for _, named := range namedFile.FindAllStringSubmatch(doc, -1) {
		if !exists(named[1]) {
			wrong = append(wrong, fmt.Sprintf("%s: there is no file %s", name, named[1]))
		}
	}
	return wrong
}

// qualifiedTestsOf returns the test functions in files, each as its package's directory
// and its name. In what stands the files' own module, "" for the outermost.
func qualifiedTestsOf(files []*file, module string) map[string]bool {
	tests := map[string]bool{}
	for _, f := range files {
		for name := range namesOfTests([]*file{f}) {
			tests[path.Join(module, f.packagePath())+"."+name] = true
		}
	}
	return tests
}

// checkMutants returns what is wrong with the list of mutants: each breaks a claim
// that exists, and must be noticed by a test that the claim names; and no guarantee
// is without.
func checkMutants(mutants []mutate.Mutant, claims []claim) (wrong []string) {
	each := map[string]int{}
	for _, m := range mutants {
		if m.Bug != "" { // its tests are directed at it, not at a claim
			continue
		}
		each[m.Guarantee()]++
		i := slices.IndexFunc(claims, func(c claim) bool { return c.id == m.Claim })
		if i < 0 {
			wrong = append(wrong, fmt.Sprintf("a mutant breaks %s, which docs/guarantees.md does not have: %s", m.Claim, m.Why))
			continue
		}
		for _, trap := range m.Traps {
			if test := trap.Package + "." + trap.Name; !slices.Contains(claims[i].tests, test) {
				wrong = append(wrong, fmt.Sprintf("docs/guarantees.md does not name %s for %s, and a mutant does: %s", test, m.Claim, m.Why))
			}
		}
	}
	for n := 1; n <= guarantees; n++ {
		if g := fmt.Sprintf("G%d", n); each[g] < mutantsEach {
			wrong = append(wrong, fmt.Sprintf("%s has %d mutants, want at least %d", g, each[g], mutantsEach))
		}
	}
	return wrong
}
