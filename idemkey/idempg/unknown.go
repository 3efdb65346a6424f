package idempg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/keysql"
	"github.com/sagamill/sagamill/internal/pg"
)

// unknownPage is how many unknown outcomes EachUnknown reads at a time.
const unknownPage = 100

// EachUnknown calls found for each unknown outcome, in the order of namespace, scope and key. It takes no lock, and holds
// no connection while found runs.
func (s *Store) EachUnknown(ctx context.Context, found func(idemkey.UnknownOutcome) error) error {
	var after idemkey.Identity
	for {
		page, err := pg.CollectByIndex(ctx, s.own, scanUnknown, s.q.listUnknown, after.Namespace, after.Scope, after.Key, unknownPage)
		if err != nil {
			return fmt.Errorf("idempg: list unknown outcomes: %w", err)
		}
		for i := range page {
			if err := found(page[i]); err != nil {
				return err
			}
			after = page[i].ID
		}
		if len(page) < unknownPage {
			return nil
		}
	}
}

func scanUnknown(row pgx.CollectableRow) (u idemkey.UnknownOutcome, err error) {
	var token pgtype.UUID
	var over float64
	err = row.Scan(&u.ID.Namespace, &u.ID.Scope, &u.ID.Key, &u.Attempt, &u.Since, &over, &token, &u.FPAlg)
	u.Token, u.EndedFor = token.String(), time.Duration(over*float64(time.Second))
	return u, err
}

// Settle ends the unknown outcome u in one transaction. The row lock of an owner that lives keeps it from being settled.
func (s *Store) Settle(ctx context.Context, u idemkey.UnknownOutcome, r *idemkey.Response, ttl time.Duration) error {
	args, err := keysql.SettleArgs(u, r, ttl)
	if err != nil {
		return fmt.Errorf("idempg: settle: %w", err)
	}
	tag, err := s.own.Exec(ctx, s.q.settle, args...)
	switch {
	case err != nil:
		return fmt.Errorf("idempg: settle: %w", err)
	case tag.RowsAffected() == 0:
		return fmt.Errorf("idempg: settle: %w", idemkey.ErrDecided)
	}
	return nil
}
