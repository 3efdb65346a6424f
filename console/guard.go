package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/operator"
)

// The limits of a request.
const (
	maxQuery  = 8 << 10  // bytes of a query
	maxValue  = 2 << 10  // bytes of a value in it
	maxValues = 100      // values in it
	maxForm   = 64 << 10 // bytes of a form, which has a token
)

// sessionCookie binds form tokens to a browser. It is no login.
const sessionCookie = "sagamill_console_form"

// contentPolicy lets a page load scripts, styles and data from the console, and nothing else.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// A request is a request that has passed all checks of [Console.ServeHTTP].
type request struct {
	http    *http.Request
	page    *page
	actor   Actor
	role    Role
	values  url.Values // of the query or, of a POST, of the form
	root    string     // the relative path to the base of the console
	session string
}

// ServeHTTP answers a request for a page, a stream of a page, a change or a static file. A panic is logged and becomes an
// error page.
func (c *Console) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	setSafeHeaders(w.Header())
	r := &request{http: req, root: relativeRoot(req.URL.EscapedPath())}
	defer func() {
		if caught := recover(); caught != nil {
			if caught == http.ErrAbortHandler {
				panic(caught)
			}
			c.opts.Logger.ErrorContext(req.Context(), "console: page panicked", "path", req.URL.Path, "panic", caught, "stack", string(debug.Stack()))
			c.writeError(w, r, &pageError{Status: http.StatusInternalServerError, What: "This page has failed.", Advice: adviceLog})
		}
	}()
	if err := c.serve(w, r); err != nil {
		e := c.explainError(req.Context(), err)
		if e.Advice == adviceNarrow && r.page != nil {
			e.Advice = cmp.Or(narrowAdvice[r.page.path], adviceNarrow)
		}
		c.writeError(w, r, e)
	}
}

// adviceNarrow is the advice about a page that takes too long, and narrowAdvice is that of the pages with a search: it
// names fields that the page has.
const adviceNarrow = "Reload the page in a minute."

var narrowAdvice = map[string]string{
	"sagas":   "Narrow your search: name a schema, a saga, a state, or a key with its scope.",
	"dead":    "Narrow your search: name a schema, a topic, a step, a reason, or a key with its scope.",
	"letters": "Narrow your search: name a schema, a topic, a step, a reason, or a key with its scope.",
	"outbox":  "Narrow your search: name a schema, a topic, or a key with its scope.",
	"journal": "Narrow your search: name a schema, a person or a shorter time.",
	"why":     "Narrow your search: name the scope of the key.",

	"change/decide":  "Narrow the search of the list: name a schema, a saga, a state, or a key with its scope.",
	"change/redrive": "Narrow the search of the list: name a schema, a topic, a step or a reason.",
	"change/discard": "Narrow the search of the list: name a schema, a topic, a step or a reason.",
	"change/bury":    "Narrow the search of the list: name a schema, a topic, a step or a reason.",
}

func setSafeHeaders(h http.Header) {
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
}

// serve finds the page by the exact path: a path with dots, with two slashes or with a suffix names none.
func (c *Console) serve(w http.ResponseWriter, r *request) error {
	path := strings.TrimPrefix(r.http.URL.Path, "/")
	if r.http.URL.Path == "" { // the base path without its slash: relative links would be wrong
		w.Header().Set("Location", relativeBase(r.http))
		w.WriteHeader(http.StatusPermanentRedirect)
		return nil
	}
	if name, isAsset := strings.CutPrefix(path, assetPrefix); isAsset {
		return c.serveAsset(w, r, name)
	}
	name, isLive := strings.CutPrefix(path, livePrefix)
	p := c.pages[name]
	if p == nil || isLive && p.live == nil || r.http.URL.RawPath != "" { // a RawPath has what need not be escaped, such as a slash
		return &pageError{Status: http.StatusNotFound, What: "There is no such page.", Advice: "Go to the overview."}
	}
	r.page = p
	if err := c.checkRequest(w, r); err != nil {
		return err
	}
	ctx := r.http.Context()
	switch {
	case isLive:
		return c.serveLive(w, r)
	case p.download != nil:
		return p.download(ctx, w, r)
	}
	ctx, cancel := context.WithTimeout(ctx, pageReads*c.opts.ReadTimeout)
	defer cancel()
	return c.whileReading(ctx, func() error {
		if r.http.Method == http.MethodPost {
			return p.post(ctx, w, r)
		}
		return c.servePage(ctx, w, r)
	})
}

// whileReading calls do once a slot is free for it. do uses at most one connection of each pool at once.
func (c *Console) whileReading(ctx context.Context, do func() error) error {
	select {
	case c.readers <- struct{}{}:
		defer func() { <-c.readers }()
		return do()
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return &pageError{Status: http.StatusServiceUnavailable, What: "Other pages of the console use all connections that it may use.",
		Advice: "Reload the page in a moment, or narrow the search of the others. Options.MaxConns is the limit."}
}

// checkRequest checks method, limits, person, and for a POST where it comes from. It fills r.
func (c *Console) checkRequest(w http.ResponseWriter, r *request) (err error) {
	switch r.http.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		if r.page.post == nil || strings.HasPrefix(strings.TrimPrefix(r.http.URL.Path, "/"), livePrefix) {
			return errMethod
		}
	default:
		return errMethod
	}
	if r.actor, r.role, err = c.authorize(r.http); err != nil {
		return err
	}
	if cookie, err := r.http.Cookie(sessionCookie); err == nil && len(cookie.Value) == len(rand.Text()) {
		r.session = cookie.Value
	}
	if r.http.Method == http.MethodPost {
		return c.checkPost(w, r)
	}
	if r.session == "" {
		r.session = rand.Text()
		http.SetCookie(w, &http.Cookie{Name: sessionCookie, Value: r.session, Path: basePath(r.http), HttpOnly: true,
			SameSite: http.SameSiteStrictMode, Secure: r.http.TLS != nil})
	}
	if len(r.http.URL.RawQuery) > maxQuery {
		return &pageError{Status: http.StatusRequestURITooLong, What: fmt.Sprintf("The search has more than %d bytes.", maxQuery), Advice: "Shorten it."}
	}
	r.values, err = url.ParseQuery(r.http.URL.RawQuery)
	if err != nil {
		return badRequest("The address has a query that cannot be read.")
	}
	return checkValues(r.values)
}

// checkPost refuses a form of another site, and one that is too large. Who handles the form checks its token.
func (c *Console) checkPost(w http.ResponseWriter, r *request) error {
	if err := c.origin.Check(r.http); err != nil {
		return &pageError{Status: http.StatusForbidden, What: "This form was sent from another site, and nothing has changed.", Advice: "Open the console and send it from there."}
	}
	if r.role < RoleOperator {
		return c.errRole(r, RoleOperator)
	}
	limit := cmp.Or(r.page.maxForm, maxForm)
	r.http.Body = http.MaxBytesReader(w, r.http.Body, limit)
	if err := r.http.ParseForm(); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return &pageError{Status: http.StatusRequestEntityTooLarge, What: fmt.Sprintf("The form has more than %d bytes.", limit), Advice: "Shorten it."}
		}
		return badRequest("The form cannot be read.")
	}
	r.values = r.http.PostForm
	short := url.Values{}
	for name, values := range r.values {
		if name != "token" && !slices.Contains(r.page.longValues, name) {
			short[name] = values
		}
	}
	return checkValues(short)
}

// checkValues refuses values that are too long or that PostgreSQL cannot store.
func checkValues(values url.Values) error {
	total := 0
	for name, list := range values {
		for _, value := range append(list, name) {
			switch {
			case len(value) > maxValue:
				return badRequest(fmt.Sprintf("The value of %.30q has more than %d bytes.", name, maxValue))
			case !utf8.ValidString(value) || strings.ContainsRune(value, 0):
				return badRequest(fmt.Sprintf("The value of %.30q is not text.", name))
			}
		}
		if total += len(list); total > maxValues {
			return badRequest(fmt.Sprintf("There are more than %d values.", maxValues))
		}
	}
	return nil
}

// authorize returns who sent the request. Without Options.Authorize everybody is a viewer.
func (c *Console) authorize(req *http.Request) (Actor, Role, error) {
	if c.opts.Authorize == nil {
		return "", RoleViewer, nil
	}
	actor, role, err := c.opts.Authorize(req)
	switch {
	case err != nil:
		return "", RoleViewer, fmt.Errorf("%w: %w", ErrNotAuthorized, err)
	case role < RoleViewer || role > RoleAdmin:
		return "", RoleViewer, fmt.Errorf("%w: there is no role %d", ErrNotAuthorized, role)
	case role > RoleViewer && strings.TrimSpace(string(actor)) == "":
		return "", RoleViewer, fmt.Errorf("%w: the person has no name, and the journal needs one", ErrNotAuthorized)
	}
	return actor, role, nil
}

// errRole refuses a change that needs another role.
func (c *Console) errRole(r *request, needed Role) *pageError {
	if c.opts.Authorize == nil {
		return &pageError{Status: http.StatusForbidden, What: "This console is read-only: it does not know who you are.", Advice: "Mount it with Options.Authorize, or start sagamill console with -role."}
	}
	return &pageError{Status: http.StatusForbidden, What: fmt.Sprintf("You are %s here, and this needs the role %s. Nothing has changed.", r.role, needed), Advice: "Ask somebody who has the role."}
}

// basePath returns the path at which the console is mounted, with its slash.
func basePath(req *http.Request) string {
	full := req.URL.Path
	if u, err := url.ParseRequestURI(req.RequestURI); err == nil {
		full = u.Path
	}
	base := strings.TrimSuffix(full, req.URL.Path)
	if !strings.HasPrefix(base, "/") || strings.ContainsAny(base, ";\r\n") {
		return "/"
	}
	return strings.TrimSuffix(base, "/") + "/"
}

// relativeBase returns a relative reference from the base path without its slash to that with it.
func relativeBase(req *http.Request) string {
	base := strings.TrimSuffix(basePath(req), "/")
	last := base[strings.LastIndexByte(base, '/')+1:]
	return "./" + url.PathEscape(last) + "/"
}

// relativeRoot returns the way from a page to the base of the console. path is escaped: to a browser, an escaped slash is
// none. A path deeper than any page leads to an error page, which must not grow with it.
func relativeRoot(path string) string {
	return "./" + strings.Repeat("../", min(maxDepth, strings.Count(strings.TrimPrefix(path, "/"), "/")))
}

const maxDepth = 16

// A pageError is an error that a page shows, with its cause and the remedy.
type pageError struct {
	Status int
	What   string
	Advice string

	Link, LinkText string // a page below the base that helps; empty: the overview alone
}

func (e *pageError) Error() string { return "console: " + e.What }

const adviceLog = "The log of the console says why. Reload the page."

var errMethod = &pageError{Status: http.StatusMethodNotAllowed, What: "This address does not take this method.", Advice: "Go to the overview."}

func badRequest(what string) *pageError {
	return &pageError{Status: http.StatusBadRequest, What: what, Advice: "Go back and change it."}
}

// explainError returns what a page says about err. It logs an error that the page does not explain. A page never has the
// text of an error of the server: it may have data or an address.
func (c *Console) explainError(ctx context.Context, err error) *pageError {
	var page *pageError
	var server *pgconn.PgError
	var connect *pgconn.ConnectError
	switch {
	case errors.As(err, &page):
		return page
	case errors.Is(err, context.Canceled): // the browser has gone, or the console stops: nothing to log
		return &pageError{Status: http.StatusServiceUnavailable, What: "The request has ended before its answer.", Advice: "Reload the page."}
	case errors.Is(err, ErrNotAuthorized):
		c.opts.Logger.WarnContext(ctx, "console: request refused", "error", err)
		return &pageError{Status: http.StatusForbidden, What: "You may not see this console.", Advice: "Log in, or ask who runs it."}
	case errors.Is(err, errToken):
		return &pageError{Status: http.StatusForbidden, What: "This form is not valid any more, and nothing has changed: it is too old, or of another session.", Advice: "Look at the preview again and confirm that."}
	case errors.Is(err, operator.ErrInvalid):
		return badRequest("The search makes no sense: " + strings.TrimPrefix(afterLast(err.Error(), "invalid options: "), "console: ") + ".")
	case errors.Is(err, context.Canceled): // the browser has gone, or the console stops
		return &pageError{Status: http.StatusServiceUnavailable, What: "The request has ended before its answer.", Advice: "Reload the page."}
	case errors.As(err, &server) && server.Code == "57014", errors.Is(err, context.DeadlineExceeded):
		return &pageError{Status: http.StatusServiceUnavailable, What: "The database took too long, and the page has given up.",
			Advice: adviceNarrow}
	case errors.As(err, &server) && server.Code == "42501":
		return &pageError{Status: http.StatusForbidden, What: "The database role of the console may not read or change this.", Advice: "Grant it the role sagamill_reader, and for changes sagamill_operator: see sagamill migrate roles."}
	case errors.As(err, &server) && (server.Code == "42P01" || server.Code == "3F000"):
		return &pageError{Status: http.StatusNotFound, What: "The schema does not have these tables.", Advice: "Run sagamill migrate up, or choose another schema."}
	}
	c.opts.Logger.ErrorContext(ctx, "console: page failed", "error", err)
	if errors.As(err, &connect) {
		return &pageError{Status: http.StatusServiceUnavailable, What: "The database does not answer.", Advice: "Look whether it runs, and reload the page."}
	}
	return &pageError{Status: http.StatusInternalServerError, What: "This page has failed.", Advice: adviceLog}
}

func afterLast(text, mark string) string {
	if i := strings.LastIndex(text, mark); i >= 0 {
		return text[i+len(mark):]
	}
	return text
}

// extendDeadline extends the write deadline of a server for a stream.
func extendDeadline(w http.ResponseWriter, d time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d)) // not every writer has one
}
