package load

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// The shares of a hundred sagas, whatever their kind.
const (
	doubled = 15 // are begun by two to five clients at once
	reused  = 3  // have their key used again for another request
	looked  = 1  // are looked at
)

const (
	tenants   = 3
	maxCopies = 5
	maxAmount = 100_000 // cents
	minBudget = 90_000  // more than any trip costs
)

// A saga is what the load knows of a saga before it begins it.
type saga struct {
	n           int
	kind        *Kind
	tenant, key string
	amount      int64
	body, other []byte // other: of the request that uses the key again; nil: none does
	copies      int
	cancel      time.Duration // after the answer; 0: not at all
	look        bool
}

// planSaga returns the n-th saga of a load. It depends on nothing but its arguments. Tenants
// have the same keys, so that each is used by three of them.
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

// drawKind returns the kind that ticket, of a thousand, has drawn.
func drawKind(kinds []Kind, ticket int) *Kind {
	for i := range kinds {
		if ticket -= kinds[i].share; ticket < 0 {
			return &kinds[i]
		}
	}
	return &kinds[0] // the shares are a thousand: a test counts them
}
