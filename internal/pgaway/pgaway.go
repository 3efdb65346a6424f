// Package pgaway tells a PostgreSQL server that is in no condition to answer from its answers.
package pgaway

import (
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

const protocolViolation = "08P01"

// Is reports whether err says that the server was not in a condition to do its work: out of
// memory, disk or connections, shut down, read-only, or not there. The same may work later,
// and may have worked, if it was a COMMIT.
func Is(err error) bool {
	var said *pgconn.PgError
	if errors.As(err, &said) {
		code := said.Code
		if code == protocolViolation && said.SeverityUnlocalized == "ERROR" {
			return false // it is there, and refuses a statement, such as one with a NUL in its text; poolers end the session by this code
		}
		return strings.HasPrefix(code, "53") || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P") || code == "25006"
	}
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
