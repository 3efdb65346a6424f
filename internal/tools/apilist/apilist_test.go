package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// listOf returns the listing of a package p of module m with the given source.
func listOf(t *testing.T, source string) []string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", "package p\n"+source, 0)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := (&types.Config{}).Check("m/p", fset, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return list("m", pkg)
}

// Exactly the changes that break a user's code are missing, each under the name of the changed thing.
func TestMissing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, before, after, want string }{
		{"nothing", "func F(a int) error { return nil }", "func F(b int) error { return nil }", ""},
		{"names of parameters within", "var V func(a int) map[string][]func(b int)", "var V func(int) map[string][]func(int)", ""},
		{"function added", "", "func F() {}", ""},
		{"type added", "", "type T struct{ A int }", ""},
		{"method added", "type T struct{}", "type T struct{}; func (T) M() {}", ""},
		{"field added", "type T struct{ A int }", "type T struct{ A, B int }", ""},
		{"fields in another order", "type T struct{ A, B int }", "type T struct{ B, A int }", ""},
		{"unexported things", "type t int; const c = 1; type T struct{ a int }; func (T) m() {}", "type T struct{ b string }", ""},
		{"method added to an interface that is closed", "type I interface{ A(); m() }", "type I interface{ A(); B(); m() }", ""},
		{"type became comparable", "type T struct{ a []int }", "type T struct{ a int }", ""},

		{"function removed", "func F() {}", "", "p.F: gone"},
		{"parameter", "func F(int) {}", "func F(int, int) {}", "p.F: changed"},
		{"variadic parameter", "func F(int) {}", "func F(int, ...int) {}", "p.F: changed"},
		{"result", "func F() error { return nil }", "func F() (int, error) { return 0, nil }", "p.F: changed"},
		{"constraint", "func F[T any](T) {}", "func F[T comparable](T) {}", "p.F: changed"},
		{"parameter of a type", "type T[A any] struct{}", "type T[A, B any] struct{}", "p.T: changed"},
		{"type removed", "type T struct{ A int }", "", "p.T: gone"},
		{"kind of a type", "type T int", "type T string", "p.T: changed"},
		{"field removed", "type T struct{ A, B int }", "type T struct{ A int }", "p.T.B: gone"},
		{"field of another type", "type T struct{ A int }", "type T struct{ A int64 }", "p.T.A: changed"},
		{"field's name in JSON", "type T struct{ A int `json:\"a\"` }", "type T struct{ A int `json:\"b\"` }", "p.T.A: changed"},
		{"promoted field removed", "type T struct{ e }; type e struct{ A int }", "type T struct{ e }; type e struct{}", "p.T.A: gone"},
		{"type no longer comparable", "type T struct{ a int }", "type T struct{ a []int }", "p.T comparable: gone"},
		{"method removed", "type T struct{}; func (T) M() {}", "type T struct{}", "p.T.M: gone"},
		{"method of pointers now", "type T struct{}; func (T) M() {}", "type T struct{}; func (*T) M() {}", "p.T.M: changed"},
		{"promoted method removed", "type T struct{ e }; type e struct{}; func (e) M() {}", "type T struct{ e }; type e struct{}", "p.T.M: gone"},
		{"method added to an interface", "type I interface{ A() }", "type I interface{ A(); B() }", "p.I: changed"},
		{"interface closed", "type I interface{ A() }", "type I interface{ A(); b() }", "p.I: changed"},
		{"method of an interface", "type I interface{ A(); m() }", "type I interface{ A() int; m() }", "p.I.A: changed"},
		{"union", "type I interface{ int | string }", "type I interface{ int }", "p.I: changed"},
		{"constant's value", "const C = 1", "const C = 2", "p.C: changed"},
		{"constant's type", "const C = 1", "const C int64 = 1", "p.C: changed"},
		{"variable's type", "var V int", "var V string", "p.V: changed"},
		{"alias of another type", "type T = int", "type T = string", "p.T: changed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(missing(listOf(t, tt.before), listOf(t, tt.after)), "\n")
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want+"\n") && tt.want != "" {
				t.Errorf("missing:\n%s\nwant %q", got, tt.want)
			}
		})
	}
}

// The listing is out of date if anything is new, too.
func TestDifferences(t *testing.T) {
	t.Parallel()
	before, after := listOf(t, "func F() {}; func G() {}"), listOf(t, "func F(int) {}; func H() {}")
	got := strings.Join(differences(before, after), "\n")
	for _, want := range []string{"p.F: changed", "p.G: gone", "p.H: new"} {
		if !strings.Contains(got, want) {
			t.Errorf("differences:\n%s\nwant %q", got, want)
		}
	}
	if got := differences(after, after); len(got) > 0 {
		t.Errorf("differences from itself: %v", got)
	}
}

func TestMayBreak(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		released, next string
		want           bool
	}{
		{"v0.1.0", "v0.1.0", false}, {"v0.1.0", "v0.1.1", false}, {"v0.1.9", "v0.2.0", true}, {"v0.2.0", "v0.1.0", false},
		{"v0.9.0", "v1.0.0", true}, {"v1.0.0", "v1.1.0", false}, {"v1.9.0", "v2.0.0", true}, {"v2.0.0", "v1.9.0", false}, {"v1.0.0", "v0.9.0", false},
	} {
		released, _ := parseVersion(tt.released)
		next, _ := parseVersion(tt.next)
		if got := mayBreak(released, next); got != tt.want {
			t.Errorf("mayBreak(%s, %s) = %v", released, next, got)
		}
	}
}

func TestNewest(t *testing.T) {
	t.Parallel()
	if v, ok := newest([]string{"v0.2.0", "v0.10.1", "v0.11.0-rc.1", "v01.0.0", "v2", "version", "v0.10.0"}); !ok || v != (version{0, 10, 1}) {
		t.Errorf("newest = %s, %v; want v0.10.1", v, ok)
	}
	if v, ok := newest([]string{"v1.0.0-rc.1"}); ok {
		t.Errorf("newest of a pre-release = %s", v)
	}
}

func TestIsPublic(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"m/outbox": true, "m/idemkey/idempg": true, "m/internal/x": false, "m/outbox/internal/x": false, "m/examples/x": false, "m/cmd/x/y": false,
	} {
		if got := isPublic("m", path, "p"); got != want {
			t.Errorf("isPublic(%s) = %v", path, got)
		}
	}
	if isPublic("m", "m/x", "main") {
		t.Error("a program is public")
	}
}

// A repository is the one in the working directory: a module of one package, with its listing.
type repository struct{ *testing.T }

func (r repository) write(name, content string) {
	r.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		r.Fatal(err)
	}
}

func (r repository) git(args ...string) {
	r.Helper()
	args = append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"}, args...)
	if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
		r.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// want checks the listing: message is in what is wrong with it, or "".
func (r repository) want(what, message string) {
	r.Helper()
	switch err := run(false); {
	case message == "" && err != nil:
		r.Errorf("%s: %v", what, err)
	case message != "" && (err == nil || !strings.Contains(err.Error(), message)):
		r.Errorf("%s: %v, want %q", what, err, message)
	}
}

// record lists the API anew.
func (r repository) record() {
	r.Helper()
	if err := run(true); err != nil {
		r.Fatal(err)
	}
}

// next says that the next version is another one.
func (r repository) next(from, to string) {
	r.Helper()
	content, err := os.ReadFile(listingPath)
	if err != nil {
		r.Fatal(err)
	}
	r.write(listingPath, strings.Replace(string(content), header+from, header+to, 1))
}

// From no release over the first to the next.
func TestReleases(t *testing.T) {
	t.Chdir(t.TempDir())
	r := repository{t}
	for _, folder := range []string{"p", "api"} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.write("go.mod", "module m\n\ngo 1.26\n")
	r.write("p/p.go", "package p\n\nfunc F() {}\n")
	r.want("no listing", listingPath)
	r.record()
	r.want("no repository", "")
	r.git("init", "-q")
	r.git("add", ".")
	r.git("commit", "-qm", "first")
	r.want("no tag", "")
	r.git("tag", "v0.1.0")
	r.want("the release itself", "")

	r.write("p/p.go", "package p\n\nfunc F() {}\n\nfunc G() {}\n")
	r.want("something that is not recorded", "p.G: new")
	r.record()
	r.want("something new", "")
	r.write("p/p.go", "package p\n\nfunc F(int) {}\n\nfunc G() {}\n")
	r.want("a change that is not recorded", "p.F: changed")
	r.record()
	r.want("a change in a patch", "p.F: changed")
	r.next("v0.1.0", "v0.1.1")
	r.want("a change in the next patch", "the API of v0.1.0 has lost this")
	r.next("v0.1.1", "v0.2.0")
	r.want("a change in the next minor version", "")
	r.record()
	r.want("the version is kept", "")
	r.git("commit", "-qam", "second")
	r.git("tag", "v0.2.0")
	r.want("the second release", "")
	r.next("v0.2.0", "v0.1.1")
	r.git("commit", "-qam", "third")
	r.git("tag", "v0.1.1")
	r.git("tag", "--delete", "v0.2.0") // or the third would be compared with that
	r.want("a release that breaks the one before", "the API of v0.1.0 has lost this")
	r.next("v0.1.1", "soon")
	r.want("no version", "the first line")
}
