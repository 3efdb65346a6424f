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

// The service in README.md, and the compiled Example with the same code.
const (
	serviceExample = "consumer/example_service_test.go"
	exampleStart   = "\nfunc Example_service() {\n"
	readmeStart    = "```go\nfunc main() {\n"
	exampleLines   = 40
)

// checkReadme returns the differences between the service in readme and the body of the Example, which
// compiles. It also checks that the service is no longer than readme says.
func checkReadme(readme, example string) []string {
	_, shown, found := strings.Cut(readme, readmeStart)
	shown, _, closed := strings.Cut(shown, "\n}\n```\n")
	if !found || !closed {
		return []string{"README.md: shows no service"}
	}
	_, compiled, found := strings.Cut(example, exampleStart)
	compiled, _, closed = strings.Cut(compiled, "\n}\n")
	if !found || !closed {
		return []string{serviceExample + ": there is no Example_service"}
	}
	var wrong []string
	if shown != compiled {
		wrong = append(wrong, "README.md: the service is not the body of Example_service in "+serviceExample)
	}
	if lines := strings.Count(shown, "\n") + 3; lines > exampleLines {
		wrong = append(wrong, fmt.Sprintf("README.md: the service has %d lines, want at most %d", lines, exampleLines))
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
