package archtest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
)

// A snippet is Go code of a document: a ```go block, or the declarations in a comment, which a reader does not see.
type snippet struct {
	document string
	line     int    // of its first line
	file     string // ```go file=main.go: the blocks of a page with a file are a program
	from     string // ```go from=outbox/doc.go: an excerpt of that file
	hidden   bool   // <!-- go … -->: declarations that the page's snippets need
	text     string
}

var (
	openFence   = regexp.MustCompile("^( *)(```+)([^`]*)$")
	goAttribute = regexp.MustCompile(`^go(?: (file|from)=(\S+))?$`)
)

// findSnippets returns the Go code of a document. A ```go block with another attribute is an error.
func findSnippets(document, text string) (found []snippet, wrong []string) {
	var open *snippet // the block that is being read, of whatever language
	var indent, end string
	for i, line := range strings.Split(text, "\n") {
		switch fence := openFence.FindStringSubmatch(line); {
		case open != nil && strings.TrimSpace(line) == end:
			if open.document != "" {
				found = append(found, *open)
			}
			open = nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		case line == "<!-- go":
			open, indent, end = &snippet{document: document, line: i + 2, hidden: true}, "", "-->"
		case fence != nil:
			open, indent, end = &snippet{}, fence[1], fence[2]
			language, _, _ := strings.Cut(strings.TrimSpace(fence[3]), " ")
			attribute := goAttribute.FindStringSubmatch(strings.TrimSpace(fence[3]))
			switch {
			case language == "go" && attribute == nil:
				wrong = append(wrong, fmt.Sprintf("%s:%d: %q: want ```go, ```go file=NAME or ```go from=NAME", document, i+1, line))
			case language == "go":
				open = &snippet{document: document, line: i + 2}
				switch attribute[1] {
				case "file":
					open.file = attribute[2]
				case "from":
					open.from = attribute[2]
				}
			}
		}
	}
	return found, wrong
}

// excerptPages teach by examples: each block of Go code is an excerpt, so that all that a reader copies is tested.
var excerptPages = []string{"docs/cookbook.md", "docs/testing.md", "docs/tutorial-orchestration.md", "docs/versioning.md"}

// checkExcerptPage returns the mistake in a snippet that is no excerpt although its page shows nothing else, or "".
func checkExcerptPage(s snippet) string {
	if s.from != "" || !slices.Contains(excerptPages, s.document) {
		return ""
	}
	return fmt.Sprintf("%s:%d: this page shows excerpts: want ```go from=FILE", s.document, s.line)
}

// elision matches a line that stands for lines that an excerpt leaves out.
var elision = regexp.MustCompile(`(?m)^[\t ]*// …$`)

// checkExcerpt returns the mistake in a snippet that shows lines of the file with the text source, or "". The lines may
// be indented less than in the file. Where the snippet has a line with nothing but "// …", the file may have more.
func checkExcerpt(s snippet, source string) string {
	lines := strings.Split(source, "\n")
	for _, part := range elision.Split(s.text, -1) {
		want := strings.Split(unindent(strings.Trim(part, "\n")), "\n")
		at := 0
		for ; at+len(want) <= len(lines); at++ {
			if unindent(strings.Join(lines[at:at+len(want)], "\n")) == strings.Join(want, "\n") {
				break
			}
		}
		if at+len(want) > len(lines) {
			return fmt.Sprintf("%s:%d: %s lacks these lines, in this order: %q …", s.document, s.line, s.from, want[0])
		}
		lines = lines[at+len(want):]
	}
	return ""
}

// unindent removes the tabs and spaces that all lines of text begin with.
func unindent(text string) string {
	lines := strings.Split(text, "\n")
	common := -1
	for _, line := range lines {
		if strings.TrimSpace(line) == "" {
			continue
		}
		if own := len(line) - len(strings.TrimLeft(line, "\t ")); common < 0 || own < common {
			common = own
		}
	}
	for i, line := range lines {
		lines[i] = strings.TrimRight(line[min(max(common, 0), len(line)):], "\t ")
	}
	return strings.Join(lines, "\n")
}

// impliedImports are the packages that a snippet need not import, by the names that it uses.
var impliedImports = impliedBy(
	"bytes", "context", "embed", "encoding/json", "errors", "flag", "fmt", "io", "log", "log/slog", "maps", "net/http",
	"net/http/httptest", "net/url", "os", "os/signal", "slices", "strconv", "strings", "sync", "syscall", "testing", "time",
	"github.com/ThreeDotsLabs/watermill/message", "github.com/google/uuid", "github.com/jackc/pgx/v5",
	"github.com/jackc/pgx/v5/pgxpool", "github.com/jackc/pgx/v5/pgconn", "github.com/gin-gonic/gin",
	"github.com/labstack/echo/v4", "github.com/go-chi/chi/v5", "github.com/redis/go-redis/v9", module,
	module+"/cloudevents", module+"/consumer", module+"/idemkey", module+"/idemkey/idemecho", module+"/idemkey/idemgin",
	module+"/idemkey/idemhybrid", module+"/idemkey/idempg", module+"/idemkey/idemredis", module+"/inproc",
	module+"/migrations", module+"/operator", module+"/outbox", module+"/protobuf", module+"/rabbitmq", module+"/saga",
	module+"/sagatest", module+"/signing", module+"/telemetry", module+"/topology",
)

var majorVersion = regexp.MustCompile(`^v\d+$`)

func impliedBy(paths ...string) map[string]string {
	implied := map[string]string{}
	for _, p := range paths {
		name := path.Base(p)
		if majorVersion.MatchString(name) {
			name = path.Base(path.Dir(p))
		}
		implied[strings.TrimPrefix(name, "go-")] = p
	}
	return implied
}

// A program is the Go code that is compiled together.
type program struct {
	files    []*ast.File
	complete bool // it has what it needs: what it does not use is an error too
}

// A compilation compiles the snippets of documents.
type compilation struct {
	fset     *token.FileSet
	programs []*program
	wrong    []string
}

// add parses the snippets of one document. They are one program, as far as they have no package clause.
func (c *compilation) add(snippets []snippet) {
	byName := map[string]*program{}
	in := func(name string, complete bool) *program {
		if byName[name] == nil {
			byName[name] = &program{complete: complete}
			c.programs = append(c.programs, byName[name])
		}
		return byName[name]
	}
	var named []string // by the snippets themselves: these names are no packages
	var fragments []snippet
	for _, s := range snippets {
		switch {
		case s.from != "":
		case s.file != "":
			if parsed := c.parse(s, s.text); parsed != nil {
				p := in("directory "+path.Dir(s.file), true)
				p.files = append(p.files, parsed)
			}
		case strings.HasPrefix(s.text, "package ") || strings.Contains(s.text, "\npackage "):
			if parsed := c.parse(s, s.text); parsed != nil {
				in(fmt.Sprintf("line %d", s.line), true).files = []*ast.File{parsed}
			}
		default:
			fragments = append(fragments, s)
			if parsed := c.parseFragment(s, nil); parsed != nil {
				named = append(named, declaredNames(parsed)...)
			}
		}
		if formatted, err := format.Source([]byte(s.text)); err == nil && string(formatted) != s.text && s.from == "" {
			c.wrong = append(c.wrong, fmt.Sprintf("%s:%d: the Go code is not formatted by gofmt", s.document, s.line))
		}
	}
	if len(c.wrong) > 0 {
		return
	}
	for _, s := range fragments {
		p := in("fragments", false)
		p.files = append(p.files, c.parseFragment(s, named))
	}
}

// parseFragment parses declarations or statements. With the names that the page declares, it also imports the packages
// that the fragment uses without importing them.
func (c *compilation) parseFragment(s snippet, named []string) *ast.File {
	declarations, statements := "package fragments%s\n%s", "package fragments%s\n"+
		"func _(ctx context.Context, tx pgx.Tx, pool *pgxpool.Pool, w http.ResponseWriter, r *http.Request, t *testing.T) error {\n%s\npanic(0)\n}\n"
	source := func(form, imports string) string {
		return fmt.Sprintf(form, imports, fmt.Sprintf("//line %s:%d\n%s", s.document, s.line, s.text))
	}
	form := declarations
	parsed, err := parser.ParseFile(c.fset, "", source(form, ""), 0)
	if err != nil && !s.hidden {
		form = statements
		if asStatements, failed := parser.ParseFile(c.fset, "", source(form, ""), 0); failed == nil || !strings.HasPrefix(s.text, "func ") {
			parsed, err = asStatements, failed
		}
	}
	if err != nil {
		c.wrong = append(c.wrong, fmt.Sprintf("%v (a fragment is declarations, or statements)", err))
		return nil
	}
	imports := ""
	for _, unresolved := range parsed.Unresolved {
		imported := impliedImports[unresolved.Name]
		if imported != "" && !slices.Contains(named, unresolved.Name) && !strings.Contains(imports, `"`+imported+`"`) {
			imports += "; import " + unresolved.Name + ` "` + imported + `"`
		}
	}
	return c.parse(s, source(form, imports))
}

// parse parses text, whose first line is that of the snippet unless it says another.
func (c *compilation) parse(s snippet, text string) *ast.File {
	parsed, err := parser.ParseFile(c.fset, "", fmt.Sprintf("//line %s:%d\n%s", s.document, s.line, text), 0)
	if err != nil {
		c.wrong = append(c.wrong, err.Error())
		return nil
	}
	return parsed
}

// declaredNames returns the names that a file declares for its package.
func declaredNames(parsed *ast.File) (names []string) {
	for name := range parsed.Scope.Objects {
		names = append(names, name)
	}
	return names
}

// check compiles the programs, with the packages of the module at root and of its requirements.
func (c *compilation) check(root string) ([]string, error) {
	if len(c.wrong) > 0 {
		return c.wrong, nil
	}
	exports, err := listExports(root, c.imports())
	if err != nil {
		return nil, err
	}
	compiled := importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, errors.New("no package " + path)
		}
		return os.Open(exports[path])
	})
	for _, p := range c.programs {
		config := types.Config{Importer: compiled, Error: func(err error) {
			var mistake types.Error
			if errors.As(err, &mistake) && (p.complete || !mistake.Soft) { // a soft one is what is declared but not used
				c.wrong = append(c.wrong, err.Error())
			}
		}}
		_, _ = config.Check(p.files[0].Name.Name, c.fset, p.files, nil)
	}
	return c.wrong, nil
}

// imports returns the packages that the programs import.
func (c *compilation) imports() (paths []string) {
	for _, p := range c.programs {
		for _, parsed := range p.files {
			for _, imported := range parsed.Imports {
				paths = append(paths, strings.Trim(imported.Path.Value, `"`))
			}
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// listExports returns the files that the compiler has written for packages and their dependencies. It compiles what has
// changed since the last build.
func listExports(root string, packages []string) (map[string]string, error) {
	list := exec.Command("go", append([]string{"list", "-e", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", "--"}, packages...)...)
	list.Dir = root
	list.Stderr = os.Stderr
	printed, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", list, err)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(printed)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		exports[name] = file
	}
	return exports, nil
}
