package matrixtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A statusRow is one way to a problem.
type statusRow struct {
	code   string
	way    string
	status int
	again  bool   // it may be retried, with the same key
	after  [2]int // Retry-After, from and to; zero: there is none
	rows   int    // business rows of the key, when the answer has come
	record string // and its record

	servers func(*settings)
	options func(*idemkey.Options)
	mount   func(m *idemkey.Middleware, h http.Handler) http.Handler          // nil: m.Handler(h)
	handle  func(s *statusTest, w http.ResponseWriter, r *http.Request) error // after it has written a row; nil: 201
	provoke func(s *statusTest) answer                                        // nil: one request
}

// soon is the Retry-After where nothing better is known.
var soon = [2]int{1, 1}

// statuses are all problems that the middleware answers with, on Postgres,
// where a business row tells what has been committed.
var statuses = []statusRow{
	{code: idemkey.CodeKeyMissing, way: "no header", status: 400, record: absent,
		provoke: func(s *statusTest) answer { return s.post("order", "") }},
	{code: idemkey.CodeKeyInvalid, way: "a list", status: 400, record: absent,
		provoke: func(s *statusTest) answer { return s.post("order", s.key+",b") }},
	{code: idemkey.CodeBodyUnreadable, way: "ends early", status: 400, record: absent, provoke: halfABody},
	{code: idemkey.CodeScopeMissing, way: "no principal", status: 401, record: absent, options: func(o *idemkey.Options) {
		o.SingleTenant, o.Scope = false, func(*http.Request) (string, error) { return "", errors.New("no principal") }
	}},
	{code: idemkey.CodeScopeInvalid, way: "too long", status: 500, record: absent, options: func(o *idemkey.Options) {
		o.SingleTenant, o.Scope = false, func(*http.Request) (string, error) { return strings.Repeat("s", idemkey.MaxScope+1), nil }
	}},
	{code: idemkey.CodeBodyConsumed, way: "read outside", status: 500, record: absent, mount: func(m *idemkey.Middleware, h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			m.Handler(h).ServeHTTP(w, r)
		})
	}},
	{code: idemkey.CodeNotIdempotent, way: "not among Methods", status: 500, record: absent, provoke: twice,
		options: func(o *idemkey.Options) { o.Methods = []string{http.MethodPut} }},
	{code: idemkey.CodeNotIdempotent, way: "Skip", status: 500, record: absent,
		options: func(o *idemkey.Options) { o.Skip = func(*http.Request) bool { return true } }},
	{code: idemkey.CodeMountedTwice, way: "one in another", status: 500, record: "failed",
		mount: func(m *idemkey.Middleware, h http.Handler) http.Handler { return m.Handler(m.Handler(h)) }},
	{code: idemkey.CodeBodyTooLarge, way: "by its Content-Length", status: 413, record: absent,
		options: func(o *idemkey.Options) { o.Limits.MaxRequestBody = 3 }},
	{code: idemkey.CodeKeyReused, way: "other body", status: 422, rows: 1, record: completed, provoke: otherBody},
	{code: idemkey.CodeKeyReused, way: "as 409", status: 409, rows: 1, record: completed, provoke: otherBody,
		options: func(o *idemkey.Options) { o.Problems.MismatchStatus = 409 }},
	{code: idemkey.CodeKeyReused, way: "as 400", status: 400, rows: 1, record: completed, provoke: otherBody,
		options: func(o *idemkey.Options) { o.Problems.MismatchStatus = 400 }},
	{code: idemkey.CodeFingerprintUnknown, way: "first secret", status: 409, rows: 1, record: completed, provoke: whenSettingsChanged},
	{code: idemkey.CodeFingerprintUnknown, way: "as 503", status: 503, again: true, after: [2]int{30, 30}, rows: 1, record: completed, provoke: whenSettingsChanged,
		options: func(o *idemkey.Options) { o.Problems.UnknownFingerprintStatus = 503 }},
	{code: idemkey.CodeInProgress, way: "lease of 10 s", status: 409, again: true, after: [2]int{1, 10}, record: inProgress, provoke: whileRunning,
		servers: func(c *settings) { c.Grace = 10 * time.Second }},
	{code: idemkey.CodeInProgress, way: "lease of an hour", status: 409, again: true, after: [2]int{30, 30}, record: inProgress, provoke: whileRunning,
		servers: func(c *settings) { c.Grace = time.Hour }},
	{code: idemkey.CodeInProgress, way: "lease over, owner alive", status: 409, again: true, after: soon, record: inProgress, provoke: whileRunning,
		servers: func(c *settings) { c.Grace = time.Millisecond }},
	{code: idemkey.CodeInProgress, way: "as 423", status: 423, again: true, after: [2]int{1, 30}, record: inProgress, provoke: whileRunning,
		options: func(o *idemkey.Options) { o.Problems.InFlightStatus = 423 }},
	{code: idemkey.CodeInProgress, way: "as 429", status: 429, again: true, after: [2]int{1, 30}, record: inProgress, provoke: whileRunning,
		options: func(o *idemkey.Options) { o.Problems.InFlightStatus = 429 }},
	{code: idemkey.CodeInProgress, way: "waited in vain", status: 409, again: true, after: [2]int{1, 30}, record: inProgress, provoke: whileRunning,
		options: func(o *idemkey.Options) { o.Limits.Wait = 50 * time.Millisecond }},
	{code: idemkey.CodeOutcomeUnknown, way: "too many attempts", status: 409, record: "failed",
		options: func(o *idemkey.Options) { o.Limits.MaxAttempts = 1 }, handle: fails, provoke: twice},
	{code: idemkey.CodeOutcomeUnknown, way: "timeout with external effects", status: 409, record: "unknown", handle: tooSlow,
		options: func(o *idemkey.Options) { o.Limits.ExecTimeout, o.ExternalEffects = time.Second, true }},
	{code: idemkey.CodeUnknownLimit, way: "one is unknown", status: 503, again: true, after: [2]int{30, 30}, record: absent, provoke: whileUnknown,
		options: func(o *idemkey.Options) { o.Limits.MaxUnknownPerScope, o.ExternalEffects = 1, true },
		handle: func(_ *statusTest, _ http.ResponseWriter, r *http.Request) error {
			idemkey.SetVerdict(r.Context(), idemkey.Unknown)
			return nil
		}},
	{code: idemkey.CodeKeyExpired, way: "refused", status: 410, rows: 1, record: completed,
		options: func(o *idemkey.Options) { o.Key.RejectExpired = true }, provoke: whenExpired},
	{code: idemkey.CodeNotRetained, way: "no bodies stored", status: 410, rows: 1, record: "tombstone",
		options: func(o *idemkey.Options) { o.Response.NoStoreBody = true }, provoke: twice},
	{code: idemkey.CodeCommitFailed, way: "deferred constraint", status: 500, again: true, record: "failed",
		handle: statement("INSERT INTO {schema}.business VALUES ('other', '', 1), ('other', '', 1)")},
	{code: idemkey.CodeCommitFailed, way: "aborted transaction", status: 500, again: true, record: "failed", handle: statement("SELECT 1/0")},
	{code: idemkey.CodeTxMisuse, way: "COMMIT", status: 500, rows: 1, record: completed, handle: statement("COMMIT")},
	{code: idemkey.CodeTxMisuse, way: "ROLLBACK", status: 500, record: completed, handle: statement("ROLLBACK")},
	{code: idemkey.CodeTxMisuse, way: "COMMIT in a longer string", status: 500, rows: 1, record: completed, handle: statement("COMMIT; BEGIN")},
	{code: idemkey.CodeTxMisuse, way: "COMMIT over the hard limit", status: 500, rows: 1, record: "tombstone", handle: statement("COMMIT"),
		options: func(o *idemkey.Options) { o.Limits.MaxResponseBody, o.Limits.HardResponseLimit = 1, 1 }},
	{code: idemkey.CodeRecordHidden, way: "removed by the handler", status: 500, again: true, record: "failed", handle: statement("DELETE FROM {schema}.idempotency_key WHERE key = '{key}'")},
	{code: idemkey.CodeRecordCorrupt, way: "header unreadable", status: 500, rows: 1, record: completed, provoke: whenCorrupt},
	{code: idemkey.CodeResponseTooLarge, way: "over the hard limit", status: 500, record: "failed",
		options: func(o *idemkey.Options) { o.Limits.MaxResponseBody, o.Limits.HardResponseLimit = 1, 1 }},
	{code: idemkey.CodeInternal, way: "returned error", status: 500, again: true, record: "failed",
		handle: func(*statusTest, http.ResponseWriter, *http.Request) error { return errHandler }},
	{code: idemkey.CodeStoreUnavailable, way: "nobody listens", status: 503, again: true, after: soon, record: absent, provoke: whileDown},
	{code: idemkey.CodeCapacity, way: "no place", status: 503, again: true, after: soon, record: absent, provoke: whileFull,
		servers: func(c *settings) { c.MaxInFlight, c.Acquire = 1, time.Second }},
	{code: idemkey.CodeExecTimeout, way: "handler too slow", status: 503, again: true, after: soon, record: "failed",
		options: func(o *idemkey.Options) { o.Limits.ExecTimeout = time.Second }, handle: tooSlow},
	{code: idemkey.CodeTxConflict, way: "serialization failure", status: 503, again: true, after: soon, record: "failed",
		handle: func(s *statusTest, _ http.ResponseWriter, r *http.Request) error {
			_, err := idempg.Tx(r.Context()).Exec(r.Context(), "DO $$ BEGIN RAISE serialization_failure; END $$")
			return err
		}},
	{code: idemkey.CodeUnverified, way: "reply to COMMIT lost", status: 503, again: true, after: soon, rows: 1, record: completed, provoke: whenUnverified},
}

// tooSlow is a handler that its time limit ends.
func tooSlow(_ *statusTest, _ http.ResponseWriter, r *http.Request) error {
	<-r.Context().Done()
	return nil
}

func whileUnknown(s *statusTest) answer {
	s.post("order", pgtest.Name())
	return s.post("order", s.key)
}

// errHandler is a handler's own error. Clients must not see its text.
var errHandler = errors.New("secret of the handler")

// A statusTest is one row's server.
type statusTest struct {
	*testing.T
	*site
	row     *statusRow
	options *idemkey.Options
	server  *httptest.Server
	key     string
	entered chan struct{} // a handler that waits has begun
	leave   chan struct{} // closed when it may end
}

// Each problem, by real HTTP: what a client sees of it, and that nothing is
// half committed. A code of package idemkey that no row provokes is a failure.
func TestStatuses(t *testing.T) {
	t.Parallel()
	base := newSettings(t)
	var provoked []string
	for _, row := range statuses {
		provoked = append(provoked, row.code)
		t.Run(row.code+"/"+row.way, func(t *testing.T) {
			t.Parallel()
			c := base.of(t, columnOf(pg))
			if row.servers != nil {
				row.servers(&c)
			}
			s := newStatusTest(t, c, &row)
			provoke := row.provoke
			if provoke == nil {
				provoke = func(s *statusTest) answer { return s.post("order", s.key) }
			}
			s.check(provoke(s))
		})
	}
	slices.Sort(provoked)
	if got, want := slices.Compact(provoked), declaredCodes(t); !slices.Equal(got, want) {
		t.Errorf("rows provoke %q, and package idemkey has %q", got, want)
	}
}

// The list of codes in the documents is complete.
func TestCodesAreDocumented(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../../docs/idempotency-server.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(doc), "\n| code | status |")
	list, _, _ = strings.Cut(list, "\n\n")
	for _, code := range declaredCodes(t) {
		if !strings.Contains(list, "`"+code+"`") {
			t.Errorf("docs/idempotency-server.md has no row for %s", code)
		}
	}
}

// declaredCodes returns the values of the constants named Code…, sorted.
func declaredCodes(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../problem.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if ok && strings.HasPrefix(spec.Names[0].Name, "Code") && len(spec.Values) == 1 {
			if code, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value); err == nil {
				codes = append(codes, code)
			}
		}
		return true
	})
	slices.Sort(codes)
	return codes
}

func newStatusTest(t *testing.T, c settings, row *statusRow) *statusTest {
	t.Helper()
	s := &statusTest{T: t, site: newSite(t, c), row: row, key: pgtest.Name(), entered: make(chan struct{}, 1), leave: make(chan struct{})}
	s.options = &idemkey.Options{SingleTenant: true, Limits: idemkey.Limits{TTL: c.TTL, Lease: c.Lease, ExecTimeout: c.ExecTimeout, StoreTimeout: storeTimeout, CompleteTimeout: storeTimeout}, Logger: quiet}
	if row.options != nil {
		row.options(s.options)
	}
	s.server = s.serve(s.site)
	t.Cleanup(func() { // before the server is closed, which waits for its handlers
		select {
		case <-s.leave:
		default:
			close(s.leave)
		}
	})
	return s
}

// serve returns a server on the store of at.
func (s *statusTest) serve(at *site) *httptest.Server {
	s.Helper()
	m, err := idemkey.New(at.store, s.options)
	if err != nil {
		s.Fatalf("New: %v", err)
	}
	mounted := m.Handler(s)
	if s.row.mount != nil {
		mounted = s.row.mount(m, s)
	}
	server := httptest.NewServer(mounted)
	s.Cleanup(server.Close)
	return server
}

// ServeHTTP writes a business row and does what the row says.
func (s *statusTest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.row.code == idemkey.CodeNotIdempotent {
		_ = idempg.Tx(r.Context())
		s.Error("the handler goes on without a transaction")
		return
	}
	if err := s.write(r.Context(), r.Header.Get("Idempotency-Key"), "run"); err != nil {
		idemkey.Fail(r.Context(), err)
		return
	}
	if r.Header.Get("Do") == "wait" {
		s.entered <- struct{}{}
		<-s.leave
	}
	w.Header().Set("Location", "/orders/1")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "created")
	if s.row.handle != nil {
		if err := s.row.handle(s, w, r); err != nil {
			idempg.HandleTx(failing(err)).ServeHTTP(w, r)
		}
	}
}

// failing is how a handler returns err.
func failing(err error) func(http.ResponseWriter, *http.Request, pgx.Tx) error {
	return func(http.ResponseWriter, *http.Request, pgx.Tx) error { return err }
}

func (s *statusTest) post(body, key string, header ...string) answer {
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	return post(ctx, s.server.URL, key, strings.NewReader(body), header...)
}

// running starts a request under key whose handler waits, and comes back when it does.
func (s *statusTest) running(key string) <-chan answer {
	s.Helper()
	answered := make(chan answer, 1)
	go func() { answered <- s.post("order", key, "Do", "wait") }() // ends with the handler
	select {
	case <-s.entered:
	case a := <-answered:
		s.Fatalf("the first request was answered %q", a.text)
	case <-time.After(patience):
		s.Fatal("the first request does not run")
	}
	return answered
}

// check compares an answer and what is stored with the row.
func (s *statusTest) check(got answer) {
	s.Helper()
	row, p := s.row, got.problem
	if got.status != row.status || p.Status != row.status || p.Code != row.code {
		s.Fatalf("got %d with %+v, want %d %s (%q)", got.status, p, row.status, row.code, got.body)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/problem+json; charset=utf-8", "Cache-Control": "no-store", "Content-Language": "en", "Idempotent-Replayed": "",
	} {
		if value := got.header.Get(name); value != want {
			s.Errorf("%s = %q, want %q", name, value, want)
		}
	}
	if p.Retryable != row.again || p.SameKey != row.again {
		s.Errorf("retryable %t, same_key %t; want %t", p.Retryable, p.SameKey, row.again)
	}
	if p.Type != "urn:idemkey:problem:"+row.code || p.Title == "" || p.Detail == "" || !strings.HasPrefix(p.Instance, "urn:uuid:") {
		s.Errorf("problem = %+v", p)
	}
	after := got.header.Get("Retry-After")
	if seconds, err := strconv.Atoi(after); (row.after == [2]int{}) != (after == "") ||
		after != "" && (err != nil || seconds < row.after[0] || seconds > row.after[1]) {
		s.Errorf("Retry-After = %q, want %v", after, row.after)
	}
	if strings.Contains(got.body, s.key) || strings.Contains(got.body, "secret") || strings.Contains(got.body, "SQLSTATE") {
		s.Errorf("the body tells too much: %s", got.body)
	}
	if row.code == idemkey.CodeNotRetained && (p.OriginalStatus != http.StatusCreated || got.header.Get("Location") != "/orders/1") {
		s.Errorf("original status %d, Location %q", p.OriginalStatus, got.header.Get("Location"))
	}
	s.checkStored()
}

func (s *statusTest) checkStored() {
	s.Helper()
	rows, err := s.rows(s.Context(), s.key)
	if err != nil || len(rows) != s.row.rows {
		s.Errorf("%d business rows, %v; want %d", len(rows), err, s.row.rows)
	}
	state, err := s.column.state(s.Context(), s.site, s.key)
	if err != nil || state != s.row.record {
		s.Errorf("the record is %s, %v; want %s", state, err, s.row.record)
	}
}

// halfABody sends less than it announced, and reads the answer all the same.
func halfABody(s *statusTest) answer {
	conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: test\r\nIdempotency-Key: %s\r\nContent-Length: 100\r\n\r\nhalf", s.key)
	if err = errors.Join(err, conn.(*net.TCPConn).CloseWrite()); err != nil {
		s.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		s.Fatalf("read response: %v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatalf("read body: %v", err)
	}
	return read(resp.StatusCode, resp.Header, string(body))
}

func otherBody(s *statusTest) answer {
	s.post("order", s.key)
	return s.post("another order", s.key)
}

func twice(s *statusTest) answer {
	s.post("order", s.key)
	return s.post("order", s.key)
}

func whileRunning(s *statusTest) answer {
	s.running(s.key)
	return s.post("order", s.key)
}

func whileFull(s *statusTest) answer {
	s.running(pgtest.Name())
	return s.post("order", s.key)
}

func whenExpired(s *statusTest) answer {
	s.post("order", s.key)
	if err := s.column.expire(s.Context(), s.site, s.key); err != nil {
		s.Fatal(err)
	}
	return s.post("order", s.key)
}

func whenCorrupt(s *statusTest) answer {
	s.post("order", s.key)
	if _, err := s.pool.Exec(s.Context(), "UPDATE "+s.Schema+".idempotency_key SET resp_header = 'x' WHERE key = $1", s.key); err != nil {
		s.Fatal(err)
	}
	return s.post("order", s.key)
}

func whenSettingsChanged(s *statusTest) answer {
	s.post("order", s.key)
	s.options.Fingerprint.Secret = []byte("new")
	s.server = s.serve(s.site)
	return s.post("order", s.key)
}

// through moves the server behind addr, which leads to Postgres or not.
func (s *statusTest) through(addr string) {
	s.Helper()
	c := s.settings
	c.Postgres = addr
	s.server = s.serve(newSite(s.T, c))
}

func whileDown(s *statusTest) answer {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	s.through(listener.Addr().String())
	_ = listener.Close()
	return s.post("order", s.key)
}

func whenUnverified(s *statusTest) answer {
	proxy, _ := pgtest.NewProxy(s.T)
	s.through(proxy.Addr())
	first := s.running(s.key)
	proxy.Lose(pgtest.LoseAll)
	close(s.leave)
	a := <-first
	s.settle(s.T, s.site.Name)
	return a
}

// fails makes the first run of a key a failure.
func fails(_ *statusTest, _ http.ResponseWriter, r *http.Request) error { return errHandler }

// statement runs one that the handler should not have, and does not look at its error.
func statement(sql string) func(*statusTest, http.ResponseWriter, *http.Request) error {
	return func(s *statusTest, _ http.ResponseWriter, r *http.Request) error {
		_, _ = idempg.Tx(r.Context()).Exec(r.Context(), strings.NewReplacer("{schema}", s.Schema, "{key}", s.key).Replace(sql))
		return nil
	}
}

// The published policy names every code with its status.
func TestPolicyNamesEveryCode(t *testing.T) {
	t.Parallel()
	store, err := idemkey.NewMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(m.PolicyHandler())
	defer server.Close()
	var policy struct {
		Codes map[string]int `json:"codes"`
	}
	if err := json.Unmarshal([]byte(post(t.Context(), server.URL, "", strings.NewReader("")).body), &policy); err != nil {
		t.Fatal(err)
	}
	for _, row := range statuses {
		if !strings.HasPrefix(row.way, "as ") && policy.Codes[row.code] != row.status {
			t.Errorf("the policy says %d of %s, and the answer is %d", policy.Codes[row.code], row.code, row.status)
		}
	}
	if len(policy.Codes) != len(declaredCodes(t)) {
		t.Errorf("the policy has %d codes, want %d", len(policy.Codes), len(declaredCodes(t)))
	}
}
