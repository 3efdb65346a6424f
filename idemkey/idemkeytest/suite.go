package idemkeytest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/idemkey"
)

// A Subject is a store under test, empty, with the means to make time pass and
// processes die.
type Subject struct {
	Store idemkey.Store

	// Crash makes it look as if the process that owns exec had died and its
	// lease had run out. It returns once the store would let another take over.
	Crash func(t testing.TB, id idemkey.Identity, exec idemkey.Execution)

	// Expire makes id's record look expired.
	Expire func(t testing.TB, id idemkey.Identity)

	// Damage makes id's record say a state that does not exist. Nil: nothing but the store can get at it.
	Damage func(t testing.TB, id idemkey.Identity)

	// SelfExpiring says that the store removes expired records by itself, so
	// that Sweep finds none.
	SelfExpiring bool

	// Held is how much the store holds for requests that run, such as connections. Default: it
	// is not checked.
	Held func() int
}

// Run runs the suite. open is called once for each test.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for name, test := range map[string]func(*testing.T, Subject){
		"Absent":        testAbsent,
		"Mismatch":      testMismatch,
		"OtherSettings": testOtherSettings,
		"InFlight":      testInFlight,
		"TakeOver":      testTakeOver,
		"LateOwner":     testLateOwner,
		"Renew":         testRenew,
		"HoldLapsed":    testHoldLapsed,
		"Failed":        testFailed,
		"MaxAttempts":   testMaxAttempts,
		"Replay":        testReplay,
		"Rejected":      testRejected,
		"Tombstone":     testTombstone,
		"Forget":        testForget,
		"Damaged":       testDamaged,
		"ExpiredNew":    testExpiredNew,
		"ExpiredReject": testExpiredReject,
		"Incarnation":   testIncarnation,
		"Sweep":         testSweep,
		"Identity":      testIdentity,
		"Recovered":     testRecovered,
		"Keyless":       testKeyless,
		"InvalidClaim":  testInvalidClaim,
		"Race":          testRace,
		"RaceTakeOver":  testRaceTakeOver,
		"Callbacks":     testCallbacks,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			if s.Store == nil || s.Crash == nil || s.Expire == nil {
				t.Fatal("idemkeytest: Store, Crash and Expire of a Subject are required")
			}
			test(t, s)
		})
	}
}

// Claim returns a claim of key for a request that fp tells apart.
func Claim(key, fp string) idemkey.Claim {
	return idemkey.Claim{
		ID:  idemkey.Identity{Namespace: "http", Scope: "tenant-1", Key: key},
		FP:  idemkey.Fingerprint{Alg: "test", Sum: []byte(fp)},
		TTL: time.Hour, Lease: 30 * time.Second, ExecTimeout: 20 * time.Second,
	}
}

// response is one with everything that a store could get wrong.
func response() idemkey.Response {
	return idemkey.Response{
		Status: http.StatusCreated,
		Header: http.Header{"Location": {"/orders/1"}, "Link": {"<a>; rel=next, <b>", "<c>"}, "Vary": {""}},
		Body:   []byte("{\"b\":1,\"a\":1.0}\x00\xff\n"),
		KeyID:  "key-1",
	}
}

func begin(t *testing.T, s Subject, c idemkey.Claim, want idemkey.Kind) idemkey.Decision {
	t.Helper()
	d, err := s.Store.Begin(t.Context(), c)
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}
	if d.Kind != want {
		t.Fatalf("Begin decided %v, want %v", d.Kind, want)
	}
	if (d.Exec != nil) != (want == idemkey.KindProceed) {
		t.Fatalf("Begin decided %v with execution %v", d.Kind, d.Exec)
	}
	return d
}

// traceless reports that a run which was not kept leaves nothing behind.
func (s Subject) traceless() bool {
	d, ok := s.Store.(idemkey.Describer)
	return ok && d.Traits().Traceless
}

// proceed claims and checks the number of the attempt.
func proceed(t *testing.T, s Subject, c idemkey.Claim, attempt int) idemkey.Execution {
	t.Helper()
	d := begin(t, s, c, idemkey.KindProceed)
	if s.traceless() {
		attempt = 1
	}
	if d.Attempt != attempt {
		t.Errorf("Attempt = %d, want %d", d.Attempt, attempt)
	}
	return d.Exec
}

func ok(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// complete runs c to a kept response.
func complete(t *testing.T, s Subject, c idemkey.Claim) {
	t.Helper()
	ok(t, "Commit", proceed(t, s, c, 1).Commit(t.Context(), response()))
}

func testAbsent(t *testing.T, s Subject) {
	d := begin(t, s, Claim("k", "a"), idemkey.KindProceed)
	defer release(t, d.Exec)
	if d.Attempt != 1 {
		t.Errorf("Attempt = %d, want 1", d.Attempt)
	}
	if d.ExpiresAt.IsZero() {
		t.Error("ExpiresAt is not set")
	}
}

func release(t *testing.T, exec idemkey.Execution) {
	t.Helper()
	ok(t, "Release", exec.Release(context.WithoutCancel(t.Context()), idemkey.Bound, 500))
}

// Another request is told so in every state that the store remembers, before it
// is told to wait.
func testMismatch(t *testing.T, s Subject) {
	running := proceed(t, s, Claim("running", "a"), 1)
	if s.traceless() {
		begin(t, s, Claim("running", "b"), idemkey.KindInFlight)
		release(t, running)
		release(t, proceed(t, s, Claim("running", "b"), 1))
	} else {
		begin(t, s, Claim("running", "b"), idemkey.KindMismatch)
		release(t, running)
		begin(t, s, Claim("running", "b"), idemkey.KindMismatch) // failed
	}
	complete(t, s, Claim("done", "a"))
	begin(t, s, Claim("done", "b"), idemkey.KindMismatch)
	ok(t, "Commit", proceed(t, s, Claim("big", "a"), 1).Commit(t.Context(), idemkey.Response{Status: 200, Dropped: true}))
	begin(t, s, Claim("big", "b"), idemkey.KindMismatch)
	exec := proceed(t, s, Claim("crashed", "a"), 1)
	s.Crash(t, Claim("crashed", "a").ID, exec)
	if s.traceless() {
		release(t, proceed(t, s, Claim("crashed", "b"), 1))
	} else {
		begin(t, s, Claim("crashed", "b"), idemkey.KindMismatch)
	}
}

// A record is compared by the settings that made it, in every state. Without them it is not said
// that the request is another one, and it neither runs nor is replayed.
func testOtherSettings(t *testing.T, s Subject) {
	complete(t, s, Claim("done", "a"))
	ok(t, "Commit", proceed(t, s, Claim("big", "a"), 1).Commit(t.Context(), idemkey.Response{Status: 200, Dropped: true}))
	running := proceed(t, s, Claim("running", "a"), 1)
	keys := map[string]idemkey.Kind{"done": idemkey.KindReplay, "big": idemkey.KindNotRetained, "running": idemkey.KindInFlight}
	if !s.traceless() {
		release(t, proceed(t, s, Claim("failed", "a"), 1))
		keys["failed"] = idemkey.KindProceed
	}
	for key, want := range keys {
		if s.traceless() && key == "running" {
			continue
		}
		other := Claim(key, "a")
		other.FP.Alg = "other:" + strings.Repeat("x", 200) // no store may cut it
		if d := begin(t, s, other, idemkey.KindFingerprintUnknown); d.FPAlg != "test" || d.Exec != nil || d.Record != nil {
			t.Errorf("Begin of %s = %+v, want the record's Alg alone", key, d)
		}
		other.Prior = []idemkey.Fingerprint{{Alg: "test", Sum: []byte("b")}}
		begin(t, s, other, idemkey.KindMismatch)
		other.Prior = append(other.Prior, idemkey.Fingerprint{Alg: "test", Sum: []byte("a")})
		d := begin(t, s, other, want)
		if want == idemkey.KindProceed { // bound to the new settings from here on
			ok(t, "Commit", d.Exec.Commit(t.Context(), response()))
			other.Prior = nil
			begin(t, s, other, idemkey.KindReplay)
			begin(t, s, Claim(key, "a"), idemkey.KindFingerprintUnknown)
		}
	}
	release(t, running)
}

func testInFlight(t *testing.T, s Subject) {
	exec := proceed(t, s, Claim("k", "a"), 1)
	d := begin(t, s, Claim("k", "a"), idemkey.KindInFlight)
	if d.RetryAfter < 0 || d.RetryAfter > 30*time.Second {
		t.Errorf("RetryAfter = %v, want 0 to the lease", d.RetryAfter)
	}
	release(t, exec)
}

func testTakeOver(t *testing.T, s Subject) {
	c := Claim("k", "a")
	s.Crash(t, c.ID, proceed(t, s, c, 1))
	d := begin(t, s, c, idemkey.KindProceed)
	if !s.traceless() && (d.Attempt != 2 || !d.TookOver) {
		t.Errorf("attempt %d, took over %t; want the second, taken over", d.Attempt, d.TookOver)
	}
	begin(t, s, c, idemkey.KindInFlight)
	ok(t, "Commit", d.Exec.Commit(t.Context(), response()))
	begin(t, s, c, idemkey.KindReplay)
}

// An owner that wakes up after it was given up for dead changes nothing.
func testLateOwner(t *testing.T, s Subject) {
	for _, end := range []struct {
		name string
		do   func(idemkey.Execution) error
	}{
		{"commit", func(e idemkey.Execution) error { return e.Commit(t.Context(), idemkey.Response{Status: 299}) }},
		{"reject", func(e idemkey.Execution) error { return e.Reject(t.Context(), idemkey.Response{Status: 499}) }},
		{"release", func(e idemkey.Execution) error { return e.Release(t.Context(), idemkey.Bound, 500) }},
		{"forget", func(e idemkey.Execution) error { return e.Release(t.Context(), idemkey.Forget, 500) }},
	} {
		c := Claim(end.name, "a")
		late := proceed(t, s, c, 1)
		s.Crash(t, c.ID, late)
		exec := proceed(t, s, c, 2)
		if err := end.do(late); err == nil && (end.name == "commit" || end.name == "reject") {
			t.Errorf("late %s succeeded", end.name)
		}
		begin(t, s, c, idemkey.KindInFlight)
		ok(t, "Commit", exec.Commit(t.Context(), response()))
		if d := begin(t, s, c, idemkey.KindReplay); d.Record.Response.Status != http.StatusCreated {
			t.Errorf("after a late %s the status is %d, want 201", end.name, d.Record.Response.Status)
		}
	}
}

// Only the owner can renew a lease, and only while it runs.
func testRenew(t *testing.T, s Subject) {
	c := Claim("k", "a")
	late := proceed(t, s, c, 1)
	if _, ok := late.(idemkey.Renewer); !ok {
		release(t, late)
		return // a lock keeps the owner, not a clock
	}
	ok(t, "Renew", late.(idemkey.Renewer).Renew(t.Context()))
	s.Crash(t, c.ID, late)
	exec := proceed(t, s, c, 2)
	if err := late.(idemkey.Renewer).Renew(t.Context()); !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("Renew by a late owner: %v, want ErrLeaseLost", err)
	}
	ok(t, "Renew", exec.(idemkey.Renewer).Renew(t.Context()))
	ok(t, "Commit", exec.Commit(t.Context(), response()))
	if err := exec.(idemkey.Renewer).Renew(t.Context()); !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("Renew after Commit: %v, want ErrLeaseLost", err)
	}
	begin(t, s, c, idemkey.KindReplay)
}

// A lapsed run is not taken over where the claim says so; a failed one is.
func testHoldLapsed(t *testing.T, s Subject) {
	if s.traceless() {
		return // the middleware refuses the option
	}
	c := Claim("k", "a")
	c.HoldLapsed = true
	release(t, proceed(t, s, c, 1))
	exec := proceed(t, s, c, 2)
	begin(t, s, c, idemkey.KindInFlight)
	s.Crash(t, c.ID, exec)
	if d := begin(t, s, c, idemkey.KindUnknown); d.Attempt != 2 {
		t.Errorf("the vanished attempt is %d, want 2", d.Attempt)
	}
	c.Recovered = 1
	begin(t, s, c, idemkey.KindUnknown) // of another attempt than that which was found out
	c.Recovered = 2
	release(t, proceed(t, s, c, 3))
}

func testFailed(t *testing.T, s Subject) {
	c := Claim("k", "a")
	release(t, proceed(t, s, c, 1))
	d := begin(t, s, c, idemkey.KindProceed)
	if d.TookOver {
		t.Error("the run after a failed one took over")
	}
	release(t, d.Exec)
	ok(t, "Commit", proceed(t, s, c, 3).Commit(t.Context(), response()))
	begin(t, s, c, idemkey.KindReplay)
}

func testMaxAttempts(t *testing.T, s Subject) {
	if s.traceless() {
		return // the middleware refuses the option
	}
	c := Claim("k", "a")
	c.MaxAttempts = 2
	release(t, proceed(t, s, c, 1))
	release(t, proceed(t, s, c, 2))
	begin(t, s, c, idemkey.KindUnknown)
	c.MaxAttempts = 3
	release(t, proceed(t, s, c, 3))
}

func testReplay(t *testing.T, s Subject) {
	c := Claim("k", "a")
	complete(t, s, c)
	for range 2 {
		d := begin(t, s, c, idemkey.KindReplay)
		if diff := cmp.Diff(response(), d.Record.Response); diff != "" {
			t.Errorf("replayed response (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(c.FP, d.Record.FP); diff != "" {
			t.Errorf("stored fingerprint (-want +got):\n%s", diff)
		}
		d.Record.Response.Body[0] = 'X' // what is handed out is a copy
		d.Record.Response.Header.Set("Location", "X")
	}
	empty := Claim("empty", "a")
	ok(t, "Commit", proceed(t, s, empty, 1).Commit(t.Context(), idemkey.Response{Status: 204, Header: http.Header{}}))
	if d := begin(t, s, empty, idemkey.KindReplay); d.Record.Response.Status != 204 || len(d.Record.Response.Body) != 0 {
		t.Errorf("replayed %d with %d bytes, want 204 with none", d.Record.Response.Status, len(d.Record.Response.Body))
	}
}

func testRejected(t *testing.T, s Subject) {
	c := Claim("k", "a")
	ok(t, "Reject", proceed(t, s, c, 1).Reject(t.Context(), idemkey.Response{Status: 400, Header: http.Header{}, Body: []byte("no")}))
	if d := begin(t, s, c, idemkey.KindReplay); d.Record.Response.Status != 400 || string(d.Record.Response.Body) != "no" {
		t.Errorf("replayed %d %q, want 400 \"no\"", d.Record.Response.Status, d.Record.Response.Body)
	}
}

func testTombstone(t *testing.T, s Subject) {
	c := Claim("k", "a")
	r := response()
	r.Body, r.Dropped, r.KeyID = nil, true, ""
	ok(t, "Commit", proceed(t, s, c, 1).Commit(t.Context(), r))
	d := begin(t, s, c, idemkey.KindNotRetained)
	if got := d.Record.Response; got.Status != 201 || got.Header.Get("Location") != "/orders/1" || got.Body != nil {
		t.Errorf("tombstone = %+v, want status and header without a body", got)
	}
}

// A record that says what no store has written is an error and not a second run.
func testDamaged(t *testing.T, s Subject) {
	if s.Damage == nil {
		return
	}
	c := Claim("k", "a")
	complete(t, s, c)
	s.Damage(t, c.ID)
	for _, sum := range []string{"a", "a", "b"} {
		c.FP.Sum = []byte(sum)
		if d, err := s.Store.Begin(t.Context(), c); !errors.Is(err, idemkey.ErrRecordCorrupt) {
			t.Fatalf("Begin with a damaged record: %v, %v; want ErrRecordCorrupt", d.Kind, err)
		}
	}
}

func testForget(t *testing.T, s Subject) {
	exec := proceed(t, s, Claim("k", "a"), 1)
	ok(t, "Release", exec.Release(t.Context(), idemkey.Forget, 400))
	release(t, proceed(t, s, Claim("k", "b"), 1))
}

func testExpiredNew(t *testing.T, s Subject) {
	done, failed, crashed := Claim("done", "a"), Claim("failed", "a"), Claim("crashed", "a")
	complete(t, s, done)
	release(t, proceed(t, s, failed, 1))
	s.Crash(t, crashed.ID, proceed(t, s, crashed, 1))
	for _, c := range []idemkey.Claim{done, failed, crashed} {
		s.Expire(t, c.ID)
		c.FP.Sum = []byte("b")
		ok(t, "Commit", proceed(t, s, c, 1).Commit(t.Context(), response()))
		begin(t, s, c, idemkey.KindReplay)
	}
}

// All attempts that one record outlives have its incarnation. The record of another namespace,
// and the next one of the same identity, has another.
func testIncarnation(t *testing.T, s Subject) {
	c, route := Claim("k", "a"), Claim("k", "a")
	route.ID.Namespace = "http:other"
	first := begin(t, s, c, idemkey.KindProceed)
	if first.Incarnation == "" || len(first.Incarnation) > 24 || strings.ContainsFunc(first.Incarnation, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789_", r)
	}) {
		t.Errorf("the incarnation is %q", first.Incarnation)
	}
	other := begin(t, s, route, idemkey.KindProceed)
	if other.Incarnation == first.Incarnation {
		t.Error("the records of two namespaces have the same incarnation")
	}
	release(t, other.Exec)
	release(t, first.Exec)
	second := begin(t, s, c, idemkey.KindProceed)
	s.Crash(t, c.ID, second.Exec)
	third := begin(t, s, c, idemkey.KindProceed)
	if !s.traceless() && (second.Incarnation != first.Incarnation || third.Incarnation != first.Incarnation) {
		t.Errorf("three attempts have the incarnations %q, %q and %q, want one", first.Incarnation, second.Incarnation, third.Incarnation)
	}
	ok(t, "Commit", third.Exec.Commit(t.Context(), response()))
	s.Expire(t, c.ID)
	c.FP.Sum = []byte("b")
	next := begin(t, s, c, idemkey.KindProceed)
	if next.Incarnation == first.Incarnation || next.Incarnation == third.Incarnation {
		t.Errorf("the key's next record has the incarnation %q again", next.Incarnation)
	}
	release(t, next.Exec)
}

func testExpiredReject(t *testing.T, s Subject) {
	done, crashed := Claim("done", "a"), Claim("crashed", "a")
	done.RejectExpired, crashed.RejectExpired = true, true
	complete(t, s, done)
	s.Expire(t, done.ID)
	begin(t, s, done, idemkey.KindExpired)
	s.Crash(t, crashed.ID, proceed(t, s, crashed, 1))
	s.Expire(t, crashed.ID)
	if !s.traceless() {
		held := crashed
		held.HoldLapsed = true
		begin(t, s, held, idemkey.KindExpired) // it may have had its effect
	}
	release(t, proceed(t, s, crashed, 1)) // nothing was committed: there is nothing to refuse
}

func testSweep(t *testing.T, s Subject) {
	const expired = 5
	for i := range expired {
		c := Claim(fmt.Sprint("old-", i), "a")
		complete(t, s, c)
		s.Expire(t, c.ID)
	}
	complete(t, s, Claim("fresh", "a"))
	running := proceed(t, s, Claim("running", "a"), 1)
	swept := []int{2, 2, 1, 0}
	if s.SelfExpiring {
		swept = []int{0}
	}
	for _, want := range swept {
		if n, err := s.Store.Sweep(t.Context(), 2); n != want || err != nil {
			t.Errorf("Sweep = %d, %v; want %d", n, err, want)
		}
	}
	begin(t, s, Claim("fresh", "a"), idemkey.KindReplay)
	begin(t, s, Claim("running", "a"), idemkey.KindInFlight)
	ok(t, "Commit", running.Commit(t.Context(), response()))
	complete(t, s, Claim("old-0", "b"))
}

// Parts that would join to one string are different identities.
func testIdentity(t *testing.T, s Subject) {
	for i, id := range []idemkey.Identity{
		{Namespace: "n", Scope: "a:b", Key: "c"},
		{Namespace: "n", Scope: "a", Key: "b:c"},
		{Namespace: "n:a", Scope: "b", Key: "c"},
		{Namespace: "n", Scope: "A:b", Key: "c"},
		{Namespace: "n", Scope: "tenant ü", Key: "a \"quoted\" \\ key; with, all"},
	} {
		c := Claim("", fmt.Sprint(i))
		c.ID = id
		complete(t, s, c)
		begin(t, s, c, idemkey.KindReplay)
	}
}

func testKeyless(t *testing.T, s Subject) {
	for range 2 {
		ok(t, "Commit", proceed(t, s, Claim("", ""), 1).Commit(t.Context(), response()))
	}
	ok(t, "Reject", proceed(t, s, Claim("", ""), 1).Reject(t.Context(), response()))
	release(t, proceed(t, s, Claim("", ""), 1))
}

func testInvalidClaim(t *testing.T, s Subject) {
	for name, change := range map[string]func(*idemkey.Claim){
		"no scope":    func(c *idemkey.Claim) { c.ID.Scope = "" },
		"NUL":         func(c *idemkey.Claim) { c.ID.Key = "a\x00b" },
		"long key":    func(c *idemkey.Claim) { c.ID.Key = string(make([]byte, 256)) },
		"short TTL":   func(c *idemkey.Claim) { c.TTL = c.Lease - 1 },
		"fingerprint": func(c *idemkey.Claim) { c.FP = idemkey.Fingerprint{} },
		"no lease":    func(c *idemkey.Claim) { c.Lease = 0 },
		"no time":     func(c *idemkey.Claim) { c.ExecTimeout = 0 },
	} {
		c := Claim("k", "a")
		change(&c)
		if d, err := s.Store.Begin(t.Context(), c); err == nil || d.Exec != nil {
			t.Errorf("%s: Begin = %+v, %v; want an error", name, d, err)
		}
	}
}

// racers claim c at the same time. It returns the one execution that began.
func racers(t *testing.T, s Subject, c idemkey.Claim) idemkey.Execution {
	t.Helper()
	const n = 8
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		execs []idemkey.Execution
		start = make(chan struct{})
	)
	for range n {
		wg.Go(func() {
			<-start
			d, err := s.Store.Begin(t.Context(), c)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && d.Kind == idemkey.KindProceed:
				execs = append(execs, d.Exec)
			case err != nil && !errors.Is(err, idemkey.ErrCapacity), err == nil && d.Kind != idemkey.KindInFlight:
				t.Errorf("Begin = %+v, %v; want in flight", d, err)
			}
		})
	}
	close(start)
	wg.Wait()
	if len(execs) != 1 {
		t.Fatalf("%d of %d racers proceeded, want 1", len(execs), n)
	}
	return execs[0]
}

func testRace(t *testing.T, s Subject) {
	for i := range 5 {
		c := Claim(fmt.Sprint("k", i), "a")
		exec := racers(t, s, c)
		ok(t, "Commit", exec.Commit(t.Context(), response()))
		begin(t, s, c, idemkey.KindReplay)
	}
}

func testRaceTakeOver(t *testing.T, s Subject) {
	for i := range 3 {
		crashed, failed := Claim(fmt.Sprint("crashed", i), "a"), Claim(fmt.Sprint("failed", i), "a")
		s.Crash(t, crashed.ID, proceed(t, s, crashed, 1))
		release(t, racers(t, s, crashed))
		release(t, racers(t, s, failed))
		release(t, racers(t, s, failed))
	}
}
