package idemredis

import (
	"testing"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
)

// A run after one that vanished is told apart from one after a failure.
func TestTookOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := idemkeytest.Claim("k", "a")
	for attempt := 1; attempt <= 3; attempt++ {
		d := f.kind(t, c, idemkey.KindProceed)
		if want := attempt == 2; d.TookOver != want || d.Attempt != attempt {
			t.Errorf("attempt %d took over: %t, want attempt %d and %t", d.Attempt, d.TookOver, attempt, want)
		}
		if attempt == 1 {
			f.lapse(t, c.ID, d.Exec)
		} else if err := d.Exec.Release(t.Context(), idemkey.Bound, 500); err != nil {
			t.Fatal(err)
		}
	}
}
