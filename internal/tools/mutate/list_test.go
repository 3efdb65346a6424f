package mutate

import (
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const two = `# What this is.

claim: G3.2
file: a/b.go
test: a/c.TestD/one .*/two
# about the lines
why: nobody counts
limit: 90s
hangs: yes
 	before
-	old
+	new
+	newer
 	after

bug: it-goes
file: b.go
-gone
file: c.go
+new
+
test: b.TestE
says: b: gone
test: b.TestF
why: it goes
`

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := Parse(two)
	if err != nil {
		t.Fatal(err)
	}
	want := []Mutant{
		{
			Claim: "G3.2", Traps: []Trap{{Test: Test{"a/c", "TestD", "one .*/two"}}}, Why: "nobody counts",
			Changes: []Change{{"a/b.go", "\tbefore\n\told\n\tafter\n", "\tbefore\n\tnew\n\tnewer\n\tafter\n"}}, Limit: 90 * time.Second, Hangs: true,
		},
		{
			Bug: "it-goes", Traps: []Trap{{Test{"b", "TestE", ""}, "b: gone"}, {Test: Test{"b", "TestF", ""}}}, Why: "it goes",
			Changes: []Change{{File: "b.go", Old: "gone\n"}, {File: "c.go", New: "new\n\n"}}, Limit: DefaultLimit,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
	if g := got[0].Guarantee(); g != "G3" {
		t.Errorf("Guarantee = %s, want G3", g)
	}
	if name := got[1].Name(); name != "it-goes" {
		t.Errorf("Name = %s, want it-goes", name)
	}
	if run := got[0].Traps[0].Run(); run != "^TestD$/^(?:one .*)$/^(?:two)$" {
		t.Errorf("Run = %s", run)
	}
	if s := got[0].Traps[0].String(); s != "a/c.TestD/one .*/two" {
		t.Errorf("String = %s", s)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ old, new, want string }{
		{"claim: G3.2\n", "", "no claim or bug"},
		{"claim: G3.2\n", "claim: G3.2\nbug: it-goes\n", "no claim or bug"},
		{"file: a/b.go\n", "", "a change stands before its file"},
		{"file: b.go\n-gone\nfile: c.go\n+new\n+\n", "", "no file"},
		{"test: a/c.TestD/one .*/two\n", "", "no test"},
		{"test: b.TestE\n", "", "says: stands before its test"},
		{"why: it goes\n", "", "no reason"},
		{"-gone\n", "-gone\n+gone\n", "no difference"},
		{"-gone\n", "", "no difference"},
		{"test: b.TestE", "test: TestE", "line 22"},
		{"limit: 90s", "limit: soon", "line 8"},
		{"hangs: yes", "hang: yes", `unknown field "hang"`},
	} {
		_, err := Parse(strings.Replace(two, tt.old, tt.new, 1))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q in the place of %q: %v, want an error that says %s", tt.new, tt.old, err, tt.want)
		}
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	m := Mutant{Claim: "G1.1", Changes: []Change{{"a.go", "same\nold\n", "same\nnew\n"}}}
	for _, tt := range []struct {
		src, want string
		line      int
	}{
		{"same\nold\nrest\n", "same\nnew\nrest\n", 2},
		{"a\nb\nsame\nold\n", "a\nb\nsame\nnew\n", 4},
		{"same\nolder\n", "", 0},                // whole lines
		{"the same\nold\n", "", 0},              // from their beginning
		{"same\nold\nx\nsame\nold\nx\n", "", 0}, // and once
	} {
		got, line, err := m.Apply(tree{"a.go": tt.src}.read)
		if (err == nil) != (tt.want != "") || got["a.go"] != tt.want || line != tt.line {
			t.Errorf("Apply to %q = %q, line %d, %v; want %q, line %d", tt.src, got, line, err, tt.want, tt.line)
		}
		if err != nil && !strings.Contains(err.Error(), "out of date") {
			t.Errorf("Apply to %q: %v, want an error that says that the list is out of date", tt.src, err)
		}
	}
}

// A tree is files by their names.
type tree map[string]string

func (f tree) read(name string) (string, error) {
	src, there := f[name]
	if !there {
		return "", fs.ErrNotExist
	}
	return src, nil
}

// Several changes of one file meet in it, and one without old lines is a new file, which must not exist.
func TestApplySeveralChanges(t *testing.T) {
	t.Parallel()
	m := Mutant{Bug: "two", Changes: []Change{{"a.go", "x\n", "y\n"}, {"a.go", "z\n", ""}, {"b.go", "", "new\n"}}}
	files := tree{"a.go": "x\nz\n"}
	got, line, err := m.Apply(files.read)
	if diff := cmp.Diff(map[string]string{"a.go": "y\n", "b.go": "new\n"}, got); diff != "" || line != 1 || err != nil {
		t.Errorf("Apply: line %d, %v (-want +got):\n%s", line, err, diff)
	}
	files["b.go"] = "is there"
	if _, _, err := m.Apply(files.read); err == nil || !strings.Contains(err.Error(), "b.go exists") {
		t.Errorf("Apply where the new file exists: %v, want an error", err)
	}
}

func TestListIsRead(t *testing.T) {
	t.Parallel()
	all, err := List()
	if err != nil || len(all) < 20 {
		t.Errorf("List has %d mutants, %v", len(all), err)
	}
}
