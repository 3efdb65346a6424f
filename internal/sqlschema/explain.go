package sqlschema

import (
	"errors"
	"slices"
)

// The error codes of a statement on a schema that has not been migrated, or that was named by mistake.
const (
	undefinedTable  = "42P01"
	undefinedColumn = "42703" // of a table that an older binary has migrated
	invalidSchema   = "3F000"
)

// An explainedError is PostgreSQL's error with advice.
type explainedError struct{ error }

func (e *explainedError) Error() string {
	return e.error.Error() + ": is it the right schema, and has it been migrated (migrations.Up, or sagamill migrate up), with the part of this table?"
}

func (e *explainedError) Unwrap() error { return e.error }

// Missing reports whether err is PostgreSQL's error for a missing table or schema.
func Missing(err error) bool {
	return hasCode(err, undefinedTable, invalidSchema)
}

func hasCode(err error, codes ...string) bool {
	var e interface{ SQLState() string } // a pgconn.PgError, without the import
	return errors.As(err, &e) && slices.Contains(codes, e.SQLState())
}

// Explain adds advice to PostgreSQL's error for a missing table, column or schema. It returns every other error
// unchanged, and an explained error too. It is for errors of this module's statements: this module cannot
// migrate a missing table of the caller.
func Explain(err error) error {
	var explained *explainedError
	if errors.As(err, &explained) || !hasCode(err, undefinedTable, undefinedColumn, invalidSchema) {
		return err
	}
	return &explainedError{err}
}
