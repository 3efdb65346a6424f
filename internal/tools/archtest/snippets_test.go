package archtest

import (
	"go/token"
	"strings"
	"testing"
)

// The Go code of all documents compiles, or is an excerpt of a file that does.
func TestSnippetsCompile(t *testing.T) {
	t.Parallel()
	c := &compilation{fset: token.NewFileSet()}
	for name, document := range documents(t) {
		snippets, wrong := findSnippets(name, document)
		for _, w := range wrong {
			t.Error(w)
		}
		for _, s := range snippets {
			if wrong := checkExcerptPage(s); wrong != "" {
				t.Error(wrong)
			}
			if s.from == "" {
				continue
			}
			source, err := readRoot(s.from)
			if err != nil {
				t.Errorf("%s:%d: %v", s.document, s.line, err)
			} else if wrong := checkExcerpt(s, source); wrong != "" {
				t.Error(wrong)
			}
		}
		c.add(snippets)
	}
	wrong, err := c.check(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w)
	}
}

func TestCheckExcerptPage(t *testing.T) {
	t.Parallel()
	for s, wrong := range map[snippet]bool{
		{document: excerptPages[0], line: 3}:                 true,
		{document: excerptPages[0], line: 3, from: "a/b.go"}: false,
		{document: "docs/other.md", line: 3}:                 false,
	} {
		if got := checkExcerptPage(s); (got != "") != wrong {
			t.Errorf("%+v: %q, want a mistake: %t", s, got, wrong)
		}
	}
}

func TestFindSnippets(t *testing.T) {
	t.Parallel()
	found, wrong := findSnippets("a.md", strings.Join([]string{
		"# A", "```go", "x()", "```", "<!-- go", "var a int", "-->", "```sh", "```go", "```",
		"```go file=main.go", "y()", "```", "1. In a list", "   ```go from=b.go", "   z()", "   ```", "```go fil=x", "w()", "```",
	}, "\n"))
	want := []snippet{
		{document: "a.md", line: 3, text: "x()\n"},
		{document: "a.md", line: 6, hidden: true, text: "var a int\n"},
		{document: "a.md", line: 12, file: "main.go", text: "y()\n"},
		{document: "a.md", line: 16, from: "b.go", text: "z()\n"},
	}
	if len(found) != len(want) {
		t.Fatalf("found %+v, want %+v", found, want)
	}
	for i := range want {
		if found[i] != want[i] {
			t.Errorf("snippet %d is %+v, want %+v", i, found[i], want[i])
		}
	}
	if len(wrong) != 1 || !strings.Contains(wrong[0], "a.md:18") {
		t.Errorf("wrong: %q, want one message about line 18", wrong)
	}
}

func TestCheckExcerpt(t *testing.T) {
	t.Parallel()
	source := "package p\n\nfunc f() {\n\tif a {\n\t\tb()\n\t\tc()\n\t}\n\td()\n}\n"
	for text, same := range map[string]bool{
		"if a {\n\tb()\n\tc()\n}\n":                 true,
		"\tif a {\n\t\tb()\n\t\tc()\n\t}\n":         true,
		"func f() {\n\t// …\n\td()\n}\n":            true,
		"func f() {\n// …\n\td()\n}\n":              true,
		"b()\nd()\n":                                false,
		"if a {\nb()\n":                             false,
		"d()\n// …\nb()\n":                          false,
		"package p\n\n// …\n\nfunc f() {\n\tif a {": true,
	} {
		if got := checkExcerpt(snippet{document: "a.md", line: 2, from: "p.go", text: text}, source); (got == "") != same {
			t.Errorf("%q: %q, want an excerpt: %t", text, got, same)
		}
	}
}

func TestCompilation(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		page []snippet
		want []string // in the messages, in order
	}{
		"declarations and statements": {[]snippet{
			{line: 1, hidden: true, text: "type charge struct{ outbox string }\n"},
			{line: 9, text: "func pay(c charge) error { return errors.New(c.outbox) }\n"},
			{line: 20, text: "if err := pay(charge{}); err != nil {\n\treturn err\n}\nm := outbox.Message{}\n"},
		}, nil},
		"a field that is missing": {[]snippet{{line: 5, text: "m := outbox.Message{\n\tTopik: \"a\",\n}\n"}}, []string{"a.md:6: unknown field Topik"}},
		"a name that is missing":  {[]snippet{{line: 5, text: "x.Run(ctx)\n"}}, []string{"a.md:5: undefined: x"}},
		"a package of the page":   {[]snippet{{line: 5, text: "var outbox = 1\n"}, {line: 7, text: "outbox.Do()\n"}}, []string{"a.md:7: outbox.Do undefined"}},
		"a whole file":            {[]snippet{{line: 5, text: "package main\n\nimport \"os\"\n\nfunc main() {}\n"}}, []string{"a.md:7: \"os\" imported and not used"}},
		"files of a program": {[]snippet{
			{line: 5, file: "a.go", text: "package main\n\nfunc main() { f() }\n"},
			{line: 9, file: "b.go", text: "package main\n\nfunc f(int) {}\n"},
		}, []string{"a.md:7: not enough arguments"}},
		"neither":       {[]snippet{{line: 5, text: "a: b,\nc: d,\n"}}, []string{"a.md:5"}},
		"no format":     {[]snippet{{line: 5, text: "x  := 1\n"}}, []string{"a.md:5: the Go code is not formatted"}},
		"of the future": {[]snippet{{line: 5, text: "import \"example.com/none\"\n"}}, []string{"no package example.com/none"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range tt.page {
				tt.page[i].document = "a.md"
			}
			c := &compilation{fset: token.NewFileSet()}
			c.add(tt.page)
			got, err := c.check(root)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == nil && len(got) > 0 {
				t.Errorf("got %q, want none", got)
			}
			for i, want := range tt.want {
				if i >= len(got) || !strings.Contains(got[i], want) {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			}
		})
	}
}
