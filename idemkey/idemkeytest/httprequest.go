package idemkeytest

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/idemkey"
)

// spoilBodies is a middleware that does to a request's body what its header Body says.
func spoilBodies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch how := r.Header.Get("Body"); how {
		case "":
		case "drain":
			_, _ = io.ReadAll(r.Body)
		case "close":
			_ = r.Body.Close()
		case "parse":
			_ = r.FormValue("amount")
		case "restore", "parse and restore":
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if how != "restore" {
				_ = r.FormValue("amount")
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
		case "double":
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(append(body, body...)))
		case "replace":
			r.Body = io.NopCloser(strings.NewReader("a"))
		case "strip":
			_, _ = io.CopyN(io.Discard, r.Body, int64(len("amount=")))
			rest, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(rest))
		case "wrap":
			r.Body = io.NopCloser(r.Body)
			_, _ = io.ReadAll(r.Body)
		case "decompress":
			if plain, err := gzip.NewReader(r.Body); err == nil {
				r.Body = plain
			}
		default: // a number of bytes
			n, _ := strconv.ParseInt(how, 10, 64)
			_, _ = io.CopyN(io.Discard, r.Body, n)
		}
		next.ServeHTTP(w, r)
	})
}

// A bodyCase is a request whose body is spoiled before the middleware reads it.
type bodyCase struct {
	name, how string
	body      string
	chunked   bool
	header    []string
	inner     bool   // without Outer it runs too
	want      string // the body that the handler reads; empty: body
	said      string // the log of a refusal, without Outer
}

const (
	formType  = "application/x-www-form-urlencoded"
	multipart = "--b\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n1\r\n--b--\r\n"
)

// bodyCases are all ways to spoil a body that the middleware can detect.
func bodyCases() []bodyCase {
	form, mixed, packed := []string{"Content-Type", formType}, []string{"Content-Type", "multipart/form-data; boundary=b"}, []string{"Content-Encoding", "gzip"}
	return []bodyCase{
		{name: "whole", body: "amount=1", inner: true},
		{name: "empty", inner: true},
		{name: "whole chunked", body: "amount=1", chunked: true, inner: true},
		{name: "restored", how: "restore", body: "amount=1", inner: true},
		{name: "restored chunked", how: "restore", body: "amount=1", chunked: true, inner: true},
		{name: "read", how: "drain", body: "amount=1", said: "has read 8 of 8 bytes"},
		{name: "read in part", how: "3", body: "amount=1", said: "has read 3 of 8 bytes"},
		{name: "read chunked", how: "drain", body: "amount=1", chunked: true, said: "has no Content-Length"},
		{name: "empty chunked", chunked: true, said: "mount Outer"},
		{name: "closed", how: "close", body: "amount=1", said: "has read 8 of 8 bytes"},
		{name: "closed chunked", how: "close", body: "amount=1", chunked: true, said: "has closed"},
		{name: "form", how: "parse", body: "amount=1", header: form, said: "has read 8 of 8 bytes"},
		{name: "form chunked", how: "parse", body: "amount=1", chunked: true, header: form, said: "has no Content-Length"},
		{name: "form restored", how: "parse and restore", body: "amount=1", header: form, inner: true},
		{name: "multipart", how: "parse", body: multipart, header: mixed, said: "restore r.Body"},
		{name: "multipart restored", how: "parse and restore", body: multipart, header: mixed, inner: true},
		{name: "rewritten", how: "double", body: "amount=1", inner: true, want: "amount=1amount=1"},
		{name: "stripped", how: "strip", body: "amount=1", said: "has read 7 of 8 bytes", want: "1"},
		{name: "wrapped and read", how: "wrap", body: "amount=1", said: "has read 8 of 8 bytes"},
		{name: "identity read in part", how: "3", body: "amount=1", header: []string{"Content-Encoding", "identity"}, said: "has read 3 of 8 bytes"},
		{name: "encoded shorter", how: "replace", body: "amount=1", header: packed, inner: true, want: "a"},
		{name: "encoded read", how: "drain", body: "amount=1", header: packed, said: "has read 8 of 8 bytes"},
		{name: "decompressed", how: "decompress", body: gzipString("amount=1"), header: packed, inner: true, want: "amount=1"},
		{name: "decompressed chunked", how: "decompress", body: gzipString("amount=1"), chunked: true, header: packed, inner: true, want: "amount=1"},
	}
}

func gzipString(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, s)
	_ = w.Close()
	return b.String()
}

// sendCase posts the case's body, or another one that is as long.
func (c bodyCase) sendCase(t *httpTest, body, key string) reply {
	t.Helper()
	req := t.newRequest(t.Context(), http.MethodPost, body, strings.ReplaceAll(key, " ", "-"), append(c.header, "Body", c.how)...)
	if c.chunked {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), -1
	}
	r, err := t.sendRequest(req)
	if err != nil {
		t.Fatalf("%s: POST: %v", c.name, err)
	}
	return r
}

// expectRun checks that the request ran with its whole body, that a retry is a replay, and that
// another body is another request.
func (c bodyCase) expectRun(t *httpTest) {
	t.Helper()
	want := c.want
	if want == "" {
		want = c.body
	}
	first := c.sendCase(t, c.body, c.name)
	if t.expectReply(first, http.StatusCreated, ""); first.Body != want+"\x00\xff\n" {
		t.Errorf("%s: the handler read %q, want %q", c.name, strings.TrimSuffix(first.Body, "\x00\xff\n"), want)
	}
	t.expectReplay(c.sendCase(t, c.body, c.name), first)
	if other := strings.Replace(c.body, "1", "2", 1); other != c.body && c.want == "" {
		t.expectReply(c.sendCase(t, other, c.name), http.StatusUnprocessableEntity, idemkey.CodeKeyReused)
	}
}

// httpBody: a body that something outside of the middleware has read is no empty body: another
// request under the key would get its response.
func httpBody(t *httpTest) {
	t.around = func(_ *idemkey.Middleware, h http.Handler) http.Handler { return spoilBodies(h) }
	t.mountHandler(nil, t.answerOrder)
	for _, c := range bodyCases() {
		if c.inner {
			c.expectRun(t)
			continue
		}
		t.drainEvents()
		got := c.sendCase(t, c.body, "refused")
		t.expectReply(got, http.StatusInternalServerError, idemkey.CodeBodyConsumed)
		if e := <-t.events; e.Result != idemkey.ResultMisconfigured || e.Err == nil || !strings.Contains(e.Err.Error(), c.said) {
			t.Errorf("%s: event = %+v, want an error with %q", c.name, e, c.said)
		}
	}
}

// httpOuter: with Outer before what reads the body, all bodies are whole.
func httpOuter(t *httpTest) {
	t.around = func(idem *idemkey.Middleware, h http.Handler) http.Handler { return idem.Outer(spoilBodies(h)) }
	t.mountHandler(func(o *idemkey.Options) { o.Limits.MaxRequestBody = 200 }, t.answerOrder)
	for _, c := range bodyCases() {
		c.expectRun(t)
	}
	garbled := bodyCase{how: "decompress", header: []string{"Content-Encoding", "gzip"}}
	got := garbled.sendCase(t, gzipString("amount=1")[:10]+"\xff\xffamount=1", "garbled") // the decoder refuses these bytes
	t.expectReply(got, http.StatusBadRequest, idemkey.CodeBodyUnreadable)
	got = garbled.sendCase(t, gzipString(""), "decoded to nothing") // it cannot be told from one that was read
	t.expectReply(got, http.StatusInternalServerError, idemkey.CodeBodyConsumed)
	t.drainEvents()
	large := bodyCase{name: "large", body: strings.Repeat("x", 201)}
	t.expectReply(large.sendCase(t, large.body, "large"), http.StatusRequestEntityTooLarge, idemkey.CodeBodyTooLarge)
	large.chunked = true
	t.expectReply(large.sendCase(t, large.body, "large"), http.StatusRequestEntityTooLarge, idemkey.CodeBodyTooLarge)
	for range 2 {
		if e := <-t.events; e.Result != idemkey.ResultTooLarge {
			t.Errorf("event = %+v, want %s", e, idemkey.ResultTooLarge)
		}
	}
}

// httpOuterPasses: Outer reads nothing of a request that has no key, or is not covered.
func httpOuterPasses(t *httpTest) {
	t.around = func(idem *idemkey.Middleware, h http.Handler) http.Handler { return idem.Outer(spoilBodies(h)) }
	t.mountHandler(func(o *idemkey.Options) { o.Key.Optional = true; o.Limits.MaxRequestBody = 1 }, func(w http.ResponseWriter, r *http.Request) error {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Read", string(body))
		return writeStatus(w, http.StatusAccepted)
	})
	for _, how := range []string{"", "2"} {
		got := t.postOrder("body", "", "Body", how)
		if t.expectReply(got, http.StatusAccepted, ""); !strings.HasSuffix("body", got.Header.Get("Read")) || got.Header.Get("Read") == "" {
			t.Errorf("read %q of body after %q was read before", got.Header.Get("Read"), how)
		}
	}
	got, err := t.sendRequest(t.newRequest(context.Background(), http.MethodGet, "body", "k"))
	if err != nil {
		t.Fatalf("GET: %v", err)
	}
	if got.Header.Get("Read") != "body" {
		t.Errorf("GET with a body: the handler read %q", got.Header.Get("Read"))
	}
}

// httpMountedTwice: a request that comes through the middleware twice is refused at once, with or
// without a key and whatever the policy is, and keeps nothing.
func httpMountedTwice(t *httpTest) {
	t.around = func(idem *idemkey.Middleware, h http.Handler) http.Handler { return idem.Handler(h) }
	t.mountHandler(func(o *idemkey.Options) { o.Key.Optional, o.Policy = true, idemkey.KeepAll }, func(http.ResponseWriter, *http.Request) error {
		t.Error("the handler ran")
		return nil
	})
	for _, key := range []string{"k", "k", ""} {
		got := t.postOrder("x", key)
		if t.expectReply(got, http.StatusInternalServerError, idemkey.CodeMountedTwice); got.Header.Get("Idempotent-Replayed") != "" {
			t.Fatal("the refusal was kept")
		}
		inner, outer := <-t.events, <-t.events
		if inner.Result != idemkey.ResultMisconfigured || inner.Err == nil || strings.Count(inner.Err.Error(), ".go:") != 2 {
			t.Errorf("inner event = %+v, want an error that names two places", inner)
		}
		if outer.Outcome != idemkey.OutcomeFailed {
			t.Errorf("outer event = %+v, want the run failed", outer)
		}
	}
	t.around = func(idem *idemkey.Middleware, h http.Handler) http.Handler { // by another name of the route
		byRoute, err := idem.With(func(o *idemkey.Options) { o.ScopeByRoute = true })
		if err != nil {
			t.Fatalf("With: %v", err)
		}
		route := byRoute.Handler(h)
		return byRoute.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Pattern = "POST /orders" // as a router does
			route.ServeHTTP(w, r)
		}))
	}
	t.mountHandler(nil, t.answerOrder)
	t.expectReply(t.postOrder("x", "route"), http.StatusInternalServerError, idemkey.CodeMountedTwice)
	t.around = nil // the service is mended, and the key is as good as new
	t.mountHandler(nil, t.answerOrder)
	t.expectReply(t.postOrder("x", "k"), http.StatusCreated, "")
	t.expectRows("order", 1)
}

// httpBatch: a handler that serves another request under its own key has failed, whatever it makes of the
// refusal: a success would be told of what was rolled back.
func httpBatch(t *httpTest) {
	inner := make(chan http.Handler, 1)
	t.around = func(idem *idemkey.Middleware, h http.Handler) http.Handler {
		inner <- idem.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the inner handler ran") }))
		return h
	}
	var one http.Handler
	t.mountHandler(nil, func(w http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		part := r.Clone(r.Context())
		part.URL.Path, part.RequestURI = "/one", "/one"
		one.ServeHTTP(discarded{}, part)
		return writeStatus(w, http.StatusMultiStatus)
	})
	one = <-inner
	t.expectReply(t.postOrder("x", "k"), http.StatusInternalServerError, idemkey.CodeMountedTwice)
	if t.storeTraits().Transactional {
		t.expectRows("order", 0)
	}
}

// discarded is a response that nobody reads.
type discarded struct{}

func (discarded) Header() http.Header         { return http.Header{} }
func (discarded) Write(p []byte) (int, error) { return len(p), nil }
func (discarded) WriteHeader(int)             {}

// httpNested: middleware inside of another is all right if it claims something else.
func httpNested(t *httpTest) {
	own, err := idemkey.NewMemory(nil)
	if err != nil {
		t.Fatalf("NewMemory: %v", err)
	}
	for name, around := range map[string]func(*idemkey.Middleware) (*idemkey.Middleware, error){
		"namespace": func(idem *idemkey.Middleware) (*idemkey.Middleware, error) {
			return idem.With(func(o *idemkey.Options) { o.Key.Namespace = "outer" })
		},
		"store": func(*idemkey.Middleware) (*idemkey.Middleware, error) {
			return idemkey.New(own, &idemkey.Options{Scope: tenantScope, Logger: slog.New(slog.DiscardHandler), Key: idemkey.KeyOptions{Optional: true}})
		},
	} {
		t.around = func(idem *idemkey.Middleware, h http.Handler) http.Handler {
			outer, err := around(idem)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return outer.Handler(h)
		}
		t.mountHandler(func(o *idemkey.Options) { o.Key.Optional = true }, t.answerOrder)
		first := t.postOrder("x", name)
		t.expectReply(first, http.StatusCreated, "")
		t.expectReplay(t.postOrder("x", name), first)
		t.expectReply(t.postOrder("x", ""), http.StatusCreated, "")
	}
	t.expectRows("order", 4)
}

// httpOwnHeaders: the headers of key and replay are the middleware's, whatever the handler sets there, in
// first responses, replays and informational ones.
func httpOwnHeaders(t *httpTest) {
	claim := func(h http.Header) {
		h.Add("Idempotency-Key", "of the handler")
		h.Set("X-Idempotency-Key", "of the handler")
		h["idempotency-key"], h["IDEMPOTENT-REPLAYED"] = []string{"of the handler"}, []string{"true"}
	}
	handler := func(w http.ResponseWriter, r *http.Request) error {
		claim(w.Header())
		w.WriteHeader(http.StatusEarlyHints)
		if strings.HasPrefix(r.Header.Get("Idempotency-Key"), "cleared") {
			clear(w.Header())
		}
		w.WriteHeader(http.StatusCreated)
		claim(w.Header())
		_, err := io.WriteString(w, "created")
		return err
	}
	modes := map[string]func(*idemkey.Options){
		"buffered":     func(*idemkey.Options) {},
		"as no replay": func(o *idemkey.Options) { o.Response.EmitReplayedFalse = true },
	}
	if t.backend.Write == nil { // no transaction, which could still roll back
		modes["streamed"] = func(o *idemkey.Options) { o.Response.AllowStreaming = true }
	}
	for mode, set := range modes {
		t.mountHandler(func(o *idemkey.Options) {
			o.Key.Optional, o.Key.Aliases = true, []string{"X-Idempotency-Key"}
			set(o)
		}, handler)
		replayed := ""
		if mode == "as no replay" {
			replayed = "false"
		}
		t.expectOwnHeaders(mode+" first", mode, replayed)
		again := "true"
		if mode == "streamed" {
			again = ""
		}
		t.expectOwnHeaders(mode+" again", mode, again)
		t.expectOwnHeaders(mode+" without a key", "", "")
		t.expectOwnHeaders(mode+" header cleared", "cleared "+mode, replayed)
	}
}

// expectOwnHeaders sends a request under key, if it is not empty. It checks that the responses have only that
// key, and replayed as the value of the replay header.
func (t *httpTest) expectOwnHeaders(what, key, replayed string) {
	t.Helper()
	want := map[string]string{"Idempotency-Key": strings.ReplaceAll(key, " ", "-"), "X-Idempotency-Key": "", "Idempotent-Replayed": replayed}
	check := func(what string, got http.Header, want map[string]string) {
		t.Helper()
		for name, value := range want {
			if lines := got.Values(name); strings.Join(lines, "|") != value || value == "" && len(lines) > 0 {
				t.Errorf("%s: %s = %q, want %q", what, name, lines, value)
			}
		}
	}
	trace := &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		check(what+", early hints", http.Header(h), map[string]string{"X-Idempotency-Key": "", "Idempotent-Replayed": ""})
		if lines := h.Values("Idempotency-Key"); len(lines) > 1 || len(lines) == 1 && lines[0] != want["Idempotency-Key"] {
			t.Errorf("%s, early hints: Idempotency-Key = %q", what, lines)
		}
		return nil
	}}
	got, err := t.sendRequest(t.newRequest(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, "x", want["Idempotency-Key"]))
	if err != nil {
		t.Fatalf("%s: POST: %v", what, err)
	}
	check(what, got.Header, want)
}

// httpScope: that there is no caller is the client's fault, and a scope that cannot be stored is not.
func httpScope(t *httpTest) {
	scope := ""
	t.mountHandler(func(o *idemkey.Options) { o.Scope = func(*http.Request) (string, error) { return scope, nil } }, t.answerOrder)
	for _, tt := range []struct {
		scope  string
		status int
		code   string
	}{
		{"", http.StatusUnauthorized, idemkey.CodeScopeMissing},
		{strings.Repeat("s", idemkey.MaxScope+1), http.StatusInternalServerError, idemkey.CodeScopeInvalid},
		{"s\xff", http.StatusInternalServerError, idemkey.CodeScopeInvalid},
		{"s\x00", http.StatusInternalServerError, idemkey.CodeScopeInvalid},
		{strings.Repeat("s", idemkey.MaxScope), http.StatusCreated, ""},
		{"s\ufffd", http.StatusCreated, ""},
	} {
		scope = tt.scope
		t.expectReply(t.postOrder("x", "k"), tt.status, tt.code)
	}
	t.expectRows("order", 2)
}
