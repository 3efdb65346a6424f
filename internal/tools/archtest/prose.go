package archtest

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// What README.md shows as a service, and the Example that is compiled.
const (
	serviceExample = "consumer/example_service_test.go"
	exampleStart   = "\nfunc Example_service() {\n"
	readmeStart    = "```go\nfunc main() {\n"
	exampleLines   = 40
)

// checkReadme returns what is wrong with the service that readme shows: it is the body
// of the Example, which compiles, and no longer than it says.
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

// checkLinks returns the links in the Markdown files below root that lead nowhere: to a
// file that is not there, or a heading that a file does not have.
func checkLinks(root string) (wrong []string, err error) {
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
			if problem := followLink(name, target[1]); problem != "" {
				wrong = append(wrong, fmt.Sprintf("%s: %s: %s", name, target[1], problem))
			}
		}
		return nil
	})
	return wrong, err
}

// followLink returns what is wrong with a link to target in the file name.
func followLink(name, target string) string {
	u, err := url.Parse(target)
	if err != nil || u.IsAbs() {
		return "" // another site's, if it is one
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
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
		if anchorOf(h[1]) == u.Fragment {
			return ""
		}
	}
	return "there is no such heading"
}

// anchorOf returns what a heading is linked by.
func anchorOf(heading string) string {
	return strings.ReplaceAll(inAnchor.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}
