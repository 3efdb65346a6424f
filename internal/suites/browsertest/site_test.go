package browsertest

import (
	"crypto/sha256"
	"encoding/hex"
	"html"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// The repository, the site that make docs builds, and its sources.
const (
	repository  = "../../.."
	siteOutput  = repository + "/bin/docs"
	siteSources = repository + "/internal/tools/docsite"
)

// A site is what make docs has built, without a server.
type site struct {
	root  string              // absolute
	pages map[string]string   // HTML, by path within root
	ids   map[string][]string // of the elements of each page
}

func readSite(t *testing.T) *site {
	t.Helper()
	root, err := filepath.Abs(siteOutput)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{root: filepath.ToSlash(root), pages: map[string]string{}, ids: map[string][]string{}}
	err = fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".html" {
			return err
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		s.pages[name] = string(text)
		for _, found := range element.FindAllSubmatch(text, -1) {
			s.ids[name] = append(s.ids[name], html.UnescapeString(string(found[1])))
		}
		return err
	})
	if err != nil || len(s.pages) == 0 {
		t.Fatalf("%d pages of the site: run make docs: %v", len(s.pages), err)
	}
	return s
}

// hasFile reports whether the site has the file called name.
func (s *site) hasFile(name string) bool {
	info, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(name)))
	return err == nil && !info.IsDir()
}

var (
	reference = regexp.MustCompile(`<(a|link|script|img)\b[^>]*? (?:href|src)="?([^"\s>]*)`)
	element   = regexp.MustCompile(`\bid="?([^"\s>]+)`)
)

// brokenReferences returns the references of the page called name that lead nowhere, and those by which a browser would
// load something from elsewhere.
func (s *site) brokenReferences(name string) (wrong []string) {
	for _, found := range reference.FindAllStringSubmatch(s.pages[name], -1) {
		tag, target := found[1], html.UnescapeString(found[2])
		u, err := url.Parse(target)
		switch {
		case err != nil:
			wrong = append(wrong, name+": "+err.Error())
		case u.Scheme == "data":
		case u.IsAbs() || u.Host != "" || strings.HasPrefix(u.Path, "/"):
			if tag != "a" || u.Host == "" && u.Scheme != "mailto" {
				wrong = append(wrong, name+": "+target+" is outside of the site")
			}
		default:
			to := name
			if u.Path != "" {
				to = path.Join(path.Dir(name), u.Path)
			}
			if !s.hasFile(to) {
				wrong = append(wrong, name+": "+target+": there is no such file")
			} else if u.Fragment != "" && !slices.Contains(s.ids[to], u.Fragment) {
				wrong = append(wrong, name+": "+target+": there is no such anchor")
			}
		}
	}
	return wrong
}

// documents returns the Markdown files that are pages of the site, by their paths in the repository.
func documents(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/decisions/*.md"} {
		found, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %q, %v", pattern, found, err)
		}
		for _, name := range found {
			names = append(names, strings.TrimPrefix(filepath.ToSlash(name), repository+"/"))
		}
	}
	return names
}

// pageOf returns the page of a document.
func pageOf(document string) string {
	if document == "README.md" {
		return "index.html"
	}
	return strings.TrimSuffix(document, ".md") + ".html"
}

// Every document is a page. Each page but those of the decisions is in the navigation. All links within the site lead to a
// page and an anchor, and nothing is loaded from elsewhere.
func TestSiteIsComplete(t *testing.T) {
	t.Parallel()
	s := readSite(t)
	_, navigation, _ := strings.Cut(s.pages["index.html"], `<nav aria-label="Documents"`)
	navigation, _, _ = strings.Cut(navigation, "</nav>")
	for _, document := range documents(t) {
		if page := pageOf(document); s.pages[page] == "" {
			t.Errorf("the site has no page of %s", document)
		} else if (!strings.HasPrefix(document, "docs/decisions/") || path.Base(document) == "README.md") && !strings.Contains(navigation, `href="`+page+`"`) && !strings.Contains(navigation, `href="./`+page+`"`) {
			t.Errorf("the navigation lacks %s: add it to a group in internal/tools/docsite/hugo.toml", document)
		}
	}
	for name := range s.pages {
		for _, wrong := range s.brokenReferences(name) {
			t.Error(wrong)
		}
	}
}

// The libraries of the site are those that VENDORED.md lists, each with its licence.
func TestSiteLibrariesAreAsListed(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile(siteSources + "/assets/VENDORED.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mermaid", "minisearch"} {
		text, err := os.ReadFile(siteSources + "/assets/" + name + ".js")
		if err != nil {
			t.Fatal(err)
		}
		digest := sha256.Sum256(text)
		if !strings.Contains(string(list), "| `"+name+".js` |") || !strings.Contains(string(list), "(`"+name+".LICENSE`) | `"+hex.EncodeToString(digest[:])+"`") {
			t.Errorf("assets/VENDORED.md does not list %s.js with the digest %x", name, digest)
		}
		if licence, err := os.ReadFile(siteSources + "/assets/" + name + ".LICENSE"); err != nil || len(licence) < 500 {
			t.Errorf("the licence of %s has %d bytes: %v", name, len(licence), err)
		}
	}
}

// diagramBlock matches the beginning of a Mermaid diagram in a document.
var diagramBlock = regexp.MustCompile("(?m)^ *```mermaid$")

// Each page opens from a file without an error and without a request to elsewhere. Its Mermaid diagrams are drawn. axe-core
// finds nothing serious on any page in light, and on pages with a diagram, which have all colours, in dark. No page is wider
// than a narrow screen.
func TestSitePagesSuitEverybody(t *testing.T) {
	t.Parallel()
	s := readSite(t)
	b := newBrowser(t, "file://"+s.root)
	for _, document := range documents(t) {
		text, err := os.ReadFile(filepath.Join(repository, document))
		if err != nil {
			t.Fatal(err)
		}
		diagrams := len(diagramBlock.FindAllIndex(text, -1))
		decision := strings.HasPrefix(document, "docs/decisions/0")
		if decision && diagrams == 0 {
			continue // they are all alike: TestSiteIsComplete looks at their links
		}
		b.prefer("light")
		b.resize(1280)
		b.open(pageOf(document))
		b.awaitDiagrams(diagrams)
		b.script(axe)
		b.auditAs(document, "light")
		b.resize(400)
		if got := read[int64](b, "document.documentElement.scrollWidth"); got > 400 {
			t.Errorf("%s is %d wide in a window of 400", document, got)
		}
		if diagrams > 0 {
			b.prefer("dark")
			b.awaitDiagrams(diagrams)
			b.auditAs(document, "dark")
		}
	}
}

// awaitDiagrams waits until the page has drawn so many diagrams in the colours that are preferred now.
func (b *browser) awaitDiagrams(n int) {
	b.t.Helper()
	if n == 0 {
		return
	}
	b.await("drawn diagrams", "document.querySelectorAll('pre.mermaid > svg[data-scheme=\"' + (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light') + '\"]').length === "+strconv.Itoa(n))
	if failed := read[int](b, "document.querySelectorAll('svg[aria-roledescription=error]').length"); failed > 0 {
		b.t.Errorf("%s: %d diagrams cannot be drawn", read[string](b, "location.pathname"), failed)
	}
}

// axeOfFiles is axeViolations for pages from files, which may not read their style sheets.
var axeOfFiles = strings.Replace(axeViolations, "axe.run(document, {", "axe.run(document, {preload: false, ", 1)

// auditAs lets axe-core look at the page that is open.
func (b *browser) auditAs(document, scheme string) {
	b.t.Helper()
	for _, violation := range read[[]string](b, axeOfFiles) {
		b.t.Errorf("%s, %s: %s", document, scheme, violation)
	}
	b.screenshot(scheme + "-" + strings.NewReplacer("/", "-", ".md", "").Replace(document))
}

// The search finds a section in any document, from any page, and Enter opens the first one.
func TestSiteSearchFindsASection(t *testing.T) {
	t.Parallel()
	s := readSite(t)
	b := newBrowser(t, "file://"+s.root)
	b.open("docs/concepts.html")
	b.do(chromedp.KeyEvent("/"))
	b.do(chromedp.KeyEvent("PrefetchBytes"))
	b.await("result", "document.querySelector('#results a')?.href.includes('configuration.html#rabbitmqsubscriberoptions')")
	b.screenshot("search")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await("section", "location.pathname.endsWith('/docs/configuration.html') && location.hash === '#rabbitmqsubscriberoptions' && document.readyState === 'complete'")
	b.see("rabbitmq.SubscriberOptions")
	b.do(chromedp.KeyEvent("/"))
	b.do(chromedp.KeyEvent("xyzzy"))
	b.see("Nothing found.")
}
