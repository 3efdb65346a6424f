package matrixtest

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A transition is one of a record's, as its client sees it.
type transition struct {
	name    string
	servers func(*settings)
	options func(*idemkey.Options)
	steps   func(x *life)
	alone   bool              // it changes every record in its schema
	none    map[string]string // why a column has no such transition
}

// Why a column has no such transition.
const (
	untold  = "nothing tells what the other request was"
	refused = "the middleware refuses the option"
)

// transitions are those of a record, on every store. The takeover of a running
// owner (T5 after a crash, T13) needs processes: TestFailureMatrix has it.
var transitions = []transition{
	{name: "T1 absent", steps: func(x *life) {
		x.post("order", "").expect("201")
		x.stored(completed, 1, 1)
	}},
	{name: "T1 expired", servers: shortRecord, steps: func(x *life) {
		x.post("order", "").expect("201")
		x.expire()
		x.post("another order", "").expect("201")
		x.stored(completed, 2, 2)
	}},
	{name: "T1 abandoned and expired", servers: shortRecord, options: func(o *idemkey.Options) { o.Key.RejectExpired = true }, steps: func(x *life) {
		x.abandon()
		x.expire()
		x.post("another order", "").expect("201") // there never was a response that could be refused
		x.stored(completed, 1, 1)
	}},
	{name: "T2 expired, and refused", servers: shortRecord, options: func(o *idemkey.Options) { o.Key.RejectExpired = true }, steps: func(x *life) {
		x.post("order", "").expect("201")
		x.expire()
		x.post("order", "").expect("410 key-expired")
		x.stored(completed, 1, 1)
	}},
	{name: "T3, T4 in progress", steps: func(x *life) {
		first := x.running()
		x.post("another order", "").expect("422 key-reused")
		x.post("order", "").expect("409 in-progress")
		x.stored(inProgress, 0, 1)
		x.let(first).expect("201")
		x.stored(completed, 1, 1)
	}, none: map[string]string{inline: untold}},
	{name: "T3 lapsed", steps: func(x *life) {
		x.abandon()
		x.post("another order", "").expect("422 key-reused")
	}, none: map[string]string{inline: untold}},
	{name: "T5 lapsed", steps: func(x *life) {
		x.abandon()
		x.post("order", "").expect("201")
		x.post("order", "").expect("201 replay")
		x.stored(completed, 1, 1)
	}},
	{name: "T5 lapsed, with external effects", options: func(o *idemkey.Options) { o.ExternalEffects = true }, steps: func(x *life) {
		x.abandon()
		x.post("order", "").expect("409 outcome-unknown")
		x.stored(inProgress, 0, 0)
	}, none: map[string]string{inline: refused}},
	{name: "T5 lapsed, and recovered", options: func(o *idemkey.Options) {
		o.Recover = func(context.Context, idemkey.Identity) (*idemkey.Response, error) {
			return &idemkey.Response{Status: http.StatusCreated, Body: []byte("found")}, nil
		}
	}, steps: func(x *life) {
		x.abandon()
		x.post("order", "").expect("201 replay")
		x.stored(completed, 0, 0)
	}, none: map[string]string{inline: refused}},
	{name: "T3, T6, T11 failed", steps: func(x *life) {
		x.post("order", "503").expect("503")
		x.stored("failed", 0, 1)
		x.post("another order", "").expect("422 key-reused")
		x.post("order", "").expect("201")
		x.stored(completed, 1, 2)
	}, none: map[string]string{inline: untold}},
	{name: "T6 too often", options: func(o *idemkey.Options) { o.Limits.MaxAttempts = 2 }, steps: func(x *life) {
		x.post("order", "500").expect("500")
		x.post("order", "500").expect("500")
		x.post("order", "").expect("409 outcome-unknown")
		x.stored("failed", 0, 2)
	}, none: map[string]string{inline: refused}},
	{name: "T3, T7, T9 completed", steps: func(x *life) {
		first := x.post("order", "")
		first.expect("201")
		again := x.post("order", "409")
		again.expect("201 replay")
		if again.body != first.body || again.header.Get("Location") != first.header.Get("Location") {
			x.Errorf("replay = %+v, want %+v", again, first)
		}
		x.post("another order", "").expect("422 key-reused")
		x.stored(completed, 1, 1)
	}},
	{name: "T9 rejected", steps: func(x *life) {
		x.post("order", "404").expect("404")
		x.post("order", "").expect("404 replay")
		x.stored(completed, 0, 1)
	}},
	{name: "T9 committed anyway", steps: func(x *life) {
		x.post("order", "402", doVerdict, "commit anyway").expect("402")
		x.post("order", "").expect("402 replay")
		x.stored(completed, 1, 1)
	}},
	{name: "T3, T8, T10 tombstone", options: func(o *idemkey.Options) { o.Limits.MaxResponseBody = 10 }, steps: func(x *life) {
		first := x.post("order", "")
		first.expect("201")
		if !strings.HasPrefix(first.body, "run of order") {
			x.Errorf("first body = %q, want all of it", first.body)
		}
		gone := x.post("order", "")
		gone.expect("410 response-not-retained")
		if gone.problem.OriginalStatus != http.StatusCreated || gone.header.Get("Location") != "/orders/1" {
			x.Errorf("tombstone = %+v", gone)
		}
		x.post("another order", "").expect("422 key-reused")
		x.stored("tombstone", 1, 1)
	}},
	{name: "T11 panic", steps: func(x *life) {
		x.post("order", "panic").expect(broken)
		x.stored("failed", 0, 1)
		x.post("order", "").expect("201")
	}},
	{name: "T11 timeout", options: func(o *idemkey.Options) { o.Limits.ExecTimeout = time.Second }, steps: func(x *life) {
		x.post("order", "late").expect("503 execution-timeout")
		x.stored("failed", 0, 1)
	}},
	{name: "T11 not kept", steps: func(x *life) {
		x.post("order", "429").expect("429")
		x.stored("failed", 0, 1)
		x.post("order", "").expect("201")
	}},
	{name: "T12 amended", steps: func(x *life) {
		x.post("ordr", "400", doVerdict, "amendable").expect("400")
		x.stored(absent, 0, 1)
		x.post("order", "").expect("201")
		x.stored(completed, 1, 2)
	}},
	{name: "T14 renewed", servers: func(c *settings) { c.Lease, c.Grace = 3*time.Second, time.Millisecond }, steps: func(x *life) {
		first := x.running()
		if err := backoff.Sleep(x.Context(), x.Lease*4/3); err != nil {
			x.Fatal(err)
		}
		x.post("order", "").expect("409 in-progress")
		x.let(first).expect("201")
		x.stored(completed, 1, 1)
	}},
	{name: "T15 swept", servers: shortRecord, options: func(o *idemkey.Options) { o.Key.RejectExpired = true }, steps: func(x *life) {
		x.post("order", "").expect("201")
		x.expire()
		x.post("order", "").expect("410 key-expired")
		if n, err := x.store.Sweep(x.Context(), 10); n != 1 || err != nil {
			x.Errorf("Sweep = %d, %v; want 1", n, err)
		}
		x.post("another order", "").expect("201")
		x.stored(completed, 2, 2)
	}, alone: true, none: map[string]string{onRedis: "it removes expired records by itself"}},
}

// shortRecord is for a memory, on the host's clock.
func shortRecord(c *settings) {
	if c.Column == memory {
		c.Lease, c.ExecTimeout, c.TTL = time.Second, 5*time.Second, 5*time.Second
	}
}

// A life is one record's, with the server that it is on.
type life struct {
	*testing.T
	*site
	server  *httptest.Server
	key     string
	entered chan struct{}
	leave   chan struct{}
}

// A seen answer is one that a test compares.
type seen struct {
	answer
	t *testing.T
}

func (s seen) expect(want string) {
	s.t.Helper()
	if s.text != want {
		s.t.Errorf("got %q, want %q (%s)", s.text, want, s.body)
	}
}

// Every transition of a record, on every store.
func TestTransitions(t *testing.T) {
	t.Parallel()
	shared := newSettings(t)
	for _, tr := range transitions {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			for _, col := range columns {
				if tr.none[col.name] != "" {
					continue
				}
				t.Run(col.name, func(t *testing.T) {
					t.Parallel()
					base := shared
					if tr.alone {
						base = newSettings(t)
					}
					c := base.of(t, &col)
					if tr.servers != nil {
						tr.servers(&c)
					}
					tr.steps(newLife(t, c, tr.options))
				})
			}
		})
	}
}

func newLife(t *testing.T, c settings, set func(*idemkey.Options)) *life {
	t.Helper()
	x := &life{T: t, site: newSite(t, c), key: pgtest.Name(), entered: make(chan struct{}, 1), leave: make(chan struct{})}
	opts := &idemkey.Options{SingleTenant: true, Limits: idemkey.Limits{TTL: c.TTL, Lease: c.Lease, ExecTimeout: c.ExecTimeout, StoreTimeout: storeTimeout, CompleteTimeout: storeTimeout}, Fingerprint: idemkey.FingerprintOptions{Custom: bodyFingerprint}, Logger: quiet}
	if set != nil {
		set(opts)
	}
	m, err := idemkey.New(x.store, opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	x.server = httptest.NewUnstartedServer(m.Handler(x))
	x.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of the panics
	x.server.Start()
	t.Cleanup(x.server.Close)
	return x
}

// bodyFingerprint is one that a test can make, too.
func bodyFingerprint(_ *http.Request, body []byte) (idemkey.Fingerprint, error) {
	return idemkey.Fingerprint{Alg: "test", Sum: body}, nil
}

// doVerdict is the header that names the handler's verdict.
const doVerdict = "Verdict"

var verdicts = map[string]idemkey.Verdict{"commit anyway": idemkey.CommitAnyway, "amendable": idemkey.Amendable}

// ServeHTTP writes a business row, and then what the request asks for: a status, or worse.
func (x *life) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		x.Errorf("read body: %v", err)
	}
	if err := x.write(r.Context(), x.key, string(body)); err != nil {
		idemkey.Fail(r.Context(), err)
		return
	}
	idemkey.SetVerdict(r.Context(), verdicts[r.Header.Get(doVerdict)])
	status := http.StatusCreated
	switch do := r.Header.Get("Do"); do {
	case "":
	case "wait":
		x.entered <- struct{}{}
		<-x.leave
	case "late":
		<-r.Context().Done()
	case "panic":
		panic(http.ErrAbortHandler)
	default:
		if status, err = strconv.Atoi(do); err != nil {
			x.Errorf("asked to do %q", do)
		}
	}
	w.Header().Set("Location", "/orders/1")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "run of "+string(body))
}

func (x *life) post(body, do string, header ...string) seen {
	ctx, cancel := context.WithTimeout(x.Context(), patience)
	defer cancel()
	return seen{post(ctx, x.server.URL, x.key, strings.NewReader(body), append(header, "Do", do)...), x.T}
}

// running starts a request whose handler waits, until let.
func (x *life) running() <-chan seen {
	x.Helper()
	answered := make(chan seen, 1)
	go func() { answered <- x.post("order", "wait") }() // ends with the handler
	select {
	case <-x.entered:
	case a := <-answered:
		x.Fatalf("the first request was answered %q", a.text)
	case <-time.After(patience):
		x.Fatal("the first request does not run")
	}
	return answered
}

func (x *life) let(first <-chan seen) seen {
	close(x.leave)
	return <-first
}

// abandon claims the key for a request whose owner then vanishes, past its lease.
func (x *life) abandon() {
	x.Helper()
	if x.Column == memory {
		x.Lease = time.Millisecond // the claim's alone: the server's own is not in a hurry
	}
	claim := idemkey.Claim{ID: identity(x.key), FP: idemkey.Fingerprint{Alg: "test", Sum: []byte("order")},
		TTL: x.TTL, Lease: x.Lease, ExecTimeout: x.ExecTimeout}
	d, err := x.store.Begin(x.Context(), claim)
	if err != nil || d.Kind != idemkey.KindProceed {
		x.Fatalf("Begin = %+v, %v", d, err)
	}
	x.Cleanup(func() { _ = d.Exec.Release(context.Background(), idemkey.Bound, 500) }) // it no longer owns anything
	if tx, ok := idempg.TxFrom(d.Exec.Context(x.Context())); ok {
		_, _ = tx.Exec(x.Context(), "SELECT pg_terminate_backend(pg_backend_pid())")
		x.settle(x.T, x.site.Name) // the session says that it ends before it frees its locks
	}
	if err := x.column.lapse(x.Context(), x.site, x.key); err != nil {
		x.Fatal(err)
	}
}

func (x *life) expire() {
	x.Helper()
	if err := x.column.expire(x.Context(), x.site, x.key); err != nil {
		x.Fatal(err)
	}
}

func (x *life) separate() bool { return x.column.separate }

// stored checks the record and the business rows: those committed with it, or
// all that were written where they commit on their own.
func (x *life) stored(record string, kept, written int) {
	x.Helper()
	if x.column.traceless && (record == inProgress || record == "failed") {
		record = absent
	}
	want := kept
	if x.separate() {
		want = written
	}
	rows, err := x.rows(x.Context(), x.key)
	if err != nil || len(rows) != want {
		x.Errorf("%d business rows, %v; want %d", len(rows), err, want)
	}
	state, err := x.column.state(x.Context(), x.site, x.key)
	if err != nil || state != "" && state != record {
		x.Errorf("the record is %s, %v; want %s", state, err, record)
	}
}
