package mutate

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed mutants.txt
var mutants string

// A Mutant is one way to break the product.
type Mutant struct {
	Claim   string // of docs/guarantees.md that it breaks: G3.2; or
	Bug     string // the name of a mistake that libraries of this kind make: cursor-outbox
	Changes []Change
	Traps   []Trap // each must fail
	Why     string // the effect of the changes on the product

	// Limit is how long a test may take. Default: [DefaultLimit].
	Limit time.Duration

	// Hangs says that a test may be killed by Limit instead of failing.
	Hangs bool
}

// A Change replaces lines of one file.
type Change struct {
	File string // within the module, with slashes
	Old  string // whole lines of File, which it has once; "" if File is a new one
	New  string // the lines in their place, or the whole new file
}

// A Trap is a test that must fail.
type Trap struct {
	Test
	Says string // a part of the failure; "": any failure counts
}

// DefaultLimit is the time limit of a test: two minutes. Most tests give up after a minute if what they wait for never
// comes.
const DefaultLimit = 2 * time.Minute

// Name returns m's claim, or its bug's name.
func (m *Mutant) Name() string { return cmp.Or(m.Bug, m.Claim) }

// Guarantee returns the guarantee that m's claim is a part of, such as G3. A bug has none.
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

// String returns the form that [ParseTest] reads.
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

// List returns the mutants of the list in this package.
func List() ([]Mutant, error) { return Parse(mutants) }

// Parse reads a list. A mutant is a block of lines without an empty one between:
//
//	claim: G3.2            or bug: its-name
//	test: package.Test     one or more; says: under a test is a part of its failure
//	why: what is wrong now
//	file: a/b.go           one or more, each followed by its change
//	 line that stays
//	-line that goes
//	+line that comes
//
// Lines that only come are a new file. limit: 2m bounds each test; hangs: yes lets it
// run into that limit. A line that begins with "#" is a comment. The error names the line.
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
		if err := m.readLine(line); err != nil {
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

func (m *Mutant) readLine(line string) error {
	if strings.ContainsRune(" -+", rune(line[0])) {
		return m.readChange(line[0], line[1:]+"\n")
	}
	name, value, _ := strings.Cut(line, ":")
	return m.readField(name, strings.TrimSpace(value))
}

// readChange adds a line of the last file that was named.
func (m *Mutant) readChange(mark byte, text string) error {
	if len(m.Changes) == 0 {
		return errors.New("a change stands before its file")
	}
	c := &m.Changes[len(m.Changes)-1]
	if mark != '+' {
		c.Old += text
	}
	if mark != '-' {
		c.New += text
	}
	return nil
}

func (m *Mutant) readField(name, value string) (err error) {
	switch name {
	case "claim":
		m.Claim = value
	case "bug":
		m.Bug = value
	case "file":
		m.Changes = append(m.Changes, Change{File: value})
	case "test":
		m.Traps = append(m.Traps, Trap{})
		m.Traps[len(m.Traps)-1].Test, err = ParseTest(value)
	case "says":
		if len(m.Traps) == 0 {
			return errors.New("says: stands before its test")
		}
		m.Traps[len(m.Traps)-1].Says = value
	case "why":
		m.Why = value
	case "limit":
		m.Limit, err = time.ParseDuration(value)
	case "hangs":
		m.Hangs = value == "yes"
	default:
		err = fmt.Errorf("unknown field %q", name)
	}
	return err
}

// check returns the first part that m lacks.
func (m *Mutant) check() error {
	unchanged := func(c Change) bool { return c.Old == c.New }
	for _, part := range []struct {
		name    string
		missing bool
	}{
		{"claim or bug", (m.Claim == "") == (m.Bug == "")},
		{"file", len(m.Changes) == 0},
		{"test", len(m.Traps) == 0},
		{"reason", m.Why == ""},
		{"difference", slices.ContainsFunc(m.Changes, unchanged)},
	} {
		if part.missing {
			return fmt.Errorf("mutate: the mutant of %q has no %s", m.Name(), part.name)
		}
	}
	return nil
}

// Apply returns the new contents of the files that m changes, by their names in the module, and the number of
// the first line that changes. read returns the present contents of a file. An error says that the list is
// out of date.
func (m *Mutant) Apply(read func(name string) (string, error)) (changed map[string]string, line int, err error) {
	changed = map[string]string{}
	for i, c := range m.Changes {
		src, seen := changed[c.File]
		if !seen {
			src, err = read(c.File)
		}
		text, at := c.New, 1
		switch {
		case c.Old != "" && err == nil:
			text, at, err = c.apply(src)
		case c.Old == "" && errors.Is(err, fs.ErrNotExist):
			err = nil
		case c.Old == "" && err == nil:
			err = fmt.Errorf("%s exists, and its change quotes no line of it", c.File)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("mutate: the list is out of date: %s, %s: %w", m.Name(), m.Why, err)
		}
		changed[c.File] = text
		if i == 0 {
			line = at
		}
	}
	return changed, line, nil
}

// apply returns src with c, and the number of the first line that changes.
func (c *Change) apply(src string) (changed string, line int, err error) {
	whole := "\n" + src
	if n := strings.Count(whole, "\n"+c.Old); n != 1 {
		first, _, _ := strings.Cut(c.Old, "\n")
		return "", 0, fmt.Errorf("%s has the lines from %q %d times", c.File, first, n)
	}
	before, after, _ := strings.Cut(whole, "\n"+c.Old)
	line = strings.Count(before, "\n") + 1 + countSameLines(c.Old, c.New)
	return (before + "\n" + c.New + after)[1:], line, nil
}

// countSameLines returns how many lines are the same at the beginning of a and b.
func countSameLines(a, b string) (n int) {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for n < min(len(x), len(y)) && x[n] == y[n] {
		n++
	}
	return n
}
