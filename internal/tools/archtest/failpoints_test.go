package archtest

import (
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/failpoint"
)

// Every failpoint in the code is in the list, and every one of the list is in the code
// once.
func TestFailpoints(t *testing.T) {
	t.Parallel()
	all, err := parsedModule()
	if err != nil {
		t.Fatal(err)
	}
	points := failpoint.Points()
	for _, wrong := range checkFailpoints(all, points) {
		t.Error(wrong)
	}
	seen := make(map[string]bool)
	for _, p := range points {
		if component, name, ok := strings.Cut(p.Name, "/"); !ok || component == "" || name == "" || seen[p.Name] || p.Next == "" {
			t.Errorf("point %+v: want component/name, once, and what comes next", p)
		}
		seen[p.Name] = true
	}
}

func TestCheckFailpoints(t *testing.T) {
	t.Parallel()
	points := []failpoint.Point{{Name: "a/one"}, {Name: "a/two"}}
	hits := func(names ...string) string {
		src := "package p\n\nfunc f() {\n"
		for _, name := range names {
			src += "\t_ = failpoint.Hit(" + name + ")\n"
		}
		return src + "}\n"
	}
	for _, tt := range []struct {
		name, src, test, want string
	}{
		{"each once", hits(`"a/one"`, `"a/two"`), hits(`"test/own"`), ""},
		{"missing", hits(`"a/one"`), "", "a/two is hit in 0 places"},
		{"twice", hits(`"a/one"`, `"a/two"`, `"a/two"`), "", "a/two is hit in 2 places"},
		{"unknown", hits(`"a/one"`, `"a/two"`, `"a/three"`), "", "a/three is not in"},
		{"computed", hits(`"a/one"`, `"a/two"`, `name`), "", "is a literal"},
		{"a test's own in the code", hits(`"a/one"`, `"a/two"`, `"test/own"`), "", "test/own is not in"},
		{"a test that hits the code's", hits(`"a/one"`), hits(`"a/two"`), "a test's own point"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var all []*file
			for path, src := range map[string]string{"p/a.go": tt.src, "p/a_test.go": tt.test} {
				f, err := parseFile(path, []byte(strings.TrimSpace(src+"\n")))
				if src == "" {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, f)
			}
			got := strings.Join(checkFailpoints(all, points), "; ")
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("checkFailpoints = %q, want %q", got, tt.want)
			}
		})
	}
}
