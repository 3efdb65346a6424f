package archtest

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The program of which README.md shows all but the imports, and how long its main may be.
const (
	quickstart = "examples/quickstart/main.go"
	shownFrom  = "\n//go:embed "
	mainStart  = "\nfunc main() {\n"
	mainLines  = 25
)

// checkReadme returns the differences between the program in readme and the quick start, which is compiled and run. It
// also checks the length of main.
func checkReadme(readme, program string) []string {
	_, compiled, found := strings.Cut(program, shownFrom)
	_, body, hasMain := strings.Cut(compiled, mainStart)
	body, _, closed := strings.Cut(body, "\n}\n")
	if !found || !hasMain || !closed {
		return []string{quickstart + ": no main behind a line with " + strings.TrimSpace(shownFrom)}
	}
	var wrong []string
	if !strings.Contains(readme, "```go from="+quickstart+shownFrom+compiled+"```\n") {
		wrong = append(wrong, "README.md: does not show "+quickstart)
	}
	if lines := strings.Count(body, "\n") + 3; lines > mainLines {
		wrong = append(wrong, fmt.Sprintf("%s: main has %d lines, want at most %d", quickstart, lines, mainLines))
	}
	return wrong
}

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	fenced   = regexp.MustCompile("(?ms)^```.*?^```")
	inAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// checkLinks returns the broken links in the Markdown files below root: to a missing file, or to a heading
// that a file does not have.
func checkLinks(root string) (wrong []string, err error) {
	anchors := anchorLists{}
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules") {
			if err == nil {
				err = filepath.SkipDir
			}
			return err
		}
		if filepath.Ext(name) != ".md" {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, target := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			if problem := anchors.followLink(name, target[1]); problem != "" {
				wrong = append(wrong, fmt.Sprintf("%s: %s: %s", name, target[1], problem))
			}
		}
		return nil
	})
	return wrong, err
}

// anchorLists has the anchors of each file that a link with a fragment leads to. Each file is read once.
type anchorLists map[string][]string

// followLink returns the mistake in a link to target in the file name, or "".
func (a anchorLists) followLink(name, target string) string {
	u, err := url.Parse(target)
	if err != nil || u.IsAbs() {
		return "" // a link to another site
	}
	file := name
	if u.Path != "" {
		file = filepath.Join(filepath.Dir(name), filepath.FromSlash(u.Path))
	}
	if _, err := os.Stat(file); err != nil {
		return "there is no such file"
	}
	if u.Fragment == "" || filepath.Ext(file) != ".md" {
		return ""
	}
	if a[file] == nil {
		text, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		a[file] = []string{} // read
		for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			a[file] = append(a[file], anchorOf(h[1]))
		}
	}
	if !slices.Contains(a[file], u.Fragment) {
		return "there is no such heading"
	}
	return ""
}

// anchorOf returns the anchor of a heading.
func anchorOf(heading string) string {
	return strings.ReplaceAll(inAnchor.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}
