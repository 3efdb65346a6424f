package idemredis

import (
	"testing"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
)

// An unknown outcome whose entry is missing, as after a failover that has lost it, is listed again once a retry has found
// it. An entry whose outcome is known is removed by the next look at it.
func TestEntriesOfOpenRunsAreMended(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := idemkeytest.Claim("k", "a")
	c.External = true
	if err := f.begin(t, c).Release(t.Context(), idemkey.Hold, 504); err != nil {
		t.Fatal(err)
	}
	set := f.openRunOf(c.ID).set
	listed := func() (all []idemkey.UnknownOutcome) {
		t.Helper()
		err := f.EachUnknown(t.Context(), func(u idemkey.UnknownOutcome) error {
			all = append(all, u)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if err := f.client.Del(t.Context(), set).Err(); err != nil || len(listed()) != 0 {
		t.Fatalf("the entry is lost: %v, %+v", err, listed())
	}
	f.kind(t, c, idemkey.KindUnknown)
	all := listed()
	if len(all) != 1 {
		t.Fatalf("after a retry: %+v", all)
	}
	if err := f.Settle(t.Context(), all[0], nil, c.TTL); err != nil {
		t.Fatal(err)
	}
	if n, err := f.client.ZCard(t.Context(), set).Result(); len(listed()) != 0 || err != nil {
		t.Errorf("still listed, with %d entries, %v", n, err)
	}
	if n, err := f.client.ZCard(t.Context(), set).Result(); n != 0 || err != nil {
		t.Errorf("%d entries of known outcomes, %v", n, err)
	}
}
