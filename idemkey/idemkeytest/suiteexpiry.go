package idemkeytest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

func testExpiredNew(t *testing.T, s Subject) {
	done, failed, crashed := Claim("done", "a"), Claim("failed", "a"), Claim("crashed", "a")
	completeClaim(t, s, done)
	releaseBound(t, beginAttempt(t, s, failed, 1))
	s.Crash(t, crashed.ID, beginAttempt(t, s, crashed, 1))
	for _, c := range []idemkey.Claim{done, failed, crashed} {
		s.Expire(t, c.ID)
		c.FP.Sum = []byte("b")
		expectNoError(t, "Commit", beginAttempt(t, s, c, 1).Commit(t.Context(), richResponse()))
		beginClaim(t, s, c, idemkey.KindReplay)
	}
}

// All attempts that one record outlives have its incarnation. The record of another namespace,
// and the next one of the same identity after it has expired, has another.
func testIncarnation(t *testing.T, s Subject) {
	c, route := Claim("k", "a"), Claim("k", "a")
	route.ID.Namespace = "http:other"
	first := beginClaim(t, s, c, idemkey.KindProceed)
	if first.Incarnation == "" || len(first.Incarnation) > 24 || strings.ContainsFunc(first.Incarnation, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789_", r)
	}) {
		t.Errorf("the incarnation is %q", first.Incarnation)
	}
	other := beginClaim(t, s, route, idemkey.KindProceed)
	if other.Incarnation == first.Incarnation {
		t.Error("the records of two namespaces have the same incarnation")
	}
	releaseBound(t, other.Exec)
	releaseBound(t, first.Exec)
	second := beginClaim(t, s, c, idemkey.KindProceed)
	s.Crash(t, c.ID, second.Exec)
	third := beginClaim(t, s, c, idemkey.KindProceed)
	if !s.traceless() && (second.Incarnation != first.Incarnation || third.Incarnation != first.Incarnation) {
		t.Errorf("three attempts have the incarnations %q, %q and %q, want one", first.Incarnation, second.Incarnation, third.Incarnation)
	}
	expectNoError(t, "Commit", third.Exec.Commit(t.Context(), richResponse()))
	testNextIncarnation(t, s)
}

// testNextIncarnation lets a record expire by the store's own clock: an incarnation may be made of the time.
func testNextIncarnation(t *testing.T, s Subject) {
	c := Claim("brief", "a")
	c.TTL, c.Lease = 200*time.Millisecond, 200*time.Millisecond
	first := beginClaim(t, s, c, idemkey.KindProceed)
	_ = first.Exec.Commit(t.Context(), richResponse()) // the record may have expired meanwhile
	next := idemkey.Decision{Kind: idemkey.KindReplay}
	for next.Kind != idemkey.KindProceed {
		var err error
		if next, err = s.Store.Begin(t.Context(), c); err != nil {
			t.Fatalf("Begin: %v", err)
		}
	}
	if next.Incarnation == first.Incarnation {
		t.Errorf("the key's next record has the incarnation %q again", next.Incarnation)
	}
	_ = next.Exec.Release(t.Context(), idemkey.Bound, 500) // as above
}

func testExpiredReject(t *testing.T, s Subject) {
	done, crashed := Claim("done", "a"), Claim("crashed", "a")
	done.RejectExpired, crashed.RejectExpired = true, true
	completeClaim(t, s, done)
	s.Expire(t, done.ID)
	beginClaim(t, s, done, idemkey.KindExpired)
	s.Crash(t, crashed.ID, beginAttempt(t, s, crashed, 1))
	s.Expire(t, crashed.ID)
	if !s.traceless() {
		held := Claim("held", "a")
		s.Crash(t, held.ID, beginAttempt(t, s, held, 1))
		s.Expire(t, held.ID)
		held.RejectExpired, held.External = true, true
		beginClaim(t, s, held, idemkey.KindUnknown) // it may have had its effect
	}
	releaseBound(t, beginAttempt(t, s, crashed, 1)) // nothing was committed: there is nothing to refuse
}

func testSweep(t *testing.T, s Subject) {
	const expired = 5
	for i := range expired {
		c := Claim(fmt.Sprint("old-", i), "a")
		completeClaim(t, s, c)
		s.Expire(t, c.ID)
	}
	completeClaim(t, s, Claim("fresh", "a"))
	running := beginAttempt(t, s, Claim("running", "a"), 1)
	swept := []int{2, 2, 1, 0}
	if s.SelfExpiring {
		swept = []int{0}
	}
	for _, want := range swept {
		if n, err := s.Store.Sweep(t.Context(), 2); n != want || err != nil {
			t.Errorf("Sweep = %d, %v; want %d", n, err, want)
		}
	}
	beginClaim(t, s, Claim("fresh", "a"), idemkey.KindReplay)
	beginClaim(t, s, Claim("running", "a"), idemkey.KindInFlight)
	expectNoError(t, "Commit", running.Commit(t.Context(), richResponse()))
	completeClaim(t, s, Claim("old-0", "b"))
}
