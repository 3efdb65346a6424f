package idemkey

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"
)

// serveBuffered runs handler behind a middleware with small limits and returns
// what two requests with one key are answered.
func serveBuffered(t *testing.T, handler http.HandlerFunc) (first, second *http.Response) {
	t.Helper()
	store, err := NewMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(store, &Options{SingleTenant: true, Limits: Limits{MaxResponseBody: 8, HardResponseLimit: 16}, Response: ResponseOptions{KeepHeaders: []string{"X-Kept"}}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Outer", "1")
		w.Header().Set("Vary", "Origin")
		m.Handler(handler).ServeHTTP(w, r)
	})
	s := httptest.NewServer(outer)
	t.Cleanup(s.Close)
	send := func() *http.Response {
		early := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(int, textproto.MIMEHeader) error { early++; return nil },
		})
		req, _ := http.NewRequestWithContext(ctx, "POST", s.URL, strings.NewReader("x"))
		req.Header.Set("Idempotency-Key", "k")
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		resp.Header.Set("Test-Body", string(data))
		resp.Header.Set("Test-Early", strings.Repeat("x", early))
		return resp
	}
	return send(), send()
}

// Nothing gets past the buffer: no flush, no hijack, no way to the connection.
func TestBufferLeaksNothing(t *testing.T) {
	t.Parallel()
	first, second := serveBuffered(t, func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if err := c.Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Flush: %v", err)
		}
		if _, _, err := c.Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack: %v", err)
		}
		if _, ok := w.(http.Flusher); ok {
			t.Error("the writer is a Flusher")
		}
		if _, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
			t.Error("the writer can be unwrapped")
		}
		if err := errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{}), c.EnableFullDuplex()); err != nil {
			t.Errorf("deadlines: %v", err)
		}
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Kept", "1")
		w.Header().Set("Content-Length", "3")
		w.WriteHeader(http.StatusAccepted)
		w.WriteHeader(http.StatusTeapot)
		w.Header().Set("X-Kept", "2")
		w.Header().Set("X-Sum", "1")
		_, _ = io.WriteString(w, "<html>")
	})
	for _, resp := range []*http.Response{first, second} {
		h := resp.Header
		if resp.StatusCode != 202 || h.Get("Test-Body") != "<html>" || h.Get("X-Kept") != "1" || h.Get("X-Outer") != "1" || h.Get("Vary") != "Origin" ||
			h.Get("Content-Type") != "text/html; charset=utf-8" || h.Get("Link") != "" || len(resp.Trailer) > 0 || resp.ContentLength != 6 {
			t.Errorf("response = %d %v %v", resp.StatusCode, h, resp.Trailer)
		}
	}
	if first.Header.Get("Test-Early") != "x" || second.Header.Get("Test-Early") != "" {
		t.Error("early hints must be sent once, and not replayed")
	}
}

// A response over the limit is sent once, and a tombstone kept. One over the hard limit is kept
// the same way, but not sent, unless its status says that it failed.
func TestBufferLimits(t *testing.T) {
	t.Parallel()
	first, second := serveBuffered(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "over eight") })
	if first.StatusCode != 200 || first.Header.Get("Test-Body") != "over eight" || second.StatusCode != 410 {
		t.Errorf("over the limit: %d %q, then %d; want 200 and 410", first.StatusCode, first.Header.Get("Test-Body"), second.StatusCode)
	}
	for status, again := range map[int]int{200: 410, 404: 410, 503: 500} {
		first, second = serveBuffered(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			if _, err := io.WriteString(w, strings.Repeat("x", 17)); !errors.Is(err, errResponseTooLarge) {
				t.Errorf("Write: %v", err)
			}
		})
		if first.StatusCode != 500 || second.StatusCode != again || !strings.Contains(first.Header.Get("Test-Body"), "HardResponseLimit, 16 bytes") {
			t.Errorf("%d over the hard limit: %d %s, then %d; want 500 with the limit, then %d", status, first.StatusCode, first.Header.Get("Test-Body"), second.StatusCode, again)
		}
	}
	first, second = serveBuffered(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Kept", strings.Repeat("x", MaxStoredHeader))
	})
	if first.StatusCode != 200 || second.StatusCode != 410 {
		t.Errorf("headers over the limit: %d, then %d; want 200 and 410", first.StatusCode, second.StatusCode)
	}
}

func TestBufferNoBody(t *testing.T) {
	t.Parallel()
	first, second := serveBuffered(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
			t.Errorf("Write: %v", err)
		}
	})
	for _, resp := range []*http.Response{first, second} {
		if resp.StatusCode != 204 || resp.Header.Get("Content-Length") != "" {
			t.Errorf("response = %d %v", resp.StatusCode, resp.Header)
		}
	}
	silent, _ := serveBuffered(t, func(http.ResponseWriter, *http.Request) {})
	if silent.StatusCode != 200 {
		t.Errorf("a handler that writes nothing: %d, want 200", silent.StatusCode)
	}
}

// What goes out with early hints is not left behind for another answer.
func TestBufferEarlyHints(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	b := newBuffer(rec, 1, nil)
	b.Header().Set("Link", "</style.css>")
	b.WriteHeader(http.StatusEarlyHints)
	if rec.Header().Get("Link") != "" {
		t.Errorf("header after early hints = %v", rec.Header())
	}
}

// An invalid status panics in the handler, as in net/http, and not after a commit.
func TestBufferInvalidStatus(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("WriteHeader(1000) did not panic")
		}
	}()
	newBuffer(httptest.NewRecorder(), 1, nil).WriteHeader(1000)
}

// Goroutines of a handler's may write at once, and none of it is lost.
func TestBufferBeside(t *testing.T) {
	t.Parallel()
	const writers, each = 4, 1000
	b := newBuffer(httptest.NewRecorder(), writers*each, nil)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				if _, err := io.WriteString(b, "x"); err != nil {
					t.Errorf("Write: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if b.finishResponse(); len(b.body) != writers*each {
		t.Errorf("%d bytes, want %d", len(b.body), writers*each)
	}
	if err := b.SetWriteDeadline(time.Time{}); !errors.Is(err, ErrSettled) {
		t.Errorf("SetWriteDeadline of what is settled: %v, want ErrSettled", err)
	}
}

// A deadlined writer has a deadline.
type deadlined struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (d *deadlined) SetWriteDeadline(at time.Time) error { d.deadline = at; return nil }

// A stream that is cut while it begins does not go on.
func TestStreamCutWhileItBegins(t *testing.T) {
	t.Parallel()
	raw := &deadlined{ResponseRecorder: httptest.NewRecorder()}
	s := &stream{buffer: newBuffer(raw, 100, nil)}
	s.start = func() (bool, error) { s.cutConnection(); return true, nil }
	if _, err := s.Write([]byte("late")); !errors.Is(err, ErrSettled) {
		t.Errorf("Write = %v, want ErrSettled", err)
	}
	if raw.deadline.IsZero() || raw.Body.Len() > 0 {
		t.Errorf("deadline %v, sent %q; want a deadline and nothing", raw.deadline, raw.Body)
	}
}
