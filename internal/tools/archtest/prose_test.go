package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The program in README.md is the quick start.
func TestReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile(filepath.Join(root, quickstart))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range checkReadme(string(readme), string(example)) {
		t.Error(wrong)
	}
}

func TestCheckReadme(t *testing.T) {
	t.Parallel()
	program := "package main\n\n//go:embed tables\nvar t embed.FS\n\nfunc main() {\n\ta()\n}\n"
	shown := strings.TrimPrefix(program, "package main\n\n")
	long := strings.Replace(program, "\ta()\n", strings.Repeat("\ta()\n", 50), 1)
	for name, tt := range map[string]struct{ readme, program, want string }{
		"the same":    {"text\n```go from=" + quickstart + "\n" + shown + "```\n", program, ""},
		"another":     {"```go from=" + quickstart + "\n" + strings.Replace(shown, "a()", "b()", 1) + "```\n", program, "does not show"},
		"no main":     {"```go\n" + shown + "```\n", "package main\n", "no main"},
		"a long tale": {"```go from=" + quickstart + "\n" + strings.TrimPrefix(long, "package main\n\n") + "```\n", long, "has 52 lines"},
	} {
		got := strings.Join(checkReadme(tt.readme, tt.program), "\n")
		if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestLinks(t *testing.T) {
	t.Parallel()
	wrong, err := checkLinks(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w)
	}
}

func TestCheckLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("b.md", "# What `b` is, and why\n\n```\n# no heading\n```\n")
	write("a.md", strings.Join([]string{
		"[b](b.md)", "[why](b.md#what-b-is-and-why)", "[other](https://example.com/none.md)", "[here](#here)", "# Here", "```", "[x](gone-in-code.md)", "```",
		"[c](c.md)", "[no](b.md#no-heading)", "[there](#there)",
	}, "\n"))
	wrong, err := checkLinks(dir)
	if err != nil || len(wrong) != 3 {
		t.Fatalf("%q, %v; want three", wrong, err)
	}
	for i, want := range []string{"c.md: there is no such file", "b.md#no-heading: there is no such heading", "#there: there is no such heading"} {
		if !strings.Contains(wrong[i], want) {
			t.Errorf("%q, want %q", wrong[i], want)
		}
	}
}
