package idempg

import (
	"net/http"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
)

// Find returns the answer of Begin, except for a request that would run, and changes nothing.
func TestFind(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	find := func(what string, c idemkey.Claim, want idemkey.Kind) idemkey.Decision {
		t.Helper()
		d, decided, err := f.Find(t.Context(), c)
		if d.Kind != want || decided != (want != 0) || d.Exec != nil || err != nil {
			t.Errorf("%s: Find = %+v, %t, %v; want %d", what, d, decided, err, want)
		}
		return d
	}
	c, other := idemkeytest.Claim("k", "a"), idemkeytest.Claim("k", "b")
	find("absent", c, 0)
	find("without a key", idemkeytest.Claim("", ""), 0)
	e := f.begin(t, c)
	find("running", c, idemkey.KindInFlight)
	find("running another", other, idemkey.KindMismatch)
	if err := e.Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Fatal(err)
	}
	find("failed", c, 0)
	if err := f.begin(t, c).Commit(t.Context(), idemkey.Response{Status: 201, Header: http.Header{}, Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if d := find("completed", c, idemkey.KindReplay); d.Record == nil || string(d.Record.Response.Body) != "x" {
		t.Errorf("Find of a completed record = %+v, want its response", d)
	}
	f.expire(t, c.ID)
	find("expired", c, 0)
	c.ID.Scope = ""
	if _, decided, err := f.Find(t.Context(), c); decided || err == nil {
		t.Errorf("Find of an invalid claim = %t, %v; want an error", decided, err)
	}
}
