package idemkeytest_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"
	"github.com/labstack/echo/v4"
	echomiddleware "github.com/labstack/echo/v4/middleware"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemecho"
	"github.com/sagamill/sagamill/idemkey/idemgin"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode) // it lists its routes otherwise
	os.Exit(m.Run())
}

var frameworks = map[string]idemkeytest.Mount{
	"net-http": mountServeMux,
	"chi":      mountChi,
	"gin":      mountGin,
	"echo":     mountEcho,
}

// The middleware does the same in each framework, on either store.
func TestFrameworks(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	for name, mount := range frameworks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Run("memory", func(t *testing.T) { idemkeytest.RunHTTP(t, mount, nil) })
			t.Run("idempg", func(t *testing.T) { idemkeytest.RunHTTP(t, mount, postgres) })
		})
	}
}

// postgres is a store in a schema of the test's own, beside a table of rows.
func postgres(t *testing.T) idemkeytest.Backend {
	t.Helper()
	return postgresIn(t, idempg.Options{})
}

func postgresIn(t *testing.T, opts idempg.Options) idemkeytest.Backend {
	t.Helper()
	pool, schema := pgtest.Schema(t, "CREATE TABLE {schema}.business (name text)")
	opts.Schema = schema
	store, err := idempg.New(pool, &opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return idemkeytest.Backend{
		Store: store,
		Write: func(ctx context.Context, row string) error {
			_, err := idempg.Tx(ctx).Exec(ctx, "INSERT INTO "+schema+".business VALUES ($1)", row)
			return err
		},
		Rows: func(t testing.TB, row string) int {
			t.Helper()
			var n int
			if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM "+schema+".business WHERE name = $1", row).Scan(&n); err != nil {
				t.Fatalf("count rows: %v", err)
			}
			return n
		},
	}
}

// plain is how a handler that can fail looks in net/http.
func plain(h idemkeytest.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			idemkey.Fail(r.Context(), err)
		}
	})
}

func mountServeMux(idem *idemkey.Middleware, h idemkeytest.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders", idem.Handler(plain(h)))
	mux.Handle("GET /orders", idem.Handler(plain(h)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch thrown := recover(); thrown {
			case nil:
			case http.ErrAbortHandler:
				panic(thrown)
			default:
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		mux.ServeHTTP(w, r)
	})
}

func mountChi(idem *idemkey.Middleware, h idemkeytest.Handler) http.Handler {
	r := chi.NewRouter()
	r.Use(chimiddleware.Recoverer)
	r.With(idem.Handler).Post("/orders", plain(h).ServeHTTP)
	r.With(idem.Handler).Get("/orders", plain(h).ServeHTTP)
	return r
}

func mountGin(idem *idemkey.Middleware, h idemkeytest.Handler) http.Handler {
	engine := gin.New()
	engine.Use(gin.RecoveryWithWriter(io.Discard), idemgin.Handler(idem))
	handle := func(c *gin.Context) {
		if err := h(c.Writer, c.Request); err != nil {
			_ = c.Error(err)
		}
	}
	engine.POST("/orders", handle)
	engine.GET("/orders", handle)
	return engine
}

func mountEcho(idem *idemkey.Middleware, h idemkeytest.Handler) http.Handler {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	e.Use(echomiddleware.RecoverWithConfig(echomiddleware.RecoverConfig{DisablePrintStack: true}), idemecho.Handler(idem))
	handle := func(c echo.Context) error { return h(c.Response(), c.Request()) }
	e.POST("/orders", handle)
	e.GET("/orders", handle)
	return e
}

// drain reads r's body and does not restore it.
func drain(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }

// Each framework's own Outer keeps the body for its own Handler, and refuses what is too large
// before anything else reads it.
func TestOuter(t *testing.T) {
	t.Parallel()
	answer := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	}
	for name, mount := range map[string]func(idem *idemkey.Middleware, read func(*http.Request)) http.Handler{
		"chi": func(idem *idemkey.Middleware, read func(*http.Request)) http.Handler {
			r := chi.NewRouter()
			r.Use(idem.Outer, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { read(r); next.ServeHTTP(w, r) })
			})
			r.With(idem.Handler).Post("/orders", answer)
			return r
		},
		"gin": func(idem *idemkey.Middleware, read func(*http.Request)) http.Handler {
			engine := gin.New()
			engine.Use(idemgin.Outer(idem), func(c *gin.Context) { read(c.Request) })
			engine.POST("/orders", idemgin.Handler(idem), func(c *gin.Context) { answer(c.Writer, c.Request) })
			return engine
		},
		"echo": func(idem *idemkey.Middleware, read func(*http.Request)) http.Handler {
			e := echo.New()
			e.Use(idemecho.Outer(idem), func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error { read(c.Request()); return next(c) }
			})
			e.POST("/orders", func(c echo.Context) error { answer(c.Response(), c.Request()); return nil }, idemecho.Handler(idem))
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := idemkey.NewMemory(nil)
			if err != nil {
				t.Fatal(err)
			}
			idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Logger: slog.New(slog.DiscardHandler), Limits: idemkey.Limits{MaxRequestBody: 10}})
			if err != nil {
				t.Fatal(err)
			}
			reads := 0
			h := mount(idem, func(r *http.Request) { reads++; drain(r) })
			for i, tt := range []struct {
				body     string
				encoding string // with one, the length of the body does not tell whether something has decoded it
				status   int
				reads    int
			}{{"1", "", 201, 1}, {"1", "", 201, 2}, {"1", "gzip", 201, 3}, {"1000000", "", 422, 4}, {"12345678901", "", 413, 4}} {
				req := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(tt.body))
				req.Header.Set("Content-Encoding", tt.encoding)
				req.Header.Set("Idempotency-Key", "k"+tt.encoding)
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, req)
				if rec.Code != tt.status || reads != tt.reads || tt.status == 201 && rec.Body.String() != tt.body {
					t.Errorf("request %d: %d %q after %d reads, want %d after %d", i, rec.Code, rec.Body, reads, tt.status, tt.reads)
				}
			}
		})
	}
}

// Where each framework mounts the middleware twice, on the router and on the route, the log names the lines.
func TestMountedTwice(t *testing.T) {
	t.Parallel()
	unexpected := func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }
	for name, mount := range map[string]func(idem *idemkey.Middleware) http.Handler{
		"net-http": func(idem *idemkey.Middleware) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("POST /orders", idem.Handler(http.HandlerFunc(unexpected)))
			return idem.Handler(mux)
		},
		"chi": func(idem *idemkey.Middleware) http.Handler {
			r := chi.NewRouter()
			r.Use(idem.Handler)
			r.Get("/", unexpected) // chi calls Handler here
			r.With(idem.Handler).Post("/orders", unexpected)
			return r
		},
		"gin": func(idem *idemkey.Middleware) http.Handler {
			engine := gin.New()
			engine.Use(idemgin.Handler(idem))
			engine.POST("/orders", idemgin.Handler(idem), func(*gin.Context) { t.Error("the handler ran") })
			return engine
		},
		"echo": func(idem *idemkey.Middleware) http.Handler {
			e := echo.New()
			e.Use(idemecho.Handler(idem))
			e.POST("/orders", func(echo.Context) error { t.Error("the handler ran"); return nil }, idemecho.Handler(idem))
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := idemkey.NewMemory(nil)
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Key: idemkey.KeyOptions{Optional: true}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			h := mount(idem)
			for _, key := range []string{"k", "k", ""} {
				log.Reset()
				req := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("x"))
				if key != "" {
					req.Header.Set("Idempotency-Key", key)
				}
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, req)
				if rec.Code != 500 || !strings.Contains(rec.Body.String(), `"code":"mounted-twice"`) {
					t.Errorf("key %q: %d %q, want 500 mounted-twice", key, rec.Code, rec.Body)
				}
				lines := regexp.MustCompile(`/frameworks_test\.go:(\d+) \(route ([^)]*)\)`).FindAllStringSubmatch(log.String(), -1)
				if len(lines) != 2 || lines[0][1] == lines[1][1] || lines[1][2] != "POST /orders" && lines[1][2] != "/orders" || !strings.Contains(log.String(), "level=ERROR") {
					t.Errorf("key %q: the log names %q, want an error with two lines of this file: %s", key, lines, &log)
				}
			}
		})
	}
}
