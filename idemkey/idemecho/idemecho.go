// Package idemecho mounts an [idemkey.Middleware] in echo.
//
//	e.POST("/orders", placeOrder, idemecho.Handler(idem))
//
// The guarantees are those of [idemkey.Middleware.Handler]. What echo adds:
//
//   - A returned error is rendered by Echo.HTTPErrorHandler within the
//     transaction, and the status it gives decides, as if the handler had
//     written it: an error answered with a 4xx rolls back and is kept, one
//     answered with a 5xx rolls back and may run again.
//   - Some returned errors are answered as [idemkey.Fail] says: a [*idemkey.Problem]; an
//     error that the error handler does not answer, or answers with a success; a
//     serialization failure or a deadlock that it answers with a 500.
//   - A verdict counts for a returned error as well, so that CommitAnyway works
//     with an echo.HTTPError of 402; but not if it is answered with a 5xx.
//   - Nothing reaches the client before the outcome is durable. Flush does
//     nothing, unless the response is streamed, and Hijack is refused.
//   - A panic passes on with echo's response and request in place again, so
//     that middleware.Recover can answer.
//
// echo.WrapMiddleware cannot do this: an error is rendered only after the wrapped
// middleware has ended, which saw an empty 200.
//
// Middleware that reads bodies outside of Handler restores them, or goes inside of Outer.
//
// Recovery, authentication, CORS, compression and a logger of requests go outside of
// Handler. A logger of returned errors goes inside: outside, the error has been answered.
package idemecho

import (
	"context"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/sqlstate"
)

// Handler returns m as an echo middleware, for one route, a group or the whole
// router.
//
// For a request that m covers it returns nil: when it returns, the outcome is
// durable and answered. If the process dies before, or two requests race for one
// key, the store decides as it does for net/http. For any other request it
// returns the next handler's error.
//
// Handlers find their transaction, [idemkey.Info] and [idemkey.SetVerdict] by
// the context of echo.Context.Request.
func Handler(m *idemkey.Middleware) echo.MiddlewareFunc {
	h := m.Handler(http.HandlerFunc(serveCovered)) // once, so that it knows who has mounted it
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			p := &passage{c: c, next: next, covered: true}
			outer, original := c.Response(), c.Request()
			defer func() { // when the request has been answered, and before anybody recovers
				if p.covered {
					c.SetResponse(outer)
					c.SetRequest(original)
				}
			}()
			h.ServeHTTP(outer, requestOf(p))
			return p.err
		}
	}
}

// A passage is a request on its way through Handler or Outer.
type passage struct {
	c       echo.Context
	next    echo.HandlerFunc
	covered bool
	err     error // for echo to render
}

type contextKey struct{}

func passageOf(ctx context.Context) (p *passage, ok bool) {
	p, ok = ctx.Value(contextKey{}).(*passage)
	return p, ok
}

// serveCovered runs the next handler: on the buffer if the request is covered, else unchanged.
func serveCovered(w http.ResponseWriter, r *http.Request) {
	p, _ := passageOf(r.Context())                // requestOf has put it there
	if w == http.ResponseWriter(p.c.Response()) { // not covered
		p.covered = false
		p.err = p.next(p.c)
		return
	}
	runHandler(p.c, p.next, w, r)
}

// Outer returns [idemkey.Middleware.Outer] as an echo middleware. It goes before what reads bodies
// without restoring them, and Handler after that. It returns the next handler's error, and nil if
// it has refused the request.
func Outer(m *idemkey.Middleware) echo.MiddlewareFunc {
	h := m.Outer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		p, _ := passageOf(r.Context())
		p.c.SetRequest(r)
		p.err = p.next(p.c)
	}))
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			p := &passage{c: c, next: next}
			h.ServeHTTP(c.Response(), requestOf(p))
			return p.err
		}
	}
}

// From returns the echo context of the request that ctx belongs to, for
// idemkey.Options such as Scope that see no more than the request:
//
//	Scope: func(r *http.Request) (string, error) {
//		c, _ := idemecho.From(r.Context())
//		principal, _ := c.Get("principal").(string)
//		return principal, nil
//	}
//
// echo reuses it after the request: it must not be kept.
func From(ctx context.Context) (c echo.Context, ok bool) {
	p, ok := passageOf(ctx)
	if !ok {
		return nil, false
	}
	return p.c, true
}

// requestOf returns a copy of p's request that leads back to p and carries the
// route, which echo keeps to itself.
func requestOf(p *passage) *http.Request {
	r := p.c.Request().WithContext(context.WithValue(p.c.Request().Context(), contextKey{}, p))
	if path := p.c.Path(); path != "" {
		r.Pattern = r.Method + " " + path
	}
	return r
}

// runHandler runs next on the buffer w. The buffer's response stays in c until the request has been answered: a
// goroutine that a handler has left behind finds it closed, instead of the connection. A recoverer
// must not find it: it would write to the buffer and leave the client with an empty 200.
func runHandler(c echo.Context, next echo.HandlerFunc, w http.ResponseWriter, r *http.Request) {
	inner := echo.NewResponse(writer{w}, c.Echo())
	inner.Status = c.Response().Status
	c.SetResponse(inner)
	c.SetRequest(r)
	if err := next(c); err != nil {
		failRequest(r.Context(), c, err)
	}
}

// failRequest answers a returned error. ctx is the middleware's own: the handler may have put
// another one into c.
func failRequest(ctx context.Context, c echo.Context, err error) {
	if problem := (*idemkey.Problem)(nil); errors.As(err, &problem) {
		idemkey.Fail(ctx, err)
		return
	}
	c.Error(err) // does nothing if the handler has answered before it returned the error
	switch response := c.Response(); {
	case !response.Committed || response.Status < http.StatusBadRequest:
		idemkey.Fail(ctx, err)
	case response.Status == http.StatusInternalServerError && (errors.Is(err, idemkey.ErrTxConflict) || sqlstate.Conflict(err)):
		idemkey.Fail(ctx, err) // the error handler does not know such errors
	case response.Status >= http.StatusInternalServerError:
		idemkey.SetVerdict(ctx, idemkey.Undecided) // the handler gave its verdict before it failed
	}
}
