// Package idemgin mounts an [idemkey.Middleware] in gin.
//
//	router.POST("/orders", idemgin.Handler(idem), placeOrder)
//
// The guarantees are those of [idemkey.Middleware.Handler]. What gin adds:
//
//   - Nothing that the handlers after it write reaches the client before the
//     outcome is durable. Flush does nothing, unless the response is streamed;
//     Hijack and Pusher are refused.
//   - A status set by Context.Status alone counts, as it does in gin.
//   - Errors attached by Context.Error fail the request if nothing was written:
//     it rolls back, and the last error is answered as [idemkey.Fail] says.
//     If a response was written the errors are a log, and the status decides. But a streamed response
//     has failed if Context.AbortWithError sets another status after its first byte.
//   - A panic passes on with gin's writer and request in place again, so that
//     gin.Recovery can answer. A recoverer after Handler works too: its 500 is
//     the response. A streamed response is cut off only if the recoverer is before
//     Handler: with a recoverer after it, a failed response looks complete.
//   - A body that Context.ShouldBindBodyWith has read before Handler is the request's
//     body: gin keeps its bytes. Other middleware that reads bodies restores them, or goes after Outer.
//
// Recovery, authentication, CORS and compression go before Handler. Middleware that
// renders Context.Errors goes after it: before it, the answer has been sent.
package idemgin

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sagamill/sagamill/idemkey"
)

// Handler returns m as a gin middleware, for one route, a group or the engine.
//
// When it returns to gin, the outcome is durable and answered: by the handlers
// after it, or, if they were not to run, by m, and the chain is aborted. If the
// process dies before, or two requests race for one key, the store decides as
// it does for net/http.
//
// Handlers find their transaction, [idemkey.Info] and [idemkey.SetVerdict] by
// the context of gin.Context.Request; by gin.Context itself only under
// gin.Engine.ContextWithFallback.
func Handler(m *idemkey.Middleware) gin.HandlerFunc {
	h := m.Handler(http.HandlerFunc(serveCovered)) // once, so that it knows who has mounted it
	return func(c *gin.Context) {
		p := &passage{c: c, covered: true}
		outer, original, returned := c.Writer, c.Request, false
		defer func() {
			if p.covered {
				restoreContext(c, outer, original, returned)
			}
		}()
		h.ServeHTTP(outer, requestOf(p))
		returned = true
		if !p.ran {
			c.Abort()
		}
		if p.covered { // gin would otherwise take an empty body for no answer yet
			outer.WriteHeaderNow()
		}
	}
}

// A passage is a request on its way through Handler or Outer.
type passage struct {
	c       *gin.Context
	ran     bool // the handlers after it
	covered bool
}

type contextKey struct{}

func passageOf(ctx context.Context) (p *passage, ok bool) {
	p, ok = ctx.Value(contextKey{}).(*passage)
	return p, ok
}

// serveCovered runs the handlers after Handler: on the buffer if the request is covered, else unchanged.
func serveCovered(w http.ResponseWriter, r *http.Request) {
	p, _ := passageOf(r.Context()) // requestOf has put it there
	p.ran = true
	if _, untouched := w.(gin.ResponseWriter); untouched { // the buffer is none
		p.covered, p.ran = false, false // unless it panics, which may be answered
		p.c.Next()
		p.ran = true
		return
	}
	runHandlers(p.c, w, r)
}

// Outer returns [idemkey.Middleware.Outer] as a gin middleware. It goes before middleware that reads
// bodies without restoring them, and Handler goes after that. If it refuses the request, it aborts the chain.
func Outer(m *idemkey.Middleware) gin.HandlerFunc {
	h := m.Outer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		p, _ := passageOf(r.Context())
		p.ran, p.c.Request = true, r
		p.c.Next()
	}))
	return func(c *gin.Context) {
		p := &passage{c: c}
		h.ServeHTTP(c.Writer, requestOf(p))
		if !p.ran {
			c.Abort()
			c.Writer.WriteHeaderNow()
		}
	}
}

// From returns the gin context of the request that ctx belongs to, for
// idemkey.Options such as Scope that see no more than the request:
//
//	Scope: func(r *http.Request) (string, error) {
//		c, _ := idemgin.From(r.Context())
//		return c.GetString("principal"), nil
//	}
//
// gin reuses it after the request: it must not be kept.
func From(ctx context.Context) (c *gin.Context, ok bool) {
	p, ok := passageOf(ctx)
	if !ok {
		return nil, false
	}
	return p.c, true
}

// requestOf returns a copy of p's request that leads back to p and carries what gin
// keeps to itself: the route, and a body that was bound before.
func requestOf(p *passage) *http.Request {
	c := p.c
	r := c.Request.WithContext(context.WithValue(c.Request.Context(), contextKey{}, p))
	if path := c.FullPath(); path != "" {
		r.Pattern = r.Method + " " + path
	}
	bound, _ := c.Get(gin.BodyBytesKey)
	if body, ok := bound.([]byte); ok {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return r
}

// runHandlers runs the handlers on the buffer w. The buffer stays in c until restoreContext: a
// goroutine that a handler has left behind finds it closed, instead of the connection.
func runHandlers(c *gin.Context, w http.ResponseWriter, r *http.Request) {
	before := len(c.Errors)
	inner := &writer{ResponseWriter: w, r: r, status: c.Writer.Status(), size: unwritten}
	c.Writer, c.Request = inner, r
	c.Next()
	if len(c.Errors) > before && (!inner.Written() || inner.failedLate()) {
		idemkey.Fail(r.Context(), c.Errors.Last().Err)
		return
	}
	inner.WriteHeaderNow()
}

// restoreContext puts gin's own writer and request back when the request has been
// answered, and before a recoverer runs: a recoverer that wrote to the buffer would
// leave the client with an empty 200.
func restoreContext(c *gin.Context, outer gin.ResponseWriter, original *http.Request, returned bool) {
	c.Writer, c.Request = outer, original
	if !returned && !outer.Written() { // gin.Recovery answers no http.ErrAbortHandler, which would leave a 200
		outer.WriteHeader(http.StatusInternalServerError)
	}
}
