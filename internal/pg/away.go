package pg

import (
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

const protocolViolation = "08P01"

// IsAway reports whether err says that the server was unavailable: out of memory, disk or connections, shut down,
// read-only, or not reachable. The same statement may succeed later. A COMMIT may have succeeded already.
func IsAway(err error) bool {
	var said *pgconn.PgError
	if errors.As(err, &said) {
		code := said.Code
		if code == protocolViolation && said.SeverityUnlocalized == "ERROR" {
			// The server refuses a statement, such as one with a NUL in its text. With another severity
			// the code comes from a pooler that ends the session.
			return false
		}
		return strings.HasPrefix(code, "53") || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P") || code == "25006"
	}
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
