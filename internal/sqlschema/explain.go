package sqlschema

import "errors"

// The error codes of a schema that has not been migrated, or is another one than
// was meant.
const (
	undefinedTable = "42P01"
	invalidSchema  = "3F000"
)

// An explainedError is PostgreSQL's, with what to do about it.
type explainedError struct{ error }

func (e *explainedError) Error() string {
	return e.error.Error() + ": is it the right schema, and has it been migrated (migrations.Up, or sagamill migrate up), with the part of this table?"
}

func (e *explainedError) Unwrap() error { return e.error }

// Missing reports whether err is PostgreSQL's word for a table or a schema that is not there.
func Missing(err error) bool {
	var e interface{ SQLState() string } // a pgconn.PgError, without the import
	return errors.As(err, &e) && (e.SQLState() == undefinedTable || e.SQLState() == invalidSchema)
}

// Explain adds to PostgreSQL's word for it what to do about missing tables, and
// returns any other err as it is, and so one that is explained already. It is for
// errors of this module's statements: a missing table of the caller's own is not
// its to migrate.
func Explain(err error) error {
	var explained *explainedError
	if errors.As(err, &explained) || !Missing(err) {
		return err
	}
	return &explainedError{err}
}
