package idemkey_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// What is stored and what is replayed can both differ from what was answered.
func TestStoredAndReplayed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		opts   idemkey.Options
		status int
		body   string // of a replay
	}{
		{"redact", idemkey.Options{Response: idemkey.ResponseOptions{Redact: func(_ *http.Request, r *idemkey.Response) {
			r.Body[0] = 'X'
			r.Header.Set("Set-Cookie", "secret")
		}}}, 201, "Xreated x\n"},
		{"no body", idemkey.Options{Response: idemkey.ResponseOptions{NoStoreBody: true}}, 410, ""},
		{"hook", idemkey.Options{Response: idemkey.ResponseOptions{ReplayHook: func(_ *http.Request, r *idemkey.Response) error {
			r.Status, r.Body = 200, []byte("rebuilt")
			return nil
		}}}, 200, "rebuilt"},
		{"hook fails", idemkey.Options{Response: idemkey.ResponseOptions{ReplayHook: func(*http.Request, *idemkey.Response) error {
			return &idemkey.Problem{Status: 404, Code: "gone"}
		}}}, 404, ""},
		{"sealed", idemkey.Options{Response: idemkey.ResponseOptions{Sealer: newSealer(t, "a", "a")}}, 201, "created x\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.opts.Response.EmitReplayedFalse = true
			m := newMiddleware(t, newMemory(t, nil), tt.opts)
			first := send(t, m, created, "k", "x")
			if first.status != 201 || first.body != "created x\n" || first.header.Get("Idempotent-Replayed") != "false" {
				t.Errorf("first = %+v", first)
			}
			for range 2 {
				again := send(t, m, created, "k", "x")
				if again.status != tt.status || tt.body != "" && again.body != tt.body || again.header.Get("Set-Cookie") != "" {
					t.Errorf("replay = %+v, want %d %q", again, tt.status, tt.body)
				}
			}
		})
	}
}

// With KeepAllHeaders, a replay and an answer of Recover have all headers but those of one connection or one caller.
func TestKeepAllHeaders(t *testing.T) {
	t.Parallel()
	full := http.Header{"Content-Type": {"text/plain"}, "X-Charge": {"1", "2"}, "Request-Id": {"r"}, "Connection": {"close, x-hop", "X-Next"},
		"X-Hop": {"h"}, "X-Next": {"n"}, "Keep-Alive": {"timeout=5"}, "Set-Cookie": {"a=b"}, "Set-Cookie2": {"a=b"}, "Authentication-Info": {"n"},
		"Www-Authenticate": {"Basic"}, "Proxy-Authenticate": {"Basic"}, "Server": {"s"}, "Alt-Svc": {"h3"}, "Date": {"yesterday"},
		"Idempotent-Replayed": {"no"}, "Idempotency-Key": {"of the upstream"}, "x-raw": {"r"}, "X Bad": {"b"}}
	kept := []string{"Content-Type", "Request-Id", "X-Charge"}
	seen := &idemkey.Response{}
	m := newMiddleware(t, newMemory(t, nil), idemkey.Options{
		Recover: func(context.Context, idemkey.Identity) (*idemkey.Response, error) {
			return &idemkey.Response{Status: 201, Header: full.Clone()}, nil
		},
		Response: idemkey.ResponseOptions{KeepAllHeaders: true, Redact: func(_ *http.Request, s *idemkey.Response) { *seen = *s }},
	})
	for key, verdict := range map[string]idemkey.Verdict{"kept": idemkey.Keep, "recovered": idemkey.Unknown} {
		first := send(t, m, func(w http.ResponseWriter, r *http.Request) {
			maps.Copy(w.Header(), full.Clone())
			idemkey.SetVerdict(r.Context(), verdict)
		}, key, "x")
		if first.header.Get("X-Hop") != "h" || first.header.Get("Set-Cookie") != "a=b" {
			t.Errorf("%s: the first answer has the headers %v, want all of the handler's", key, first.header)
		}
		again := send(t, m, created, key, "x")
		if got := slices.Sorted(maps.Keys(seen.Header)); !slices.Equal(got, kept) {
			t.Errorf("%s: stored headers %q, want %q", key, got, kept)
		}
		if !slices.Equal(again.header["X-Charge"], full["X-Charge"]) || again.header.Get("Idempotent-Replayed") != "true" || again.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: replay = %d %v", key, again.status, again.header)
		}
	}
}

func newSealer(t *testing.T, current string, keys ...string) *idemkey.AEADSealer {
	t.Helper()
	s := &idemkey.AEADSealer{Current: current, Keys: map[string]cipher.AEAD{}}
	for _, name := range keys {
		block, err := aes.NewCipher([]byte(strings.Repeat(name, 32)))
		if err != nil {
			t.Fatal(err)
		}
		if s.Keys[name], err = cipher.NewGCM(block); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// A sealed body is unreadable in the store, opens with an older key, and is
// never answered by another run where it does not open.
func TestSealer(t *testing.T) {
	t.Parallel()
	store := newMemory(t, nil)
	m := newMiddleware(t, store, idemkey.Options{Response: idemkey.ResponseOptions{Sealer: newSealer(t, "a", "a")}})
	first := send(t, m, created, "k", "x")
	rec := store.Stored(idemkey.Identity{Namespace: "http", Scope: "default", Key: "k"})
	if strings.Contains(string(rec.Response.Body), "created") || rec.Response.KeyID != "a" {
		t.Errorf("stored %q under key %q, want it sealed with a", rec.Response.Body, rec.Response.KeyID)
	}
	rotated := newMiddleware(t, store, idemkey.Options{Response: idemkey.ResponseOptions{Sealer: newSealer(t, "b", "a", "b")}})
	send(t, rotated, created, "k", "x").sameAs(t, first)
	for _, sealer := range []idemkey.Sealer{nil, newSealer(t, "b", "b")} {
		without := newMiddleware(t, store, idemkey.Options{Response: idemkey.ResponseOptions{Sealer: sealer}})
		send(t, without, created, "k", "x").expect(t, 500, "record-corrupt")
	}
	send(t, m, created, "other", "x").expect(t, 201, "")
	store.Swap(rec.Response, idemkey.Identity{Namespace: "http", Scope: "default", Key: "other"})
	send(t, m, created, "other", "x").expect(t, 500, "record-corrupt")
}

// Without a working sealer nothing is stored in the clear: where writes roll
// back, the request fails; elsewhere it is remembered without its body.
func TestSealerFails(t *testing.T) {
	t.Parallel()
	broken := newSealer(t, "none")
	m := newMiddleware(t, newMemory(t, nil), idemkey.Options{Response: idemkey.ResponseOptions{Sealer: broken}})
	send(t, m, created, "k", "x").expect(t, 201, "")
	send(t, m, created, "k", "x").expect(t, 410, "response-not-retained")
	m = newMiddleware(t, describing{&stub{}, idemkey.Traits{Transactional: true}}, idemkey.Options{Response: idemkey.ResponseOptions{Sealer: broken}})
	send(t, m, created, "k", "x").expect(t, 500, "internal")
}

// With ScopeByRoute a key is new on each route, otherwise it is a mismatch.
func TestScopeByRoute(t *testing.T) {
	t.Parallel()
	for _, byRoute := range []bool{false, true} {
		m := newMiddleware(t, newMemory(t, nil), idemkey.Options{ScopeByRoute: byRoute})
		mux := http.NewServeMux()
		mux.Handle("POST /a/{id}", m.Handler(http.HandlerFunc(created)))
		mux.Handle("POST /b", m.Handler(http.HandlerFunc(created)))
		for path, want := range map[string]int{"/a/1": 201, "/b": 0} {
			if want == 0 && byRoute {
				want = 201
			}
			for range 2 {
				req := httptest.NewRequest("POST", path, strings.NewReader("x"))
				req.Header.Set("Idempotency-Key", "k"+map[bool]string{true: "", false: path}[byRoute])
				rec := httptest.NewRecorder()
				mux.ServeHTTP(rec, req)
				if rec.Code != 201 {
					t.Errorf("%s: %d, want 201", path, rec.Code)
				}
			}
		}
		req := httptest.NewRequest("POST", "/a/2", strings.NewReader("x"))
		req.Header.Set("Idempotency-Key", "k"+map[bool]string{true: "", false: "/a/1"}[byRoute])
		rec := httptest.NewRecorder()
		mux.ServeHTTP(rec, req)
		if rec.Code != 422 {
			t.Errorf("another path of the same route: %d, want 422", rec.Code)
		}
	}
}

func TestIncludeFields(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newMemory(t, nil), idemkey.Options{Fingerprint: idemkey.FingerprintOptions{IncludeFields: []string{"$.order.id", "items"}}})
	body := func(json string) reply {
		req := httptest.NewRequest("POST", "/", strings.NewReader(json))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "k")
		rec := httptest.NewRecorder()
		m.Handler(http.HandlerFunc(created)).ServeHTTP(rec, req)
		return reply{rec.Code, rec.Result().Header, rec.Body.String()}
	}
	body(`{"order":{"id":1,"at":"x"},"items":[{"a":1}]}`).expect(t, 201, "")
	body(`{"order":{"id":1,"at":"y"},"items":[{"a":1}],"z":0}`).expect(t, 201, "")
	body(`{"order":{"id":2,"at":"x"},"items":[{"a":1}]}`).expect(t, 422, "key-reused")
	body(`{"order":{"id":1,"at":"x"},"items":[{"a":2}]}`).expect(t, 422, "key-reused")
}

// A counting store counts claims.
type counting struct {
	*idemkey.Memory
	begins int
}

func (c *counting) Begin(ctx context.Context, claim idemkey.Claim) (idemkey.Decision, error) {
	c.begins++
	return c.Memory.Begin(ctx, claim)
}

// A cached response spares the store, for its retries only and not beyond its life.
func TestLocalReplays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &counting{Memory: newMemory(t, nil)}
		scope := func(r *http.Request) (string, error) { return r.Header.Get("Tenant"), nil }
		m := newMiddleware(t, store, idemkey.Options{Response: idemkey.ResponseOptions{LocalReplays: 2}, Limits: idemkey.Limits{TTL: 90 * time.Second}, Scope: scope})
		ask := func(tenant, key, body string, status, begins int) {
			t.Helper()
			req := httptest.NewRequest("POST", "/", strings.NewReader(body))
			req.Header.Set("Idempotency-Key", key)
			req.Header.Set("Tenant", tenant)
			rec := httptest.NewRecorder()
			m.Handler(http.HandlerFunc(created)).ServeHTTP(rec, req)
			if rec.Code != status || store.begins != begins {
				t.Errorf("%s %s %s: %d after %d claims, want %d after %d", tenant, key, body, rec.Code, store.begins, status, begins)
			}
		}
		ask("a", "k", "x", 201, 1)
		ask("a", "k", "x", 201, 1) // cached
		ask("b", "k", "x", 201, 2) // another tenant's
		ask("a", "k", "y", 422, 3) // another request
		ask("a", "k", "x", 201, 3)
		ask("a", "2", "x", 201, 4) // b's is the one not used for longest
		ask("a", "k", "x", 201, 4)
		ask("b", "k", "x", 201, 5)
		ask("a", "2", "x", 201, 6) // put out in turn
		time.Sleep(time.Minute)
		ask("a", "2", "x", 201, 7) // from the store, with 30 s left
		time.Sleep(29 * time.Second)
		ask("a", "2", "x", 201, 7)
		time.Sleep(time.Second)
		ask("a", "2", "z", 201, 8) // expired: new again
	})
}

// What an older record or a hook has in the middleware's own headers is not replayed.
func TestReplayHasItsOwnHeaders(t *testing.T) {
	t.Parallel()
	store := newMemory(t, nil)
	other := strings.ToLower("Idempotent-Replayed") // spelling
	m := newMiddleware(t, store, idemkey.Options{Response: idemkey.ResponseOptions{ReplayHook: func(_ *http.Request, r *idemkey.Response) error {
		r.Header.Set("Idempotency-Key", "stored")
		r.Header[other] = []string{"false"}
		return nil
	}}})
	send(t, m, created, "k", "x").expect(t, 201, "")
	again := send(t, m, created, "k", "x")
	if key, replayed := again.header.Values("Idempotency-Key"), again.header.Values("Idempotent-Replayed"); !slices.Equal(key, []string{"k"}) ||
		!slices.Equal(replayed, []string{"true"}) || again.header[other] != nil {
		t.Errorf("replay has key %q and replayed %q in %v", key, replayed, again.header)
	}
}
