package endtoend

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/rediskey"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/proctest"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

const (
	patience  = time.Minute // with anything that is to come
	lookPause = 5 * time.Millisecond
	longLease = time.Minute // lapses when a test says so
)

// A world is a store with the instances on it.
type world struct {
	*testing.T
	store  string
	pool   *pgxpool.Pool
	schema string
	redis  *redis.Client // direct
	prefix string
	proxy  *redistest.Proxy // between the instances and Redis
	gate   *httptest.Server
	over   chan struct{} // closed when the test ends

	mu    sync.Mutex
	gates map[string]chan *visit
}

// A visit is what an instance tells, and waits for an answer to.
type visit struct {
	attempt int
	event   event
	answer  chan struct{}
}

// An event is what an instance's middleware tells of a request.
type event struct {
	Result  idemkey.Result
	Outcome idemkey.Outcome
}

// maxVisits is more than any instance tells without being listened to.
const maxVisits = 1000

func newWorld(t *testing.T, store string) *world {
	t.Helper()
	w := &world{T: t, store: store, over: make(chan struct{}), gates: make(map[string]chan *visit)}
	w.pool, w.schema = pgtest.Schema(t, "CREATE TABLE {schema}.effect (key text NOT NULL)")
	w.redis, w.prefix = redistest.Client(t), redistest.Prefix(t)
	w.proxy, _ = redistest.NewProxy(t)
	w.gate = httptest.NewServer(http.HandlerFunc(w.listen))
	t.Cleanup(func() {
		close(w.over)
		w.gate.Close()
	})
	return w
}

// listen takes what an instance tells. A handler waits for the test's answer.
func (w *world) listen(_ http.ResponseWriter, r *http.Request) {
	v := &visit{answer: make(chan struct{})}
	v.attempt, _ = strconv.Atoi(r.URL.Query().Get("attempt"))
	_ = json.NewDecoder(r.Body).Decode(&v.event) // of an event
	select {
	case w.told(r.URL.Path) <- v:
	case <-w.over:
		return
	}
	if strings.HasSuffix(r.URL.Path, "/handler") {
		select {
		case <-v.answer:
		case <-w.over:
		case <-r.Context().Done():
		}
	}
}

// told returns what is told under a path, /instance/what.
func (w *world) told(path string) chan *visit {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gates[path] == nil {
		w.gates[path] = make(chan *visit, maxVisits)
	}
	return w.gates[path]
}

// hear waits for what an instance tells next.
func (w *world) hear(instance, what string) *visit {
	w.Helper()
	return await(w.T, w.told("/"+instance+"/"+what), instance+"'s "+what)
}

// await waits for what is to come on ch.
func await[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come within %v", what, patience)
		panic("unreachable")
	}
}

// until asks again and again until cond is true.
func (w *world) until(what string, cond func() bool) {
	w.Helper()
	deadline := time.After(patience)
	for !cond() {
		select {
		case <-time.After(lookPause):
		case <-deadline:
			w.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// A service is an instance as its clients see it.
type service struct {
	*proctest.Process
	w    *world
	name string
}

// start starts an instance. set may change what it is told.
func (w *world) start(name string, set func(*config), env ...string) *service {
	w.Helper()
	c := config{
		Name: name, Store: w.store, Schema: w.schema, Prefix: w.prefix, Redis: w.proxy.URL(), Gate: w.gate.URL,
		Lease: longLease, Grace: longLease,
	}
	if set != nil {
		set(&c)
	}
	text, err := json.Marshal(c)
	if err != nil {
		w.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), configEnv+"="+string(text)), env...)
	p, err := proctest.Start(cmd)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(p.Kill)
	return &service{p, w, name}
}

// A reply is what a client saw.
type reply struct {
	err        error
	status     int
	code       string
	body       string
	replayed   bool
	echo       string
	retryAfter string
}

// client opens a connection for each request: the transport would repeat one by
// itself whose connection was lost.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// send sends a request. Its reply comes on the channel.
func (s *service) send(key string) <-chan reply {
	s.w.Helper()
	req, err := http.NewRequestWithContext(s.w.Context(), http.MethodPost, s.URL, strings.NewReader("order"))
	if err != nil {
		s.w.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", key)
	replies := make(chan reply, 1)
	go func() { replies <- do(req) }() // ends with the test's context at the latest
	return replies
}

func do(req *http.Request) reply {
	resp, err := client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	r := reply{err: err, status: resp.StatusCode, body: string(body), replayed: resp.Header.Get("Idempotent-Replayed") == "true",
		echo: resp.Header.Get("Idempotency-Key"), retryAfter: resp.Header.Get("Retry-After")}
	var p idemkey.Problem
	if json.Unmarshal(body, &p) == nil {
		r.code = p.Code
	}
	return r
}

// post sends a request that no handler is to run for.
func (s *service) post(key string) reply {
	s.w.Helper()
	return await(s.w.T, s.send(key), "the reply of "+s.name)
}

// run sends a request whose handler is to run, and lets it go on.
func (s *service) run(key string, attempt int) reply {
	s.w.Helper()
	replies := s.send(key)
	v := s.w.hear(s.name, "handler")
	if v.attempt != attempt {
		s.w.Errorf("%s runs attempt %d, want %d", s.name, v.attempt, attempt)
	}
	close(v.answer)
	return await(s.w.T, replies, "the reply of "+s.name)
}

// outcome checks what the middleware of s tells of its next request.
func (s *service) outcome(want event) {
	s.w.Helper()
	if got := s.w.hear(s.name, "event").event; got != want {
		s.w.Errorf("%s tells %+v, want %+v", s.name, got, want)
	}
}

// expect checks a reply of ours. Only one that a retry may mend says when.
func (w *world) expect(got reply, status int, code string) {
	w.Helper()
	if got.err != nil || got.status != status || got.code != code {
		w.Errorf("reply = %+v, want %d %s", got, status, code)
	}
	if again := code == "in-progress" || code == "store-unavailable"; again != (got.retryAfter != "") {
		w.Errorf("Retry-After of %s = %q", code, got.retryAfter)
	}
}

// answered checks a handler's response.
func (w *world) answered(got reply, body string, replayed bool) {
	w.Helper()
	if got.err != nil || got.status != http.StatusCreated || got.body != body || got.replayed != replayed {
		w.Errorf("reply = %+v, want %q, replayed: %t", got, body, replayed)
	}
}

// effects checks how often the handlers' effects stand.
func (w *world) effects(key string, want int) {
	w.Helper()
	var n int
	if err := w.pool.QueryRow(w.Context(), "SELECT count(*) FROM "+w.schema+".effect WHERE key = $1", key).Scan(&n); err != nil || n != want {
		w.Errorf("%d effects of %s, %v; want %d", n, key, err, want)
	}
}

func identity(key string) idemkey.Identity {
	return idemkey.Identity{Namespace: idemkey.DefaultNamespace, Scope: "default", Key: key}
}

// inRedis is the name of key's record, or of its lock.
func (w *world) inRedis(key string) string { return rediskey.Of(w.prefix, identity(key)) }

// lapse lets the lease of a dead owner end, and what it held in Redis. In Postgres
// that waits for the server to free the row.
func (w *world) lapse(key string) {
	w.Helper()
	if w.store == onRedis {
		w.hold(w.redis.HSet(w.Context(), w.inRedis(key), "lease_until", 1).Err())
		return
	}
	w.hold(w.redis.Del(w.Context(), w.inRedis(key)).Err())
	_, err := w.pool.Exec(w.Context(), "UPDATE "+w.schema+".idempotency_key SET lease_until = clock_timestamp() WHERE key = $1", key)
	w.hold(err)
}

func (w *world) hold(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// now is Redis's time.
func (w *world) now() time.Time {
	w.Helper()
	now, err := w.redis.Time(context.WithoutCancel(w.Context())).Result()
	w.hold(err)
	return now
}

// each runs test on each of the stores.
func each(t *testing.T, stores []string, test func(*world)) {
	t.Helper()
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			test(newWorld(t, store))
		})
	}
}
