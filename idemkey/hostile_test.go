package idemkey

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

func sumOf(t *testing.T, o *Options, header map[string]string, body string) string {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/pay", strings.NewReader(body))
	for name, value := range header {
		r.Header.Set(name, value)
	}
	o.prepareLookups()
	fp, err := o.fingerprintOf(r, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return string(fp.Sum)
}

// Each pair is two requests that Go's own readers give a handler differently.
func TestFingerprintsDiffer(t *testing.T) {
	t.Parallel()
	part := func(header, content string) string {
		return "--b\r\n" + header + "\r\n\r\n" + content + "\r\n--b--\r\n"
	}
	form := map[string]string{"Content-Type": "application/x-www-form-urlencoded"}
	mixed := map[string]string{"Content-Type": "multipart/form-data; boundary=b"}
	for name, c := range map[string]struct {
		ha, hb map[string]string
		a, b   string
	}{
		// encoding/json matches names without case, and the last one wins: 2 against 1
		"json case":      {map[string]string{"Content-Type": "application/json"}, nil, `{"amount":1,"Amount":2}`, `{"Amount":2,"amount":1}`},
		"form semicolon": {form, nil, "to=a&amount=1;x", "to=a&amount=1%3Bx"}, // url.ParseQuery drops the first
		"part encoding": {mixed, nil, part(`Content-Disposition: form-data; name="m"`, "a=3D1"),
			part("Content-Disposition: form-data; name=\"m\"\r\nContent-Transfer-Encoding: quoted-printable", "a=3D1")},
		"part disposition": {mixed, nil, part(`Content-Disposition: form-data; name="m"`, "1"), part(`Content-Disposition: attachment; name="m"`, "1")},
		"content encoding": {map[string]string{"Content-Type": "application/octet-stream"},
			map[string]string{"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}, "\x1f\x8b", "\x1f\x8b"},
	} {
		if c.hb == nil {
			c.hb = c.ha
		}
		if sumOf(t, &Options{}, c.ha, c.a) == sumOf(t, &Options{}, c.hb, c.b) {
			t.Errorf("%s: one fingerprint for two requests", name)
		}
	}
}

// A member's path is not kept at each depth: 1 MiB of body would cost hundreds.
func TestPathsDoNotAddUp(t *testing.T) {
	const depth = 500
	name := strings.Repeat("n", 2000)
	body := []byte(strings.Repeat(`{"`+name+`":`, depth) + "1" + strings.Repeat("}", depth))
	if len(body) > 1<<20 {
		t.Fatalf("body is %d bytes, over the default limit", len(body))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, ok := canonicalJSON(body, newFieldSet([]string{"sentAt", "a[].b"}, nil))
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
		t.Errorf("ok=%v: %d MiB allocated for a body of %d KiB", ok, used>>20, len(body)>>10)
	}
}

// What could not be read again is not stored: the answer to a payment would be lost.
func TestStoredHeadersAreReadable(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"attachment; filename=\"a\x7f.pdf\"", "/o/a\r\nb", "/o/a\x01"} {
		r := Response{Status: 201, Header: http.Header{"Content-Disposition": {value}}}
		data, err := r.MarshalHeader()
		if err != nil {
			continue // refused before the commit: fine
		}
		if err := r.UnmarshalHeader(data); err != nil {
			t.Errorf("%q was stored and cannot be replayed: %v", value, err)
		}
	}
}

// A handler that hands on what another idempotent service answered claims no replay.
func TestFirstIsNoReplay(t *testing.T) {
	t.Parallel()
	s, err := NewMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(s, &Options{SingleTenant: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/pay", bytes.NewReader(nil))
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Idempotent-Replayed", "true") // as a proxy copies it
		w.WriteHeader(201)
	})).ServeHTTP(w, r)
	if w.Header().Get("Idempotent-Replayed") == "true" {
		t.Error("a first response says that it is a replay")
	}
}

// downStore cannot keep anything.
type downStore struct{ *Memory }

type downExec struct{ Execution }

func (s downStore) Begin(ctx context.Context, c Claim) (Decision, error) {
	d, err := s.Memory.Begin(ctx, c)
	if d.Exec != nil {
		d.Exec = downExec{d.Exec}
	}
	return d, err
}
func (s downStore) Traits() Traits { return Traits{LiveOwners: true} }
func (downExec) Commit(context.Context, Response) error {
	return ErrNotStored
}

// Where the beginning of a stream cannot be kept, the key is not released: what
// the handler did until then stands. That it panics over the failed Write changes nothing.
func TestStreamNotStartedPanics(t *testing.T) {
	t.Parallel()
	for _, panics := range []bool{false, true} {
		memory, err := NewMemory(nil)
		if err != nil {
			t.Fatal(err)
		}
		m, err := New(downStore{memory}, &Options{SingleTenant: true, Response: ResponseOptions{AllowStreaming: true}, ExternalEffects: true, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		runs := 0
		h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			runs++ // the external effect
			if _, err := w.Write([]byte("x")); err != nil && panics {
				panic(http.ErrAbortHandler)
			}
		}))
		for range 2 {
			func() {
				defer func() { _ = recover() }()
				r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
				r.Header.Set("Idempotency-Key", "k")
				h.ServeHTTP(httptest.NewRecorder(), r)
			}()
		}
		if runs != 1 {
			t.Errorf("panics=%t: %d runs while the first one's effects stand", panics, runs)
		}
	}
}

// What one body of 1 MiB, the default limit, costs before anything is claimed. A
// part of nine bytes makes a header, a reader and a hash.
func TestCostOfBody(t *testing.T) {
	const size = 1<<20 - 16
	form := "application/x-www-form-urlencoded"
	for name, c := range map[string]struct{ typ, body string }{
		"multipart":   {"multipart/form-data; boundary=b", strings.Repeat("--b\r\n\r\n\r\n", size/9) + "--b--\r\n"},
		"form":        {form, strings.Repeat("a&", size/2)},
		"json array":  {"application/json", "[" + strings.Repeat("0,", size/2) + "0]"},
		"json object": {"application/json", "[" + strings.Repeat(`{},`, size/3) + "0]"},
		"json nested": {"application/json", strings.Repeat("[", 500) + strings.Repeat("0,", size/2-500) + "0" + strings.Repeat("]", 500)},
		"plain":       {"text/plain", strings.Repeat("a", size)},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		sumOf(t, &Options{}, map[string]string{"Content-Type": c.typ}, c.body)
		runtime.ReadMemStats(&after)
		allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
		if allocated > 128 {
			t.Errorf("%s: %d MiB allocated for one body of 1 MiB", name, allocated)
		}
	}
}

// A handler may serve other requests by its own context, as a batch endpoint does. They are requests of
// their own: with their own bodies, also where the outer one is kept by Outer, and mounted once.
func TestRequestsWithinARequest(t *testing.T) {
	t.Parallel()
	s, err := NewMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(s, &Options{SingleTenant: true, Key: KeyOptions{Optional: true}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	echo := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	}))
	inner := func(ctx context.Context, body, key string) string {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/one", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		w := httptest.NewRecorder()
		echo.ServeHTTP(w, r)
		return w.Result().Status + " " + w.Body.String()
	}
	batch := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		outer := r.Header.Get("Idempotency-Key")
		for _, body := range []string{"one", "xtwo", "batch", ""} { // the third is what was sent, the fourth the rest of it
			for _, key := range []string{outer + "-" + body, ""} {
				if got := inner(r.Context(), body, key); got != "200 OK "+body {
					t.Errorf("within %q: %q under key %q was answered %q", outer, body, key, got)
				}
			}
		}
	})
	for key, h := range map[string]http.Handler{"outer": m.Outer(batch), "keyed": m.Outer(m.Handler(batch)), "": m.Handler(batch)} {
		r := httptest.NewRequest(http.MethodPost, "/batch", strings.NewReader("batch"))
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
}
