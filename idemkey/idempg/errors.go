package idempg

import (
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/sqlstate"
)

// codeDivisionByZero is what the statements fail with that must change a row and do not.
const codeDivisionByZero = "22012"

// codeInvalidText is what a statement fails with that is executed in another transaction: see onlyInTx.
const codeInvalidText = "22P02"

const codeUndefinedTable, codeUndefinedSchema = "42P01", "3F000"

// refused reports that the server has answered and did not commit. A fatal
// error says nothing of the kind: the session may have ended after the commit.
func serverRefused(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	pgErr := (*pgconn.PgError)(nil)
	return errors.As(err, &pgErr) && (pgErr.SeverityUnlocalized == "ERROR" || pgErr.Severity == "ERROR")
}

// rolledBack names what a definite failure means to the caller.
func rollbackError(err error, what string) error {
	switch {
	case sqlstate.Conflict(err):
		return fmt.Errorf("idempg: %s: %w: %w", what, idemkey.ErrTxConflict, err)
	case serverRefused(err):
		return fmt.Errorf("idempg: %s: %w", what, &idemkey.CommitError{Err: err})
	}
	return fmt.Errorf("idempg: %s: %w", what, err)
}

// lockUnavailable reports that a lock was not to be had, in the time there was.
func lockUnavailable(err error) bool { return hasCode(err, "55P03") }

func hasCode(err error, codes ...string) bool {
	pgErr := (*pgconn.PgError)(nil)
	return errors.As(err, &pgErr) && slices.Contains(codes, pgErr.Code)
}
