package idemecho_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemecho"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
)

// newEcho returns an echo that logs nothing.
func newEcho() *echo.Echo {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	return e
}

func TestSuite(t *testing.T) {
	t.Parallel()
	idemkeytest.RunHTTP(t, func(idem *idemkey.Middleware, h idemkeytest.Handler) http.Handler {
		handle := func(c echo.Context) error { return h(c.Response(), c.Request()) }
		e := newEcho()
		e.Use(middleware.Recover())
		e.POST("/orders", handle, idemecho.Handler(idem)) // by route, where the shared suite mounts it on the router
		e.GET("/orders", handle, idemecho.Handler(idem))
		return e
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

// outcomes collects what became of requests.
type outcomes []idemkey.Outcome

func (o *outcomes) Observe(_ context.Context, e idemkey.Event) { *o = append(*o, e.Outcome) }

// verdict sets v and returns err.
func verdict(v idemkey.Verdict, err error) echo.HandlerFunc {
	return func(c echo.Context) error {
		idemkey.SetVerdict(c.Request().Context(), v)
		return err
	}
}

// What the error handler makes of a returned error decides, and no error is a
// success.
func TestAnswers(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	tests := []struct {
		name    string
		handle  echo.HandlerFunc
		status  int
		body    string
		outcome idemkey.Outcome
	}{
		{"json", func(c echo.Context) error { return c.JSON(201, echo.Map{"id": 1}) }, 201, `{"id":1}`, idemkey.OutcomeKept},
		{"nothing", func(echo.Context) error { return nil }, 200, "", idemkey.OutcomeKept},
		{"http error", func(echo.Context) error { return echo.NewHTTPError(404, "no item") }, 404, "no item", idemkey.OutcomeRejected},
		{"plain error", func(echo.Context) error { return boom }, 500, `{"message":"Internal Server Error"}`, idemkey.OutcomeFailed},
		{"problem", func(echo.Context) error { return &idemkey.Problem{Status: 422, Code: "odd"} }, 422, `"code":"odd"`, idemkey.OutcomeRejected},
		{"error after success", func(c echo.Context) error { return errors.Join(c.String(201, "done"), boom) }, 500, `"code":"internal"`, idemkey.OutcomeFailed},
		{"error after refusal", func(c echo.Context) error { return errors.Join(c.String(422, "odd"), boom) }, 422, "odd", idemkey.OutcomeRejected},
		{"unanswered", func(echo.Context) error { return errUnanswered }, 500, `"code":"internal"`, idemkey.OutcomeFailed},
		{"unanswered with a status", func(c echo.Context) error { c.Response().Status = 503; return errUnanswered }, 500, `"code":"internal"`, idemkey.OutcomeFailed},
		{"made a success", func(echo.Context) error { return errSuccess }, 500, `"code":"internal"`, idemkey.OutcomeFailed},
		{"declined", verdict(idemkey.CommitAnyway, echo.NewHTTPError(402, "declined")), 402, "declined", idemkey.OutcomeKept},
		{"commit anyway fails", verdict(idemkey.CommitAnyway, boom), 500, "Internal", idemkey.OutcomeFailed},
		{"amendable", verdict(idemkey.Amendable, echo.NewHTTPError(400, "typo")), 400, "typo", idemkey.OutcomeAmended},
		{"not found", echo.NotFoundHandler, 404, "Not Found", idemkey.OutcomeRejected},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got outcomes
			e := newEcho()
			e.HTTPErrorHandler = func(err error, c echo.Context) {
				switch {
				case errors.Is(err, errUnanswered):
				case errors.Is(err, errSuccess):
					_ = c.String(200, "never mind")
				default:
					e.DefaultHTTPErrorHandler(err, c)
				}
			}
			e.POST("/orders", tt.handle, idemecho.Handler(newMiddleware(t, idemkey.Options{Observer: &got})))
			rec := post(e, "/orders")
			if rec.Code != tt.status || !strings.Contains(rec.Body.String(), tt.body) {
				t.Errorf("response = %d %q, want %d %q", rec.Code, rec.Body, tt.status, tt.body)
			}
			if len(got) != 1 || got[0] != tt.outcome {
				t.Errorf("outcomes = %q, want %q", got, tt.outcome)
			}
		})
	}
}

var (
	errUnanswered = errors.New("the error handler does nothing about it")
	errSuccess    = errors.New("the error handler makes it a 200")
)

// A recoverer among the handlers makes the panic a response: it rolls back and
// may run again.
func TestInnerRecover(t *testing.T) {
	t.Parallel()
	for _, disabled := range []bool{false, true} {
		runs := 0
		e := newEcho()
		e.POST("/orders", func(echo.Context) error { runs++; panic("boom") }, idemecho.Handler(newMiddleware(t, idemkey.Options{})),
			middleware.RecoverWithConfig(middleware.RecoverConfig{DisablePrintStack: true, DisableErrorHandler: disabled}))
		for want := range 2 {
			if rec := post(e, "/orders"); rec.Code != 500 || runs != want+1 {
				t.Errorf("response = %d after %d runs, want 500 after %d", rec.Code, runs, want+1)
			}
		}
	}
}

// Around Handler, echo's context is as it was, on whatever way the handler
// ended, and there is no error that echo would answer once more.
func TestRestored(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		e := newEcho()
		around := func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				response, request := c.Response(), c.Request()
				defer func() {
					thrown := recover() != nil
					if c.Response() != response || c.Request() != request || thrown != fails {
						t.Errorf("fails %t: response and request differ, or panic = %t", fails, thrown)
					}
					if response.Committed == fails || !fails && (response.Status != 404 || response.Size == 0) {
						t.Errorf("fails %t: committed %t, status %d, size %d", fails, response.Committed, response.Status, response.Size)
					}
				}()
				if err := next(c); err != nil {
					t.Errorf("Handler returned %v", err)
				}
				return nil
			}
		}
		e.POST("/orders", func(c echo.Context) error {
			if fails {
				panic("boom")
			}
			return echo.ErrNotFound
		}, around, idemecho.Handler(newMiddleware(t, idemkey.Options{})))
		post(e, "/orders")
	}
}

// A request that is not covered passes as it is, its error included.
func TestNotCovered(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	h := idemecho.Handler(newMiddleware(t, idemkey.Options{}))(func(echo.Context) error { return boom })
	c := newEcho().NewContext(httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder())
	if err := h(c); !errors.Is(err, boom) || c.Response().Committed {
		t.Errorf("Handler returned %v, committed %t; want the handler's error and nothing written", err, c.Response().Committed)
	}
}

// Scope sees what earlier middleware has put into echo's context.
func TestFrom(t *testing.T) {
	t.Parallel()
	scope := ""
	idem := newMiddleware(t, idemkey.Options{Scope: func(r *http.Request) (string, error) {
		c, ok := idemecho.From(r.Context())
		if !ok {
			return "", errors.New("no echo context")
		}
		return c.Get("principal").(string), nil
	}})
	e := newEcho()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { c.Set("principal", "acme"); return next(c) }
	}, idemecho.Handler(idem))
	e.POST("/orders/:id", func(c echo.Context) error {
		info, _ := idemkey.Info(c.Request().Context())
		scope = info.Scope
		if c.Request().Pattern != "POST /orders/:id" {
			t.Errorf("Pattern = %q", c.Request().Pattern)
		}
		return c.NoContent(204)
	})
	if rec := post(e, "/orders/7"); rec.Code != 204 || scope != "acme" {
		t.Errorf("response = %d under scope %q, want 204 under acme", rec.Code, scope)
	}
	if _, ok := idemecho.From(context.Background()); ok {
		t.Error("From found an echo context where there is none")
	}
}

// echo's Flush panics where it is not supported; here it does nothing. No way
// leads to the connection.
func TestWriter(t *testing.T) {
	t.Parallel()
	e := newEcho()
	e.POST("/orders", func(c echo.Context) error {
		if c.Response().Status != 200 || c.Response().Committed {
			t.Errorf("fresh response: status %d, committed %t", c.Response().Status, c.Response().Committed)
		}
		c.Response().Flush()
		if _, _, err := c.Response().Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack: %v", err)
		}
		if _, ok := c.Response().Writer.(interface{ Unwrap() http.ResponseWriter }); ok {
			t.Error("the writer can be unwrapped")
		}
		return echo.ErrTeapot
	}, idemecho.Handler(newMiddleware(t, idemkey.Options{})))
	if rec := post(e, "/orders"); rec.Code != 418 || rec.Flushed {
		t.Errorf("response = %d, flushed %t; want 418, not flushed", rec.Code, rec.Flushed)
	}
}

// Under AllowStreaming Flush reaches the client, and a retry finds a tombstone. A
// response that is not streamed is no reason to panic.
func TestStream(t *testing.T) {
	t.Parallel()
	e := newEcho()
	idem := idemecho.Handler(newMiddleware(t, idemkey.Options{Response: idemkey.ResponseOptions{AllowStreaming: true}}))
	e.POST("/", func(c echo.Context) error {
		defer c.Response().Flush()
		return c.String(http.StatusCreated, "one")
	}, idem)
	first, again := post(e, "/"), post(e, "/")
	if first.Code != 201 || first.Body.String() != "one" || !first.Flushed || again.Code != 410 {
		t.Errorf("got %d %q, flushed %t, then %d; want 201 flushed and 410", first.Code, first.Body, first.Flushed, again.Code)
	}
	refused := newEcho()
	refused.POST("/", func(c echo.Context) error {
		defer c.Response().Flush()
		return c.String(http.StatusUnprocessableEntity, "no")
	}, idemecho.Handler(newMiddleware(t, idemkey.Options{Response: idemkey.ResponseOptions{AllowStreaming: true}})))
	if got := post(refused, "/"); got.Code != 422 || got.Flushed {
		t.Errorf("got %d, flushed %t; want 422 in one piece", got.Code, got.Flushed)
	}
}

// Until the outcome is settled, echo's context leads to a response that is closed, and not to the connection.
func TestLateByContext(t *testing.T) {
	t.Parallel()
	var kept echo.Context
	late := func(status int) idemkey.Verdict {
		if _, err := io.WriteString(kept.Response(), "late"); !errors.Is(err, idemkey.ErrSettled) {
			t.Errorf("late write: %v, want ErrSettled", err)
		}
		return idemkey.DefaultPolicy(status)
	}
	e := newEcho()
	e.POST("/orders", func(c echo.Context) error {
		kept = c
		return c.String(http.StatusCreated, "done")
	}, idemecho.Handler(newMiddleware(t, idemkey.Options{Policy: late})))
	for range 2 {
		if rec := post(e, "/orders"); rec.Code != http.StatusCreated || rec.Body.String() != "done" {
			t.Errorf("response = %d %q, want 201 done", rec.Code, rec.Body)
		}
	}
}

// echo writes an empty body after a 204. A handler without its transaction is answered, too.
func TestNoContentAndNoTransaction(t *testing.T) {
	t.Parallel()
	e := newEcho()
	e.POST("/empty", func(c echo.Context) error { return c.String(http.StatusNoContent, "") }, idemecho.Handler(newMiddleware(t, idemkey.Options{})))
	e.POST("/bare", func(echo.Context) error { panic(idemkey.ErrNotIdempotent) }, idemecho.Handler(newMiddleware(t, idemkey.Options{Methods: []string{"PUT"}})))
	if rec := post(e, "/empty"); rec.Code != http.StatusNoContent {
		t.Errorf("c.String(204, \"\") = %d %s", rec.Code, rec.Body)
	}
	if rec := post(e, "/bare"); rec.Code != http.StatusInternalServerError || !strings.Contains(rec.Body.String(), idemkey.CodeNotIdempotent) {
		t.Errorf("without a transaction: %d %s", rec.Code, rec.Body)
	}
}
