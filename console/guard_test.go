package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// inline is what the Content-Security-Policy forbids: a script or a style in the page, and an attribute that runs code.
var inline = regexp.MustCompile(`(?i)<script(?:[^>]*)>[^<]|<style|\sstyle=|\son[a-z]+=|javascript:|hx-on`)

// Every answer has the headers that protect its page, errors too, and no page has a script or a style in it.
func TestEveryPageHasStrictHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	f.putStuck(t, "k", 3)
	for _, path := range append([]string{"/nothing", "/sagas?state=x", "/assets/none.js"}, pagesOfTests...) {
		response, text := f.get(t, path)
		for name, want := range map[string]string{"Content-Security-Policy": contentPolicy, "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Content-Type": "text/html; charset=utf-8"} {
			if got := response.Header.Get(name); got != want {
				t.Errorf("%s has %s: %q, want %q", path, name, got, want)
			}
		}
		if found := inline.FindString(text); found != "" {
			t.Errorf("%s has %q", path, found)
		}
		if !strings.Contains(text, "</html>") {
			t.Errorf("%s is no whole page: %s", path, text)
		}
	}
	for _, word := range []string{"unsafe", "*", "http:", "data:"} {
		if strings.Contains(contentPolicy, word) {
			t.Errorf("the policy has %s", word)
		}
	}
}

// A static file is kept for a year under a name with its digest; the vendored ones are those of the list.
func TestAssetsAreKeptByTheirDigest(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	list, err := os.ReadFile("assets/VENDORED.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"htmx.js", "htmx-sse.js", "console.css"} {
		response, text := f.get(t, "/"+f.console.assets.Path(name))
		digest := sha256.Sum256([]byte(text))
		if response.StatusCode != http.StatusOK || !strings.Contains(response.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s = %d, Cache-Control %q", name, response.StatusCode, response.Header.Get("Cache-Control"))
		}
		if !strings.Contains(f.console.assets.Path(name), hex.EncodeToString(digest[:6])) {
			t.Errorf("the path %s does not have the digest of the content", f.console.assets.Path(name))
		}
		if strings.HasPrefix(name, "htmx") && !strings.Contains(string(list), hex.EncodeToString(digest[:])) {
			t.Errorf("VENDORED.md does not list %s with its digest %x", name, digest)
		}
	}
}

// A path names a page exactly, and no file.
func TestPathTricksFindNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	for _, path := range []string{"/sagas/", "//sagas", "/./sagas", "/x/../sagas", "/%2e%2e/sagas", "/sagas%00", "/sagas%2f", "/SAGAS", "/live", "/live/run/x",
		"/live/live/", "/assets/", "/assets/console.css", "/assets/../console.css", "/assets/..%2fVENDORED.md", "/assets/VENDORED.md", "/error", "/templates/layout.html",
		"/%73agas", "/change%2fdecide?verb=retry&state=stuck"} {
		if response, _ := f.get(t, path); response.StatusCode != http.StatusNotFound {
			t.Errorf("%s = %d, Location %q, want 404", path, response.StatusCode, response.Header.Get("Location"))
		}
	}
	if _, text := f.get(t, "/x%2f..%2fy"); !strings.Contains(text, `src="./assets/`) {
		t.Errorf("an escaped slash leads files out of the console: %s", text)
	}
	_, short := f.get(t, "/x")
	if _, long := f.get(t, strings.Repeat("/x", 10_000)); len(long) > 2*len(short) {
		t.Errorf("the page of a long path has %d bytes", len(long))
	}
	response, _ := f.get(t, "")
	if got := response.Header.Get("Location"); response.StatusCode != http.StatusPermanentRedirect || got != "./console/" {
		t.Errorf("the base without its slash = %d, Location %q", response.StatusCode, got)
	}
}

func TestOversizedAndUnreadableQueriesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	for query, want := range map[string]int{
		"key=" + strings.Repeat("a", maxQuery):   http.StatusRequestURITooLong,
		"key=" + strings.Repeat("a", maxValue+1): http.StatusBadRequest,
		strings.Repeat("a=&", maxValues+1):       http.StatusBadRequest,
		"key=%00":                                http.StatusBadRequest,
		"key=%ff":                                http.StatusBadRequest,
		"key=%zz":                                http.StatusBadRequest,
		"id=none":                                http.StatusBadRequest,
		"version=0":                              http.StatusBadRequest,
		"version=99999999999":                    http.StatusBadRequest,
		"state=none":                             http.StatusBadRequest,
		"age=-1h":                                http.StatusBadRequest,
		"age=999999d":                            http.StatusBadRequest,
		"after=e30x":                             http.StatusBadRequest,
		"after=" + (&sagaPlace{In: "x"}).encode(): http.StatusBadRequest,
		"in=main/other": http.StatusNotFound,
		"key=a%0d%0aSet-Cookie:%20x=y&state=stuck&name=%27": http.StatusOK,
	} {
		response, text := f.get(t, "/sagas?"+query)
		if response.StatusCode != want || len(response.Cookies()) > 1 {
			t.Errorf("sagas?%.40s = %d, want %d: %s", query, response.StatusCode, want, text)
		}
	}
	response, _ := f.post(t, "/change/decide", map[string][]string{"token": {strings.Repeat("a", maxForm)}}, nil)
	if response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a large form = %d, want 413", response.StatusCode)
	}
	for _, method := range []string{http.MethodPut, http.MethodDelete, "TRACE"} {
		if response, _ := f.send(t, method, "/sagas", "", nil); response.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s = %d, want 405", method, response.StatusCode)
		}
	}
}

// What a service stores, and what a person searches for, is text in a page.
func TestHostileTextIsEscaped(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleOperator, nil)
	const hostile = `"><script>alert(1)</script><img/src=x/onerror=alert(1)>'` + "\u202e{{.}}"
	f.putStuck(t, hostile, 2)
	f.exec(t, "UPDATE {schema}.saga SET scope = $1, reason = $1, name = $1", hostile)
	f.exec(t, "INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, due_at) VALUES ('dead', 'action', $1, $1, $1, '1', $1, 'm', '{}', '{}', '', $1, $1, now())", hostile)
	for _, path := range []string{"/", "/sagas?state=stuck", "/sagas?" + buildTestQuery("key", hostile+"0001", "scope", hostile), "/sagas?" + buildTestQuery("in", hostile),
		"/change/decide?" + buildTestQuery("verb", "retry", "scope", hostile), "/change/decide?" + buildTestQuery("verb", hostile), "/run?" + buildTestQuery("id", hostile)} {
		_, text := f.get(t, path)
		if found := inline.FindString(text); found != "" || strings.Contains(text, "<img/src") || strings.Contains(text, `"><script>`) {
			t.Errorf("%s has %q unescaped: %s", path, found, text)
		}
	}
	_, text := f.get(t, "/sagas?state=stuck")
	if !strings.Contains(text, "&lt;script&gt;alert(1)") || strings.Contains(text, "\u202e") {
		t.Errorf("the list does not show the key: %s", text)
	}
}

func buildTestQuery(pairs ...any) string {
	query, err := buildQuery(pairs...)
	if err != nil {
		panic(err)
	}
	return strings.TrimPrefix(query, "?")
}

// A statement that takes too long ends on the server, and the page says what to narrow, by conditions that it has.
func TestASlowStatementSaysWhatToNarrow(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, func(o *Options) { o.ReadTimeout = 100 * time.Millisecond })
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+f.schema+".saga, "+f.schema+".parked, "+f.schema+".outbox_held IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/sagas?state=stuck": "Narrow your search: name a schema, a saga, a state", "/letters?topic=t": "Narrow your search: name a schema, a topic, a step"} {
		if response, text := f.get(t, path); response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, want) {
			t.Errorf("%s = %d, want 503 with %q: %s", path, response.StatusCode, want, text)
		}
	}
	n, err := (&place{Schema: f.schema, pool: f.pool, timeout: 100 * time.Millisecond}).instances()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.ReadPace(t.Context()); err == nil || !strings.Contains(err.Error(), "57014") {
		t.Errorf("ReadPace = %v, want the error of statement_timeout", err)
	}
}

// A panic becomes a page, and the console goes on.
func TestAPanicBecomesAPage(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, nil)
	f.console.pages["sagas"].show = func(context.Context, *request) (any, error) { panic("a secret") }
	response, text := f.get(t, "/sagas")
	if response.StatusCode != http.StatusInternalServerError || strings.Contains(text, "a secret") || response.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("a panic = %d: %s", response.StatusCode, text)
	}
	if response, _ := f.get(t, "/"); response.StatusCode != http.StatusOK {
		t.Errorf("afterwards the overview = %d", response.StatusCode)
	}
}

// Without a person the console shows nothing, and never the text of an error.
func TestAuthorizeDecides(t *testing.T) {
	t.Parallel()
	refuse := errors.New("a secret of the directory")
	for name, tt := range map[string]struct {
		authorize func(*http.Request) (Actor, Role, error)
		want      int
		text      string
	}{
		"nobody":        {func(*http.Request) (Actor, Role, error) { return "", RoleAdmin, refuse }, http.StatusForbidden, "You may not see this console"},
		"without name":  {func(*http.Request) (Actor, Role, error) { return " ", RoleOperator, nil }, http.StatusForbidden, "You may not see this console"},
		"unknown role":  {func(*http.Request) (Actor, Role, error) { return "ann", 7, nil }, http.StatusForbidden, "You may not see this console"},
		"viewer":        {func(*http.Request) (Actor, Role, error) { return "ann", RoleViewer, nil }, http.StatusOK, "You are a viewer"},
		"no Authorize":  {nil, http.StatusOK, "This console is read-only"},
		"operator":      {func(*http.Request) (Actor, Role, error) { return "ann", RoleOperator, nil }, http.StatusOK, "operator"},
		"nameless look": {func(*http.Request) (Actor, Role, error) { return "", RoleViewer, nil }, http.StatusOK, "You are a viewer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, RoleViewer, func(o *Options) { o.Authorize = tt.authorize })
			for _, path := range []string{"/", "/sagas"} {
				response, text := f.get(t, path)
				if response.StatusCode != tt.want || !strings.Contains(text, tt.text) || strings.Contains(text, "a secret") {
					t.Errorf("%s = %d, want %d with %q: %s", path, response.StatusCode, tt.want, tt.text, text)
				}
			}
			want := max(tt.want, http.StatusBadRequest) // who may look gets the error of the search
			if response, _ := f.get(t, "/live/sagas?state=x"); response.StatusCode != want {
				t.Errorf("a stream = %d, want %d", response.StatusCode, want)
			}
		})
	}
}

func TestNewIsChecked(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none") // New connects to nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for _, tt := range []struct {
		databases []Database
		opts      *Options
		want      string
	}{
		{nil, nil, "needs a database"},
		{[]Database{{Name: "a b", Pool: pool}}, nil, "must match"},
		{[]Database{{Name: "a"}}, nil, "no pool"},
		{[]Database{{Name: "a", Pool: pool}, {Name: "a", Pool: pool}}, nil, "two databases"},
		{[]Database{{Name: "a", Pool: pool, Schemas: []string{"no such"}}}, nil, "schema"},
		{[]Database{{Name: "a", Pool: pool}}, &Options{Secret: []byte("short")}, "Secret"},
		{[]Database{{Name: "a", Pool: pool}}, &Options{ReadTimeout: -1}, "ReadTimeout"},
		{[]Database{{Name: "a", Pool: pool}}, &Options{MaxContent: -1}, "MaxContent"},
	} {
		if _, err := New(tt.databases, tt.opts); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%v, %v) = %v, want an error with %q", tt.databases, tt.opts, err, tt.want)
		}
	}
	if _, err := New([]Database{{Name: "a", Pool: pool}}, nil); err != nil {
		t.Errorf("New = %v", err)
	}
}

// Redact sees content as a whole, and what it returns is cut.
func TestContentIsRedactedAndLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, func(o *Options) {
		o.MaxContent = 4
		o.Redact = func(c Content) []byte { return fmt.Appendf(nil, "%s of %s", c.Kind, c.Name) }
	})
	if got, cut := f.console.redact(Content{Kind: "state", Name: "trip", Data: []byte("card 4711")}); string(got) != "stat" || !cut {
		t.Errorf("redact = %q, %t", got, cut)
	}
}
