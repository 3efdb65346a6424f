package idemkeytest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/idemkey"
)

// A Handler is a handler in no framework's terms. A returned error is one that
// the framework's own handlers would return or attach.
type Handler func(w http.ResponseWriter, r *http.Request) error

// A Mount returns a server with h at POST and GET /orders behind idem, in the
// framework under test, with its recoverer outside of idem.
type Mount func(idem *idemkey.Middleware, h Handler) http.Handler

// A Backend is an empty store, with the means to write and count business rows
// in its transactions. Without a Write nothing is checked about those.
type Backend struct {
	Store idemkey.Store
	Write func(ctx context.Context, row string) error // in the transaction of the handler that ctx is of
	Rows  func(t testing.TB, row string) int          // committed
}

// RunHTTP runs the suite that the middleware passes in every framework, through
// real connections. open is called once for each test; nil: an
// [idemkey.Memory] each.
func RunHTTP(t *testing.T, mount Mount, open func(t *testing.T) Backend) {
	if open == nil {
		open = memoryBackend
	}
	for name, test := range map[string]func(*httpTest){
		"Replay":       httpReplay,
		"InFlight":     httpInFlight,
		"Mismatch":     httpMismatch,
		"Settings":     httpSettings,
		"Refusals":     httpRefusals,
		"Error":        httpError,
		"Problem":      httpProblem,
		"Panic":        httpPanic,
		"Abort":        httpAbort,
		"Callback":     httpCallback,
		"Statuses":     httpStatuses,
		"CommitAnyway": httpCommitAnyway,
		"Empty":        httpEmpty,
		"Tombstone":    httpTombstone,
		"TooLarge":     httpTooLarge,
		"Headers":      httpHeaders,
		"Timeout":      httpTimeout,
		"Disconnect":   httpDisconnect,
		"Streaming":    httpStreaming,
		"Late":         httpLate,
		"Beside":       httpBeside,
		"Cut":          httpCut,
		"Untouched":    httpUntouched,
		"Keyless":      httpKeyless,
		"Race":         httpRace,
		"Route":        httpRoute,
		"Body":         httpBody,
		"Outer":        httpOuter,
		"OuterPasses":  httpOuterPasses,
		"Batch":        httpBatch,
		"MountedTwice": httpMountedTwice,
		"Nested":       httpNested,
		"OwnHeaders":   httpOwnHeaders,
		"Scope":        httpScope,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&httpTest{T: t, mount: mount, backend: open(t)})
		})
	}
}

func memoryBackend(t *testing.T) Backend {
	t.Helper()
	store, err := idemkey.NewMemory(nil)
	if err != nil {
		t.Fatalf("NewMemory: %v", err)
	}
	return Backend{Store: store}
}

// An httpTest is one test's server.
type httpTest struct {
	*testing.T
	mount   Mount
	around  func(*idemkey.Middleware, http.Handler) http.Handler // outside of mount; nil: nothing
	backend Backend
	server  *httptest.Server
	http2   bool     // which the server speaks, over TLS
	events  eventLog // of the middleware that was served last
	runs    sync.Map // of the handler, by identity
}

// maxEvents is more than any test here has requests.
const maxEvents = 100

// An eventLog keeps what a middleware tells, for the tests that look.
type eventLog chan idemkey.Event

// Observe keeps e.
func (l eventLog) Observe(_ context.Context, e idemkey.Event) { l <- e }

// drainEvents forgets what the middleware has told so far.
func (t *httpTest) drainEvents() {
	for len(t.events) > 0 {
		<-t.events
	}
}

// mountHandler mounts h. set may change the options that all tests share.
func (t *httpTest) mountHandler(set func(*idemkey.Options), h Handler) {
	t.Helper()
	t.events = make(eventLog, maxEvents)
	opts := &idemkey.Options{Scope: tenantScope, Logger: slog.New(slog.DiscardHandler), Observer: t.events}
	if set != nil {
		set(opts)
	}
	idem, err := idemkey.New(t.backend.Store, opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	mounted := t.mount(idem, h)
	if t.around != nil {
		mounted = t.around(idem, mounted)
	}
	t.server = httptest.NewUnstartedServer(mounted)
	t.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of the panics
	if t.server.EnableHTTP2 = t.http2; t.http2 {
		t.server.StartTLS()
	} else {
		t.server.Start()
	}
	t.Cleanup(t.server.Close)
	t.server.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
}

func tenantScope(r *http.Request) (string, error) {
	if name := r.Header.Get("Tenant"); name != "none" {
		return "tenant-" + name, nil
	}
	return "", errors.New("no principal")
}

// writeRow writes a business row in the handler's transaction, if there is one.
func (t *httpTest) writeRow(r *http.Request, row string) {
	if t.backend.Write == nil {
		return
	}
	if err := t.backend.Write(r.Context(), row); err != nil {
		t.Errorf("write business row: %v", err)
	}
}

// expectRows checks how many of the business rows are committed.
func (t *httpTest) expectRows(row string, want int) {
	t.Helper()
	if t.backend.Write == nil {
		return
	}
	if got := t.backend.Rows(t, row); got != want {
		t.Errorf("%d business rows of %s, want %d", got, row, want)
	}
}

// A reply is what a client saw.
type reply struct {
	Status int
	Header http.Header
	Body   string
}

// newRequest makes a request under key, if it is not empty, and the header lines
// given as name, value, ….
func (t *httpTest) newRequest(ctx context.Context, method, body, key string, header ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, t.server.URL+"/orders", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return req
}

func (t *httpTest) postOrder(body, key string, header ...string) reply {
	t.Helper()
	r, err := t.sendRequest(t.newRequest(t.Context(), http.MethodPost, body, key, header...))
	if err != nil {
		t.Fatalf("POST: %v", err)
	}
	return r
}

func (t *httpTest) sendRequest(req *http.Request) (reply, error) {
	resp, err := t.server.Client().Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(body)}, err
}

// expectReply checks status and code. An empty code stands for no problem.
func (t *httpTest) expectReply(got reply, status int, code string) {
	t.Helper()
	var p idemkey.Problem
	if strings.HasPrefix(got.Header.Get("Content-Type"), "application/problem+json") {
		if err := json.Unmarshal([]byte(got.Body), &p); err != nil {
			t.Errorf("body %q: %v", got.Body, err)
		}
	}
	if got.Status != status || p.Code != code {
		t.Errorf("got %d %q, want %d %q (body %q)", got.Status, p.Code, status, code, got.Body)
	}
}

// expectReplay checks that again has the status and bytes of first, and its headers
// except those that belong to one exchange.
func (t *httpTest) expectReplay(again, first reply) {
	t.Helper()
	if first.Header.Get("Idempotent-Replayed") != "" || again.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("Idempotent-Replayed = %q, then %q; want none, then true",
			first.Header.Get("Idempotent-Replayed"), again.Header.Get("Idempotent-Replayed"))
	}
	if diff := cmp.Diff(comparableReply(first), comparableReply(again)); diff != "" {
		t.Errorf("replay differs (-first +replay):\n%s", diff)
	}
}

func comparableReply(r reply) reply {
	r.Header = maps.Clone(r.Header)
	for _, name := range []string{"Date", "Set-Cookie", "Idempotent-Replayed", "Cache-Control"} {
		r.Header.Del(name)
	}
	return r
}

// storeTraits are those of the store.
func (t *httpTest) storeTraits() idemkey.Traits {
	if d, ok := t.backend.Store.(idemkey.Describer); ok {
		return d.Traits()
	}
	return idemkey.Traits{}
}

// checkAttempt returns the number of r's run, and checks that Info returns it too. It is called once in
// each run: a traceless store does not count them.
func (t *httpTest) checkAttempt(r *http.Request) int {
	info, ok := idemkey.Info(r.Context())
	if !ok {
		t.Error("the handler's context has no Info")
	}
	n, _ := t.runs.LoadOrStore(info.Identity, new(atomic.Int32))
	run := int(n.(*atomic.Int32).Add(1))
	if !t.storeTraits().Traceless && info.Attempt != run {
		t.Errorf("attempt %d in run %d", info.Attempt, run)
	}
	return run
}

// expectInFlight is expect for a request whose key has an owner that runs. Of a traceless store
// that is all that can be known.
func (t *httpTest) expectInFlight(got reply, status int, code string) {
	t.Helper()
	if t.storeTraits().Traceless {
		status, code = http.StatusConflict, idemkey.CodeInProgress
	}
	t.expectReply(got, status, code)
}

// answerOrder answers as a service would, with headers and bytes that could get lost.
func (t *httpTest) answerOrder(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Errorf("read body: %v", err)
	}
	t.writeRow(r, "order")
	w.Header().Set("Location", "/orders/1")
	w.Header().Set("Content-Type", "application/vnd.order+json")
	w.Header().Add("Link", "<a>; rel=next, <b>")
	w.Header().Add("Link", "<c>")
	w.Header().Set("Set-Cookie", "session=secret")
	w.WriteHeader(http.StatusCreated)
	_, err = io.Copy(w, io.MultiReader(bytes.NewReader(body), strings.NewReader("\x00\xff\n")))
	return err
}

// writeStatus answers with a status only.
func writeStatus(w http.ResponseWriter, status int) error {
	w.Header().Set("Status", strconv.Itoa(status))
	w.WriteHeader(status)
	return nil
}
