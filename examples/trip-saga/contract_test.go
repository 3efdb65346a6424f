package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
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
	urls        map[string]string // by service
	t           *testing.T
	databaseURL string
}

// brokerURL is the RabbitMQ of the tests.
func brokerURL() string {
	return cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@127.0.0.1:5672/")
}

// sites bounds how many run at once: each has six pools on a server that other
// tests use too.
var sites = make(chan struct{}, 1)

// newSite runs all services in this process, on a database and on queues of
// the test's own.
func newSite(t *testing.T, amqpURL string, patience time.Duration) *site {
	t.Helper()
	sites <- struct{}{}
	t.Cleanup(func() { <-sites })
	s := &settings{patience: patience, Settings: demo.Settings{
		Program: program, Services: program.Services, Listen: "127.0.0.1:0", StartTimeout: time.Minute,
		Namespace: pgtest.Name(), DatabaseURL: database(t), AMQPURL: amqpURL,
	}}
	var err error
	if s.AllowPlaintext, err = plaintext.Allowed(); err != nil {
		t.Fatal(err)
	}
	if err := s.checkSettings(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.RemoveQueues(t.Output()) })
	url := startApp(t, s)
	site := &site{url: url, urls: map[string]string{}, t: t, databaseURL: s.DatabaseURL}
	for _, name := range program.Services {
		site.urls[name] = url
	}
	f := &demo.Fleet{Program: program, URLs: site.urls}
	if err := f.AwaitReady(t.Context(), "trip"); err != nil {
		t.Fatal(err)
	}
	return site
}

// startApp runs a process's services until the test ends, and returns their URL.
func startApp(t *testing.T, s *settings) string {
	t.Helper()
	a := newApp(s, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})))
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
	return s.do("POST", "/trips", body, "Authorization", "Bearer "+tenant, "Idempotency-Key", key, "Content-Type", "application/json")
}

// place expects the trip to be accepted and returns its id.
func (s *site) place(tenant, key, body string) string {
	s.t.Helper()
	a := s.post(tenant, key, body)
	var reply struct{ ID, Status string }
	if err := json.Unmarshal([]byte(a.body), &reply); err != nil || a.status != http.StatusAccepted || reply.Status == "" {
		s.t.Fatalf("POST /trips = %d %s", a.status, a.body)
	}
	if got, want := a.header.Get("Location"), "/trips/"+reply.ID; got != want {
		s.t.Errorf("Location %q, want %q", got, want)
	}
	return reply.ID
}

// until polls until the trip is as ok wants it. Nothing tells an HTTP client about it
// otherwise.
func (s *site) until(tenant, id string, ok func(view) bool) view {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	l := newLoad(s.url, 0)
	p := &placed{Placement: demo.Placement{Tenant: tenant, ID: id}}
	for l.refreshStatus(ctx, p); !ok(p.last); l.refreshStatus(ctx, p) {
		if ctx.Err() != nil {
			s.t.Fatalf("trip %s has not come so far: %+v", id, p.last)
		}
		_ = backoff.Sleep(ctx, 20*time.Millisecond)
	}
	return p.last
}

func ended(v view) bool { return v.Status == completed || v.Status == compensated }

// steps are those of v in a line.
func (v *view) steps() string {
	var steps []string
	for _, st := range v.Steps {
		steps = append(steps, fmt.Sprint(st.Step, " ", st.State, " ", st.Attempts))
	}
	return strings.Join(steps, ", ")
}

// ends are what becomes of the kinds of trips of the demo, none of them cancelled.
var ends = map[string]struct{ status, reason, steps string }{
	"good":              {completed, "", booked + noCar + finish},
	"with a car":        {completed, "", booked + ", car done 1" + finish},
	"duplicate clients": {completed, "", booked + noCar + finish},
	"hotel sold out":    {compensated, "step hotel was rejected: hotel full-house is sold out", "quote done 1, flight undone 1, hotel rejected 1, car undone 1" + never},
	"car sold out":      {compensated, "step car was rejected: car convertible is sold out", "quote done 1, flight undone 1, hotel undone 1, car rejected 1" + never},
	"last seats":        {completed, "", booked + noCar + finish},
	"over budget": {compensated, "step quote was rejected: the trip costs 50000, and the budget is 100",
		"quote rejected 1, flight never 0, hotel never 0, car never 0" + never},
	"silent hotel": {compensated, "step hotel: no reply within 10s", givenBack + never},
	"late hotel":   {compensated, "step hotel: no reply within 10s", givenBack + never},
	"slow hotel":   {completed, "", booked + noCar + finish},
	"no ticket": {compensated, "step ticket was rejected: no ticket is issued for Nofly",
		givenBack + ", ticket rejected 1, mail never 0, itinerary never 0"},
	"full mailbox":   {completed, "", booked + noCar + ", ticket done 1, mail done 3, itinerary done 1"},
	"cancelled":      {completed, "", booked + noCar + finish},
	"cancelled late": {completed, "", booked + noCar + finish},
}

const (
	booked    = "quote done 1, flight done 1, hotel done 1"
	noCar     = ", car skipped 0"
	finish    = ", ticket done 1, mail done 1, itinerary done 1"
	givenBack = "quote done 1, flight undone 1, hotel undone 1" + noCar
	never     = ", ticket never 0, mail never 0, itinerary never 0"
)

func TestEveryKindOfTripEndsAsItShould(t *testing.T) {
	t.Parallel()
	for name, broker := range map[string]string{"amqp": brokerURL(), "inproc": "inproc:"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newSite(t, broker, 10*time.Second).travel(kinds)
		})
	}
}

// travel places a trip of each kind, and sees all of them end as they should.
func (s *site) travel(kinds []kind) {
	s.t.Helper()
	r := &result{}
	for i := range kinds {
		p := &placed{Placement: demo.Placement{Tenant: "acme", Replies: make([][]byte, 1)}, kind: &kinds[i]}
		p.ID = s.place(p.Tenant, "key:"+strings.ReplaceAll(p.kind.name, " ", "-"), p.kind.body)
		r.trips = append(r.trips, p)
	}
	for _, p := range r.trips {
		p.last = s.until(p.Tenant, p.ID, ended)
		want, itinerary := ends[p.kind.name], p.last.Status == completed
		if p.last.Status != want.status || p.last.Reason != want.reason || p.last.steps() != want.steps || (p.last.Itinerary != "") != itinerary {
			s.t.Errorf("%s: %s %q, %s, itinerary %q; want %s %q, %s", p.kind.name, p.last.Status, p.last.Reason, p.last.steps(), p.last.Itinerary,
				want.status, want.reason, want.steps)
		}
	}
	s.settle(r)
}

// settle waits until nothing is under way, and checks what holds then.
func (s *site) settle(r *result) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	f := &demo.Fleet{Program: program, URLs: s.urls}
	r.left = f.AwaitEmpty(ctx)
	var err error
	if r.ledgers, err = fetchLedgers(s.t.Context(), f.URLs); err != nil {
		s.t.Fatal(err)
	}
	var out strings.Builder
	if r.judgeDemo(&out) > 0 {
		s.t.Error(out.String())
	}
}

const good = `{"traveller":"Ada","flight":"LH100","hotel":"grand","budget":90000}`

func TestAKeyIsOneTrip(t *testing.T) {
	t.Parallel()
	s := newSite(t, brokerURL(), 5*time.Second)
	first := s.post("acme", "again", good)
	again := s.post("acme", "again", good)
	if first.status != http.StatusAccepted || again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" ||
		again.header.Get("Location") != first.header.Get("Location") {
		t.Errorf("%d %s, and then %d %s %v", first.status, first.body, again.status, again.body, again.header)
	}
	id := s.place("acme", "again", good)
	if other := s.place("other", "again", good); other == id {
		t.Error("two tenants share a trip")
	}
	for method, want := range map[string]int{"GET": http.StatusNotFound, "DELETE": http.StatusNotFound} {
		if a := s.do(method, "/trips/"+id, "", "Authorization", "Bearer other"); a.status != want {
			t.Errorf("%s of another tenant's trip: %d, want %d", method, a.status, want)
		}
	}
	// A key whose record is lost, as in a restore, names the same trip.
	db := pgtest.Pool(t, s.databaseURL)
	if _, err := db.Exec(t.Context(), "DELETE FROM trip_service.idempotency_key"); err != nil {
		t.Fatal(err)
	}
	if second := s.place("acme", "again", good); second != id {
		t.Error("a key whose record is lost begins another trip")
	}
	s.until("acme", id, ended)
}

func TestWhatTheHTTPInterfaceRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t, brokerURL(), 5*time.Second)
	const auth, key = "Authorization", "Idempotency-Key"
	s.place("acme", "used", good)
	with := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	const unknown = "/trips/0190b1c2-0000-7000-8000-000000000000"
	for name, tt := range map[string]struct {
		method, path, body string
		header             []string
		status             int
	}{
		"no principal":           {"POST", "/trips", good, []string{key, "k"}, 401},
		"odd token":              {"POST", "/trips", good, []string{auth, "Bearer a'; DROP", key, "k"}, 401},
		"no profiler":            {"GET", "/debug/pprof/", "", nil, 404},
		"no admin":               {"POST", "/admin/replay", "", nil, 404},
		"no principal on GET":    {"GET", "/trips/x", "", nil, 401},
		"no principal on DELETE": {"DELETE", "/trips/x", "", nil, 401},
		"no key":                 {"POST", "/trips", good, []string{auth, "Bearer acme"}, 400},
		"key reused":             {"POST", "/trips", with("90000", "90001"), []string{auth, "Bearer acme", key, "used"}, 422},
		"unknown trip":           {"GET", unknown, "", []string{auth, "Bearer acme"}, 404},
		"cancel an unknown trip": {"DELETE", unknown, "", []string{auth, "Bearer acme"}, 404},
		"not an id":              {"GET", "/trips/x", "", []string{auth, "Bearer acme"}, 404},
		"unknown path":           {"GET", "/nothing", "", nil, 404},
		"wrong method":           {"DELETE", "/trips", "", nil, 405},
		"not JSON":               {"POST", "/trips", "hotel=grand", []string{auth, "Bearer acme", key, "b1"}, 400},
		"budget twice":           {"POST", "/trips", with(`"budget"`, `"budget":1,"BUDGET"`), []string{auth, "Bearer acme", key, "b2"}, 400},
		"large":                  {"POST", "/trips", with("Ada", strings.Repeat("x", 70<<10)), []string{auth, "Bearer acme", key, "b3"}, 413},
		"compressed":             {"POST", "/trips", good, []string{auth, "Bearer acme", key, "encoded", "Content-Encoding", "gzip"}, 415},
		"no traveller":           {"POST", "/trips", with("Ada", ""), []string{auth, "Bearer acme", key, "v1"}, 422},
		"NUL in traveller":       {"POST", "/trips", with("Ada", `a\u0000`), []string{auth, "Bearer acme", key, "v2"}, 422},
		"no flight":              {"POST", "/trips", with("LH100", ""), []string{auth, "Bearer acme", key, "v3"}, 422},
		"no hotel":               {"POST", "/trips", with(`"hotel":"grand",`, ""), []string{auth, "Bearer acme", key, "v4"}, 422},
		"odd car":                {"POST", "/trips", with(`"budget"`, `"car":"a b","budget"`), []string{auth, "Bearer acme", key, "v5"}, 422},
		"no budget":              {"POST", "/trips", with("90000", "0"), []string{auth, "Bearer acme", key, "v6"}, 422},
		"fraction":               {"POST", "/trips", with("90000", "1.5"), []string{auth, "Bearer acme", key, "v7"}, 400},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&site{url: s.url, t: t}).do(tt.method, tt.path, tt.body, tt.header...)
			if kind := got.header.Get("Content-Type"); got.status != tt.status || !strings.HasPrefix(kind, "application/problem+json") {
				t.Errorf("%d %s %s; want %d and a problem", got.status, kind, got.body, tt.status)
			}
		})
	}
	// An encoded body has not used its key up, and what a newer client says besides is ignored.
	s.place("acme", "encoded", with("{", `{"seat":"12A",`))
}

// What watches the services is told that they are ready, and of a saga that is stuck.
func TestWhatIsAskedByMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t, "inproc:", 5*time.Second)
	_, err := pgtest.Pool(t, s.databaseURL).Exec(t.Context(), `INSERT INTO trip_service.saga (scope, key, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at)
		SELECT 'acme', 'k', gen_random_uuid(), gen_random_uuid(), 1, 'other', '', now(), '{}', '{}', 'stuck', now() - interval '1 h'`)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{"/healthz": {"ok"}, "/readyz": {"ready"}, "/metrics": {
		`sagamill_saga_instances_total{service="trip",status="completed"} 0`, `sagamill_saga_late_replies_total{service="trip"} 0`,
		`sagamill_saga_instances_live{service="trip",status="stuck"} 1`, `sagamill_saga_oldest_stuck_seconds{service="trip"} 36`, `sagamill_saga_overdue_seconds{service="trip"} 0`,
	}} {
		a := s.do("GET", path, "")
		for _, want := range want {
			if a.status != http.StatusOK || !strings.Contains(a.body, want) {
				t.Errorf("GET %s = %d %s, want %s", path, a.status, a.body, want)
			}
		}
	}
}

// What there is not is a matter of the saga, and not of the request.
func TestAnUnknownItemEndsTheTripAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, "inproc:", 5*time.Second)
	a := s.post("acme", "unknown", strings.Replace(good, "grand", "nowhere", 1))
	if a.status != http.StatusAccepted || !strings.Contains(a.body, `"status":"compensated"`) {
		t.Errorf("%d %s, want 202 and compensated", a.status, a.body)
	}
}
