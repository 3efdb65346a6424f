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

// notInPrerequisiteState is the error code of an UPDATE or DELETE of a table that is in a publication and has no replica
// identity (https://www.postgresql.org/docs/current/logical-replication-publication.html).
const notInPrerequisiteState = "55000"

// An explainedError is PostgreSQL's error with advice.
type explainedError struct {
	error
	advice string
}

func (e *explainedError) Error() string { return e.error.Error() + ": " + e.advice }

func (e *explainedError) Unwrap() error { return e.error }

// Missing reports whether err is PostgreSQL's error for a missing table or schema.
func Missing(err error) bool {
	return hasCode(err, undefinedTable, invalidSchema)
}

func hasCode(err error, codes ...string) bool {
	var e interface{ SQLState() string } // a pgconn.PgError, without the import
	return errors.As(err, &e) && slices.Contains(codes, e.SQLState())
}

// Explain adds advice to PostgreSQL's error for a missing table, column or schema, and for a table in a publication. It returns every other error
// unchanged, and an explained error too. It is for errors of this module's statements: this module cannot
// migrate a missing table of the caller.
func Explain(err error) error {
	var explained *explainedError
	switch {
	case errors.As(err, &explained):
		return err
	case hasCode(err, undefinedTable, undefinedColumn, invalidSchema):
		return &explainedError{err, "is it the right schema, and has it been migrated (migrations.Up, or sagamill migrate up), with the part of this table?"}
	case hasCode(err, notInPrerequisiteState):
		return &explainedError{err, "is the table in a publication? Then leave the tables of sagamill out of it (docs/deploy.md, section Logical replication)"}
	}
	return err
}
