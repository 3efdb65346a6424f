package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// prefix is where the tests mount the console.
const prefix = "/ops/console"

// pagesOfTests are the paths of all pages with a query, and what they are asked for.
var pagesOfTests = []string{"/", "/sagas", "/sagas?state=stuck", "/sagas?step=hotel&key=none", "/saga?key=k0001", "/saga?key=none", "/saga", "/change/decide?verb=retry&state=stuck", "/run?id=none", "/changes",
	"/outbox", "/outbox?place=log&topic=none", "/outbox?place=x", "/message?id=1", "/message?id=none", "/topology", "/requests", "/requests?key=none", "/requests?digest=0123456789ab", "/requests?plain=yes", "/journal", "/journal?by=ann&since=2h&of=sagas",
	"/journal?since=x", "/why", "/why?q=none", "/why?key=k0001&scope=acme",
	"/dead", "/dead?side=outbox", "/letters", "/letters?state=retrying", "/letter", "/letter/edit", "/change/redrive?topic=none", "/change/discard?topic=none", "/change/bury?topic=none", "/change/retry?topic=none", "/change/redrive-old?topic=none", "/change/edit", "/change/key"}

// A fixture is a schema with sagas, and a console that shows it.
type fixture struct {
	pool    *pgxpool.Pool
	schema  string
	reader  *pgxpool.Pool // of the console; nil: pool
	changer *pgxpool.Pool // of the console; nil: reader
	console *Console
	url     string
	browser *http.Client
}

// secret is the same for all consoles of the tests, as for processes behind one address.
var secret = []byte("0123456789abcdef0123456789abcdef")

func newFixture(t *testing.T, role Role, change func(*Options)) *fixture {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	f := &fixture{pool: pool, schema: schema}
	f.putDefinition(t)
	f.start(t, role, change)
	return f
}

// putDefinition stores the definition of the sagas.
func (f *fixture) putDefinition(t *testing.T) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.saga_definition (name, version, hash, plan) VALUES ('trip', 1, 'h', $1)`,
		`{"name":"trip","version":1,"nodes":[{"name":"flight","kind":"remote","topic":"flight","type":"flight"},{"name":"hotel","kind":"remote","topic":"hotel","type":"hotel"}]}`)
}

// start runs a console in front of the fixture's schema, beside the one that runs.
func (f *fixture) start(t *testing.T, role Role, change func(*Options)) {
	t.Helper()
	opts := &Options{Secret: secret, Logger: slog.New(slog.DiscardHandler), Authorize: func(*http.Request) (Actor, Role, error) { return "ann", role, nil }}
	if change != nil {
		change(opts)
	}
	c, err := New([]Database{{Name: "main", Pool: cmp.Or(f.reader, f.pool), Operator: f.changer, Schemas: []string{f.schema}}}, opts)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.StripPrefix(prefix, c))
	t.Cleanup(server.Close)
	t.Cleanup(func() {
		if err := c.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	f.console, f.url, f.browser = c, server.URL+prefix, newBrowser(t)
}

func newBrowser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (f *fixture) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), strings.ReplaceAll(statement, "{schema}", f.schema), args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// putStuck stores sagas whose step hotel is stuck, with the keys prefix0001 and so on.
func (f *fixture) putStuck(t *testing.T, prefix string, n int) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.saga (scope, key, id, root, version, name, plan_hash, started_at, state, progress, status, reason, updated_at)
		SELECT 'acme', $1 || lpad(i::text, 4, '0'), overlay(gen_random_uuid()::text PLACING '7' FROM 15 FOR 1)::uuid, gen_random_uuid(), 1, 'trip', 'h', ago, '{}',
			'{"phase":"running","steps":[{"state":"done","attempt":1},{"state":"stuck","attempt":3}]}', 'stuck', 'no answer', ago
		FROM generate_series(1, $2) i, (SELECT clock_timestamp() - interval '1 hour' AS ago) moment`, prefix, n)
}

// journaled returns how many decisions the journal has, and of how many sagas.
func (f *fixture) journaled(t *testing.T) (entries, sagas int) {
	t.Helper()
	statement := strings.ReplaceAll("SELECT count(*), count(DISTINCT key) FROM {schema}.saga_journal WHERE who = 'ann' AND why = 'the hotel is back'", "{schema}", f.schema)
	if err := f.pool.QueryRow(t.Context(), statement).Scan(&entries, &sagas); err != nil {
		t.Fatal(err)
	}
	return entries, sagas
}

// get returns the answer to a GET of a path below the base.
func (f *fixture) get(t *testing.T, path string) (*http.Response, string) {
	t.Helper()
	return f.send(t, http.MethodGet, path, "", nil)
}

// post sends a form.
func (f *fixture) post(t *testing.T, path string, form url.Values, header http.Header) (*http.Response, string) {
	t.Helper()
	return f.send(t, http.MethodPost, path, form.Encode(), header)
}

func (f *fixture) send(t *testing.T, method, path, body string, header http.Header) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := f.browser.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	return response, string(text)
}

var tokenField = regexp.MustCompile(`name="token" value="([^"]*)"`)

// previewToken returns the form token of a preview, "" if it has none.
func (f *fixture) previewToken(t *testing.T, path string) string {
	t.Helper()
	response, text := f.get(t, path)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s = %d: %s", path, response.StatusCode, text)
	}
	if found := tokenField.FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return ""
}

// confirmation is a form that is filled in.
func confirmation(token string, count int) url.Values {
	return url.Values{"token": {token}, "why": {"the hotel is back"}, "rate": {"10000"}, "count": {fmt.Sprint(count)}}
}
