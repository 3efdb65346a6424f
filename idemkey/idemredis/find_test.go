package idemredis

import (
	"testing"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
)

// Find says what Begin would, and claims nothing.
func TestFind(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	find := func(c idemkey.Claim, want idemkey.Kind) {
		t.Helper()
		d, decided, err := f.Find(t.Context(), c)
		if err != nil || decided != (want != 0) || d.Kind != want || d.Exec != nil {
			t.Errorf("Find = %+v, %t, %v; want kind %d", d, decided, err, want)
		}
		if want == idemkey.KindReplay && d.Record.Response.Status != 200 {
			t.Errorf("Find found %+v", d.Record)
		}
	}
	c := idemkeytest.Claim("k", "a")
	find(c, 0)
	e := f.begin(t, c)
	find(c, idemkey.KindInFlight)
	find(idemkeytest.Claim("k", "b"), idemkey.KindMismatch)
	if err := e.Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Fatal(err)
	}
	find(c, 0)
	d := f.kind(t, c, idemkey.KindProceed)
	if d.Attempt != 2 {
		t.Errorf("Attempt = %d after Find, want 2", d.Attempt)
	}
	f.commit(t, d.Exec)
	find(c, idemkey.KindReplay)
	c.ID.Key = ""
	find(c, 0)
	if _, _, err := f.Find(t.Context(), idemkey.Claim{}); err == nil {
		t.Error("Find accepted an empty claim")
	}
}
