package load

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
)

func TestPaceSpreadsAndCatchesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := paceOf(10*time.Second, 100)
		for n := range 50 {
			if p.waitForTurn(t.Context(), n); time.Since(began) != time.Duration(n)*100*time.Millisecond {
				t.Fatalf("%d began after %s", n, time.Since(began))
			}
		}
		_ = backoff.Sleep(t.Context(), 2*time.Second+time.Millisecond) // no beginning is taken
		late := time.Since(began)
		for n := 50; n <= 69; n++ {
			if p.waitForTurn(t.Context(), n); time.Since(began) != late {
				t.Fatalf("%d is late and waits", n)
			}
		}
		if p.waitForTurn(t.Context(), 70); time.Since(began) != 7*time.Second {
			t.Errorf("after that 70 began at %s", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if p.waitForTurn(ctx, 1000); time.Since(began) != 8*time.Second {
			t.Errorf("the wait ended at %s", time.Since(began))
		}
	})
}
