package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// Limits of what passes through. An upstream that is slower or larger needs others.
const (
	maxRequestBody  = 1 << 20
	maxResponseBody = 1 << 20 // is replayed; a larger one is sent once
	maxAnyResponse  = 8 << 20 // a larger one is cut
)

// The settings of a gateway.
type settings struct {
	Upstream *url.URL
	Tenants  map[[32]byte]string // by the SHA-256 of the API key
	Secret   []byte              // of the keys that the upstream gets: see idemkey.DownstreamKey

	ConnectTimeout time.Duration // for TCP, and again for TLS
	HeaderTimeout  time.Duration // from the request's end until the upstream's answer begins; then the gateway answers 504
	ExecTimeout    time.Duration // until the answer has ended
	Dedupes        time.Duration // how long the upstream recognizes a key; 0: it does not
	Asks           bool          // the upstream says by GET /charges/{key} what became of a charge
}

// A gateway gives an upstream's POST /charges idempotency keys for each tenant.
type gateway struct {
	settings
	transport http.RoundTripper
	keys      *idemkey.Middleware
}

func newGateway(store idemkey.Store, s settings) (*gateway, error) {
	if 2*s.ConnectTimeout+s.HeaderTimeout >= s.ExecTimeout {
		return nil, fmt.Errorf("twice the connect timeout, %v, and the header timeout, %v, must be shorter than the exec "+
			"timeout, %v: otherwise a request that was never sent has an unknown outcome",
			s.ConnectTimeout, s.HeaderTimeout, s.ExecTimeout)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: s.ConnectTimeout}).DialContext
	transport.TLSHandshakeTimeout = s.ConnectTimeout
	transport.ResponseHeaderTimeout = s.HeaderTimeout
	transport.MaxIdleConnsPerHost = 100
	transport.DisableCompression = true // one stored answer serves clients that accept gzip and clients that do not
	g := &gateway{settings: s, transport: transport}
	var recoverCharge func(context.Context, idemkey.Identity) (*idemkey.Response, error)
	if s.Asks {
		recoverCharge = g.askUpstream
	}
	var err error
	g.keys, err = idemkey.New(store, &idemkey.Options{
		Scope:           tenantOf,
		Key:             idemkey.KeyOptions{Namespace: "charges"},
		ExternalEffects: true,
		UpstreamDedupes: s.Dedupes,
		Recover:         recoverCharge,
		Response:        idemkey.ResponseOptions{KeepAllHeaders: true},
		Limits: idemkey.Limits{ExecTimeout: s.ExecTimeout, Lease: max(idemkey.DefaultLease, s.ExecTimeout),
			MaxRequestBody: maxRequestBody, MaxResponseBody: maxResponseBody, HardResponseLimit: maxAnyResponse},
	})
	return g, err
}

// handler has the routes that the gateway knows. It passes nothing else on: a POST without a key could run twice.
func (g *gateway) handler() http.Handler {
	proxy := &httputil.ReverseProxy{Rewrite: g.rewrite, Transport: sentTransport{g.transport}, ErrorHandler: g.answerError}
	mux := http.NewServeMux()
	mux.Handle("POST /charges", g.keys.Handler(proxy))
	mux.Handle("GET /events", proxy) // a stream, never stored
	return g.authenticate(mux)
}

// rewrite sends the upstream a key of the gateway's in place of the client's, which is unique for its tenant only.
func (g *gateway) rewrite(r *httputil.ProxyRequest) {
	r.SetURL(g.Upstream)
	r.SetXForwarded()
	for _, name := range []string{"Authorization", "Cookie", "Accept-Encoding", idemkey.DefaultHeader} {
		r.Out.Header.Del(name)
	}
	tenant, _ := tenantOf(r.In)
	r.Out.Header.Set("X-Tenant", tenant)
	if info, ok := idemkey.Info(r.In.Context()); ok {
		r.Out.Header.Set(idemkey.DefaultHeader, g.upstreamKey(info.Identity))
	}
	if r.Out.Body == nil {
		r.Out.Body = sentOnce{}
	}
}

// sentOnce is an empty body. net/http sends a request that has a key and no body again by itself if the connection ends
// before the answer.
type sentOnce struct{}

func (sentOnce) Read([]byte) (int, error) { return 0, io.EOF }
func (sentOnce) Close() error             { return nil }

func (g *gateway) upstreamKey(id idemkey.Identity) string {
	return idemkey.DownstreamKey(g.Secret, id, "charge")
}

// errUnsent reports a request of which the upstream has received nothing.
var errUnsent = errors.New("the upstream could not be reached")

// A sentTransport tells the errors before a request has a connection from those after it.
type sentTransport struct{ next http.RoundTripper }

func (t sentTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	resp, err := t.next.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if err != nil && !connected.Load() {
		return nil, fmt.Errorf("%w: %w", errUnsent, err)
	}
	return resp, err
}

// answerError answers where the upstream did not. A request that was sent may have charged.
func (g *gateway) answerError(w http.ResponseWriter, r *http.Request, err error) {
	_, keyed := idemkey.Info(r.Context())
	p := &idemkey.Problem{Status: http.StatusBadGateway, Code: "upstream-failed", Title: "The upstream did not answer"}
	p.SameKey = keyed && (g.Dedupes > 0 || g.Asks)
	verdict := idemkey.Unknown
	timeout := net.Error(nil)
	switch {
	case errors.Is(err, errUnsent):
		p.Status, p.Code, p.Title = http.StatusServiceUnavailable, "upstream-unreachable", "The upstream cannot be reached"
		p.SameKey, verdict = keyed, idemkey.Retryable
	case errors.As(err, &timeout) && timeout.Timeout():
		p.Status, p.Code, p.Title = http.StatusGatewayTimeout, "upstream-timeout", "The upstream did not answer in time"
	}
	p.Type, p.Retryable = "urn:gateway:problem:"+p.Code, p.SameKey
	idemkey.SetVerdict(r.Context(), verdict)
	idemkey.WriteProblem(w, r, p)
}

// askUpstream is idemkey.Options.Recover. A charge that the upstream does not know was not made.
func (g *gateway) askUpstream(ctx context.Context, id idemkey.Identity) (*idemkey.Response, error) {
	made := g.Upstream.JoinPath("charges", g.upstreamKey(id))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, made.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := g.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBody+1))
		tooLarge := len(body) > maxResponseBody
		return &idemkey.Response{Status: http.StatusCreated, Header: resp.Header, Body: body, Dropped: tooLarge}, err
	case http.StatusNotFound:
		return nil, nil
	default:
		return nil, fmt.Errorf("the upstream answers %s", resp.Status)
	}
}

type tenantKey struct{}

// tenantOf returns what authenticate has found.
func tenantOf(r *http.Request) (string, error) {
	tenant, _ := r.Context().Value(tenantKey{}).(string)
	return tenant, nil
}

// authenticate refuses requests without an API key of the table, before anything is stored about them.
func (g *gateway) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		tenant := g.Tenants[sha256.Sum256([]byte(token))]
		if !bearer || tenant == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "send Authorization: Bearer <API key>", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, tenant)))
	})
}
