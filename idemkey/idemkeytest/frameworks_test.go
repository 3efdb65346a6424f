package idemkeytest_test

import (
	"context"
	"io"
	"net/http"
	"os"
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
	"github.com/sagamill/sagamill/internal/pgtest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode) // it lists its routes otherwise
	os.Exit(m.Run())
}

// The middleware does the same in each framework, on either store.
func TestFrameworks(t *testing.T) {
	t.Parallel()
	for name, mount := range map[string]idemkeytest.Mount{
		"net-http": mountServeMux,
		"chi":      mountChi,
		"gin":      mountGin,
		"echo":     mountEcho,
	} {
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
