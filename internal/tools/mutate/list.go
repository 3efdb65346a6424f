package mutate

import (
	_ "embed"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"
)

//go:embed mutants.txt
var mutants string

// A Mutant is one way to break the product.
type Mutant struct {
	Claim string // of docs/guarantees.md that it breaks: G3.2
	File  string // within the module, with slashes
	Old   string // whole lines of File, which it has once
	New   string // what they become
	Test  Test   // what must fail
	Why   string // what the change does to the claim

	// Limit is how long the test may take. Default: [DefaultLimit].
	Limit time.Duration

	// Hangs says that the test may be killed by Limit instead of failing.
	Hangs bool
}

// DefaultLimit is what a test may take: a minute.
const DefaultLimit = time.Minute

// Guarantee returns the guarantee that m's claim is a part of: G3.
func (m *Mutant) Guarantee() string {
	guarantee, _, _ := strings.Cut(m.Claim, ".")
	return guarantee
}

// A Test is a test of a package, or one of its subtests.
type Test struct {
	Package string // its directory within the module
	Name    string // of the function
	Sub     string // a regular expression for each level, with slashes in between; "": all
}

var testPattern = regexp.MustCompile(`^((?:[a-z0-9-]+/)*[a-z0-9-]+)\.(Test[A-Z]\w*)(?:/(.+))?$`)

// ParseTest reads package.Test or package.Test/subtest.
func ParseTest(s string) (Test, error) {
	parts := testPattern.FindStringSubmatch(s)
	if parts == nil {
		return Test{}, fmt.Errorf("mutate: %q is not of the form package.Test or package.Test/subtest", s)
	}
	return Test{parts[1], parts[2], parts[3]}, nil
}

// String is what [ParseTest] reads.
func (t Test) String() string { return path.Join(t.Package+"."+t.Name, t.Sub) }

// Run returns the argument of -test.run that picks t and nothing else.
func (t Test) Run() string {
	pattern := "^" + t.Name + "$"
	if t.Sub == "" {
		return pattern
	}
	for level := range strings.SplitSeq(t.Sub, "/") {
		pattern += "/^(?:" + level + ")$"
	}
	return pattern
}

// List returns the mutants of the list that is kept beside this package.
func List() ([]Mutant, error) { return Parse(mutants) }

// Parse reads a list. A mutant is a block of lines without an empty one between: first
// "name: value" for claim, file, test and why, and if need be limit and hangs, then
// lines of the file as in a diff: with "-" those that go, with "+" those that come,
// with " " those that stay. A line that begins with "#" is a comment. The error names the line.
func Parse(list string) (all []Mutant, err error) {
	var m *Mutant
	for i, line := range strings.Split(list, "\n") {
		switch {
		case line == "":
			m = nil
			continue
		case line[0] == '#':
			continue
		case m == nil:
			all = append(all, Mutant{Limit: DefaultLimit})
			m = &all[len(all)-1]
		}
		if err := m.read(line); err != nil {
			return nil, fmt.Errorf("mutate: line %d: %w", i+1, err)
		}
	}
	for i := range all {
		if err := all[i].check(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (m *Mutant) read(line string) (err error) {
	switch text := line[1:] + "\n"; line[0] {
	case '-':
		m.Old += text
		return nil
	case '+':
		m.New += text
		return nil
	case ' ':
		m.Old, m.New = m.Old+text, m.New+text
		return nil
	}
	name, value, _ := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	switch name {
	case "claim":
		m.Claim = value
	case "file":
		m.File = value
	case "test":
		m.Test, err = ParseTest(value)
	case "why":
		m.Why = value
	case "limit":
		m.Limit, err = time.ParseDuration(value)
	case "hangs":
		m.Hangs = value == "yes"
	default:
		err = fmt.Errorf("cannot read %q", line)
	}
	return err
}

// check returns the first part that m lacks.
func (m *Mutant) check() error {
	for _, part := range []struct {
		name    string
		missing bool
	}{
		{"claim", m.Claim == ""},
		{"file", m.File == ""},
		{"test", m.Test.Name == ""},
		{"reason", m.Why == ""},
		{"lines that go", m.Old == ""},
		{"difference", m.Old == m.New},
	} {
		if part.missing {
			return fmt.Errorf("mutate: the mutant of %q in %q has no %s", m.Claim, m.File, part.name)
		}
	}
	return nil
}

// Apply returns src, which is the contents of m's file, with the change, and the number
// of the first line that changes. An error says that the list is out of date.
func (m *Mutant) Apply(src string) (changed string, line int, err error) {
	whole := "\n" + src
	if n := strings.Count(whole, "\n"+m.Old); n != 1 {
		return "", 0, fmt.Errorf("mutate: the list is out of date: %s: %s has the lines of %q %d times", m.Claim, m.File, m.Why, n)
	}
	before, after, _ := strings.Cut(whole, "\n"+m.Old)
	line = strings.Count(before, "\n") + 1 + same(m.Old, m.New)
	return (before + "\n" + m.New + after)[1:], line, nil
}

// same returns how many lines are the same at the beginning of a and b.
func same(a, b string) (n int) {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for n < min(len(x), len(y)) && x[n] == y[n] {
		n++
	}
	return n
}
