package load

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// Shares of a hundred sagas, independent of their kind.
const (
	doubled = 15 // are begun by two to five clients at once
	reused  = 3  // have their key used again for another request
	looked  = 1  // have their status read
)

const (
	tenants   = 3
	maxCopies = 5
	maxAmount = 100_000 // cents
	minBudget = 90_000  // more than any trip costs
)

// A saga is the load's plan for a saga.
type saga struct {
	n           int
	kind        *Kind
	tenant, key string
	amount      int64
	body, other []byte // other: of the request that reuses the key; nil: no reuse
	copies      int
	cancel      time.Duration // after the answer; 0: not at all
	look        bool
}

// planSaga returns the n-th saga of a load, a pure function of its arguments. Three tenants use each key.
func planSaga(seed uint64, n, trips int) saga {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	s := saga{n: n, tenant: fmt.Sprintf("tenant-%d", n%tenants), key: fmt.Sprintf("saga:%d", n/tenants), copies: 1}
	sort := record.Order
	if r.IntN(100) < trips {
		sort = record.Trip
	}
	s.kind = drawKind(kindsOfSaga(sort), r.IntN(1000))
	s.amount = 1 + r.Int64N(maxAmount)
	if sort == record.Trip {
		s.amount += minBudget
	}
	if s.kind.Name == overBudget {
		s.amount %= cheap
		s.amount++
	}
	s.body = fmt.Appendf(nil, s.kind.body, s.amount)
	if r.IntN(100) < doubled {
		s.copies = 2 + r.IntN(maxCopies-1)
	}
	if r.IntN(100) < reused {
		s.other = fmt.Appendf(nil, s.kind.body, s.amount+1)
	}
	s.look = r.IntN(100) < looked
	if s.kind.cancel > 0 {
		s.cancel = time.Duration(1+r.IntN(s.kind.cancel)) * time.Millisecond
	}
	return s
}

// drawKind returns the kind of a ticket below one thousand.
func drawKind(kinds []Kind, ticket int) *Kind {
	for i := range kinds {
		if ticket -= kinds[i].share; ticket < 0 {
			return &kinds[i]
		}
	}
	return &kinds[0] // unreachable: the shares add up to a thousand, as a test checks
}
