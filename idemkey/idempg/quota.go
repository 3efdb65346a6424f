package idempg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// sqlFindOverQuota returns a row if the scope has more than $3 live records, the
// caller's own among them. It reads a range of the primary key and stops at the
// first record too many, so that a scope costs no more than its quota, and what
// nobody has swept yet; without ORDER BY a large scope made it a scan of the
// table. It takes no lock: of claims at the same time each sees
// at least those that committed before its own, so that the quota may refuse
// one too many and never lets one too many through.
const sqlFindOverQuota = `
SELECT 1 FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND (expires_at > clock_timestamp() OR state = 1 AND lease_until > clock_timestamp())
ORDER BY key OFFSET $3 LIMIT 1`

// keepQuota gives e's new record back if its scope now has more than quota live
// ones, and returns an [idemkey.ErrCapacity] that names the quota. It is to be
// called between the claim and the business transaction. If it fails half-way,
// the record lapses with its grace.
func (s *Store) keepQuota(ctx context.Context, e *execution, quota int) error {
	var over int
	err := e.conn.QueryRow(ctx, sqlschema.Bind(s.opts.Schema, sqlFindOverQuota), e.id.Namespace, e.id.Scope, quota).Scan(&over)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check quota: %w", err)
	}
	if _, err := e.conn.Exec(ctx, s.q.forgetRecord, e.id.Namespace, e.id.Scope, e.id.Key, e.token); err != nil {
		return fmt.Errorf("give record back: %w", err)
	}
	return fmt.Errorf("%w: %d live records in one scope, the quota of idempg.Options.MaxPerScope", idemkey.ErrCapacity, quota)
}
