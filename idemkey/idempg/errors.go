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

// codeDivisionByZero is the error of statements that must change a row and do not.
const codeDivisionByZero = "22012"

// codeInvalidText is the error of a statement that is executed in another transaction: see onlyInTx.
const codeInvalidText = "22P02"

const codeUndefinedTable, codeUndefinedSchema = "42P01", "3F000"

// serverRefused reports that the server has answered and did not commit. A fatal
// error does not prove that: the session may have ended after the commit.
func serverRefused(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	pgErr := (*pgconn.PgError)(nil)
	return errors.As(err, &pgErr) && (pgErr.SeverityUnlocalized == "ERROR" || pgErr.Severity == "ERROR")
}

// rollbackError wraps a definite failure in the error of package idemkey that fits.
func rollbackError(err error, what string) error {
	switch {
	case sqlstate.Conflict(err):
		return fmt.Errorf("idempg: %s: %w: %w", what, idemkey.ErrTxConflict, err)
	case serverRefused(err):
		return fmt.Errorf("idempg: %s: %w", what, &idemkey.CommitError{Err: err})
	}
	return fmt.Errorf("idempg: %s: %w", what, err)
}

// lockUnavailable reports that a lock was not free, or not in time.
func lockUnavailable(err error) bool { return hasCode(err, "55P03") }

func hasCode(err error, codes ...string) bool {
	pgErr := (*pgconn.PgError)(nil)
	return errors.As(err, &pgErr) && slices.Contains(codes, pgErr.Code)
}
