package txguard

import "github.com/jackc/pgx/v5"

// Role is an expression with the role that the session's statements run as. A function of the user may set another one
// for the rest of the transaction; [ReturnToRole] then sets it back.
const Role = `current_setting('role')`

// noRole is the value of [Role] of a session that runs as the user who has logged in.
const noRole = "none"

// ReturnToRole returns a statement after which the transaction runs as role again, a value of [Role]. It costs the
// server 10 µs, so it follows functions of the user that have used their transaction, and no others.
func ReturnToRole(role string) string {
	if role == noRole || role == "" {
		return "SET LOCAL ROLE NONE"
	}
	return "SET LOCAL ROLE " + pgx.Identifier{role}.Sanitize()
}

// MustChange returns a statement that changes rows as change does, and fails with [CodeUnchanged] if it changes none. It
// is for the change of a row that the transaction has locked, where COMMIT follows without waiting for an answer:
// row-level security may hide the row by now, or the user's function may have removed it. The failing expression is
// outside of the change, because within it there would be no row to fail for.
func MustChange(change string) string { return MustChangeCount(change, "greatest(count(*), 1)") }

// MustChangeCount is [MustChange] for a number of rows, which is an SQL expression.
func MustChangeCount(change, want string) string {
	return `
WITH changed AS (` + change + `
	RETURNING 1)
SELECT CASE WHEN count(*) <> ` + want + `
	THEN (count(*) || ' rows changed, not ' || ` + want + ` || ': row-level security hides rows of sagamill, or the handler has removed them')::date END
FROM changed`
}

// CodeUnchanged is PostgreSQL's code for a statement of [MustChange] that has not changed its rows: the text of the error
// is no date.
const CodeUnchanged = "22007"
