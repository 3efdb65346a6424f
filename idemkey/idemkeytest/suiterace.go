package idemkeytest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
)

// raceClaims claim c at the same time. It returns the one execution that began.
func raceClaims(t *testing.T, s Subject, c idemkey.Claim) idemkey.Execution {
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
		exec := raceClaims(t, s, c)
		expectNoError(t, "Commit", exec.Commit(t.Context(), richResponse()))
		beginClaim(t, s, c, idemkey.KindReplay)
	}
}

func testRaceTakeOver(t *testing.T, s Subject) {
	for i := range 3 {
		crashed, failed := Claim(fmt.Sprint("crashed", i), "a"), Claim(fmt.Sprint("failed", i), "a")
		s.Crash(t, crashed.ID, beginAttempt(t, s, crashed, 1))
		releaseBound(t, raceClaims(t, s, crashed))
		releaseBound(t, raceClaims(t, s, failed))
		releaseBound(t, raceClaims(t, s, failed))
	}
}
