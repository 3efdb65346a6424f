package idemkey

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"runtime"
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
// are certain.
//
// Of a request that m covers and that has a key, Outer reads the body, and refuses it as Handler does
// (400, 413). Handler then uses these bytes, however much of r.Body was read in between, and gives the
// handler the whole body. That holds for r.Body as Outer has made it, and for a wrapper that passes its
// bytes on. A body that middleware in between replaces, as a decompressor does, counts as replaced. A body
// that was decoded to nothing is refused: it cannot be told from one that was read. The limit is m's: a
// route with a larger limit needs another Outer. Authentication, and other middleware that may keep clients
// from sending bodies, goes outside of Outer.
//
// All other requests pass unchanged.
func (m *Middleware) Outer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !m.coversRequest(r) || !m.opts.hasKey(r.Header) {
			next.ServeHTTP(w, r)
			return
		}
		q := newRequest(m, w, r)
		v := &receiver{request: q, answers: answerer{q}}
		if !v.readBody(atOuter) {
			q.reportEvent(q.detachedContext())
			return
		}
		sent := &sentBody{all: q.body}
		r = q.withBody(context.WithValue(r.Context(), sentBodyKey{}, sent))
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

// isRest reports whether body, which was read from r.Body while s went from before on, is the rest of s.
// It is not if it was decoded from s, or put in the place of s.
func (s *sentBody) isRest(body []byte, before int, r *http.Request) bool {
	return !mayBeDecoded(r) && r.ContentLength == int64(len(s.all)) && s.n-before == len(body) && bytes.Equal(body, s.all[before:])
}

type sentBodyKey struct{}

// A mount says which of the two reads a body.
type mount bool

const (
	atOuter   mount = true // an empty body is what the client has sent
	atHandler mount = false
)

// readBody reads the request's body and puts it back for the handler. If it is not ok, it has answered.
func (v *receiver) readBody(at mount) (ok bool) {
	limit := v.m.opts.Limits.MaxRequestBody
	if v.r.ContentLength > limit {
		v.answers.refuseRequest(ResultTooLarge, CodeBodyTooLarge, nil)
		return false
	}
	sent, behindOuter := v.r.Context().Value(sentBodyKey{}).(*sentBody)
	if behindOuter && v.r.Body == io.ReadCloser(sent) {
		v.keepBody(sent.all)
		return true
	}
	before := 0
	if behindOuter {
		before = sent.n
	}
	body, err := io.ReadAll(http.MaxBytesReader(v.w, cmp.Or[io.ReadCloser](v.r.Body, http.NoBody), limit))
	switch tooLarge := new(http.MaxBytesError); {
	case errors.As(err, &tooLarge):
		v.answers.refuseRequest(ResultTooLarge, CodeBodyTooLarge, nil)
		return false
	case behindOuter && err == nil && sent.isRest(body, before, v.r):
		body = sent.all // a wrapper has read the beginning
	case behindOuter && err == nil && len(body) > 0 && sent.n == before: // another body is in its place
	case err != nil && !errors.Is(err, http.ErrBodyReadAfterClose):
		v.answers.refuseRequest(ResultInvalid, CodeBodyUnreadable, nil)
		return false
	default:
		if err := checkConsumed(v.r, len(body), err, at); err != nil {
			v.answers.refuseRequest(ResultMisconfigured, CodeBodyConsumed, err)
			return false
		}
	}
	v.keepBody(body)
	return true
}

// keepBody puts the body back for the handler. From here on the body is not Outer's any more: requests
// within the handler have bodies of their own.
func (v *receiver) keepBody(body []byte) {
	v.body = body
	ctx := v.r.Context()
	if ctx.Value(sentBodyKey{}) != nil {
		ctx = context.WithValue(ctx, sentBodyKey{}, nil)
	}
	v.r = v.withBody(ctx) // a copy: the caller's request keeps its own body
}

// checkConsumed returns an error if outer middleware has read r's body, so that only n bytes were left, or
// has closed it. A body longer than its Content-Length was rewritten, and one with a Content-Encoding may
// have been decoded to fewer bytes: both are accepted.
func checkConsumed(r *http.Request, n int, closed error, at mount) error {
	const advice = "restore r.Body, or mount Middleware.Outer before it"
	left := int64(n)
	switch {
	case left < r.ContentLength && (left == 0 || !mayBeDecoded(r)):
		return fmt.Errorf("idemkey: something outside of the middleware has read %d of %d bytes of the request body: %s", r.ContentLength-left, r.ContentLength, advice)
	case closed != nil:
		return fmt.Errorf("idemkey: something outside of the middleware has closed the request body: %s", advice)
	case r.ContentLength < 0 && left == 0 && at == atHandler:
		return fmt.Errorf("idemkey: the request body is empty and has no Content-Length, so something outside of the middleware may have read it: "+
			"%s; where clients send empty chunked bodies, mount Outer", advice)
	}
	return nil
}

// encodings are the content codings that middleware may have decoded:
// https://www.iana.org/assignments/http-parameters, and x-gzip.
var encodings = []string{"gzip", "x-gzip", "deflate", "br", "zstd", "compress"}

// mayBeDecoded reports whether r's body may have been decoded to one of another length.
func mayBeDecoded(r *http.Request) bool {
	return slices.ContainsFunc(r.Header.Values("Content-Encoding"), func(value string) bool {
		return slices.ContainsFunc(strings.Split(value, ","), func(one string) bool {
			return slices.Contains(encodings, strings.ToLower(strings.TrimSpace(one)))
		})
	})
}

// A placement is where on a request's way a Middleware is mounted.
type placement struct {
	store Store
	id    Identity // see placeID
	site  mountStack
	route string
	outer *handlerRun // the run that it is inside of; nil: none

	namespace         string // of id, without the route of Options.ScopeByRoute
	method, uri, path string
}

// claimsSame reports whether inner, further inside, would claim the identity that p has claimed.
// Options.ScopeByRoute names one request's route by its path before a router, and by the router's pattern
// behind it.
func (p placement) claimsSame(inner placement) bool {
	if !sameStore(p.store, inner.store) {
		return false
	}
	byRoute := p.namespace == inner.namespace && p.id.Scope == inner.id.Scope && p.id.Key == inner.id.Key &&
		p.method == inner.method && p.uri != "" && p.uri == inner.uri && strings.HasSuffix(p.path, inner.path)
	return p.id == inner.id || byRoute
}

// checkMounts refuses a request that already runs under the identity to be claimed: the claim would wait
// for the request that it is part of. The runs around it fail with the same answer, regardless of their
// handlers and policies, and nothing is kept. If checkMounts is not ok, it has answered.
func (v *receiver) checkMounts(site mountStack) (ok bool) {
	v.place = placement{store: v.m.store, id: placeID(v.claim.ID, v.m.opts, v.r), site: site, route: v.event.Route, outer: runFrom(v.r.Context()),
		namespace: v.m.opts.Key.Namespace, method: v.r.Method, uri: v.r.RequestURI, path: v.r.URL.Path}
	around := v.place.outer
	for around != nil && !around.place.claimsSame(v.place) {
		around = around.place.outer
	}
	if around == nil {
		return true
	}
	for r := v.place.outer; r != around; r = r.place.outer {
		r.failWith(v.m.problemByCode(CodeMountedTwice))
	}
	around.failWith(v.m.problemByCode(CodeMountedTwice))
	v.answers.refuseRequest(ResultMisconfigured, CodeMountedTwice, fmt.Errorf("idemkey: the middleware is mounted twice for one request, at %v and inside of that at %v: remove one of them",
		around.place, v.place))
	return false
}

// placeID tells id from other identities on one request's way. Without a key it is made of the request's
// method and URI: a handler may serve other requests under its own context.
func placeID(id Identity, o *Options, r *http.Request) Identity {
	if id.Key != "" {
		return id
	}
	return Identity{Namespace: o.namespaceOf(r), Scope: r.Method + " " + r.RequestURI}
}

// sameStore is a == b for stores whose type may not be comparable.
func sameStore(a, b Store) bool { return reflect.ValueOf(a).Comparable() && a == b }

// String is for the log.
func (p placement) String() string {
	return fmt.Sprintf("%v (route %s)", p.site, cmp.Or(p.route, "unknown"))
}

// A mountStack is the stack of a call of Handler.
type mountStack []uintptr

// mountSite returns the stack from the caller of its caller, which is Handler, on.
func mountSite() mountStack {
	pcs := make([]uintptr, 16)
	return pcs[:runtime.Callers(3, pcs)]
}

// String returns the file and line that mounts the middleware: the first caller that is neither of this
// package and its adapters, nor of a router that calls Handler for the service.
func (s mountStack) String() string {
	found := "an unknown place"
	frames := runtime.CallersFrames(s)
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		if slices.Contains(ownPackages, packageOf(frame.Function)) {
			continue
		}
		at := fmt.Sprintf("%s:%d", frame.File, frame.Line)
		if !importedFrame(frame) {
			return at
		}
		if found == "an unknown place" {
			found = at
		}
	}
	return found
}

// ownPackages call Handler on behalf of the code that mounts it.
var ownPackages = []string{
	"github.com/sagamill/sagamill/idemkey", "github.com/sagamill/sagamill/idemkey/idemgin", "github.com/sagamill/sagamill/idemkey/idemecho",
}

// packageOf returns the import path of a function's package.
func packageOf(function string) string {
	last := strings.LastIndexByte(function, '/') + 1
	name, _, _ := strings.Cut(function[last:], ".")
	return function[:last] + name
}

// importedFrame reports that frame is of a module that the service imports, or of net/http.
func importedFrame(frame runtime.Frame) bool {
	return frame.File == "" || strings.Contains(frame.File, "@v") || strings.Contains(frame.File, "/vendor/") || packageOf(frame.Function) == "net/http"
}
