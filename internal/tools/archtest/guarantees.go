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
	// guarantees is the number of guarantees in docs/guarantees.md, and mutantsEach the least number of
	// mutants of each.
	guarantees  = 10
	mutantsEach = 2
)

var (
	guaranteeHeading = regexp.MustCompile(`^## G(\d+) `)
	guaranteeSummary = regexp.MustCompile(`^\*\*.+\.\*\*$`)
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

// claimsOf returns the claims in docs/guarantees.md, and the mistakes in it. The section of a guarantee begins with a bold
// line for users, and otherwise holds only its table. Each row must be one sentence and name existing tests, by package.
func claimsOf(doc string, tests map[string]bool) (claims []claim, wrong []string) {
	complain := func(format string, args ...any) {
		wrong = append(wrong, "docs/guarantees.md: "+fmt.Sprintf(format, args...))
	}
	section, row, summaries := 0, 0, 0
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
		case row == 0 && guaranteeSummary.MatchString(line):
			summaries++
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
	if summaries != section {
		complain("%d bold lines for users, want one in each of %d sections", summaries, section)
	}
	return claims, append(append(wrong, checkClaimedTests(doc)...), checkTestNames("docs/guarantees.md", doc, tests)...)
}

// checkClaimedTests returns the names in the claims of docs/guarantees.md that are not tests with their
// package.
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

// checkTestNames returns the tests, with their package, that a document names and that do not exist.
func checkTestNames(name, doc string, tests map[string]bool) (wrong []string) {
	for _, named := range quoted.FindAllStringSubmatch(doc, -1) {
		if qualifiedTest.MatchString(named[1]) && !tests[named[1]] {
			wrong = append(wrong, fmt.Sprintf("%s: %s does not exist", name, named[1]))
		}
	}
	return wrong
}

var namedFile = regexp.MustCompile("`(\\w[\\w.-]*/[\\w./-]*\\.(?:go|sql))`")

// checkFileNames returns the Go and SQL files, with their folder, that a document names and that do not
// exist.
func checkFileNames(name, doc string, exists func(string) bool) (wrong []string) {
	for _, named := range namedFile.FindAllStringSubmatch(doc, -1) {
		if !exists(named[1]) {
			wrong = append(wrong, fmt.Sprintf("%s: there is no file %s", name, named[1]))
		}
	}
	return wrong
}

// qualifiedTestsOf returns the test functions in files, each as its package's directory and its name. The
// directory of the files' module is in, "" for the outermost module.
func qualifiedTestsOf(files []*file, module string) map[string]bool {
	tests := map[string]bool{}
	for _, f := range files {
		for name := range namesOfTests([]*file{f}) {
			tests[path.Join(module, f.packagePath())+"."+name] = true
		}
	}
	return tests
}

// checkMutants returns the mistakes in the list of mutants. Each mutant breaks an existing claim, and names a
// test of that claim, which must notice it. Each guarantee must have mutants.
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
