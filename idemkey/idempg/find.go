package idempg

import (
	"context"
	"fmt"

	"github.com/sagamill/sagamill/idemkey"
)

// Find decides c from the committed record alone, claiming nothing and waiting
// for no owner. It is not decided where the request would run: there is no
// record, or one that may be taken over.
func (s *Store) Find(ctx context.Context, c idemkey.Claim) (d idemkey.Decision, decided bool, err error) {
	err = c.Check()
	if err == nil && c.ID.Key != "" {
		d, decided, err = s.peekRecord(ctx, &c)
	}
	if err != nil {
		return idemkey.Decision{}, false, fmt.Errorf("idempg: find: %w", err)
	}
	return d, decided, nil
}
