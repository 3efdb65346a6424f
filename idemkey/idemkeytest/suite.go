package idemkeytest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
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

	// Damage stores a state that does not exist in id's record. Nil: only the store can reach the record.
	Damage func(t testing.TB, id idemkey.Identity)

	// SelfExpiring says that the store removes expired records without Sweep,
	// which finds none.
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
		"Vanished":      testVanished,
		"Unknown":       testUnknown,
		"UnknownLimit":  testUnknownLimit,
		"Dedupes":       testDedupes,
		"Settle":        testSettle,
		"UnknownLater":  testUnknownLater,
		"Decided":       testDecidedAttempts,
		"FoundOutOnce":  testFoundOutOnce,
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

// richResponse has all that a store could get wrong: names, values and bytes.
func richResponse() idemkey.Response {
	return idemkey.Response{
		Status: http.StatusCreated,
		Header: http.Header{"Location": {"/orders/1"}, "Link": {"<a>; rel=next, <b>", "<c>"}, "Vary": {""}},
		Body:   []byte("{\"b\":1,\"a\":1.0}\x00\xff\n"),
		KeyID:  "key-1",
	}
}

func beginClaim(t *testing.T, s Subject, c idemkey.Claim, want idemkey.Kind) idemkey.Decision {
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

// beginAttempt claims and checks the number of the attempt.
func beginAttempt(t *testing.T, s Subject, c idemkey.Claim, attempt int) idemkey.Execution {
	t.Helper()
	d := beginClaim(t, s, c, idemkey.KindProceed)
	if s.traceless() {
		attempt = 1
	}
	if d.Attempt != attempt {
		t.Errorf("Attempt = %d, want %d", d.Attempt, attempt)
	}
	return d.Exec
}

func expectNoError(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// completeClaim runs c to a kept response.
func completeClaim(t *testing.T, s Subject, c idemkey.Claim) {
	t.Helper()
	expectNoError(t, "Commit", beginAttempt(t, s, c, 1).Commit(t.Context(), richResponse()))
}

func testAbsent(t *testing.T, s Subject) {
	d := beginClaim(t, s, Claim("k", "a"), idemkey.KindProceed)
	defer releaseBound(t, d.Exec)
	if d.Attempt != 1 {
		t.Errorf("Attempt = %d, want 1", d.Attempt)
	}
	if d.ExpiresAt.IsZero() {
		t.Error("ExpiresAt is not set")
	}
}

func releaseBound(t *testing.T, exec idemkey.Execution) {
	t.Helper()
	expectNoError(t, "Release", exec.Release(context.WithoutCancel(t.Context()), idemkey.Bound, 500))
}

// Another request is a mismatch in every state that the store remembers, even while
// the first is in flight.
func testMismatch(t *testing.T, s Subject) {
	running := beginAttempt(t, s, Claim("running", "a"), 1)
	if s.traceless() {
		beginClaim(t, s, Claim("running", "b"), idemkey.KindInFlight)
		releaseBound(t, running)
		releaseBound(t, beginAttempt(t, s, Claim("running", "b"), 1))
	} else {
		beginClaim(t, s, Claim("running", "b"), idemkey.KindMismatch)
		releaseBound(t, running)
		beginClaim(t, s, Claim("running", "b"), idemkey.KindMismatch) // failed
	}
	completeClaim(t, s, Claim("done", "a"))
	beginClaim(t, s, Claim("done", "b"), idemkey.KindMismatch)
	expectNoError(t, "Commit", beginAttempt(t, s, Claim("big", "a"), 1).Commit(t.Context(), idemkey.Response{Status: 200, Dropped: true}))
	beginClaim(t, s, Claim("big", "b"), idemkey.KindMismatch)
	exec := beginAttempt(t, s, Claim("crashed", "a"), 1)
	s.Crash(t, Claim("crashed", "a").ID, exec)
	if s.traceless() {
		releaseBound(t, beginAttempt(t, s, Claim("crashed", "b"), 1))
	} else {
		beginClaim(t, s, Claim("crashed", "b"), idemkey.KindMismatch)
	}
}

// A record is compared by the settings that made it, in every state. Without them it is not said
// that the request is another one, and it neither runs nor is replayed.
func testOtherSettings(t *testing.T, s Subject) {
	completeClaim(t, s, Claim("done", "a"))
	expectNoError(t, "Commit", beginAttempt(t, s, Claim("big", "a"), 1).Commit(t.Context(), idemkey.Response{Status: 200, Dropped: true}))
	running := beginAttempt(t, s, Claim("running", "a"), 1)
	keys := map[string]idemkey.Kind{"done": idemkey.KindReplay, "big": idemkey.KindNotRetained, "running": idemkey.KindInFlight}
	if !s.traceless() {
		releaseBound(t, beginAttempt(t, s, Claim("failed", "a"), 1))
		keys["failed"] = idemkey.KindProceed
	}
	for key, want := range keys {
		if s.traceless() && key == "running" {
			continue
		}
		other := Claim(key, "a")
		other.FP.Alg = "other:" + strings.Repeat("x", 200) // no store may cut it
		if d := beginClaim(t, s, other, idemkey.KindFingerprintUnknown); d.FPAlg != "test" || d.Exec != nil || d.Record != nil {
			t.Errorf("Begin of %s = %+v, want the record's Alg alone", key, d)
		}
		other.Prior = []idemkey.Fingerprint{{Alg: "test", Sum: []byte("b")}}
		beginClaim(t, s, other, idemkey.KindMismatch)
		other.Prior = append(other.Prior, idemkey.Fingerprint{Alg: "test", Sum: []byte("a")})
		d := beginClaim(t, s, other, want)
		if want == idemkey.KindProceed { // bound to the new settings from here on
			expectNoError(t, "Commit", d.Exec.Commit(t.Context(), richResponse()))
			other.Prior = nil
			beginClaim(t, s, other, idemkey.KindReplay)
			beginClaim(t, s, Claim(key, "a"), idemkey.KindFingerprintUnknown)
		}
	}
	releaseBound(t, running)
}

func testInFlight(t *testing.T, s Subject) {
	exec := beginAttempt(t, s, Claim("k", "a"), 1)
	d := beginClaim(t, s, Claim("k", "a"), idemkey.KindInFlight)
	if d.RetryAfter < 0 || d.RetryAfter > 30*time.Second {
		t.Errorf("RetryAfter = %v, want 0 to the lease", d.RetryAfter)
	}
	releaseBound(t, exec)
}

func testTakeOver(t *testing.T, s Subject) {
	c := Claim("k", "a")
	s.Crash(t, c.ID, beginAttempt(t, s, c, 1))
	d := beginClaim(t, s, c, idemkey.KindProceed)
	if !s.traceless() && (d.Attempt != 2 || !d.TookOver) {
		t.Errorf("attempt %d, took over %t; want the second, taken over", d.Attempt, d.TookOver)
	}
	beginClaim(t, s, c, idemkey.KindInFlight)
	expectNoError(t, "Commit", d.Exec.Commit(t.Context(), richResponse()))
	beginClaim(t, s, c, idemkey.KindReplay)
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
		late := beginAttempt(t, s, c, 1)
		s.Crash(t, c.ID, late)
		exec := beginAttempt(t, s, c, 2)
		if err := end.do(late); err == nil && (end.name == "commit" || end.name == "reject") {
			t.Errorf("late %s succeeded", end.name)
		}
		beginClaim(t, s, c, idemkey.KindInFlight)
		expectNoError(t, "Commit", exec.Commit(t.Context(), richResponse()))
		if d := beginClaim(t, s, c, idemkey.KindReplay); d.Record.Response.Status != http.StatusCreated {
			t.Errorf("after a late %s the status is %d, want 201", end.name, d.Record.Response.Status)
		}
	}
}

// Only the owner can renew a lease, and only while it runs.
func testRenew(t *testing.T, s Subject) {
	c := Claim("k", "a")
	late := beginAttempt(t, s, c, 1)
	if _, ok := late.(idemkey.Renewer); !ok {
		releaseBound(t, late)
		return // a lock keeps the owner, not a clock
	}
	expectNoError(t, "Renew", late.(idemkey.Renewer).Renew(t.Context()))
	s.Crash(t, c.ID, late)
	exec := beginAttempt(t, s, c, 2)
	if err := late.(idemkey.Renewer).Renew(t.Context()); !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("Renew by a late owner: %v, want ErrLeaseLost", err)
	}
	expectNoError(t, "Renew", exec.(idemkey.Renewer).Renew(t.Context()))
	expectNoError(t, "Commit", exec.Commit(t.Context(), richResponse()))
	if err := exec.(idemkey.Renewer).Renew(t.Context()); !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("Renew after Commit: %v, want ErrLeaseLost", err)
	}
	beginClaim(t, s, c, idemkey.KindReplay)
}

// With External a lapsed run is not taken over; a failed one is.
func testVanished(t *testing.T, s Subject) {
	if s.traceless() {
		return // the middleware refuses the option
	}
	c := Claim("k", "a")
	c.External = true
	releaseBound(t, beginAttempt(t, s, c, 1))
	exec := beginAttempt(t, s, c, 2)
	beginClaim(t, s, c, idemkey.KindInFlight)
	s.Crash(t, c.ID, exec)
	d := beginClaim(t, s, c, idemkey.KindUnknown)
	if d.Attempt != 2 {
		t.Errorf("the vanished attempt is %d, want 2", d.Attempt)
	}
	c.Recovered = "other"
	beginClaim(t, s, c, idemkey.KindUnknown) // of another run than that which was found out
	c.Recovered = d.Run
	releaseBound(t, beginAttempt(t, s, c, 3))
}

func testFailed(t *testing.T, s Subject) {
	c := Claim("k", "a")
	releaseBound(t, beginAttempt(t, s, c, 1))
	d := beginClaim(t, s, c, idemkey.KindProceed)
	if d.TookOver {
		t.Error("the run after a failed one took over")
	}
	releaseBound(t, d.Exec)
	expectNoError(t, "Commit", beginAttempt(t, s, c, 3).Commit(t.Context(), richResponse()))
	beginClaim(t, s, c, idemkey.KindReplay)
}

func testMaxAttempts(t *testing.T, s Subject) {
	if s.traceless() {
		return // the middleware refuses the option
	}
	c := Claim("k", "a")
	c.MaxAttempts = 2
	releaseBound(t, beginAttempt(t, s, c, 1))
	releaseBound(t, beginAttempt(t, s, c, 2))
	beginClaim(t, s, c, idemkey.KindUnknown)
	c.MaxAttempts = 3
	releaseBound(t, beginAttempt(t, s, c, 3))
}

func testReplay(t *testing.T, s Subject) {
	c := Claim("k", "a")
	completeClaim(t, s, c)
	for range 2 {
		d := beginClaim(t, s, c, idemkey.KindReplay)
		if diff := cmp.Diff(richResponse(), d.Record.Response); diff != "" {
			t.Errorf("replayed response (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(c.FP, d.Record.FP); diff != "" {
			t.Errorf("stored fingerprint (-want +got):\n%s", diff)
		}
		d.Record.Response.Body[0] = 'X' // the response is a copy
		d.Record.Response.Header.Set("Location", "X")
	}
	empty := Claim("empty", "a")
	expectNoError(t, "Commit", beginAttempt(t, s, empty, 1).Commit(t.Context(), idemkey.Response{Status: 204, Header: http.Header{}}))
	if d := beginClaim(t, s, empty, idemkey.KindReplay); d.Record.Response.Status != 204 || len(d.Record.Response.Body) != 0 {
		t.Errorf("replayed %d with %d bytes, want 204 with none", d.Record.Response.Status, len(d.Record.Response.Body))
	}
}

func testRejected(t *testing.T, s Subject) {
	c := Claim("k", "a")
	expectNoError(t, "Reject", beginAttempt(t, s, c, 1).Reject(t.Context(), idemkey.Response{Status: 400, Header: http.Header{}, Body: []byte("no")}))
	if d := beginClaim(t, s, c, idemkey.KindReplay); d.Record.Response.Status != 400 || string(d.Record.Response.Body) != "no" {
		t.Errorf("replayed %d %q, want 400 \"no\"", d.Record.Response.Status, d.Record.Response.Body)
	}
}

func testTombstone(t *testing.T, s Subject) {
	c := Claim("k", "a")
	r := richResponse()
	r.Body, r.Dropped, r.KeyID = nil, true, ""
	expectNoError(t, "Commit", beginAttempt(t, s, c, 1).Commit(t.Context(), r))
	d := beginClaim(t, s, c, idemkey.KindNotRetained)
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
	completeClaim(t, s, c)
	s.Damage(t, c.ID)
	for _, sum := range []string{"a", "a", "b"} {
		c.FP.Sum = []byte(sum)
		if d, err := s.Store.Begin(t.Context(), c); !errors.Is(err, idemkey.ErrRecordCorrupt) {
			t.Fatalf("Begin with a damaged record: %v, %v; want ErrRecordCorrupt", d.Kind, err)
		}
	}
}

func testForget(t *testing.T, s Subject) {
	exec := beginAttempt(t, s, Claim("k", "a"), 1)
	expectNoError(t, "Release", exec.Release(t.Context(), idemkey.Forget, 400))
	releaseBound(t, beginAttempt(t, s, Claim("k", "b"), 1))
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
		completeClaim(t, s, c)
		beginClaim(t, s, c, idemkey.KindReplay)
	}
}

func testKeyless(t *testing.T, s Subject) {
	for range 2 {
		expectNoError(t, "Commit", beginAttempt(t, s, Claim("", ""), 1).Commit(t.Context(), richResponse()))
	}
	expectNoError(t, "Reject", beginAttempt(t, s, Claim("", ""), 1).Reject(t.Context(), richResponse()))
	releaseBound(t, beginAttempt(t, s, Claim("", ""), 1))
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
