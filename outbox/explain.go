package outbox

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// The error codes of a schema that has not been migrated, or is another one than
// was meant.
const (
	undefinedTable = "42P01"
	invalidSchema  = "3F000"
)

// explain adds to PostgreSQL's word for it what to do about missing tables.
func explain(err error) error {
	var e *pgconn.PgError
	if errors.As(err, &e) && (e.Code == undefinedTable || e.Code == invalidSchema) {
		return fmt.Errorf("%w: is it the right schema, and has it been migrated (migrations.Up, or sagamill migrate up)?", err)
	}
	return err
}
