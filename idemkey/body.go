package idemkey

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Outer returns next with the request's body kept for [Middleware.Handler]. Mount it before
// middleware that reads bodies and does not restore them, such as one that checks a
// signature or a form's token:
//
//	mux.Handle("POST /orders", m.Outer(checkSignature(m.Handler(orders))))
//
// Without Outer, Handler must be able to read the whole body. It answers 500 [CodeBodyConsumed]
// if it reads less than the Content-Length, or nothing of a chunked body: the fingerprint would be
// that of the rest, and another request would get the first one's response. It cannot see that a
// chunked body was read in part, nor tell an empty one from one that was read. With Outer both
// are exact.
//
// Of a request that m covers and that has a key, Outer reads the body, and refuses it as Handler does
// (400, 413). Handler then uses these bytes, however much of r.Body was read in between, and gives the
// handler the whole body. A body that was replaced by another one in between, as a
// decompressor does, counts as replaced. The limit is m's: a route with a larger one needs an Outer
// of its own. What may keep clients from sending bodies, such as authentication, goes outside of Outer.
//
// Any other request passes as it is.
func (m *Middleware) Outer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !m.covers(r) || !m.opts.hasKey(r.Header) {
			next.ServeHTTP(w, r)
			return
		}
		x := &exchange{m: m, w: w, r: r, event: Event{Route: r.Pattern}}
		if !x.readBody(atOuter) {
			x.report(x.detached())
			return
		}
		next.ServeHTTP(w, x.withBody(context.WithValue(r.Context(), sentBodyKey{}, sentBody(x.body))))
	})
}

// A sentBody is a request's body as Outer has read it.
type sentBody []byte

type sentBodyKey struct{}

// A mount is what reads a body.
type mount bool

const (
	atOuter   mount = true // where an empty body is what the client sent
	atHandler mount = false
)

// readBody reads the request's body and puts it back for the handler. It has
// answered if it is not ok.
func (x *exchange) readBody(at mount) (ok bool) {
	limit := x.m.opts.Limits.MaxRequestBody
	if x.r.ContentLength > limit {
		x.refuse(ResultTooLarge, CodeBodyTooLarge, nil)
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(x.w, cmp.Or[io.ReadCloser](x.r.Body, http.NoBody), limit))
	sent, kept := x.r.Context().Value(sentBodyKey{}).(sentBody)
	switch tooLarge := new(http.MaxBytesError); {
	case errors.As(err, &tooLarge):
		x.refuse(ResultTooLarge, CodeBodyTooLarge, nil)
		return false
	case kept && x.r.ContentLength == int64(len(sent)) && bytes.HasSuffix(sent, body):
		body = sent // what was left is the rest of it
	case err != nil && !errors.Is(err, http.ErrBodyReadAfterClose):
		x.refuse(ResultInvalid, CodeBodyUnreadable, nil)
		return false
	default:
		if err := consumed(x.r, len(body), err, at); err != nil {
			x.refuse(ResultMisconfigured, CodeBodyConsumed, err)
			return false
		}
	}
	x.body = body
	x.r = x.withBody(x.r.Context()) // a copy: the caller's request keeps its own body
	return true
}

// consumed returns an error if something has read r's body before, so that only n bytes were
// left, or has closed it. A body that is longer than its Content-Length was rewritten, and one
// with a Content-Encoding may have been decoded to something shorter.
func consumed(r *http.Request, n int, closed error, at mount) error {
	const advice = "restore r.Body, or mount Middleware.Outer before it"
	left, encoded := int64(n), r.Header.Get("Content-Encoding") != ""
	switch {
	case left < r.ContentLength && (left == 0 || !encoded):
		return fmt.Errorf("idemkey: something outside of the middleware has read %d of %d bytes of the request body: %s", r.ContentLength-left, r.ContentLength, advice)
	case closed != nil:
		return fmt.Errorf("idemkey: something outside of the middleware has closed the request body: %s", advice)
	case r.ContentLength < 0 && left == 0 && at == atHandler:
		return fmt.Errorf("idemkey: the request body is empty and has no Content-Length, so something outside of the middleware may have read it: "+
			"%s; where clients send empty chunked bodies, mount Outer", advice)
	}
	return nil
}

// withBody returns the request under ctx, with its body yet to be read.
func (x *exchange) withBody(ctx context.Context) *http.Request {
	r := x.r.WithContext(ctx)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
	return r
}
