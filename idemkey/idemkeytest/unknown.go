package idemkeytest

import (
	"errors"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// external returns a claim for a handler with effects that the store cannot roll back.
func external(key string) idemkey.Claim {
	c := Claim(key, "a")
	c.External = true
	return c
}

// holdKey lets a run of c end with an outcome that is not known.
func holdKey(t *testing.T, s Subject, c idemkey.Claim, attempt int) {
	t.Helper()
	expectNoError(t, "Release", beginAttempt(t, s, c, attempt).Release(t.Context(), idemkey.Hold, 504))
}

// An unknown outcome stays so for as long as nobody decides: no time, no sweep and no other request ends it. Once it is
// known, the record lives for its TTL.
func testUnknown(t *testing.T, s Subject) {
	if s.traceless() {
		return // the middleware refuses the option
	}
	c, other := external("k"), Claim("k", "b")
	holdKey(t, s, c, 1)
	beginUnknown := func() {
		t.Helper()
		for _, again := range []idemkey.Claim{c, Claim("k", "a")} {
			if d := beginClaim(t, s, again, idemkey.KindUnknown); d.Attempt != 1 {
				t.Errorf("the unknown attempt is %d, want 1", d.Attempt)
			}
		}
		beginClaim(t, s, other, idemkey.KindMismatch)
	}
	beginUnknown()
	if n, err := s.Store.Sweep(t.Context(), 10); n != 0 || err != nil {
		t.Errorf("Sweep = %d, %v", n, err)
	}
	beginUnknown()

	c.Recovered = beginClaim(t, s, c, idemkey.KindUnknown).Run
	expectNoError(t, "Commit", beginAttempt(t, s, c, 2).Commit(t.Context(), richResponse()))
	c.Recovered = ""
	if d := beginClaim(t, s, c, idemkey.KindReplay); d.Record.ExpiresAt.Before(time.Now().Add(c.TTL/2)) || d.Record.ExpiresAt.After(time.Now().Add(2*c.TTL)) {
		t.Errorf("the record expires at %v, want in about %v", d.Record.ExpiresAt, c.TTL)
	}
	s.Expire(t, c.ID)
	beginAttempt(t, s, other, 1)

	failed := external("failed")
	releaseBound(t, beginAttempt(t, s, failed, 1))
	releaseBound(t, beginAttempt(t, s, failed, 2))
	s.Expire(t, failed.ID)
	beginAttempt(t, s, failed, 1)
}

// A scope with too many unknown outcomes gets no new key. Its known keys are answered, and other scopes are not concerned.
func testUnknownLimit(t *testing.T, s Subject) {
	if s.traceless() {
		return
	}
	const limit = 2
	claim := func(key string) idemkey.Claim {
		c := external(key)
		c.MaxUnknown = limit
		return c
	}
	running := beginAttempt(t, s, claim("running"), 1)
	holdKey(t, s, claim("held"), 1)
	s.Crash(t, claim("vanished").ID, beginAttempt(t, s, claim("vanished"), 1))
	completed := external("completed")
	completeClaim(t, s, completed)

	var limited *idemkey.UnknownLimitError
	for range 2 {
		if _, err := s.Store.Begin(t.Context(), claim("new")); !errors.As(err, &limited) || limited.Limit != limit || !errors.Is(err, idemkey.ErrCapacity) {
			t.Fatalf("Begin of a new key = %v", err)
		}
	}
	beginClaim(t, s, claim("held"), idemkey.KindUnknown)
	beginClaim(t, s, claim("completed"), idemkey.KindReplay)
	s.Expire(t, completed.ID)
	if _, err := s.Store.Begin(t.Context(), claim("completed")); !errors.As(err, &limited) {
		t.Errorf("Begin of an expired key = %v", err)
	}
	beginAttempt(t, s, Claim("internal", "a"), 1)
	elsewhere := claim("new")
	elsewhere.ID.Scope = "tenant-2"
	beginAttempt(t, s, elsewhere, 1)
	expectNoError(t, "Commit", running.Commit(t.Context(), richResponse()))

	found := claim("held")
	found.Recovered = beginClaim(t, s, found, idemkey.KindUnknown).Run
	expectNoError(t, "Commit", beginAttempt(t, s, found, 2).Commit(t.Context(), richResponse()))
	expectNoError(t, "Commit", beginAttempt(t, s, claim("new"), 1).Commit(t.Context(), richResponse()))
}

// While the other system recognizes the key, an unknown outcome is no reason not to run.
func testDedupes(t *testing.T, s Subject) {
	if s.traceless() {
		return
	}
	c := external("k")
	holdKey(t, s, c, 1)
	c.DedupesFor = c.ExecTimeout // the run would end too late
	beginClaim(t, s, c, idemkey.KindUnknown)
	c.DedupesFor = time.Hour
	c.MaxAttempts = 9
	d := beginClaim(t, s, c, idemkey.KindProceed)
	if d.Attempt != 2 || !d.Unsettled {
		t.Errorf("attempt %d, unsettled %v; want 2, true", d.Attempt, d.Unsettled)
	}
	exec := d.Exec
	s.Crash(t, c.ID, exec)
	if d := beginClaim(t, s, c, idemkey.KindProceed); d.Attempt != 3 || !d.TookOver || !d.Unsettled {
		t.Errorf("attempt %d, took over %v, unsettled %v; want 3, true, true", d.Attempt, d.TookOver, d.Unsettled)
	}
}

// listUnknown returns the unknown outcomes of the store, by key.
func listUnknown(t *testing.T, a idemkey.Arbiter) map[string]idemkey.UnknownOutcome {
	t.Helper()
	all := make(map[string]idemkey.UnknownOutcome)
	expectNoError(t, "EachUnknown", a.EachUnknown(t.Context(), func(u idemkey.UnknownOutcome) error {
		all[u.ID.Key] = u
		return nil
	}))
	return all
}

// A decision about an unknown outcome counts once, for the run that was listed. The owner of a run that still lives, or
// that was cut off, is not overruled, and does not overrule it.
func testSettle(t *testing.T, s Subject) {
	a, ok := s.Store.(idemkey.Arbiter)
	if !ok || s.traceless() {
		return
	}
	holdKey(t, s, external("held"), 1)
	holdKey(t, s, external("again"), 1)
	cut := beginAttempt(t, s, external("vanished"), 1)
	s.Crash(t, external("vanished").ID, cut)
	running := beginAttempt(t, s, external("running"), 1)
	completeClaim(t, s, external("completed"))
	releaseBound(t, beginAttempt(t, s, external("failed"), 1))
	s.Crash(t, Claim("internal", "a").ID, beginAttempt(t, s, Claim("internal", "a"), 1)) // may be taken over

	listed := listUnknown(t, a)
	if _, ok := listed["running"]; ok { // its lease has not run out
		t.Error("a run that lives is listed")
	}
	delete(listed, "running")
	if len(listed) != 3 || listed["held"].Attempt != 1 || listed["vanished"].FPAlg != "test" || time.Since(listed["again"].Since).Abs() > time.Hour {
		t.Fatalf("unknown outcomes: %+v", listed)
	}
	settle := func(key string, r *idemkey.Response) error { return a.Settle(t.Context(), listed[key], r, time.Hour) }
	resp := richResponse()
	expectNoError(t, "Settle", settle("held", &resp))
	expectNoError(t, "Settle", settle("again", nil))
	expectNoError(t, "Settle", settle("vanished", &idemkey.Response{Status: 202, Dropped: true}))
	for key := range listed {
		if err := settle(key, nil); !errors.Is(err, idemkey.ErrDecided) {
			t.Errorf("Settle of %s once more = %v", key, err)
		}
	}
	if err := a.Settle(t.Context(), idemkey.UnknownOutcome{ID: external("running").ID, Token: listed["held"].Token, Attempt: 1}, nil, time.Hour); !errors.Is(err, idemkey.ErrDecided) {
		t.Errorf("Settle of a run that lives = %v", err)
	}
	if err := cut.Commit(t.Context(), richResponse()); err == nil {
		t.Error("an owner that was cut off has committed after the decision")
	}
	if d := beginClaim(t, s, external("held"), idemkey.KindReplay); string(d.Record.Response.Body) != string(resp.Body) || d.Record.Response.KeyID != resp.KeyID || d.Record.Response.Header.Get("Location") != "/orders/1" {
		t.Errorf("replayed %+v", d.Record.Response)
	}
	if d := beginClaim(t, s, external("vanished"), idemkey.KindNotRetained); d.Record.Response.Status != 202 {
		t.Errorf("not retained: %+v", d.Record)
	}
	again := beginAttempt(t, s, external("again"), 2)
	expectNoError(t, "Commit", again.Commit(t.Context(), richResponse()))
	expectNoError(t, "Commit", running.Commit(t.Context(), richResponse()))
	if left := listUnknown(t, a); len(left) > 0 {
		t.Errorf("still unknown: %+v", left)
	}
	s.Expire(t, external("held").ID)
	beginAttempt(t, s, external("held"), 1)
}

// A record that was claimed by a handler without external effects, and whose outcome is unknown to one with them, is
// listed and does not expire from then on.
func testUnknownLater(t *testing.T, s Subject) {
	a, ok := s.Store.(idemkey.Arbiter)
	if !ok || s.traceless() {
		return
	}
	c := Claim("k", "a")
	s.Crash(t, c.ID, beginAttempt(t, s, c, 1))
	c.External = true
	beginClaim(t, s, c, idemkey.KindUnknown)
	u, ok := listUnknown(t, a)["k"]
	if !ok {
		t.Fatal("the unknown outcome is not listed")
	}
	expectNoError(t, "Settle", a.Settle(t.Context(), u, nil, time.Hour))
	beginAttempt(t, s, c, 2)
}

// What was found out, or decided, counts more than the limit of attempts.
func testDecidedAttempts(t *testing.T, s Subject) {
	a, ok := s.Store.(idemkey.Arbiter)
	if !ok || s.traceless() {
		return
	}
	c := external("k")
	c.MaxAttempts = 1
	holdKey(t, s, c, 1)
	beginClaim(t, s, c, idemkey.KindUnknown)
	expectNoError(t, "Settle", a.Settle(t.Context(), listUnknown(t, a)["k"], nil, time.Hour))
	expectNoError(t, "Release", beginAttempt(t, s, c, 2).Release(t.Context(), idemkey.Hold, 504))
	c.Recovered = beginClaim(t, s, c, idemkey.KindUnknown).Run
	expectNoError(t, "Commit", beginAttempt(t, s, c, 3).Commit(t.Context(), richResponse()))
	beginClaim(t, s, c, idemkey.KindReplay)
}

// What was found out about a run does not concern that of a later record, whose attempt has the same number.
func testFoundOutOnce(t *testing.T, s Subject) {
	if s.traceless() {
		return
	}
	c := external("k")
	holdKey(t, s, c, 1)
	found := c
	found.Recovered = beginClaim(t, s, c, idemkey.KindUnknown).Run
	expectNoError(t, "Release", beginAttempt(t, s, found, 2).Release(t.Context(), idemkey.Forget, 422))
	holdKey(t, s, c, 1)
	beginClaim(t, s, found, idemkey.KindUnknown)
}
