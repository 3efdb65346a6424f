package idemkey_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// A streamed response arrives as it is written, and its tombstone is there
// before its first byte is.
func TestStream(t *testing.T) {
	t.Parallel()
	more := make(chan struct{})
	s := serve(t, newMemory(t, nil), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/orders/1")
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "one ")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("Flush: %v", err)
		}
		<-more
		w.Header().Set("X-Sum", "1")
		_, _ = io.WriteString(w, "two")
		w.(http.Flusher).Flush()
	}, func(o *idemkey.Options) { o.Response.AllowStreaming, o.Response.EmitReplayedFalse = true, true })
	req, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/orders", strings.NewReader("x"))
	req.Header.Set("Idempotency-Key", "k")
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, 4)
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "one " || resp.StatusCode != 201 || resp.Header.Get("Idempotent-Replayed") != "false" {
		t.Errorf("first part = %d %q, %v, header %v", resp.StatusCode, first, err, resp.Header)
	}
	retry := s.post(t, "x", "Idempotency-Key", "k") // while the handler runs
	retry.expect(t, 410, "response-not-retained")
	if retry.header.Get("Location") != "/orders/1" || !strings.Contains(retry.body, `"original_status":201`) {
		t.Errorf("retry = %+v", retry)
	}
	close(more)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "two" || len(resp.Trailer) > 0 {
		t.Errorf("rest = %q, %v, trailer %v", rest, err, resp.Trailer)
	}
	s.post(t, "x", "Idempotency-Key", "k").expect(t, 410, "response-not-retained")
}

// What is no success with a body, or is not to be kept, is buffered as ever.
func TestStreamBuffers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status  int
		body    string
		verdict idemkey.Verdict
		again   int
	}{
		"empty":       {201, "", 0, 201},
		"no content":  {204, "", 0, 204},
		"redirect":    {303, "see", 0, 303},
		"refused":     {422, "no", 0, 422},
		"failed":      {500, "oops", 0, 299},
		"retryable":   {200, "later", idemkey.Retryable, 299},
		"amendable":   {200, "again", idemkey.Amendable, 299},
		"commit":      {402, "declined", idemkey.CommitAnyway, 402},
		"nothing yet": {0, "", 0, 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs := 0
			s := serve(t, newMemory(t, nil), func(w http.ResponseWriter, r *http.Request) {
				if runs++; runs > 1 {
					w.WriteHeader(299)
					return
				}
				idemkey.SetVerdict(r.Context(), tt.verdict)
				if tt.status != 0 {
					w.WriteHeader(tt.status)
				}
				if tt.body == "" {
					return
				}
				_, _ = io.WriteString(w, tt.body)
				if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
					t.Errorf("Flush: %v, want ErrNotSupported", err)
				}
			}, func(o *idemkey.Options) { o.Response.AllowStreaming = true })
			s.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			s.post(t, "x", "Idempotency-Key", "k")
			again := s.post(t, "x", "Idempotency-Key", "k")
			if again.expect(t, tt.again, ""); tt.again != 299 && again.body != tt.body {
				t.Errorf("replay = %q, want %q", again.body, tt.body)
			}
		})
	}
}

// However a handler fails after the first byte, its client sees a response that
// was cut off, and a retry never runs it again.
func TestStreamCut(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*http.Request){
		"panic":   func(*http.Request) { panic("of the handler") },
		"abort":   func(*http.Request) { panic(http.ErrAbortHandler) },
		"goexit":  func(*http.Request) { runtime.Goexit() },
		"error":   func(r *http.Request) { idemkey.Fail(r.Context(), errors.New("broken")) },
		"timeout": func(r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs, log := 0, newCapture()
			s := serve(t, newMemory(t, nil), func(w http.ResponseWriter, r *http.Request) {
				runs++
				_, _ = io.WriteString(w, "half")
				_ = http.NewResponseController(w).Flush()
				fail(r)
			}, func(o *idemkey.Options) {
				o.Response.AllowStreaming, o.Logger = true, log.logger()
				if name == "timeout" {
					o.Limits.ExecTimeout = 50 * time.Millisecond
				}
			})
			req, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/orders", strings.NewReader("x"))
			req.Header.Set("Idempotency-Key", "k")
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if data, err := io.ReadAll(resp.Body); err == nil || string(data) != "half" {
				t.Errorf("body = %q, %v; want it cut off", data, err)
			}
			s.post(t, "x", "Idempotency-Key", "k").expect(t, 410, "response-not-retained")
			s.Close()
			if runs != 1 {
				t.Errorf("the handler ran %d times", runs)
			}
			if e := s.events[0]; e.Status != 200 || e.Outcome != idemkey.OutcomeKept || e.Err == nil || !strings.Contains(log.String(), `"level":"ERROR"`) {
				t.Errorf("event = %+v, log %s", e, log)
			}
		})
	}
}

// Where the tombstone cannot be kept, nothing of a success is sent.
func TestStreamNotStarted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end     error
		status  int
		code    string
		outcome idemkey.Outcome
	}{
		"store down": {idemkey.ErrNotStored, 503, "store-unavailable", idemkey.OutcomeUnkept},
		"lease lost": {errors.Join(idemkey.ErrNotStored, idemkey.ErrLeaseLost), 409, "in-progress", idemkey.OutcomeLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &releasing{stub: stub{end: tt.end}}
			s := serve(t, store, func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.WriteString(w, "one"); !errors.Is(err, tt.end) {
					t.Errorf("Write: %v, want the store's error", err)
				}
				if _, err := io.WriteString(w, "two"); !errors.Is(err, tt.end) {
					t.Errorf("second Write: %v, want the store's error", err)
				}
				if !errors.Is(context.Cause(r.Context()), tt.end) {
					t.Errorf("cause = %v, want the store's error", context.Cause(r.Context()))
				}
			}, func(o *idemkey.Options) { o.Response.AllowStreaming = true })
			s.post(t, "x", "Idempotency-Key", "k").expect(t, tt.status, tt.code)
			s.Close()
			if store.released || s.events[0].Outcome != tt.outcome {
				t.Errorf("released %t, outcome %q; want false, %q", store.released, s.events[0].Outcome, tt.outcome)
			}
		})
	}
}

// An observer, or a writer, that panics while a stream begins leaves a request that is answered, or cut, and not settled twice:
// a recoverer between the handler and its writer swallows the panic.
func TestAPanicWhileAStreamBegins(t *testing.T) {
	t.Parallel()
	handler := func(w http.ResponseWriter, _ *http.Request) {
		defer func() { _ = recover() }()
		_, _ = io.WriteString(w, "one")
	}
	t.Run("observer", func(t *testing.T) {
		t.Parallel()
		store := &releasing{stub: stub{end: idemkey.ErrNotStored}}
		s := serve(t, store, handler, func(o *idemkey.Options) {
			o.Response.AllowStreaming = true
			o.Observer = bursting{told: make(chan struct{}, 1)}
		})
		s.post(t, "x", "Idempotency-Key", "k").expect(t, 503, "store-unavailable")
		if store.released {
			t.Error("the key was released although the effects stand")
		}
	})
	t.Run("writer", func(t *testing.T) {
		t.Parallel()
		idem, err := idemkey.New(newMemory(t, nil), &idemkey.Options{SingleTenant: true, Response: idemkey.ResponseOptions{AllowStreaming: true}})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		r.Header.Set("Idempotency-Key", "k")
		w := &headerless{httptest.NewRecorder()}
		idem.Handler(http.HandlerFunc(handler)).ServeHTTP(w, r)
		if w.Body.Len() > 0 {
			t.Errorf("sent %q after its header was not", w.Body)
		}
	})
}

// A headerless writer panics when the first byte is to be sent.
type headerless struct{ *httptest.ResponseRecorder }

func (w *headerless) WriteHeader(int) { panic("no header") }

// A releasing store tells whether a key was released.
type releasing struct {
	stub
	released bool
}

func (s *releasing) Begin(context.Context, idemkey.Claim) (idemkey.Decision, error) {
	return idemkey.Decision{Kind: idemkey.KindProceed, Attempt: 1, Exec: s}, nil
}

func (s *releasing) Release(context.Context, idemkey.ReleaseMode, int) error {
	s.released = true
	return nil
}

// A streamed response needs no lease: its record is complete from the first byte on.
func TestStreamOutlivesLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMiddleware(t, newMemory(t, nil), idemkey.Options{Response: idemkey.ResponseOptions{AllowStreaming: true}, Limits: idemkey.Limits{Lease: 3 * time.Second, ExecTimeout: time.Hour}})
		got := send(t, m, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "one ")
			select {
			case <-r.Context().Done():
				t.Errorf("handler cancelled: %v", context.Cause(r.Context()))
			case <-time.After(time.Minute):
			}
			_, _ = io.WriteString(w, "two")
		}, "k", "x")
		if got.body != "one two" {
			t.Errorf("body = %q", got.body)
		}
	})
}

// A client that cannot tell the end of a stream from its breaking off gets the response in one piece.
func TestStreamHTTP10(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newMemory(t, nil), idemkey.Options{Response: idemkey.ResponseOptions{AllowStreaming: true}})
	req := httptest.NewRequest("POST", "/", strings.NewReader("x"))
	req.Proto, req.ProtoMinor = "HTTP/1.0", 0
	req.Header.Set("Idempotency-Key", "k")
	rec := httptest.NewRecorder()
	m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "one")
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Flush: %v, want ErrNotSupported", err)
		}
	})).ServeHTTP(rec, req)
	if rec.Body.String() != "one" || rec.Header().Get("Content-Length") != "3" {
		t.Errorf("response = %q, header %v", rec.Body, rec.Header())
	}
}

// A client that reads nothing does not keep a request beyond ExecTimeout, whether its handler is in a
// Write or a goroutine of that.
func TestStalledClientIsCutOff(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 32<<20)
	for name, handler := range map[string]http.HandlerFunc{
		"handler":   func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, large) },
		"goroutine": func(w http.ResponseWriter, r *http.Request) { go io.WriteString(w, large); <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan idemkey.Event, 1)
			s := serve(t, newMemory(t, nil), handler, func(o *idemkey.Options) {
				o.Observer, o.Response.AllowStreaming, o.Limits.ExecTimeout = observed(ended), true, 100*time.Millisecond
			})
			conn, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nx")
			if e := <-ended; e.Err == nil {
				t.Errorf("event = %+v, want an error", e)
			}
		})
	}
}

type observed chan idemkey.Event

func (o observed) Observe(_ context.Context, e idemkey.Event) { o <- e }
