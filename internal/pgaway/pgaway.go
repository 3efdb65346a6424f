// Package pgaway tells a PostgreSQL server that is in no condition to answer from its answers.
package pgaway

import (
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Is reports whether err says that the server was not in a condition to do its work: out of
// memory, disk or connections, shut down, read-only, or not there. The same may work later,
// and may have worked, if it was a COMMIT.
func Is(err error) bool {
	var said *pgconn.PgError
	if errors.As(err, &said) {
		code := said.Code
		return strings.HasPrefix(code, "53") || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P") || code == "25006"
	}
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
