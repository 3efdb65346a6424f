package idemkey

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
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
// handler the whole body. That holds for r.Body as Outer has made it, and for what wraps it and passes its
// bytes on. A body that was replaced by another one in between, as a decompressor does, counts as replaced.
// One that was decoded to nothing is refused: it cannot be told from one that was read. The limit is m's: a route with a larger one needs an Outer
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
		sent := &sentBody{all: x.body}
		r = x.withBody(context.WithValue(r.Context(), sentBodyKey{}, sent))
		r.Body = sent
		next.ServeHTTP(w, r)
	})
}

// A sentBody is a request's body as Outer has read it, to be read again.
type sentBody struct {
	all []byte
	n   int // bytes read so far
}

func (s *sentBody) Read(p []byte) (n int, err error) {
	if s.n == len(s.all) {
		return 0, io.EOF
	}
	n = copy(p, s.all[s.n:])
	s.n += n
	return n, nil
}

// Close does nothing: Handler reads what is left.
func (*sentBody) Close() error { return nil }

// rest reports whether body, which was read from r.Body while s went from before on, is the rest of s,
// and nothing that was decoded from it or put in its place.
func (s *sentBody) rest(body []byte, before int, r *http.Request) bool {
	return !encoded(r) && r.ContentLength == int64(len(s.all)) && s.n-before == len(body) && bytes.Equal(body, s.all[before:])
}

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
	sent, kept := x.r.Context().Value(sentBodyKey{}).(*sentBody)
	if kept && x.r.Body == io.ReadCloser(sent) {
		x.keepBody(sent.all)
		return true
	}
	before := 0
	if kept {
		before = sent.n
	}
	body, err := io.ReadAll(http.MaxBytesReader(x.w, cmp.Or[io.ReadCloser](x.r.Body, http.NoBody), limit))
	switch tooLarge := new(http.MaxBytesError); {
	case errors.As(err, &tooLarge):
		x.refuse(ResultTooLarge, CodeBodyTooLarge, nil)
		return false
	case kept && err == nil && sent.rest(body, before, x.r):
		body = sent.all // what wraps it has read the beginning
	case kept && err == nil && len(body) > 0 && sent.n == before: // another body is in its place
	case err != nil && !errors.Is(err, http.ErrBodyReadAfterClose):
		x.refuse(ResultInvalid, CodeBodyUnreadable, nil)
		return false
	default:
		if err := consumed(x.r, len(body), err, at); err != nil {
			x.refuse(ResultMisconfigured, CodeBodyConsumed, err)
			return false
		}
	}
	x.keepBody(body)
	return true
}

// keepBody puts the body back for the handler. It is no longer that of Outer: requests within the
// handler have bodies of their own.
func (x *exchange) keepBody(body []byte) {
	x.body = body
	ctx := x.r.Context()
	if ctx.Value(sentBodyKey{}) != nil {
		ctx = context.WithValue(ctx, sentBodyKey{}, nil)
	}
	x.r = x.withBody(ctx) // a copy: the caller's request keeps its own body
}

// consumed returns an error if something has read r's body before, so that only n bytes were
// left, or has closed it. A body that is longer than its Content-Length was rewritten, and one
// with a Content-Encoding may have been decoded to something shorter.
func consumed(r *http.Request, n int, closed error, at mount) error {
	const advice = "restore r.Body, or mount Middleware.Outer before it"
	left := int64(n)
	switch {
	case left < r.ContentLength && (left == 0 || !encoded(r)):
		return fmt.Errorf("idemkey: something outside of the middleware has read %d of %d bytes of the request body: %s", r.ContentLength-left, r.ContentLength, advice)
	case closed != nil:
		return fmt.Errorf("idemkey: something outside of the middleware has closed the request body: %s", advice)
	case r.ContentLength < 0 && left == 0 && at == atHandler:
		return fmt.Errorf("idemkey: the request body is empty and has no Content-Length, so something outside of the middleware may have read it: "+
			"%s; where clients send empty chunked bodies, mount Outer", advice)
	}
	return nil
}

// encodings are what a middleware may have decoded: https://www.iana.org/assignments/http-parameters, and x-gzip.
var encodings = []string{"gzip", "x-gzip", "deflate", "br", "zstd", "compress"}

// encoded reports whether r's body may have been decoded to one of another length.
func encoded(r *http.Request) bool {
	return slices.ContainsFunc(r.Header.Values("Content-Encoding"), func(value string) bool {
		return slices.ContainsFunc(strings.Split(value, ","), func(one string) bool {
			return slices.Contains(encodings, strings.ToLower(strings.TrimSpace(one)))
		})
	})
}

// withBody returns the request under ctx, with its body yet to be read.
func (x *exchange) withBody(ctx context.Context) *http.Request {
	r := x.r.WithContext(ctx)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
	return r
}
