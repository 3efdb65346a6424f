package idemkey

import (
	"cmp"
	"fmt"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strings"
)

// A placement is where on a request's way a Middleware runs it.
type placement struct {
	store Store
	id    Identity // that it claims; see placeOf
	site  callSite
	route string
	outer *run // that it is inside of; nil: none

	namespace         string // of id, without the route of Options.ScopeByRoute
	method, uri, path string
}

// same reports whether inner, further inside, would claim what p has claimed. Options.ScopeByRoute names
// one request's route by its path before a router, and by the router's pattern behind it.
func (p placement) same(inner placement) bool {
	if !sameStore(p.store, inner.store) {
		return false
	}
	byRoute := p.namespace == inner.namespace && p.id.Scope == inner.id.Scope && p.id.Key == inner.id.Key &&
		p.method == inner.method && p.uri != "" && p.uri == inner.uri && strings.HasSuffix(p.path, inner.path)
	return p.id == inner.id || byRoute
}

// mountedTwice refuses a request that already runs under the identity to be claimed: the claim would wait
// for the end of its own request. The runs around it fail with the same answer, whatever they and their
// policies say, and nothing is kept.
func (x *exchange) mountedTwice(id Identity) bool {
	x.place = placement{store: x.m.store, id: placeOf(id, x.m.opts, x.r), site: x.site, route: x.event.Route, outer: runFrom(x.r.Context()),
		namespace: x.m.opts.Key.Namespace, method: x.r.Method, uri: x.r.RequestURI, path: x.r.URL.Path}
	around := x.place.outer
	for around != nil && !around.place.same(x.place) {
		around = around.place.outer
	}
	if around == nil {
		return false
	}
	for r := x.place.outer; r != around; r = r.place.outer {
		r.fail(x.m.problem(CodeMountedTwice))
	}
	around.fail(x.m.problem(CodeMountedTwice))
	x.refuse(ResultMisconfigured, CodeMountedTwice, fmt.Errorf("idemkey: the middleware is mounted twice for one request, at %v and inside of that at %v: remove one of them",
		around.place, x.place))
	return true
}

// placeOf returns what tells id from others on one request's way. Without a key that is the request: a
// handler may serve others by its own context.
func placeOf(id Identity, o *Options, r *http.Request) Identity {
	if id.Key != "" {
		return id
	}
	return Identity{Namespace: o.namespace(r), Scope: r.Method + " " + r.RequestURI}
}

// sameStore is a == b for stores whose type may not be comparable.
func sameStore(a, b Store) bool { return reflect.ValueOf(a).Comparable() && a == b }

// String is for the log.
func (p placement) String() string {
	return fmt.Sprintf("%v (route %s)", p.site, cmp.Or(p.route, "unknown"))
}

// A callSite is the stack of a call of Handler.
type callSite []uintptr

// callers returns the call site of the function that calls it.
func callers() callSite {
	pcs := make([]uintptr, 16)
	return pcs[:runtime.Callers(3, pcs)]
}

// String returns file and line of whoever has mounted the middleware: the first caller that is neither
// of this package and its adapters, nor of a router that calls Handler for the service.
func (s callSite) String() string {
	found := "an unknown place"
	frames := runtime.CallersFrames(s)
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		if slices.Contains(ownPackages, packageOf(frame.Function)) {
			continue
		}
		at := fmt.Sprintf("%s:%d", frame.File, frame.Line)
		if !imported(frame) {
			return at
		}
		if found == "an unknown place" {
			found = at
		}
	}
	return found
}

// ownPackages are those that call Handler for whoever mounts it.
var ownPackages = []string{
	"github.com/sagamill/sagamill/idemkey", "github.com/sagamill/sagamill/idemkey/idemgin", "github.com/sagamill/sagamill/idemkey/idemecho",
}

// packageOf returns the import path of a function's package.
func packageOf(function string) string {
	last := strings.LastIndexByte(function, '/') + 1
	name, _, _ := strings.Cut(function[last:], ".")
	return function[:last] + name
}

// imported reports that frame is of a module that the service imports, or of net/http.
func imported(frame runtime.Frame) bool {
	return frame.File == "" || strings.Contains(frame.File, "@v") || strings.Contains(frame.File, "/vendor/") || packageOf(frame.Function) == "net/http"
}
