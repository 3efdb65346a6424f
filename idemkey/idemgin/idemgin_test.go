package idemgin_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemgin"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode) // it lists its routes otherwise
	os.Exit(m.Run())
}

func TestSuite(t *testing.T) {
	t.Parallel()
	idemkeytest.RunHTTP(t, func(idem *idemkey.Middleware, h idemkeytest.Handler) http.Handler {
		handle := func(c *gin.Context) {
			if err := h(c.Writer, c.Request); err != nil {
				_ = c.Error(err)
			}
		}
		engine := gin.New()
		engine.Use(gin.RecoveryWithWriter(io.Discard))
		engine.POST("/orders", idemgin.Handler(idem), handle) // by route, where the shared suite mounts it on the engine
		engine.GET("/orders", idemgin.Handler(idem), handle)
		return engine
	}, nil)
}

// newMiddleware returns a middleware on an empty store.
func newMiddleware(t *testing.T, opts idemkey.Options) *idemkey.Middleware {
	t.Helper()
	store, err := idemkey.NewMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	opts.SingleTenant, opts.Logger = opts.Scope == nil, slog.New(slog.DiscardHandler)
	idem, err := idemkey.New(store, &opts)
	if err != nil {
		t.Fatal(err)
	}
	return idem
}

// post sends a request under a key that is always the same.
func post(h http.Handler, path string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, path, strings.NewReader("x"))
	req.Header.Set("Idempotency-Key", "k")
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	return rec
}

// How gin's own ways to answer end, and whether a second request runs again.
func TestAnswers(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	tests := []struct {
		name   string
		handle gin.HandlerFunc
		status int
		body   string
		again  bool
	}{
		{"json", func(c *gin.Context) { c.JSON(201, gin.H{"id": 1}) }, 201, `{"id":1}`, false},
		{"status alone", func(c *gin.Context) { c.Status(202) }, 202, "", false},
		{"aborted with status", func(c *gin.Context) { c.AbortWithStatus(404) }, 404, "", false},
		{"aborted with error", func(c *gin.Context) { _ = c.AbortWithError(422, boom) }, 422, "", false},
		{"error after body", func(c *gin.Context) { c.String(201, "done"); _ = c.Error(boom) }, 201, "done", false},
		{"error after status", func(c *gin.Context) { c.Status(201); _ = c.Error(boom) }, 500, `"code":"internal"`, true},
		{"error after flush", func(c *gin.Context) { c.Writer.Flush(); _ = c.Error(boom) }, 500, `"code":"internal"`, true},
		{"problem", func(c *gin.Context) { _ = c.Error(&idemkey.Problem{Status: 409, Code: "taken"}) }, 409, `"code":"taken"`, true},
		{"status twice", func(c *gin.Context) { c.Status(201); c.Writer.WriteHeaderNow(); c.Status(500) }, 201, "", false},
		{"no status", func(c *gin.Context) { c.Render(-1, nopRender{}) }, 200, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			runs := 0
			engine := gin.New()
			engine.POST("/orders", idemgin.Handler(newMiddleware(t, idemkey.Options{})), func(c *gin.Context) {
				runs++
				tt.handle(c)
			})
			for range 2 {
				if rec := post(engine, "/orders"); rec.Code != tt.status || !strings.Contains(rec.Body.String(), tt.body) {
					t.Errorf("response = %d %q, want %d %q", rec.Code, rec.Body, tt.status, tt.body)
				}
			}
			if again := runs == 2; again != tt.again {
				t.Errorf("%d runs, want a second = %t", runs, tt.again)
			}
		})
	}
}

type nopRender struct{}

func (nopRender) Render(http.ResponseWriter) error       { return nil }
func (nopRender) WriteContentType(w http.ResponseWriter) {}

// A recoverer among the handlers makes the panic a response: it rolls back and
// may run again.
func TestInnerRecovery(t *testing.T) {
	t.Parallel()
	for _, thrown := range []error{errors.New("boom"), http.ErrAbortHandler} {
		runs := 0
		engine := gin.New()
		engine.POST("/orders", idemgin.Handler(newMiddleware(t, idemkey.Options{})), gin.RecoveryWithWriter(io.Discard),
			func(*gin.Context) { runs++; panic(thrown) })
		for want := range 2 {
			if rec := post(engine, "/orders"); rec.Code != 500 || runs != want+1 {
				t.Errorf("%v: response = %d after %d runs, want 500 after %d", thrown, rec.Code, runs, want+1)
			}
		}
	}
}

// Around Handler, gin's context is as it was: writer, request and what was
// written, on whatever way the handlers ended.
func TestRestored(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		engine := gin.New()
		engine.POST("/orders", func(c *gin.Context) {
			writer, request := c.Writer, c.Request
			defer func() {
				thrown := recover() != nil
				if c.Writer != writer || c.Request != request || thrown != fails {
					t.Errorf("fails %t: writer and request differ, or panic = %t", fails, thrown)
				}
				if want := map[bool]int{false: 201, true: 500}[fails]; c.Writer.Status() != want || c.Writer.Written() == fails {
					t.Errorf("fails %t: status %d, written %t", fails, c.Writer.Status(), c.Writer.Written())
				}
			}()
			c.Next()
		}, idemgin.Handler(newMiddleware(t, idemkey.Options{})), func(c *gin.Context) {
			c.Status(201)
			if fails {
				panic("boom")
			}
		})
		post(engine, "/orders")
	}
}

// What is not run is aborted, and the handlers after it stay out.
func TestAborted(t *testing.T) {
	t.Parallel()
	aborted := false
	engine := gin.New()
	engine.POST("/orders", func(c *gin.Context) {
		c.Next()
		aborted = c.IsAborted()
	}, idemgin.Handler(newMiddleware(t, idemkey.Options{})), func(c *gin.Context) {
		if c.GetHeader("Idempotency-Key") == "" {
			t.Error("the handler ran")
		}
	})
	rec := httptest.NewRecorder()
	engine.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/orders", nil))
	if rec.Code != 400 || !aborted {
		t.Errorf("without a key: %d, aborted %t; want 400, true", rec.Code, aborted)
	}
	if post(engine, "/orders"); aborted {
		t.Error("a request that ran is aborted")
	}
}

// A request that is not covered has not been answered just because Handler is done.
func TestNotCovered(t *testing.T) {
	t.Parallel()
	engine := gin.New()
	engine.GET("/orders", func(c *gin.Context) {
		if c.Next(); c.Writer.Written() {
			t.Error("something was written")
		}
		c.String(404, "nothing")
	}, idemgin.Handler(newMiddleware(t, idemkey.Options{})), func(*gin.Context) {})
	rec := httptest.NewRecorder()
	engine.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/orders", nil))
	if rec.Code != 404 {
		t.Errorf("response = %d, want 404", rec.Code)
	}
}

// A route that does not exist stays a 404.
func TestNoRoute(t *testing.T) {
	t.Parallel()
	idem := newMiddleware(t, idemkey.Options{Scope: func(r *http.Request) (string, error) {
		if r.Pattern != "" {
			t.Errorf("Pattern = %q, want none", r.Pattern)
		}
		return "acme", nil
	}})
	engine := gin.New()
	engine.Use(idemgin.Handler(idem))
	if rec := post(engine, "/nowhere"); rec.Code != 404 {
		t.Errorf("response = %d, want 404", rec.Code)
	}
}

// Scope sees what earlier middleware has put into gin's context, and errors
// from before Handler are not the handlers'.
func TestFrom(t *testing.T) {
	t.Parallel()
	scope := ""
	idem := newMiddleware(t, idemkey.Options{Scope: func(r *http.Request) (string, error) {
		c, ok := idemgin.From(r.Context())
		if !ok {
			return "", errors.New("no gin context")
		}
		return c.GetString("principal"), nil
	}})
	engine := gin.New()
	engine.POST("/orders/:id", func(c *gin.Context) {
		c.Set("principal", "acme")
		_ = c.Error(errors.New("earlier"))
	}, idemgin.Handler(idem), func(c *gin.Context) {
		info, _ := idemkey.Info(c.Request.Context())
		scope = info.Scope
		if c.Request.Pattern != "POST /orders/:id" {
			t.Errorf("Pattern = %q", c.Request.Pattern)
		}
	})
	if rec := post(engine, "/orders/7"); rec.Code != 200 || scope != "acme" {
		t.Errorf("response = %d under scope %q, want 200 under acme", rec.Code, scope)
	}
	if _, ok := idemgin.From(context.Background()); ok {
		t.Error("From found a gin context where there is none")
	}
}

// The writer keeps gin's interface without reaching the connection.
func TestWriter(t *testing.T) {
	t.Parallel()
	engine := gin.New()
	ended := make(chan bool, 1)
	engine.POST("/orders", idemgin.Handler(newMiddleware(t, idemkey.Options{})), func(c *gin.Context) {
		w := c.Writer
		if w.Pusher() != nil {
			t.Error("there is a Pusher")
		}
		if _, _, err := w.Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack: %v", err)
		}
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Flush: %v", err)
		}
		if _, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
			t.Error("the writer can be unwrapped")
		}
		if w.Written() || w.Size() != -1 || w.Status() != 200 {
			t.Errorf("fresh writer: written %t, size %d, status %d", w.Written(), w.Size(), w.Status())
		}
		_, _ = w.WriteString("ab")
		_, _ = w.Write([]byte("c"))
		if !w.Written() || w.Size() != 3 {
			t.Errorf("after 3 bytes: written %t, size %d", w.Written(), w.Size())
		}
		if w.WriteHeader(500); w.Status() != 200 {
			t.Errorf("status = %d after a late WriteHeader, want 200", w.Status())
		}
		gone := w.CloseNotify()
		go func() { ended <- <-gone }()
	})
	if rec := post(engine, "/orders"); rec.Body.String() != "abc" {
		t.Errorf("body = %q, want abc", rec.Body)
	}
	<-ended
}

// Under AllowStreaming Flush reaches the client, and a retry finds a tombstone.
func TestStream(t *testing.T) {
	t.Parallel()
	engine := gin.New()
	engine.POST("/", idemgin.Handler(newMiddleware(t, idemkey.Options{Response: idemkey.ResponseOptions{AllowStreaming: true}})), func(c *gin.Context) {
		c.String(http.StatusCreated, "one")
		c.Writer.Flush()
	})
	first, again := post(engine, "/"), post(engine, "/")
	if first.Code != 201 || first.Body.String() != "one" || !first.Flushed || again.Code != 410 {
		t.Errorf("got %d %q, flushed %t, then %d; want 201 flushed and 410", first.Code, first.Body, first.Flushed, again.Code)
	}
}

// A body that was bound before, and so drained, is the request's: gin has kept its bytes.
func TestBoundBefore(t *testing.T) {
	t.Parallel()
	type order struct {
		Amount int `json:"amount"`
	}
	short := false
	engine := gin.New()
	engine.POST("/orders", func(c *gin.Context) {
		if short {
			_, _ = c.Request.Body.Read(make([]byte, 1))
		}
		_ = c.ShouldBindBodyWith(&order{}, binding.JSON)
	}, idemgin.Handler(newMiddleware(t, idemkey.Options{})), func(c *gin.Context) {
		var bound, read order
		if err := c.ShouldBindBodyWith(&bound, binding.JSON); err != nil || c.ShouldBindJSON(&read) != nil || bound != read {
			t.Errorf("the handler bound %+v and read %+v", bound, read)
		}
		c.String(201, "%d", bound.Amount)
	})
	for _, tt := range []struct {
		body   string
		length int64
		short  bool
		status int
		answer string
	}{
		{`{"amount":1}`, 12, false, 201, "1"},
		{`{"amount":1}`, 12, false, 201, "1"},
		{`{"amount":1}`, -1, false, 201, "1"},
		{`{"amount":1000000}`, 18, false, 422, `"code":"key-reused"`},
		{`{"amount":1000000}`, -1, false, 422, `"code":"key-reused"`},
		{`{"amount":1}`, 12, true, 500, `"code":"body-consumed"`},
		{"", -1, false, 500, `"code":"body-consumed"`},
	} {
		short = tt.short
		req := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(tt.body))
		req.ContentLength = tt.length
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "k")
		rec := httptest.NewRecorder()
		engine.ServeHTTP(rec, req)
		if rec.Code != tt.status || !strings.Contains(rec.Body.String(), tt.answer) {
			t.Errorf("%s of length %d: %d %q, want %d %q", tt.body, tt.length, rec.Code, rec.Body, tt.status, tt.answer)
		}
	}
}

// Until the outcome is settled, gin's context leads to a writer that is closed, and not to the connection.
func TestLateByContext(t *testing.T) {
	t.Parallel()
	var kept *gin.Context
	late := func(status int) idemkey.Verdict {
		if _, err := kept.Writer.WriteString("late"); !errors.Is(err, idemkey.ErrSettled) {
			t.Errorf("late write: %v, want ErrSettled", err)
		}
		return idemkey.DefaultPolicy(status)
	}
	engine := gin.New()
	engine.POST("/orders", idemgin.Handler(newMiddleware(t, idemkey.Options{Policy: late})), func(c *gin.Context) {
		kept = c
		c.String(http.StatusCreated, "done")
	})
	for range 2 {
		if rec := post(engine, "/orders"); rec.Code != http.StatusCreated || rec.Body.String() != "done" {
			t.Errorf("response = %d %q, want 201 done", rec.Code, rec.Body)
		}
	}
}

// A stream that ends by AbortWithError has failed: gin cannot send the status any more.
func TestStreamAbortWithError(t *testing.T) {
	t.Parallel()
	engine := gin.New()
	engine.Use(gin.CustomRecoveryWithWriter(io.Discard, func(*gin.Context, any) {}))
	engine.POST("/", idemgin.Handler(newMiddleware(t, idemkey.Options{Response: idemkey.ResponseOptions{AllowStreaming: true}})), func(c *gin.Context) {
		c.String(http.StatusOK, "half")
		c.Writer.Flush()
		_ = c.AbortWithError(http.StatusInternalServerError, errors.New("boom"))
	})
	server := httptest.NewServer(engine)
	defer server.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k")
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the response looks whole: %d %q", resp.StatusCode, body)
	}
}

// A handler without its transaction is answered, and the handlers after it do not run.
func TestNoTransaction(t *testing.T) {
	t.Parallel()
	engine := gin.New()
	engine.POST("/bare", idemgin.Handler(newMiddleware(t, idemkey.Options{Methods: []string{"PUT"}})),
		func(*gin.Context) { panic(idemkey.ErrNotIdempotent) }, func(*gin.Context) { t.Error("the next handler runs") })
	if rec := post(engine, "/bare"); rec.Code != http.StatusInternalServerError || !strings.Contains(rec.Body.String(), idemkey.CodeNotIdempotent) {
		t.Errorf("without a transaction: %d %s", rec.Code, rec.Body)
	}
}
