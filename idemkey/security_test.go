package idemkey_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
)

// The numbers are those of docs/security.md.

// A watching store remembers what it was asked.
type watching struct {
	idemkey.Store
	asked []idemkey.Identity
}

func (s *watching) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	s.asked = append(s.asked, c.ID)
	return s.Store.Begin(ctx, c)
}

// serveDirect sends req through a middleware without a network, which would refuse
// some of what is sent here.
func serveDirect(t *testing.T, store idemkey.Store, handler http.HandlerFunc, opts idemkey.Options, req *http.Request) reply {
	t.Helper()
	rec := httptest.NewRecorder()
	newMiddleware(t, store, opts).Handler(handler).ServeHTTP(rec, req)
	return reply{rec.Code, rec.Result().Header, rec.Body.String()}
}

func keyed(body io.Reader, keys ...string) *http.Request {
	req := httptest.NewRequest("POST", "/orders", body)
	req.Header["Idempotency-Key"] = keys
	return req
}

// 2: who may not call any more is not answered from the store.
func TestRevokedCaller(t *testing.T) {
	t.Parallel()
	revoked := false
	s := serve(t, newMemory(t, nil), created, func(o *idemkey.Options) {
		scope := o.Scope
		o.Scope = func(r *http.Request) (string, error) {
			if revoked {
				return "", errors.New("revoked")
			}
			return scope(r)
		}
	})
	s.post(t, "x", "Idempotency-Key", "k").expect(t, 201, "")
	revoked = true
	got := s.post(t, "x", "Idempotency-Key", "k")
	if got.expect(t, 401, "scope-missing"); strings.Contains(got.body, "created") || got.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("a revoked caller got %+v", got)
	}
}

// 3: a key of another tenant looks like an unused key: the same answer, and the same calls of the store, which
// is never asked for another's scope.
func TestNoOracle(t *testing.T) {
	t.Parallel()
	probe := func(prepare func(t *testing.T, s *server)) (string, []idemkey.Identity) {
		store := &watching{Store: newMemory(t, nil)}
		s := serve(t, store, created, nil)
		prepare(t, s)
		store.asked = nil
		first, again := s.post(t, "x", "Idempotency-Key", "k", "Tenant", "b"), s.post(t, "y", "Idempotency-Key", "k", "Tenant", "b")
		first.header.Del("Date")
		return fmt.Sprint(first, again.status), store.asked
	}
	want, asked := probe(func(*testing.T, *server) {})
	for name, prepare := range map[string]func(t *testing.T, s *server){
		"completed":     func(t *testing.T, s *server) { s.post(t, "x", "Idempotency-Key", "k", "Tenant", "a") },
		"other request": func(t *testing.T, s *server) { s.post(t, "z", "Idempotency-Key", "k", "Tenant", "a") },
	} {
		got, calls := probe(prepare)
		if got != want || !slices.Equal(calls, asked) {
			t.Errorf("%s: %s after %v; want %s after %v", name, got, calls, want, asked)
		}
	}
	running := &watching{Store: newMemory(t, nil)}
	m := newMiddleware(t, running, idemkey.Options{Scope: func(r *http.Request) (string, error) { return r.Header.Get("Tenant"), nil }})
	ask := func(tenant string, next http.HandlerFunc) *httptest.ResponseRecorder {
		req, rec := keyed(strings.NewReader("x"), "k"), httptest.NewRecorder()
		req.Header.Set("Tenant", tenant)
		m.Handler(next).ServeHTTP(rec, req)
		return rec
	}
	ask("a", func(http.ResponseWriter, *http.Request) {
		if got := ask("b", created); got.Code != 201 {
			t.Errorf("while another tenant's runs: %d, want 201", got.Code)
		}
	})
}

// 4: keys that can be guessed can be refused.
func TestGuessableKeys(t *testing.T) {
	t.Parallel()
	long := idemkey.Options{Key: idemkey.KeyOptions{MinLen: 16}}
	serveDirect(t, newMemory(t, nil), created, long, keyed(strings.NewReader("x"), "123456789012345")).expect(t, 400, "key-invalid")
	serveDirect(t, newMemory(t, nil), created, long, keyed(strings.NewReader("x"), "1234567890123456")).expect(t, 201, "")
	serveDirect(t, newMemory(t, nil), created, idemkey.Options{Key: idemkey.KeyOptions{Validate: idemkey.UUIDKeys}}, keyed(strings.NewReader("x"), "1234567890123456")).expect(t, 400, "key-invalid")
}

// 5 and 7: what a database, a log or a header line cannot hold gets as far as
// none of them, in a key, in its parameters or in a scope.
func TestOddBytes(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		"a\x00b", "a\r\nSet-Cookie: x=1", "a\nb", "\"a\r\nb\"", "\"a\";p=\"\r\n\"", "\"a\";p=x\r\ny", "a\x7f", "\u00e4", "\xff", "a\tb", "\"a\" ;\r", strings.Repeat("a", 256),
	} {
		store, log := &watching{Store: newMemory(t, nil)}, newCapture()
		opts := idemkey.Options{Logger: log.logger(), LogKeys: true, Fingerprint: idemkey.FingerprintOptions{Custom: func(*http.Request, []byte) (idemkey.Fingerprint, error) {
			t.Errorf("%q was fingerprinted", value)
			return idemkey.Fingerprint{}, nil
		}}}
		got := serveDirect(t, store, created, opts, keyed(strings.NewReader("x"), value))
		if got.expect(t, 400, "key-invalid"); len(store.asked) > 0 || got.header.Get("Idempotency-Key") != "" || strings.Contains(log.String(), "Set-Cookie") {
			t.Errorf("%q: store asked for %q, header %v, log %s", value, store.asked, got.header, log)
		}
	}
	for scope, said := range map[string]string{
		"": "no scope", "secret\x00": "byte 6", "secret\nb": "byte 6", "secret\xff": "byte 6", "\ufffdsecret\x7f": "byte 9",
		strings.Repeat("secret", 50): "300 bytes, the limit is 255",
	} {
		status, code := 500, "scope-invalid"
		if scope == "" {
			status, code = 401, "scope-missing"
		}
		store, log := &watching{Store: newMemory(t, nil)}, newCapture()
		opts := idemkey.Options{Logger: log.logger(), LogKeys: true, Scope: func(*http.Request) (string, error) { return scope, nil }}
		serveDirect(t, store, created, opts, keyed(strings.NewReader("x"), "k")).expect(t, status, code)
		if len(store.asked) > 0 || strings.Contains(log.String(), "secret") || !strings.Contains(log.String(), said) {
			t.Errorf("scope %q: store asked for %q, log %s; want it to say %q", scope, store.asked, log, said)
		}
	}
}

// 8: what belongs to one exchange or one caller is never replayed.
func TestNeverReplayed(t *testing.T) {
	t.Parallel()
	private := []string{"Set-Cookie", "Authorization", "WWW-Authenticate", "Proxy-Authenticate", "Proxy-Authorization", "Connection", "Keep-Alive", "TE",
		"Trailer", "Upgrade", "Server", "Alt-Svc", "X-Unlisted"}
	s := serve(t, newMemory(t, nil), func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range private {
			w.Header().Set(name, "canary")
		}
		w.Header().Set("Etag", `"1"`)
		w.WriteHeader(201)
	}, nil)
	s.post(t, "x", "Idempotency-Key", "k").expect(t, 201, "")
	again := s.post(t, "x", "Idempotency-Key", "k")
	if all := fmt.Sprint(again.header); strings.Contains(all, "canary") || again.header.Get("Etag") != `"1"` {
		t.Errorf("replayed header = %v", again.header)
	}
}

// 13: deep JSON is compared as bytes, and an encoded body is not decoded.
func TestHostileBodies(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000) // which encoding/json would still take
	for name, tt := range map[string]struct{ body, encoding string }{
		"deep": {body: deep}, "deepest": {body: strings.Repeat(deep[:5000], 200)}, "encoded": {body: `{"a":1}`, encoding: "gzip"},
	} {
		store := newMemory(t, nil)
		ask := func(body string) reply {
			req := keyed(strings.NewReader(body), "k")
			req.Header.Set("Content-Type", "application/json")
			if tt.encoding != "" {
				req.Header.Set("Content-Encoding", tt.encoding)
			}
			return serveDirect(t, store, func(http.ResponseWriter, *http.Request) {}, idemkey.Options{}, req)
		}
		ask(tt.body).expect(t, 200, "")
		if again := ask(tt.body); again.status != 200 || again.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: a retry got %d", name, again.status)
		}
		ask(tt.body+" ").expect(t, 422, "key-reused") // bytes count where nothing was parsed
	}
}

// A trickle is a body that comes bit by bit.
type trickle struct {
	data []byte
	each func()
}

func (r *trickle) Read(p []byte) (int, error) {
	r.each()
	if len(r.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:1], r.data)
	r.data = r.data[n:]
	return n, nil
}

// 16: while a body trickles in, nothing is claimed, and no place among the
// handlers of its scope is taken.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	store := &watching{Store: newMemory(t, nil)}
	m := newMiddleware(t, store, idemkey.Options{Limits: idemkey.Limits{MaxInFlightPerScope: 1}})
	slow := keyed(&trickle{data: []byte("slow"), each: func() {
		if len(store.asked) > 0 {
			t.Errorf("claimed %v before the body was read", store.asked)
		}
		send(t, m, created, "other", "x").expect(t, 201, "") // its scope is free
		store.asked = nil
	}}, "slow")
	rec := httptest.NewRecorder()
	m.Handler(http.HandlerFunc(created)).ServeHTTP(rec, slow)
	if rec.Code != 201 || len(store.asked) != 1 || rec.Body.String() != "created slow\n" {
		t.Errorf("got %d %q and %d claims, want 201 and one", rec.Code, rec.Body, len(store.asked))
	}
}

// 19: a problem says nothing of the store, of the handler's error or of the request
// that used the key first.
func TestProblemsTellNothing(t *testing.T) {
	t.Parallel()
	const canary = "canary"
	inner := errors.New(`ERROR: duplicate key in "` + canary + `": INSERT INTO orders (SQLSTATE 23505)`)
	stored := &idemkey.Record{FP: idemkey.Fingerprint{Alg: canary, Sum: []byte(canary)},
		Response: idemkey.Response{Status: 201, Header: http.Header{"Etag": {canary}}, Body: []byte(canary)}}
	stubs := []*stub{{err: inner}, {err: fmt.Errorf("%w: %w", idemkey.ErrCapacity, inner)}, {err: fmt.Errorf("%w: %w", idemkey.ErrRecordCorrupt, inner)}}
	for _, kind := range []idemkey.Kind{idemkey.KindMismatch, idemkey.KindInFlight, idemkey.KindExpired, idemkey.KindNotRetained, idemkey.KindUnknown, idemkey.KindFingerprintUnknown} {
		stubs = append(stubs, &stub{decision: idemkey.Decision{Kind: kind, Record: stored, FPAlg: canary}})
	}
	for _, end := range []error{inner, &idemkey.CommitError{Err: inner}, idemkey.ErrLeaseLost, idemkey.ErrOutcomeUnknown, idemkey.ErrTxMisuse, idemkey.ErrTxConflict} {
		stubs = append(stubs, &stub{end: fmt.Errorf("%w: %w", end, inner)})
	}
	handler := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, canary) }
	for _, store := range append(stubs, &stub{}) {
		next := http.HandlerFunc(handler)
		if store.err == nil && store.end == nil && store.decision.Kind == 0 {
			next = func(_ http.ResponseWriter, r *http.Request) { idemkey.Fail(r.Context(), inner) }
		}
		req := keyed(strings.NewReader(canary+"-body"), canary+"-key")
		got := serveDirect(t, store, next, idemkey.Options{}, req)
		delete(got.header, "Idempotency-Key") // the echo of what this caller sent
		if all := got.body + fmt.Sprint(got.header); got.status < 400 || strings.Contains(all, canary) || strings.Contains(all, "SQLSTATE") ||
			strings.Contains(all, "63616e617279") || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%+v: answered %d %s %v", store, got.status, got.body, got.header)
		}
	}
}

// 20: a replay is kept by no cache, unless the handler allowed it.
func TestReplayNotCached(t *testing.T) {
	t.Parallel()
	for allowed, want := range map[string]string{"": "no-store", "private, max-age=60": "private, max-age=60"} {
		m := newMiddleware(t, newMemory(t, nil), idemkey.Options{})
		for i, want := range []string{allowed, want} {
			got := send(t, m, func(w http.ResponseWriter, _ *http.Request) {
				if allowed != "" {
					w.Header().Set("Cache-Control", allowed)
				}
			}, "k", "x")
			if got.header.Get("Cache-Control") != want {
				t.Errorf("response %d has Cache-Control %q, want %q", i+1, got.header.Get("Cache-Control"), want)
			}
		}
	}
}

// 22: two proxies that read different headers must not see different keys.
func TestAliasesDisagree(t *testing.T) {
	t.Parallel()
	ask := func(names ...string) reply {
		req := httptest.NewRequest("POST", "/", bytes.NewReader(nil))
		for i := 0; i < len(names); i += 2 {
			req.Header.Add(names[i], names[i+1])
		}
		store := &watching{Store: newMemory(t, nil)}
		got := serveDirect(t, store, created, idemkey.Options{Key: idemkey.KeyOptions{Aliases: []string{"X-Key", "X-Other"}}}, req)
		if got.status >= 400 && len(store.asked) > 0 {
			t.Errorf("%q: the store was asked for %v", names, store.asked)
		}
		return got
	}
	ask("Idempotency-Key", "a", "X-Key", "a").expect(t, 201, "")
	ask("Idempotency-Key", "a", "X-Other", `"a"`).expect(t, 201, "")
	ask("Idempotency-Key", "a", "X-Key", "b").expect(t, 400, "key-invalid")
	ask("X-Key", "a", "X-Other", "b").expect(t, 400, "key-invalid")
	ask("X-Key", "a", "X-Key", "a").expect(t, 400, "key-invalid")
	ask("Idempotency-Key", "a", "X-Key", "").expect(t, 400, "key-invalid")
}

// 27: a preflight and a read pass as if there was no middleware, whatever key they carry.
func TestPreflight(t *testing.T) {
	t.Parallel()
	store := &watching{Store: newMemory(t, nil)}
	for _, method := range []string{"OPTIONS", "GET", "HEAD"} {
		req := httptest.NewRequest(method, "/", nil)
		req.Header["Idempotency-Key"] = []string{"a", "b\r\n"}
		got := serveDirect(t, store, func(w http.ResponseWriter, r *http.Request) {
			if _, flusher := w.(http.Flusher); !flusher || r != req {
				t.Errorf("%s does not reach its handler as it came", method)
			}
			w.WriteHeader(204)
		}, idemkey.Options{}, req)
		if got.status != 204 || len(store.asked) > 0 {
			t.Errorf("%s: %d, store asked for %v", method, got.status, store.asked)
		}
	}
}

// 28: a run without protection is an error in the log and an event of its own.
func TestFailOpenIsLoud(t *testing.T) {
	t.Parallel()
	log, seen := newCapture(), &recorder{}
	m := newMiddleware(t, &stub{err: errors.New("down")}, idemkey.Options{FailOpen: true, Logger: log.logger(), Observer: seen})
	got := send(t, m, created, "k", "x")
	if got.expect(t, 201, ""); got.header.Get("Idempotency-Key") != "" {
		t.Errorf("header = %v, want no promise of a replay", got.header)
	}
	if line := log.String(); !strings.Contains(line, `"level":"ERROR"`) || !strings.Contains(line, `"result":"fail_open"`) || !strings.Contains(line, `"error":"down"`) {
		t.Errorf("log = %s", line)
	}
	if len(seen.events) != 1 || seen.events[0].Result != idemkey.ResultFailOpen || !slices.Contains(seen.told, "failed begin") {
		t.Errorf("told %q of %+v", seen.told, seen.events)
	}
}
