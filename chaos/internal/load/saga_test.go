package load

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

func TestSharesAreAThousand(t *testing.T) {
	t.Parallel()
	for _, kinds := range [][]Kind{Orders, Trips} {
		sum := 0
		for _, k := range kinds {
			sum += k.share
			if _, ok := FindKind(k.Saga, k.Name); !ok || len(k.Ends) == 0 {
				t.Errorf("%s %s: found %t, ends in %q", k.Saga, k.Name, ok, k.Ends)
			}
		}
		if sum != 1000 {
			t.Errorf("the shares of %s are %d, want 1000", kinds[0].Saga, sum)
		}
	}
}

// The n-th saga depends on the seed and n alone, and no two sagas have a key in common.
func TestPlanDependsOnSeedAndNumberAlone(t *testing.T) {
	t.Parallel()
	const n = 20_000
	tally := map[string]int{}
	keys := map[string]bool{}
	for i := range n {
		s, again := planSaga(7, i, 30), planSaga(7, i, 30)
		if s.kind != again.kind || s.key != again.key || s.copies != again.copies || !bytes.Equal(s.body, again.body) || s.cancel != again.cancel {
			t.Fatalf("saga %d is %+v and %+v", i, s, again)
		}
		if keys[s.tenant+s.key] {
			t.Fatalf("tenant %s has two sagas of key %s", s.tenant, s.key)
		}
		keys[s.tenant+s.key] = true
		if !json.Valid(s.body) || bytes.Equal(s.body, s.other) || s.copies < 1 || s.copies > maxCopies {
			t.Errorf("saga %+v", s)
		}
		tally[s.kind.Saga]++
		tally[s.kind.Name]++
		tally[s.tenant]++
		if s.copies > 1 {
			tally["doubled"]++
		}
		if s.other != nil {
			tally["reused"]++
		}
	}
	for what, percent := range map[string]int{record.Trip: 30, record.Order: 70, "tenant-0": 33, "doubled": 15, "reused": 3, "accepted": 41, "slow": 0} {
		if got := tally[what] * 100 / n; got < percent-1 || got > percent+1 {
			t.Errorf("%d %% are %s, want %d", got, what, percent)
		}
	}
	if planSaga(8, 1, 30).amount == planSaga(7, 1, 30).amount && planSaga(8, 2, 30).amount == planSaga(7, 2, 30).amount {
		t.Error("another seed makes no difference")
	}
}
