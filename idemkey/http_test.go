package idemkey_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

var quiet = slog.New(slog.DiscardHandler)

// A server runs handler behind a middleware on store.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	events []idemkey.Event
}

func (s *server) Observe(_ context.Context, e idemkey.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func serve(t *testing.T, store idemkey.Store, handler http.HandlerFunc, set func(*idemkey.Options)) *server {
	t.Helper()
	s := &server{}
	opts := &idemkey.Options{
		Scope: func(r *http.Request) (string, error) {
			if tenant := r.Header.Get("Tenant"); tenant != "none" {
				return "tenant-" + tenant, nil
			}
			return "", errors.New("no principal")
		},
		Logger:   quiet,
		Observer: s,
	}
	if set != nil {
		set(opts)
	}
	m, err := idemkey.New(store, opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	s.Server = httptest.NewServer(m.Handler(handler))
	t.Cleanup(s.Close)
	return s
}

// A reply is what a client saw.
type reply struct {
	status int
	header http.Header
	body   string
}

// post sends body under the given header lines, as name, value, ….
func (s *server) post(t *testing.T, body string, header ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/orders", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return s.do(t, req)
}

func (s *server) do(t *testing.T, req *http.Request) reply {
	t.Helper()
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatalf("%s: %v", req.Method, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read body: %v", err)
	}
	return reply{resp.StatusCode, resp.Header, string(data)}
}

// expect checks status and code, and that a problem has what all have.
func (r reply) expect(t *testing.T, status int, code string) {
	t.Helper()
	var p idemkey.Problem
	if code != "" {
		if err := json.Unmarshal([]byte(r.body), &p); err != nil {
			t.Errorf("body %q: %v", r.body, err)
		}
		if r.header.Get("Cache-Control") != "no-store" || r.header.Get("Content-Type") != "application/problem+json; charset=utf-8" {
			t.Errorf("header = %v", r.header)
		}
		if p.Status != status || p.Title == "" || p.Type != "urn:idemkey:problem:"+code || !strings.HasPrefix(p.Instance, "urn:uuid:") {
			t.Errorf("problem = %+v", p)
		}
		if wait := r.header.Get("Retry-After"); (status == 503 || code == "in-progress") != (wait != "") {
			t.Errorf("%s: Retry-After = %q", code, wait)
		}
		if want := status == 503 || code == "in-progress" || code == "commit-failed" || code == "internal"; p.Retryable != want || p.SameKey != want {
			t.Errorf("%s: retryable %t, same_key %t; want %t", code, p.Retryable, p.SameKey, want)
		}
	}
	if r.status != status || p.Code != code {
		t.Errorf("got %d %q, want %d %q (body %q)", r.status, p.Code, status, code, r.body)
	}
}

// sameAs checks that r is a replay of first, byte for byte.
func (r reply) sameAs(t *testing.T, first reply) {
	t.Helper()
	if r.header.Get("Idempotent-Replayed") != "true" || first.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("Idempotent-Replayed = %q after %q", r.header.Get("Idempotent-Replayed"), first.header.Get("Idempotent-Replayed"))
	}
	if r.status != first.status || r.body != first.body {
		t.Errorf("replay = %d %q, want %d %q", r.status, r.body, first.status, first.body)
	}
	for _, name := range []string{"Content-Type", "Location", "Content-Length", "Link"} {
		if got, want := strings.Join(r.header.Values(name), "|"), strings.Join(first.header.Values(name), "|"); got != want {
			t.Errorf("replayed %s = %q, want %q", name, got, want)
		}
	}
}

func created(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Location", "/orders/1")
	w.Header().Add("Link", "<a>; rel=next, <b>")
	w.Header().Add("Link", "<c>")
	w.Header().Set("Set-Cookie", "session=secret")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "created "+string(body)+"\n")
}

func TestReplay(t *testing.T) {
	t.Parallel()
	s := serve(t, newMemory(t, nil), created, nil)
	first := s.post(t, "x", "Idempotency-Key", "k1")
	first.expect(t, 201, "")
	if first.body != "created x\n" || first.header.Get("Set-Cookie") == "" || first.header.Get("Idempotency-Key") != "k1" {
		t.Errorf("first response = %+v", first)
	}
	again := s.post(t, "x", "Idempotency-Key", `"k1"`) // the other spelling of the key
	again.sameAs(t, first)
	if again.header.Get("Set-Cookie") != "" || again.header.Get("Cache-Control") != "no-store" {
		t.Errorf("replayed header = %v", again.header)
	}
	s.post(t, "y", "Idempotency-Key", "k1").expect(t, 422, "key-reused")
	s.post(t, "x", "Idempotency-Key", "k1", "Tenant", "2").expect(t, 201, "")
}

// Each refusal by a step before the claim, in the order of the steps.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := serve(t, newMemory(t, nil), created, func(o *idemkey.Options) {
		o.Limits.MaxRequestBody, o.Key.Aliases = 10, []string{"X-Idempotency-Key"}
	})
	s.post(t, "x").expect(t, 400, "key-missing")
	s.post(t, "x", "Tenant", "none").expect(t, 400, "key-missing")
	for _, key := range []string{"", " ", "a,b", "a b", `"`, `"a`, "\x80", strings.Repeat("k", 256)} {
		s.post(t, "x", "Idempotency-Key", key).expect(t, 400, "key-invalid")
	}
	s.post(t, "x", "Idempotency-Key", "a", "Idempotency-Key", "a").expect(t, 400, "key-invalid")
	s.post(t, "x", "Idempotency-Key", "a", "X-Idempotency-Key", "b").expect(t, 400, "key-invalid")
	s.post(t, strings.Repeat("x", 11), "Idempotency-Key", "a", "Tenant", "none").expect(t, 401, "scope-missing")
	s.post(t, strings.Repeat("x", 11), "Idempotency-Key", "a").expect(t, 413, "body-too-large")
	chunked, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL, io.MultiReader(strings.NewReader(strings.Repeat("x", 11))))
	chunked.Header.Set("Idempotency-Key", "a")
	s.do(t, chunked).expect(t, 413, "body-too-large")
	s.post(t, "x", "X-Idempotency-Key", "a").expect(t, 201, "")
	get, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL, nil)
	s.do(t, get).expect(t, 201, "")
}

// A body that ends early is no request.
func TestBodyUnreadable(t *testing.T) {
	t.Parallel()
	m, err := idemkey.New(newMemory(t, nil), &idemkey.Options{SingleTenant: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest("POST", "/", io.MultiReader(strings.NewReader("x"), failingReader{}))
	req.Header.Set("Idempotency-Key", "k")
	rec := httptest.NewRecorder()
	m.Handler(http.HandlerFunc(created)).ServeHTTP(rec, req)
	reply{rec.Code, rec.Header(), rec.Body.String()}.expect(t, 400, "body-unreadable")
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// A stub is a store that answers as the test says.
type stub struct {
	decision idemkey.Decision
	err      error
	end      error // of Commit
}

func (s *stub) Begin(context.Context, idemkey.Claim) (idemkey.Decision, error) {
	d := s.decision
	if d.Kind == 0 {
		d.Kind, d.Attempt, d.Exec = idemkey.KindProceed, 1, s
	}
	return d, s.err
}

func (s *stub) Sweep(context.Context, int) (int, error)                 { return 0, nil }
func (s *stub) Context(ctx context.Context) context.Context             { return ctx }
func (s *stub) Commit(context.Context, idemkey.Response) error          { return s.end }
func (s *stub) Reject(context.Context, idemkey.Response) error          { return s.end }
func (s *stub) Release(context.Context, idemkey.ReleaseMode, int) error { return nil }

// What a store says decides the answer; a 2xx is never sent for what did not commit.
func TestStoreAnswers(t *testing.T) {
	t.Parallel()
	stored := &idemkey.Record{Response: idemkey.Response{Status: 201, Header: http.Header{"Location": {"/orders/7"}}}}
	tests := []struct {
		name   string
		store  stub
		status int
		code   string
	}{
		{"store down", stub{err: errors.New("down")}, 503, "store-unavailable"},
		{"capacity", stub{err: idemkey.ErrCapacity}, 503, "capacity"},
		{"corrupt", stub{err: idemkey.ErrRecordCorrupt}, 500, "record-corrupt"},
		{"in flight", stub{decision: idemkey.Decision{Kind: idemkey.KindInFlight, RetryAfter: time.Minute}}, 409, "in-progress"},
		{"in flight, nobody knows for how long", stub{decision: idemkey.Decision{Kind: idemkey.KindInFlight}}, 409, "in-progress"},
		{"mismatch", stub{decision: idemkey.Decision{Kind: idemkey.KindMismatch}}, 422, "key-reused"},
		{"settings unknown", stub{decision: idemkey.Decision{Kind: idemkey.KindFingerprintUnknown}}, 409, "fingerprint-unknown"},
		{"expired", stub{decision: idemkey.Decision{Kind: idemkey.KindExpired}}, 410, "key-expired"},
		{"tombstone", stub{decision: idemkey.Decision{Kind: idemkey.KindNotRetained, Record: stored}}, 410, "response-not-retained"},
		{"quarantine", stub{decision: idemkey.Decision{Kind: idemkey.KindUnknown}}, 409, "outcome-unknown"},
		{"lease lost", stub{end: idemkey.ErrLeaseLost}, 409, "in-progress"},
		{"outcome unknown", stub{end: idemkey.ErrOutcomeUnknown}, 503, "outcome-unverified"},
		{"misuse", stub{end: idemkey.ErrTxMisuse}, 500, "tx-misuse"},
		{"conflict", stub{end: idemkey.ErrTxConflict}, 503, "tx-conflict"},
		{"commit refused", stub{end: &idemkey.CommitError{Err: errors.New("constraint")}}, 500, "commit-failed"},
		{"store died", stub{end: errors.New("down")}, 503, "store-unavailable"},
		{"not stored", stub{end: idemkey.ErrNotStored}, 201, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, &tt.store, created, nil)
			got := s.post(t, "x", "Idempotency-Key", "k")
			got.expect(t, tt.status, tt.code)
			if tt.name == "in flight" && got.header.Get("Retry-After") != "30" {
				t.Errorf("Retry-After = %q, want it capped at 30", got.header.Get("Retry-After"))
			}
			if again := tt.status == 503 || tt.code == "in-progress"; again != (got.header.Get("Retry-After") != "") {
				t.Errorf("Retry-After = %q, want one: %t", got.header.Get("Retry-After"), again)
			}
			if tt.name == "tombstone" && (got.header.Get("Location") != "/orders/7" || !strings.Contains(got.body, `"original_status":201`)) {
				t.Errorf("tombstone = %+v", got)
			}
			if strings.Contains(got.body, "constraint") || strings.Contains(got.body, "down") {
				t.Errorf("body tells of the store: %s", got.body)
			}
		})
	}
}

// Which responses are kept, by status and verdict.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		status  int
		verdict idemkey.Verdict
		policy  idemkey.Policy
		again   int // status of the second request with the same key; runs answer 299
	}{
		{"200", 200, 0, nil, 200},
		{"302", 302, 0, nil, 302},
		{"400", 400, 0, nil, 400},
		{"422", 422, 0, nil, 422},
		{"401", 401, 0, nil, 299},
		{"409", 409, 0, nil, 299},
		{"429", 429, 0, nil, 299},
		{"500", 500, 0, nil, 299},
		{"503 keep all", 503, 0, idemkey.KeepAll, 503},
		{"400 success only", 400, 0, idemkey.SuccessOnly, 299},
		{"200 retryable", 200, idemkey.Retryable, nil, 299},
		{"500 keep", 500, idemkey.Keep, nil, 500},
		{"402 commit anyway", 402, idemkey.CommitAnyway, idemkey.SuccessOnly, 402},
		{"500 forget", 500, 0, idemkey.ForgetFailures, 299},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			runs := 0
			s := serve(t, newMemory(t, nil), func(w http.ResponseWriter, r *http.Request) {
				runs++
				info, ok := idemkey.Info(r.Context())
				if !ok || info.Key != "k" || info.Attempt != runs && tt.name != "500 forget" || time.Until(info.ExpiresAt) < time.Hour {
					t.Errorf("run %d: Info = %+v, %t", runs, info, ok)
				}
				if runs > 1 {
					w.WriteHeader(299)
					return
				}
				idemkey.SetVerdict(r.Context(), tt.verdict)
				w.WriteHeader(tt.status)
			}, func(o *idemkey.Options) { o.Policy = tt.policy })
			s.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			s.post(t, "x", "Idempotency-Key", "k").expect(t, tt.status, "")
			s.post(t, "x", "Idempotency-Key", "k").expect(t, tt.again, "")
		})
	}
}

// An amendable request may be corrected under its key.
func TestAmendable(t *testing.T) {
	t.Parallel()
	s := serve(t, newMemory(t, nil), func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); string(body) == "typo" {
			idemkey.SetVerdict(r.Context(), idemkey.Amendable)
			w.WriteHeader(400)
		}
	}, nil)
	s.post(t, "typo", "Idempotency-Key", "k").expect(t, 400, "")
	s.post(t, "fixed", "Idempotency-Key", "k").expect(t, 200, "")
}

// Returned errors: one's own problem is kept like any 4xx; anything else is a
// 500 that says nothing and may be retried.
func TestFail(t *testing.T) {
	t.Parallel()
	known := errors.New("no such item")
	var fail error
	s := serve(t, newMemory(t, nil), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/nowhere")
		_, _ = io.WriteString(w, "discarded")
		idemkey.Fail(r.Context(), fail)
	}, func(o *idemkey.Options) {
		o.Problems.MapError = func(err error) *idemkey.Problem {
			if errors.Is(err, known) {
				return &idemkey.Problem{Status: 404, Code: "no-item", Title: "No such item"}
			}
			return nil
		}
	})
	fail = errors.New("secret")
	got := s.post(t, "x", "Idempotency-Key", "k")
	got.expect(t, 500, "internal")
	if strings.Contains(got.body, "secret") || strings.Contains(got.body, "discarded") || got.header.Get("Location") != "" {
		t.Errorf("response = %+v", got)
	}
	fail = known
	first := s.post(t, "x", "Idempotency-Key", "k")
	first.expect(t, 404, "no-item")
	s.post(t, "x", "Idempotency-Key", "k").sameAs(t, first)
	for _, fail = range []error{idemkey.ErrTxConflict, sqlError("40001"), fmt.Errorf("pay: %w", sqlError("40P01"))} {
		s.post(t, "x", "Idempotency-Key", "k2").expect(t, 503, "tx-conflict")
	}
	fail = sqlError("23505")
	s.post(t, "x", "Idempotency-Key", "k2").expect(t, 500, "internal")
	fail = fmt.Errorf("%w: %w", known, sqlError("40001")) // MapError goes first
	s.post(t, "x", "Idempotency-Key", "k3").expect(t, 404, "no-item")
	fail = &idemkey.Problem{Status: 422, Code: "odd", Title: "Odd"}
	s.post(t, "x", "Idempotency-Key", "k2").expect(t, 422, "odd")
}

// A sqlError is a driver's error of that SQLSTATE.
type sqlError string

func (e sqlError) Error() string    { return "ERROR (SQLSTATE " + string(e) + ")" }
func (e sqlError) SQLState() string { return string(e) }

// What a client sent and a handler put into a header does not cost the response:
// it goes out as a replay will repeat it.
func TestHeaderWithControls(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newMemory(t, nil), idemkey.Options{})
	for _, value := range []string{"/o/a\r\nb", "/o/a\x01\tb", "/o/\x7f"} {
		handler := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", value)
			w.WriteHeader(201)
		}
		first, again := send(t, m, handler, url.PathEscape(value), "x"), send(t, m, handler, url.PathEscape(value), "x")
		first.expect(t, 201, "")
		again.expect(t, 201, "")
		if got := first.header.Get("Location"); got != again.header.Get("Location") || strings.ContainsAny(got, "\r\n\x01\x7f") {
			t.Errorf("Location %q, then %q", got, again.header.Get("Location"))
		}
	}
}

// A quota lasts until records expire: coming back at once does not help.
func TestQuotaAnswer(t *testing.T) {
	t.Parallel()
	for err, after := range map[error]string{&idemkey.QuotaError{Limit: 7, Option: "X"}: "30", idemkey.ErrCapacity: "1"} {
		got := send(t, newMiddleware(t, &stub{err: err}, idemkey.Options{}), created, "k", "x")
		got.expect(t, 503, "capacity")
		if header := got.header.Get("Retry-After"); header != after {
			t.Errorf("%v: Retry-After = %q, want %s", err, header, after)
		}
	}
}

// A panic reaches the outer recoverer as it was thrown, and frees the key.
func TestPanic(t *testing.T) {
	t.Parallel()
	seen := &observer{}
	m, err := idemkey.New(newMemory(t, nil), &idemkey.Options{SingleTenant: true, Logger: quiet, Observer: seen})
	if err != nil {
		t.Fatal(err)
	}
	attempts := 0
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := idemkey.Info(r.Context())
		attempts = info.Attempt
		_, _ = io.WriteString(w, "half")
		if info.Attempt == 1 {
			panic(http.ErrAbortHandler)
		}
	}))
	send := func() (rec *httptest.ResponseRecorder, thrown any) {
		defer func() { thrown = recover() }()
		req := httptest.NewRequest("POST", "/", strings.NewReader("x"))
		req.Header.Set("Idempotency-Key", "k")
		rec = httptest.NewRecorder()
		h.ServeHTTP(rec, req)
		return rec, nil
	}
	if rec, thrown := send(); thrown != http.ErrAbortHandler || rec.Body.Len() > 0 {
		t.Errorf("panic = %v with body %q, want ErrAbortHandler and none", thrown, rec.Body)
	}
	if seen.last.Err == nil || seen.last.Outcome != idemkey.OutcomeFailed {
		t.Errorf("event = %+v, want failed, with an error to log", seen.last)
	}
	if rec, thrown := send(); thrown != nil || rec.Code != 200 || attempts != 2 {
		t.Errorf("retry = %d, panic %v, attempt %d; want 200, none, 2", rec.Code, thrown, attempts)
	}
}

func TestExecTimeout(t *testing.T) {
	t.Parallel()
	s := serve(t, newMemory(t, nil), func(w http.ResponseWriter, r *http.Request) {
		if info, _ := idemkey.Info(r.Context()); info.Attempt == 1 {
			<-r.Context().Done()
		}
		w.WriteHeader(201)
	}, func(o *idemkey.Options) { o.Limits.ExecTimeout = 50 * time.Millisecond })
	s.post(t, "x", "Idempotency-Key", "k").expect(t, 503, "execution-timeout")
	s.post(t, "x", "Idempotency-Key", "k").expect(t, 201, "")
}

// A client that goes away does not stop its request; a retry gets the response.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	entered, gone, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s := serve(t, newMemory(t, nil), func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		close(entered)
		<-gone
		if r.Context().Err() != nil {
			t.Errorf("handler context: %v", r.Context().Err())
		}
		created(w, r)
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	req, _ := http.NewRequestWithContext(ctx, "POST", s.URL+"/orders", strings.NewReader("x"))
	req.Header.Set("Idempotency-Key", "k")
	if _, err := s.Client().Do(req); !errors.Is(err, context.Canceled) {
		t.Fatalf("Do: %v, want it cancelled", err)
	}
	s.post(t, "x", "Idempotency-Key", "k").expect(t, 409, "in-progress")
	close(gone)
	<-done
	for { // the record is kept just after the handler returns
		if got := s.post(t, "x", "Idempotency-Key", "k"); got.status != 409 {
			got.expect(t, 201, "")
			return
		}
	}
}

// Many clients with one key at once: one run, and everybody else is told to
// wait or gets the very same bytes.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	var runs sync.Map
	s := serve(t, newMemory(t, nil), func(w http.ResponseWriter, r *http.Request) {
		if _, twice := runs.LoadOrStore(r.Header.Get("Idempotency-Key"), true); twice {
			t.Error("the handler ran twice")
		}
		created(w, r)
	}, nil)
	replies := make([]reply, 16)
	var wg sync.WaitGroup
	for i := range replies {
		wg.Go(func() { replies[i] = s.post(t, "x", "Idempotency-Key", "k") })
	}
	wg.Wait()
	for _, r := range replies {
		if r.status == 409 {
			r.expect(t, 409, "in-progress")
		} else if r.status != 201 || r.body != "created x\n" {
			t.Errorf("reply = %+v", r)
		}
	}
}
