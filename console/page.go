package console

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
)

// A page answers requests at one path.
type page struct {
	path     string // below the base: exact, without a slash at its beginning or end; "" is the overview
	title    string
	inMenu   bool
	template string // file in templates, which defines "content" and the blocks of blocks

	// show returns what the template gets as .Data.
	show func(ctx context.Context, r *request) (any, error)

	// live returns what the blocks get while a browser has the page open; nil: the page has no live part. blocks are
	// templates of the file. A stream sends each that has changed, as an event with its name.
	live   func(ctx context.Context, r *request) (any, error)
	blocks []string

	// download answers a GET in place of show, with a file; nil: the page is a page. It has no template.
	download func(ctx context.Context, w http.ResponseWriter, r *request) error

	// post handles a POST, which has passed the checks of the guard but not of its token; nil: the page takes none. It
	// writes a redirect, or returns an error.
	post func(ctx context.Context, w http.ResponseWriter, r *request) error

	maxForm    int64    // bytes of a form; 0: maxForm
	longValues []string // of a form: they may be longer than maxValue

	parsed *template.Template
}

//go:embed templates/*.html
var templateFiles embed.FS

// listPages returns all pages. The menu shows those with inMenu in this order.
func (c *Console) listPages() []*page {
	pages := []*page{c.overviewPage(), c.sagasPage(), c.sagaPage(), c.groupsPage(), c.lettersPage(), c.letterPage(), c.editPage()}
	return slices.Concat(pages, c.outboxPages(), c.topologyPages(), c.requestPages(), c.runPages(), c.journalPages(), c.whyPages(), c.previewPages())
}

// buildPages parses the template of each page.
func (c *Console) buildPages() (map[string]*page, error) {
	layout, err := template.New("layout").Funcs(templateFuncs).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html", "templates/letterparts.html")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	failed := errorTemplate
	all := map[string]*page{}
	for _, p := range append(c.listPages(), &failed) {
		copied, err := layout.Clone()
		if err == nil && p.download == nil {
			p.parsed, err = copied.ParseFS(templateFiles, "templates/"+p.template)
		}
		if err != nil {
			return nil, fmt.Errorf("console: page %s: %w", p.path, err)
		}
		if all[p.path] != nil {
			return nil, fmt.Errorf("console: two pages have the path %q", p.path)
		}
		all[p.path] = p
		if p.inMenu {
			c.menu = append(c.menu, p)
		}
	}
	c.errorPage = all[errorPath]
	delete(all, errorPath)
	return all, nil
}

// A view is what layout.html gets.
type view struct {
	Title    string
	Root     string // relative path to the base: links begin with it
	Actor    Actor
	Role     Role
	ReadOnly string // why nobody can change anything, or why this person cannot; "": the person can
	Menu     []menuEntry
	Assets   assetSet
	Live     string // the address of the stream of the page; "": none
	Token    string // for forms without a preview
	Data     any
}

type menuEntry struct {
	Title, Path string
	Current     bool
}

func (c *Console) newView(r *request, p *page, data any) *view {
	v := &view{Title: p.title, Root: r.root, Actor: r.actor, Role: r.role, Assets: c.assets, Data: data}
	for _, other := range c.menu {
		v.Menu = append(v.Menu, menuEntry{other.title, other.path, other == p})
	}
	switch {
	case c.opts.Authorize == nil:
		v.ReadOnly = "This console is read-only: it does not know who you are, so it changes nothing."
	case r.role < RoleOperator:
		v.ReadOnly = "You are a viewer: you can look at everything and change nothing."
	default:
		v.Token = c.signer.postToken(r.session, r.actor)
	}
	if titled, ok := data.(interface{ pageTitle() string }); ok {
		v.Title = titled.pageTitle()
	}
	if p.live != nil {
		values := maps.Clone(r.values)
		if revised, ok := data.(interface{ revision() string }); ok {
			values.Set(loadedRevision, revised.revision())
		}
		v.Live = r.root + livePrefix + p.path + "?" + values.Encode()
	}
	return v
}

// loadedRevision is the parameter of a stream that says which revision its page has.
const loadedRevision = "loaded"

// servePage answers a GET. The page is written once it is complete, so that an error has a page of its own.
func (c *Console) servePage(ctx context.Context, w http.ResponseWriter, r *request) error {
	data, err := r.page.show(ctx, r)
	if err != nil {
		return err
	}
	return c.writePage(w, r, r.page, http.StatusOK, data)
}

func (c *Console) writePage(w http.ResponseWriter, r *request, p *page, status int, data any) error {
	var text bytes.Buffer
	if err := p.parsed.ExecuteTemplate(&text, "layout.html", c.newView(r, p, data)); err != nil {
		return fmt.Errorf("console: write page %s: %w", p.path, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text.Bytes()) // the browser has gone
	return nil
}

const errorPath = "error"

var errorTemplate = page{path: errorPath, title: "Error", template: "error.html"}

// writeError answers with a page about e.
func (c *Console) writeError(w http.ResponseWriter, r *request, e *pageError) {
	if err := c.writePage(w, r, c.errorPage, e.Status, e); err != nil {
		c.opts.Logger.ErrorContext(r.http.Context(), "console: error page failed", "error", err)
		http.Error(w, e.What+" "+e.Advice, e.Status)
	}
}

// redirect sends the browser to a page with a GET.
func redirect(w http.ResponseWriter, r *request, path string, query url.Values) error {
	w.Header().Set("Location", r.root+path+"?"+query.Encode())
	w.WriteHeader(http.StatusSeeOther)
	return nil
}
