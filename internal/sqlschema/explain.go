package sqlschema

import (
	"errors"
	"fmt"
)

// The error codes of a schema that has not been migrated, or is another one than
// was meant.
const (
	undefinedTable = "42P01"
	invalidSchema  = "3F000"
)

// Explain adds to PostgreSQL's word for it what to do about missing tables, and
// returns any other err as it is. It is for errors of this module's statements: a
// missing table of the caller's own is not its to migrate.
func Explain(err error) error {
	var e interface{ SQLState() string } // a pgconn.PgError, without the import
	if errors.As(err, &e) && (e.SQLState() == undefinedTable || e.SQLState() == invalidSchema) {
		return fmt.Errorf("%w: is it the right schema, and has it been migrated (migrations.Up, or sagamill migrate up)?", err)
	}
	return err
}
