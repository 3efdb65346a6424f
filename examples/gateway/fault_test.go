package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

// A faulty is an upstream whose first answer is fault's. All others are 201.
type faulty struct {
	fault    http.HandlerFunc
	requests atomic.Int32 // POST
	asked    http.HandlerFunc
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet:
		f.asked(w, r)
	case f.requests.Add(1) == 1:
		f.fault(w, r)
	default:
		w.WriteHeader(http.StatusCreated)
	}
}

func serve(t testing.TB, h http.Handler) (url string) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// answering returns a handler that answers with status and a body of size bytes.
func answering(status, size int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write(make([]byte, size))
	}
}

// hanging answers with begin, and then with nothing until the gateway hangs up.
func hanging(begin string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // until then a server does not see that the gateway hangs up
		if begin != "" {
			_, _ = w.Write([]byte(begin))
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	}
}

// cutting ends the connection after the first bytes of an answer.
func cutting(bytes string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, out, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = out.WriteString(bytes)
		_ = out.Flush()
		_ = conn.Close()
	}
}

// What a client gets the first time, and when it retries, on each store: the upstream has got one request wherever it may
// have charged.
func TestFaultsOfTheUpstream(t *testing.T) {
	needtest.Slow(t)
	const unknown = idemkey.CodeOutcomeUnknown
	faults := map[string]struct {
		fault         http.HandlerFunc
		first, again  int
		code, retried string
	}{
		"hangs":                         {hanging(""), 504, 409, "upstream-timeout", unknown},
		"hangs in its answer":           {hanging("half"), 0, 409, "", unknown},
		"hangs up":                      {cutting(""), 502, 409, "upstream-failed", unknown},
		"hangs up in its headers":       {cutting("HTTP/1.1 200 OK\r\nContent-Le"), 502, 409, "upstream-failed", unknown},
		"hangs up in its answer":        {cutting("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"), 0, 409, "", unknown},
		"hangs up in a chunked answer":  {cutting("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"), 0, 409, "", unknown},
		"fails":                         {answering(500, 0), 500, 409, "", unknown},
		"has lost its own upstream":     {answering(504, 0), 504, 409, "", unknown},
		"still runs the first request":  {answering(409, 0), 409, 201, "", ""},
		"is busy":                       {answering(503, 0), 503, 201, "", ""},
		"limits the rate":               {answering(429, 0), 429, 201, "", ""},
		"declines":                      {answering(402, 0), 402, 402, "", ""},
		"has an answer over the stored": {answering(200, maxResponseBody+1), 200, 410, "", idemkey.CodeNotRetained},
	}
	eachStore(t, func(t *testing.T, store idemkey.Store) {
		for name, tt := range faults { // one after the other, on few connections
			t.Run(name, func(t *testing.T) {
				key, upstream := strings.ReplaceAll(name, " ", "-"), &faulty{fault: tt.fault}
				s := newSite(t, store, serve(t, upstream), func(s *settings) {
					s.ConnectTimeout, s.HeaderTimeout, s.ExecTimeout = 500*time.Millisecond, time.Second, 2100*time.Millisecond
				})
				s.expect("the first request", s.charge("acme", key, "good"), tt.first, tt.code)
				s.expect("a retry", s.charge("acme", key, "good"), tt.again, tt.retried)
				want := int32(1)
				if tt.again == 201 {
					want = 2
				}
				if n := upstream.requests.Load(); n != want {
					t.Errorf("the upstream has got %d requests, want %d", n, want)
				}
			})
		}
	})
}

// A request without a body reaches the upstream once, although net/http would send it again on another connection.
func TestAnEmptyRequestIsSentOnce(t *testing.T) {
	var requests atomic.Int32
	upstream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 2 {
			cutting("")(w, r)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	s := newSite(t, newStore(t, "redis"), serve(t, upstream), nil)
	s.expect("the first request", s.post("acme", "a", ""), 201, "")
	s.expect("a request on its connection", s.post("acme", "b", ""), 502, "upstream-failed")
	if n := requests.Load(); n != 2 {
		t.Errorf("the upstream has got %d requests, want 2", n)
	}
}

// An answer over the largest size is cut. On Redis, where the effects stand, it is known to be an answer; a transaction
// has no outcome then.
func TestAnAnswerOverTheLargestSize(t *testing.T) {
	eachStore(t, func(t *testing.T, store idemkey.Store) {
		upstream := &faulty{fault: answering(200, maxAnyResponse+1)}
		s := newSite(t, store, serve(t, upstream), nil)
		s.expect("the first request", s.charge("acme", "k", "good"), 0, "")
		want, code := 409, idemkey.CodeOutcomeUnknown
		if strings.HasSuffix(t.Name(), "/redis") {
			want, code = 410, idemkey.CodeNotRetained
		}
		s.expect("a retry", s.charge("acme", "k", "good"), want, code)
		if n := upstream.requests.Load(); n != 1 {
			t.Errorf("the upstream has got %d requests, want 1", n)
		}
	})
}

// An upstream that is down has received nothing, so the same key runs as soon as it is back.
func TestAnUpstreamThatIsDown(t *testing.T) {
	eachStore(t, func(t *testing.T, store idemkey.Store) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := listener.Addr().String()
		_ = listener.Close()
		s := newSite(t, store, "http://"+address, nil)
		for range 2 {
			s.expect("while the upstream is down", s.charge("acme", "k", "good"), 503, "upstream-unreachable")
		}
		s.gateway.Upstream.Host = strings.TrimPrefix(serve(t, &faulty{fault: answering(201, 0)}), "http://")
		s.expect("when it is back", s.charge("acme", "k", "good"), 201, "")
	})
}

// While one request runs, its copies are refused, whatever their number.
func TestCopiesInFlightAreRefused(t *testing.T) {
	eachStore(t, func(t *testing.T, store idemkey.Store) {
		arrived, leave := make(chan struct{}), make(chan struct{})
		upstream := &faulty{fault: func(w http.ResponseWriter, _ *http.Request) {
			close(arrived)
			<-leave
			w.WriteHeader(http.StatusCreated)
		}}
		s := newSite(t, store, serve(t, upstream), nil)
		first := make(chan reply, 1)
		go func() { first <- s.charge("acme", "k", "good") }()
		<-arrived
		var copies sync.WaitGroup
		for range 4 {
			copies.Go(func() { s.expect("a copy", s.charge("acme", "k", "good"), 409, idemkey.CodeInProgress) })
		}
		copies.Wait()
		close(leave)
		s.expect("the first", <-first, 201, "")
		if n := upstream.requests.Load(); n != 1 {
			t.Errorf("the upstream has got %d requests, want 1", n)
		}
	})
}

// A request over the limit reaches neither the store nor the upstream.
func TestARequestOverTheLimit(t *testing.T) {
	t.Parallel()
	upstream := &faulty{fault: answering(201, 0)}
	s := newSite(t, newStore(t, "postgres"), serve(t, upstream), nil)
	s.expect("a large request", s.post("acme", "k", strings.Repeat("1", maxRequestBody+1)), 413, idemkey.CodeBodyTooLarge)
	s.expect("a small one with its key", s.post("acme", "k", "1"), 201, "")
	s.expect("one without a key", s.post("acme", "", "1"), 400, idemkey.CodeKeyInvalid)
	if n := upstream.requests.Load(); n != 1 {
		t.Errorf("the upstream has got %d requests, want 1", n)
	}
}

// An upstream that cannot say what became of a charge leaves its outcome unknown; one that never got it lets it run.
func TestWhatTheUpstreamSaysOfACharge(t *testing.T) {
	for name, tt := range map[string]struct {
		said  http.HandlerFunc
		again int
		code  string
	}{
		"made":          {answering(200, 9), 201, ""},
		"never arrived": {answering(404, 0), 201, ""},
		"still running": {answering(409, 0), 409, idemkey.CodeOutcomeUnknown},
		"too large":     {answering(200, maxResponseBody+1), 410, idemkey.CodeNotRetained},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upstream := &faulty{fault: answering(500, 0), asked: tt.said}
			s := newSite(t, newStore(t, "postgres"), serve(t, upstream), func(s *settings) { s.Asks = true })
			s.expect("the first request", s.charge("acme", "k", "good"), 500, "")
			s.expect("a retry", s.charge("acme", "k", "good"), tt.again, tt.code)
			if n, want := upstream.requests.Load(), map[bool]int32{true: 2, false: 1}[name == "never arrived"]; n != want {
				t.Errorf("the upstream has got %d requests, want %d", n, want)
			}
		})
	}
}

// Settings whose timeouts would make a refused connection an unknown outcome are refused.
func TestTimeoutsFitIntoExecTimeout(t *testing.T) {
	t.Parallel()
	_, err := newGateway(newStore(t, "postgres"), settings{ConnectTimeout: time.Second, HeaderTimeout: 3 * time.Second, ExecTimeout: 5 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "exec timeout, 5s") {
		t.Errorf("newGateway = %v, want an error that names the exec timeout", err)
	}
}

// The upstream gets the gateway's own key and tenant, and nothing of the client's that would let it act for the client,
// or would make its answer one for this client only.
func TestWhatTheUpstreamSees(t *testing.T) {
	t.Parallel()
	seen := make(chan http.Header, 1)
	s := newSite(t, newStore(t, "postgres"), serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header })), nil)
	s.expect("a charge", s.charge("acme", "k", "good"), 200, "")
	h := <-seen
	id := idemkey.Identity{Namespace: "charges", Scope: "acme", Key: "k"}
	if got := h.Values("Idempotency-Key"); len(got) != 1 || got[0] != s.gateway.upstreamKey(id) {
		t.Errorf("the upstream gets the key %q, want the one of %+v", got, id)
	}
	if got := h.Values("X-Tenant"); len(got) != 1 || got[0] != "acme" {
		t.Errorf("the upstream gets the tenant %q, want acme", got)
	}
	for _, name := range []string{"Authorization", "Cookie", "Accept-Encoding"} {
		if got := h.Values(name); len(got) > 0 {
			t.Errorf("the upstream gets %s: %q", name, got)
		}
	}
}
