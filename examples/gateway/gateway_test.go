package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemhybrid"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/idemkey/idemredis"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/proctest"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

const patience = time.Minute

var storeNames = []string{"postgres", "redis", "hybrid"}

// eachStore runs test before each store.
func eachStore(t *testing.T, test func(*testing.T, idemkey.Store)) {
	t.Parallel()
	for _, name := range storeNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newStore(t, name))
		})
	}
}

func newStore(t testing.TB, name string) (store idemkey.Store) {
	t.Helper()
	if name == "redis" {
		store, err := idemredis.New(redistest.Client(t), &idemredis.Options{Prefix: redistest.Prefix(t)})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	pool, schema := pgtest.Schema(t)
	records, err := idempg.New(pool, &idempg.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	if name == "postgres" {
		return records
	}
	hybrid, err := idemhybrid.New(records, redistest.Client(t), &idemhybrid.Options{Prefix: redistest.Prefix(t)})
	if err != nil {
		t.Fatal(err)
	}
	return hybrid
}

// A site is a gateway for the tenants acme and globex, whose API keys are key-acme and key-globex.
type site struct {
	t       testing.TB
	gateway *gateway
	url     string
}

func newSite(t testing.TB, store idemkey.Store, upstream string, set func(*settings)) *site {
	t.Helper()
	s := settings{
		Tenants: map[[32]byte]string{}, Secret: []byte(strings.Repeat("s", 32)),
		ConnectTimeout: time.Second, HeaderTimeout: 10 * time.Second, ExecTimeout: 20 * time.Second,
	}
	for _, tenant := range []string{"acme", "globex"} {
		s.Tenants[sha256.Sum256([]byte("key-"+tenant))] = tenant
	}
	var err error
	if s.Upstream, err = url.Parse(upstream); err != nil {
		t.Fatal(err)
	}
	if set != nil {
		set(&s)
	}
	g, err := newGateway(store, s)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(g.handler())
	t.Cleanup(server.Close)
	return &site{t: t, gateway: g, url: server.URL}
}

// A reply is what a client gets. Its status is 0 if the connection ended without an answer, or within it.
type reply struct {
	status int
	header http.Header
	body   string
	code   string // of a problem
}

// charge sends a charge of card. The client's own X-Tenant is a forgery.
func (s *site) charge(tenant, key, card string) reply {
	s.t.Helper()
	return s.post(tenant, key, `{"amount":4200,"card":"`+card+`"}`)
}

func (s *site) post(tenant, key, body string) reply {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/charges", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for name, value := range map[string]string{"Authorization": "Bearer key-" + tenant, "Idempotency-Key": key, "X-Tenant": "other", "Cookie": "a=b"} {
		r.Header.Set(name, value)
	}
	r.GetBody = nil // net/http shall not repeat the request
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return reply{}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{body: string(text)}
	}
	var p idemkey.Problem
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/problem+json") {
		_ = json.Unmarshal(text, &p)
	}
	return reply{resp.StatusCode, resp.Header, string(text), p.Code}
}

// expect fails the test unless r is the answer.
func (s *site) expect(what string, r reply, status int, code string) {
	s.t.Helper()
	if r.status != status || r.code != code {
		s.t.Errorf("%s: %d %s (%s), want %d %s", what, r.status, r.code, r.body, status, code)
	}
}

// A ledger is what the upstream has done.
type ledger struct {
	Requests      int
	Keys, Tenants []string
}

// A nodeUpstream is upstream.mjs in a process.
type nodeUpstream struct {
	t   testing.TB
	url string
}

func startNode(t testing.TB) *nodeUpstream {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		needtest.Missing(t, "node", "no node on this machine")
	}
	p, err := proctest.Start(exec.Command("node", "upstream.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return &nodeUpstream{t, p.URL}
}

func (u *nodeUpstream) ledger() (l ledger) {
	u.t.Helper()
	r, err := http.NewRequestWithContext(u.t.Context(), http.MethodGet, u.url+"/ledger", nil)
	if err != nil {
		u.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		u.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&l); err != nil {
		u.t.Fatal(err)
	}
	return l
}

// Two tenants with one key are charged once each, under keys that no client knows, and a retry gets the first answer.
func TestTwoTenantsWithOneKeyAreChargedOnceEach(t *testing.T) {
	eachStore(t, func(t *testing.T, store idemkey.Store) {
		upstream := startNode(t)
		s := newSite(t, store, upstream.url, nil)
		for _, tenant := range []string{"acme", "globex"} {
			first := s.charge(tenant, "order-1", "good")
			s.expect(tenant, first, 201, "")
			for range 2 {
				again := s.charge(tenant, "order-1", "good")
				if again.status != 201 || again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" {
					t.Errorf("%s: replay = %d %s, %v; want %s", tenant, again.status, again.body, again.header, first.body)
				}
				want := first.header.Clone()
				for _, name := range []string{"Date", "Set-Cookie", "Idempotent-Replayed", "Cache-Control"} {
					want.Del(name)
					again.header.Del(name)
				}
				if want.Get("X-RateLimit-Remaining") == "" || !reflect.DeepEqual(again.header, want) {
					t.Errorf("%s: replay has the headers %v, want %v", tenant, again.header, want)
				}
			}
			s.expect("another request", s.charge(tenant, "order-1", "other"), 422, idemkey.CodeKeyReused)
		}
		l := upstream.ledger()
		if l.Requests != 2 || len(l.Keys) != 2 || l.Keys[0] == l.Keys[1] || slices.Contains(l.Keys, "order-1") || !slices.Equal(l.Tenants, []string{"acme", "globex"}) {
			t.Errorf("the upstream has %+v, want two requests with two keys, of acme and globex", l)
		}
		s.expect("without an API key", s.charge("nobody", "order-2", "good"), 401, "")
	})
}

// A charge whose answer is lost is made once. How its outcome becomes known depends on what the upstream can do.
func TestALostAnswerIsNoSecondCharge(t *testing.T) {
	for card, first := range map[string]int{"slow": 504, "cut": 0} {
		t.Run(card, func(t *testing.T) {
			eachStore(t, func(t *testing.T, store idemkey.Store) {
				upstream := startNode(t)
				with := func(set func(*settings)) *site {
					return newSite(t, store, upstream.url, func(s *settings) {
						s.HeaderTimeout = time.Second
						set(s)
					})
				}
				blind, deduped, asking := with(func(*settings) {}), with(func(s *settings) { s.Dedupes = time.Hour }), with(func(s *settings) { s.Asks = true })
				for _, key := range []string{"undecided", "reconciled"} {
					blind.expect("the first request", blind.charge("acme", key, card), first, codeOf(first))
					blind.expect("a retry", blind.charge("acme", key, card), 409, idemkey.CodeOutcomeUnknown)
				}
				deduped.expect("the first request", deduped.charge("acme", "deduped", card), first, codeOf(first))
				asking.expect("the first request", asking.charge("acme", "asked", card), first, codeOf(first))
				asking.expect("a retry that asks", asking.charge("acme", "asked", card), 201, "")
				if n := upstream.ledger().Requests; n != 4 {
					t.Errorf("the upstream has got %d requests for four charges", n)
				}
				deduped.expect("a retry that the upstream recognizes", deduped.charge("acme", "deduped", card), 201, "")

				reconciler, err := idemkey.NewReconciler(asking.gateway.keys, &idemkey.ReconcilerOptions{After: 1})
				if err != nil {
					t.Fatal(err)
				}
				if n, err := reconciler.Reconcile(t.Context()); n != 2 || err != nil {
					t.Errorf("Reconcile = %d, %v; want the two that are not decided", n, err)
				}
				for _, key := range []string{"asked", "deduped", "reconciled", "undecided"} {
					again := blind.charge("acme", key, card)
					if again.status != 201 || again.header.Get("X-Charge-Id") == "" || again.header.Get("Idempotent-Replayed") != "true" || again.header.Get("Set-Cookie") != "" {
						t.Errorf("%s: replay = %d %s, %v", key, again.status, again.body, again.header)
					}
				}
				if l := upstream.ledger(); l.Requests != 5 || len(l.Keys) != 4 {
					t.Errorf("the upstream has %+v, want four charges by five requests", l)
				}
			})
		})
	}
}

func codeOf(status int) string {
	if status == 504 {
		return "upstream-timeout"
	}
	return ""
}

// An event stream passes by: the first event arrives while the upstream is still writing.
func TestStreamsPassBy(t *testing.T) {
	t.Parallel()
	s := newSite(t, newStore(t, "postgres"), startNode(t).url, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer key-acme")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); line != "data: hello\n" || err != nil {
		t.Errorf("the stream begins with %q, %v", line, err)
	}
}

// The program charges once on each store and ends without an error.
func TestProgram(t *testing.T) {
	t.Parallel()
	upstream := startNode(t)
	for _, name := range storeNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{
				"DATABASE_URL": pgtest.DirectDatabase(t), "REDIS_URL": redistest.URL(t),
				"GATEWAY_SECRET": strings.Repeat(name, 32), "API_KEYS": "key-acme=acme",
			}
			c, err := readConfig([]string{"-store", name, "-prefix", redistest.Prefix(t), "-listen", "127.0.0.1:0", "-upstream", upstream.url},
				func(key string) string { return env[key] })
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			listening, ended := make(chan net.Addr, 1), make(chan error, 1)
			go func() { ended <- c.run(ctx, func(a net.Addr) { listening <- a }) }()
			select {
			case address := <-listening:
				s := &site{t: t, url: "http://" + address.String()}
				first, again := s.charge("acme", "order-1", "good"), s.charge("acme", "order-1", "good")
				if first.status != 201 || again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" {
					t.Errorf("a charge and its retry = %+v, %+v", first, again)
				}
				stop()
			case err := <-ended:
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Errorf("run = %v", err)
			}
		})
	}
}
