package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const readOnlyTransaction = "25006"

// IsOfSession reports whether err may have its cause in the session, so that the same statement may succeed on another
// one: a session that has become read-only, or has another role, search_path or setting than it began with. The server
// itself closes a session that it ends (57P01, 57P05). A session with such an error must not return to the pool: there
// it would fail all who get it, for as long as the pool keeps it.
//
// ALTER DATABASE … SET default_transaction_read_only is taken by new sessions and kept by them
// (https://www.postgresql.org/docs/current/config-setting.html), which is why 25006 outlives its cause.
func IsOfSession(err error) bool {
	var said *pgconn.PgError
	return errors.As(err, &said) && (said.Code == readOnlyTransaction || strings.HasPrefix(said.Code, "42"))
}

// closeIfOfSession closes conn if err may have its cause in the session. A closed connection does not return to its
// pool.
func closeIfOfSession(ctx context.Context, conn *pgx.Conn, err error) {
	if IsOfSession(err) && !conn.IsClosed() {
		_ = conn.Close(context.WithoutCancel(ctx))
	}
}

// ErrHidden reports that row-level security hides rows of a table of sagamill from this session. A row that is not found
// is then not known to be absent.
var ErrHidden = errors.New("row-level security hides rows of sagamill from this session")

// A HiddenError is an [ErrHidden] that names the table.
type HiddenError struct{ Table string }

// Error says what to do.
func (e *HiddenError) Error() string {
	return fmt.Sprintf("%v: table %s (connect as the owner of the table or as a role with BYPASSRLS, or drop the policy)", ErrHidden, e.Table)
}

// Is lets errors.Is find ErrHidden.
func (e *HiddenError) Is(target error) bool { return target == ErrHidden }

// A Querier is a connection, a pool or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// CheckHidden returns a [*HiddenError] if row-level security hides rows from the current role of db. sql is a statement
// of [SQLFindHidden]. No other statement can tell a hidden row from an absent one.
func CheckHidden(ctx context.Context, db Querier, sql string) error {
	var table string
	err := db.QueryRow(ctx, sql).Scan(&table)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look for row-level security: %w", err)
	}
	return &HiddenError{Table: table}
}

// SQLFindHidden returns a statement that returns the first of tables, with {schema} before it, of which row-level
// security hides rows from the current role. Tables that do not exist are left out.
func SQLFindHidden(tables ...string) string {
	return `
SELECT name FROM unnest(ARRAY['{schema}.` + strings.Join(tables, "', '{schema}.") + `']) WITH ORDINALITY AS t (name, position)
WHERE to_regclass(name) IS NOT NULL AND row_security_active(to_regclass(name)::oid)
ORDER BY position LIMIT 1`
}
