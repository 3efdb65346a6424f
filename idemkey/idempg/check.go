package idempg

import (
	"context"
	"fmt"
)

// Check asks Postgres for the table; call it once at start-up. After nil the
// store can read it, and PostgreSQL hides no row of it. An error about a table that is missing says how to make it.
func (s *Store) Check(ctx context.Context) error {
	_, err := s.own.Exec(ctx, s.q.readState, "", "", "", newToken())
	switch {
	case hasCode(err, codeUndefinedTable, codeUndefinedSchema):
		return fmt.Errorf("idempg: check: schema %s has no idempotency table: call migrations.Up, or run sagamill migrate up, with the part idempotency: %w", s.opts.Schema, err)
	case err != nil:
		return fmt.Errorf("idempg: check: %w", err)
	}
	return nil
}
