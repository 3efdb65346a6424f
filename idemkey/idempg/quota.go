package idempg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
)

// sqlFindOverQuota returns a row if the scope has more than $3 live records. It reads a range of the primary
// key and stops at the first record too many, so its cost is bounded by the quota and the records that are not
// swept yet. Without ORDER BY the planner scanned the table for a large scope. It takes no lock: each of several
// concurrent claims sees at least those that committed before it. So the quota may refuse one claim too many, and
// never lets one too many through.
const sqlFindOverQuota = `
SELECT 1 FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND (expires_at > clock_timestamp() OR state = 1 AND lease_until > clock_timestamp())
ORDER BY key OFFSET $3 LIMIT 1`

// checkUnknown returns an [*idemkey.UnknownLimitError] if as many outcomes of e's scope are unknown as allowed.
func (s *Store) checkUnknown(ctx context.Context, e *execution, allowed int) error {
	var unknown int
	if err := e.conn.QueryRow(ctx, s.q.countUnknown, e.id.Namespace, e.id.Scope, allowed).Scan(&unknown); err != nil {
		return fmt.Errorf("count unknown outcomes: %w", err)
	}
	if unknown >= allowed {
		return &idemkey.UnknownLimitError{Limit: allowed}
	}
	return nil
}

// checkQuota returns an [*idemkey.QuotaError], if e's scope
// has more live records than allowed.
func (s *Store) checkQuota(ctx context.Context, e *execution, allowed int) error {
	var over int
	err := e.conn.QueryRow(ctx, s.q.findOverQuota, e.id.Namespace, e.id.Scope, allowed).Scan(&over)
	switch {
	case err == nil:
		return &idemkey.QuotaError{Limit: s.opts.MaxPerScope, Option: "idempg.Options.MaxPerScope"}
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	}
	return fmt.Errorf("check quota: %w", err)
}

// enforceQuota deletes e's new record if it is one too many. If that fails half-way, the record lapses with its
// grace.
func (s *Store) enforceQuota(ctx context.Context, e *execution, maxUnknown int) error {
	var refused error
	if s.opts.MaxPerScope > 0 {
		refused = s.checkQuota(ctx, e, s.opts.MaxPerScope)
	}
	if refused == nil && maxUnknown > 0 {
		refused = s.checkUnknown(ctx, e, maxUnknown)
	}
	if !errors.Is(refused, idemkey.ErrCapacity) {
		return refused
	}
	if _, err := e.conn.Exec(ctx, s.q.forgetRecord, e.id.Namespace, e.id.Scope, e.id.Key, e.token); err != nil {
		return fmt.Errorf("give record back: %w", err)
	}
	return refused
}
