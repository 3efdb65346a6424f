package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/plaintext"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// The contract of the example, over HTTP, on real PostgreSQL and RabbitMQ.

type site struct {
	url         string
	t           *testing.T
	databaseURL string
}

// brokerURL is the RabbitMQ of the tests.
func brokerURL() string {
	return cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@127.0.0.1:5672/")
}

// sites bounds how many run at once: each has four pools on a server that other
// tests use too.
var sites = make(chan struct{}, 2)

// newSite runs all services in this process, on a database and on queues of
// the test's own.
func newSite(t *testing.T, amqpURL string, change ...func(*settings)) *site {
	t.Helper()
	return newTracedSite(t, amqpURL, nil, change...)
}

func newTracedSite(t *testing.T, amqpURL string, traces *tracing, change ...func(*settings)) *site {
	t.Helper()
	sites <- struct{}{}
	t.Cleanup(func() { <-sites })
	s := &settings{Settings: demo.Settings{
		Program: program, Services: program.Services, Listen: "127.0.0.1:0", StartTimeout: time.Minute,
		Namespace: pgtest.Name(), DatabaseURL: database(t), AMQPURL: amqpURL,
	}}
	var err error
	if s.AllowPlaintext, err = plaintext.Allowed(); err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(s)
	}
	if err := s.checkSettings(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.RemoveQueues(t.Output()) })
	a := newApp(s, traces, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	site := &site{url: startApp(t, a), t: t, databaseURL: s.DatabaseURL}
	f := &demo.Fleet{Program: program, URLs: map[string]string{"order": site.url}}
	if err := f.AwaitReady(t.Context(), "order"); err != nil {
		t.Fatal(err)
	}
	return site
}

// startApp runs a until the test ends, and returns its URL.
func startApp(t *testing.T, a *demo.App) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	listening, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- a.Run(ctx, listening) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return "http://" + <-listening
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (s *site) do(method, path, body string, header ...string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(text)}
}

func (s *site) post(tenant, key, body string) answer {
	return s.do("POST", "/orders", body, "Authorization", "Bearer "+tenant, "Idempotency-Key", key, "Content-Type", "application/json")
}

// place expects the order to be accepted and returns its id.
func (s *site) place(tenant, key, body string) string {
	s.t.Helper()
	a := s.post(tenant, key, body)
	var reply struct{ ID, Status string }
	if err := json.Unmarshal([]byte(a.body), &reply); err != nil || a.status != http.StatusAccepted || reply.Status != "pending" {
		s.t.Fatalf("POST /orders = %d %s", a.status, a.body)
	}
	if got, want := a.header.Get("Location"), "/orders/"+reply.ID; got != want {
		s.t.Errorf("Location %q, want %q", got, want)
	}
	return reply.ID
}

// end polls until the order is completed or cancelled, and the order service knows the outcome of each step. The reports
// of two steps come over two queues, so the last one may arrive first. Nothing else tells an HTTP client about the end.
func (s *site) end(tenant, id string) view {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	l := newLoad(s.url, 0)
	p := &placed{Placement: demo.Placement{Tenant: tenant, ID: id}}
	for !p.hasEnded() || p.last.hasPendingStep() {
		if ctx.Err() != nil {
			s.t.Fatalf("order %s has not ended: %+v", id, p.last)
		}
		l.refreshStatus(ctx, p)
		_ = backoff.Sleep(ctx, 20*time.Millisecond)
	}
	return p.last
}

func (v view) hasPendingStep() bool {
	for _, st := range v.Steps {
		if st.State == "pending" {
			return true
		}
	}
	return false
}

func (s *site) ledgerOf(id string) (kinds string, balance int64) {
	s.t.Helper()
	ledger, err := fetchLedger(s.t.Context(), s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range ledger {
		if e.OrderID == id {
			kinds += e.Kind + " "
			balance += map[string]int64{"charge": 1, "refund": -1}[e.Kind] * e.Amount
		}
	}
	return strings.TrimSpace(kinds), balance
}

const book = `{"item":"book","quantity":1,"amount":4200,"currency":"EUR","card":"tok_ok"}`

// plainGateway is a payment gateway that charges each time it is called.
func plainGateway(s *settings) { s.gatewayPlain = true }

func TestEveryKindOfOrderEndsAsItShould(t *testing.T) {
	t.Parallel()
	for _, variant := range []struct {
		name, broker string
		change       func(*settings)
	}{
		{"amqp", brokerURL(), func(*settings) {}},
		{"inproc", "inproc:", func(*settings) {}},
		{"plain gateway", brokerURL(), plainGateway},
	} {
		t.Run(variant.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, variant.broker, variant.change)
			for _, tt := range []struct {
				item, card, status, reason, ledger string
				balance                            int64
				steps                              string
			}{
				{"book", "tok_ok", "completed", "", "charge", 4200, "process-payment done 1, arrange-shipping done 1"},
				{"book", "tok_declined", "cancelled", "card declined", "", 0, "process-payment rejected 1, arrange-shipping skipped 0"},
				{"unshippable", "tok_ok", "cancelled", "item cannot be shipped", "charge refund", 0, "process-payment compensated 1, arrange-shipping rejected 1"},
				{"book", "tok_flaky", "completed", "", "charge", 4200, "process-payment done 3, arrange-shipping done 1"},
				{"book", "tok_lost_reply", "completed", "", "charge", 4200, "process-payment done 2, arrange-shipping done 1"},
				{"unshippable", "tok_lost_reply", "cancelled", "item cannot be shipped", "charge refund", 0, "process-payment compensated 1, arrange-shipping rejected 1"},
				{"book", "tok_slow", "completed", "", "charge", 4200, "process-payment done 1, arrange-shipping done 1"},
			} {
				t.Run(tt.item+" "+tt.card, func(t *testing.T) {
					s := &site{url: s.url, t: t}
					id := s.place("acme", "k:"+tt.item+tt.card, fmt.Sprintf(`{"item":%q,"quantity":1,"amount":4200,"currency":"EUR","card":%q}`, tt.item, tt.card))
					got := s.end("acme", id)
					var steps []string
					for _, st := range got.Steps {
						steps = append(steps, fmt.Sprint(st.Step, " ", st.State, " ", st.Attempts))
					}
					if got.Status != tt.status || got.Reason != tt.reason || strings.Join(steps, ", ") != tt.steps {
						t.Errorf("order: %s %q, %s; want %s %q, %s", got.Status, got.Reason, strings.Join(steps, ", "), tt.status, tt.reason, tt.steps)
					}
					if kinds, balance := s.ledgerOf(id); kinds != tt.ledger || balance != tt.balance {
						t.Errorf("ledger: %q, %d; want %q, %d", kinds, balance, tt.ledger, tt.balance)
					}
				})
			}
		})
	}
}

func TestClientRetriesGetOneOrderAndTheSameBytes(t *testing.T) {
	t.Parallel()
	s := newSite(t, brokerURL())
	l := newLoad(s.url, 1)
	p := &placed{Placement: demo.Placement{Tenant: "acme", Key: "again"}, kind: &kinds[0], amount: 700}
	replies := make([][]byte, 20)
	var posting sync.WaitGroup
	for i := range replies {
		posting.Go(func() {
			var err error
			if replies[i], err = l.PostUntilAccepted(t.Context(), &p.Placement, "/orders", p.formatBody()); err != nil {
				t.Errorf("post: %v", err)
			}
		})
	}
	posting.Wait()
	for _, reply := range replies {
		if !bytes.Equal(reply, replies[0]) {
			t.Errorf("replies %q and %q", replies[0], reply)
		}
	}
	id := s.place("acme", "again", fmt.Sprintf(kinds[0].body, 700))
	replay := s.post("acme", "again", fmt.Sprintf(kinds[0].body, 700))
	if replay.header.Get("Idempotent-Replayed") != "true" || replay.header.Get("Location") != "/orders/"+id {
		t.Errorf("replay has the headers %v", replay.header)
	}
	s.end("acme", id)
	if kinds, balance := s.ledgerOf(id); kinds != "charge" || balance != 700 {
		t.Errorf("ledger: %q, %d", kinds, balance)
	}
	// The same key of another tenant is another order.
	if other := s.place("other", "again", fmt.Sprintf(kinds[0].body, 700)); other == id {
		t.Error("two tenants share an order")
	}
	if a := s.do("GET", "/orders/"+id, "", "Authorization", "Bearer other"); a.status != http.StatusNotFound {
		t.Errorf("another tenant's order: %d, want 404", a.status)
	}
}

// with returns an order that differs from book in a member, or has one more.
func with(change string) string {
	name, _, _ := strings.Cut(change, ":")
	fields := map[string]string{"item": `"book"`, "quantity": "1", "amount": "4200", "currency": `"EUR"`, "card": `"tok_ok"`}
	delete(fields, strings.Trim(name, `"`))
	parts := []string{change}
	for k, v := range fields {
		parts = append(parts, fmt.Sprintf("%q:%s", k, v))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func TestWhatTheHTTPInterfaceRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t, brokerURL())
	const auth, key = "Authorization", "Idempotency-Key"
	s.place("acme", "used", book)
	for name, tt := range map[string]struct {
		method, path, body string
		header             []string
		status             int
	}{
		"no principal":        {"POST", "/orders", book, []string{key, "k"}, 401},
		"neither":             {"POST", "/orders", book, nil, 401},
		"basic auth":          {"POST", "/orders", book, []string{auth, "Basic abc", key, "k"}, 401},
		"empty token":         {"POST", "/orders", book, []string{auth, "Bearer ", key, "k"}, 401},
		"odd token":           {"POST", "/orders", book, []string{auth, "Bearer a'; DROP", key, "k"}, 401},
		"no profiler":         {"GET", "/debug/pprof/", "", nil, 404},
		"no admin":            {"POST", "/admin/replay", "", nil, 404},
		"no principal on GET": {"GET", "/orders/x", "", nil, 401},
		"no key":              {"POST", "/orders", book, []string{auth, "Bearer acme"}, 400},
		"two keys":            {"POST", "/orders", book, []string{auth, "Bearer acme", key, "a", key, "b"}, 400},
		"long key":            {"POST", "/orders", book, []string{auth, "Bearer acme", key, strings.Repeat("k", 256)}, 400},
		"key reused":          {"POST", "/orders", strings.Replace(book, "4200", "4201", 1), []string{auth, "Bearer acme", key, "used"}, 422},
		"unknown order":       {"GET", "/orders/0190b1c2-0000-7000-8000-000000000000", "", []string{auth, "Bearer acme"}, 404},
		"not an id":           {"GET", "/orders/x", "", []string{auth, "Bearer acme"}, 404},
		"unknown path":        {"GET", "/nothing", "", nil, 404},
		"wrong method":        {"DELETE", "/orders", "", nil, 405},
		"empty body":          {"POST", "/orders", "", []string{auth, "Bearer acme", key, "b1"}, 400},
		"truncated":           {"POST", "/orders", `{"item":`, []string{auth, "Bearer acme", key, "b2"}, 400},
		"not JSON":            {"POST", "/orders", "item=book", []string{auth, "Bearer acme", key, "b3"}, 400},
		"two values":          {"POST", "/orders", book + book, []string{auth, "Bearer acme", key, "b4"}, 400},
		"amount twice":        {"POST", "/orders", strings.Replace(book, `"amount"`, `"amount":1,"AMOUNT"`, 1), []string{auth, "Bearer acme", key, "b5"}, 400},
		"deep":                {"POST", "/orders", strings.Repeat("[", 20000), []string{auth, "Bearer acme", key, "b6"}, 400},
		"large":               {"POST", "/orders", `{"item":"` + strings.Repeat("x", 70<<10) + `"}`, []string{auth, "Bearer acme", key, "b7"}, 413},
		"compressed":          {"POST", "/orders", book, []string{auth, "Bearer acme", key, "encoded", "Content-Encoding", "gzip"}, 415},
		"compressed as well":  {"POST", "/orders", book, []string{auth, "Bearer acme", key, "encoded", "Content-Encoding", "identity", "Content-Encoding", "gzip"}, 415},
		"no item":             {"POST", "/orders", with(`"item":""`), []string{auth, "Bearer acme", key, "v1"}, 422},
		"NUL in item":         {"POST", "/orders", with(`"item":"a\u0000"`), []string{auth, "Bearer acme", key, "v2"}, 422},
		"no quantity":         {"POST", "/orders", with(`"quantity":0`), []string{auth, "Bearer acme", key, "v3"}, 422},
		"negative amount":     {"POST", "/orders", with(`"amount":-1`), []string{auth, "Bearer acme", key, "v4"}, 422},
		"fraction":            {"POST", "/orders", with(`"amount":1.5`), []string{auth, "Bearer acme", key, "v5"}, 400},
		"huge amount":         {"POST", "/orders", with(`"amount":1e400000`), []string{auth, "Bearer acme", key, "v6"}, 400},
		"odd currency":        {"POST", "/orders", with(`"currency":"eur"`), []string{auth, "Bearer acme", key, "v7"}, 422},
		"no card":             {"POST", "/orders", with(`"card":""`), []string{auth, "Bearer acme", key, "v8"}, 422},
		"charge without key":  {"POST", "/charges", `{"order_id":"x","amount":1,"card":"tok_ok"}`, nil, 400},
		"charge of nothing":   {"POST", "/charges", `{"order_id":"x","amount":0,"card":"tok_ok"}`, []string{key, "g1"}, 400},
		"compressed charge":   {"POST", "/charges", `{"order_id":"x","amount":1,"card":"tok_ok"}`, []string{key, "g4", "Content-Encoding", "br"}, 415},
		"compressed refund":   {"POST", "/refunds", `{"order_id":"x","amount":1}`, []string{key, "g5", "Content-Encoding", "br"}, 415},
		"unknown card":        {"POST", "/charges", `{"order_id":"x","amount":1,"card":"tok_x"}`, []string{key, "g2"}, 402},
		"refund of nothing":   {"POST", "/refunds", `{"order_id":"x","amount":1}`, []string{key, "g3"}, 404},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&site{url: s.url, t: t}).do(tt.method, tt.path, tt.body, tt.header...)
			if kind := got.header.Get("Content-Type"); got.status != tt.status || !strings.HasPrefix(kind, "application/problem+json") {
				t.Errorf("%d %s %s; want %d and a problem", got.status, kind, got.body, tt.status)
			}
		})
	}
	if ledger, err := fetchLedger(t.Context(), s.url); err != nil || len(ledger) > 1 {
		t.Errorf("the ledger has %v, %v; want at most the one accepted order", ledger, err)
	}
	// An encoded body has not used its key up, and what a newer client says besides is ignored.
	s.place("acme", "encoded", with(`"gift":true`))
}

func TestEveryProcessTellsHowItIs(t *testing.T) {
	t.Parallel()
	s := newSite(t, brokerURL())
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ready", "/metrics": "sagamill_outbox_messages"} {
		if a := s.do("GET", path, ""); a.status != http.StatusOK || !strings.Contains(a.body, want) {
			t.Errorf("GET %s = %d %s", path, a.status, a.body)
		}
	}
	if a := s.do("GET", "/ledger", ""); a.body != "[]\n" {
		t.Errorf("an empty ledger is %q", a.body)
	}
}

func TestTheGatewayRefundsOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, brokerURL())
	charge := func(key string) answer {
		return s.do("POST", "/charges", `{"order_id":"o","amount":5,"card":"tok_ok","currency":"EUR"}`, "Idempotency-Key", key)
	}
	refund := func(key string) answer {
		return s.do("POST", "/refunds", `{"order_id":"o","amount":5}`, "Idempotency-Key", key)
	}
	for _, a := range []answer{charge("c"), charge("c"), refund("r"), refund("r")} {
		if a.status != http.StatusCreated {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if a := refund("other"); a.status != http.StatusConflict {
		t.Errorf("a second refund: %d %s", a.status, a.body)
	}
	if kinds, balance := s.ledgerOf("o"); kinds != "charge refund" || balance != 0 {
		t.Errorf("ledger %q, %d", kinds, balance)
	}
}

// A charge and a refund can be asked for by their key. A plain gateway is as
// forgetful as it says, so that only asking keeps the money right.
func TestTheGatewayTellsWhatBecameOfAKey(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		change  func(*settings)
		charges string
	}{
		{"honours keys", func(*settings) {}, "charge"},
		{"plain", plainGateway, "charge charge"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, brokerURL(), tt.change)
			post := func(path, key, card string) {
				body := fmt.Sprintf(`{"order_id":%q,"amount":5,"card":%q,"currency":"EUR"}`, "o"+card, card)
				for range 2 { // the second answer arrives, and a decline is no movement
					s.do("POST", path, body, "Idempotency-Key", key)
				}
			}
			post("/charges", "c", "tok_lost_reply")
			post("/charges", "d", "tok_declined")
			if kinds, _ := s.ledgerOf("otok_lost_reply"); kinds != tt.charges {
				t.Errorf("a charge that was sent twice: %q, want %q", kinds, tt.charges)
			}
			post("/refunds", "r", "tok_lost_reply")
			for path, want := range map[string]string{
				"/charges/c": `200 {"kind":"charge","key":"c","order_id":"otok_lost_reply","amount":5,`,
				"/refunds/r": `200 {"kind":"refund","key":"r","order_id":"otok_lost_reply","amount":5,`,
				"/charges/d": "404 movement-unknown", "/charges/r": "404 movement-unknown", "/refunds/c": "404 movement-unknown", "/refunds/x": "404 movement-unknown",
			} {
				a := s.do("GET", path, "")
				got := fmt.Sprint(a.status, " ", a.body)
				if status, code, failed := strings.Cut(want, " movement"); failed && (!strings.HasPrefix(got, status) || !strings.Contains(got, "movement"+code)) || !failed && !strings.HasPrefix(got, want) {
					t.Errorf("GET %s = %s, want %s", path, got, want)
				}
			}
		})
	}
}

// The database of the entry has lost the record of a key, as after a restore, and the client sends its order again. The
// payments have not lost the first order: the second is not charged, and an operator finds it among the dead letters.
func TestAnOrderThatTheEntryHasLostIsChargedOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, brokerURL())
	first := s.place("acme", "k", book)
	s.end("acme", first)
	pool := pgtest.Pool(t, s.databaseURL)
	if _, err := pool.Exec(t.Context(), "DELETE FROM order_service.idempotency_key"); err != nil {
		t.Fatal(err)
	}
	second := s.place("acme", "k", book)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for letters := 0; letters == 0; <-tick.C {
		err := pool.QueryRow(t.Context(), "SELECT count(*) FROM payment_service.parked WHERE state = 'dead' AND reason = 'key-reused'").Scan(&letters)
		if err != nil {
			t.Fatal(err)
		}
	}
	if kinds, balance := s.ledgerOf(first); kinds != "charge" || balance != 4200 {
		t.Errorf("ledger of the first order %q, %d", kinds, balance)
	}
	if kinds, _ := s.ledgerOf(second); second == first || kinds != "" {
		t.Errorf("ledger of the second order %q, want none", kinds)
	}
}
