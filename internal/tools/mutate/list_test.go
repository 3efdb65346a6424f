package mutate

import (
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

claim: G10.1
file: b.go
test: b.TestE
why: it goes
-gone
`

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := Parse(two)
	if err != nil {
		t.Fatal(err)
	}
	want := []Mutant{
		{
			Claim: "G3.2", File: "a/b.go", Test: Test{"a/c", "TestD", "one .*/two"}, Why: "nobody counts",
			Old: "\tbefore\n\told\n\tafter\n", New: "\tbefore\n\tnew\n\tnewer\n\tafter\n", Limit: 90 * time.Second, Hangs: true,
		},
		{Claim: "G10.1", File: "b.go", Test: Test{"b", "TestE", ""}, Why: "it goes", Old: "gone\n", Limit: DefaultLimit},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
	if g := got[1].Guarantee(); g != "G10" {
		t.Errorf("Guarantee = %s, want G10", g)
	}
	if run := got[0].Test.Run(); run != "^TestD$/^(?:one .*)$/^(?:two)$" {
		t.Errorf("Run = %s", run)
	}
	if s := got[0].Test.String(); s != "a/c.TestD/one .*/two" {
		t.Errorf("String = %s", s)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ old, new, want string }{
		{"claim: G3.2\n", "", "claim"},
		{"file: a/b.go\n", "", "file"},
		{"test: b.TestE\n", "", "test"},
		{"why: it goes\n", "", "reason"},
		{"-gone\n", "", "lines that go"},
		{"-gone\n", "-gone\n+gone\n", "difference"},
		{"test: b.TestE", "test: TestE", "line 18"},
		{"limit: 90s", "limit: soon", "line 8"},
		{"hangs: yes", "hang: yes", `"hang: yes"`},
	} {
		_, err := Parse(strings.Replace(two, tt.old, tt.new, 1))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q in the place of %q: %v, want an error that says %s", tt.new, tt.old, err, tt.want)
		}
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	m := Mutant{Claim: "G1.1", File: "a.go", Old: "same\nold\n", New: "same\nnew\n"}
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
		got, line, err := m.Apply(tt.src)
		if (err == nil) != (tt.want != "") || got != tt.want || line != tt.line {
			t.Errorf("Apply to %q = %q, line %d, %v; want %q, line %d", tt.src, got, line, err, tt.want, tt.line)
		}
		if err != nil && !strings.Contains(err.Error(), "out of date") {
			t.Errorf("Apply to %q: %v, want an error that says that the list is out of date", tt.src, err)
		}
	}
}

func TestListIsRead(t *testing.T) {
	t.Parallel()
	all, err := List()
	if err != nil || len(all) < 20 {
		t.Errorf("List has %d mutants, %v", len(all), err)
	}
}
