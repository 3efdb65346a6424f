package migrations

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// ErrPooled reports a database URL that leads through a pooler. The lock of who migrates
// belongs to the session: in transaction mode it would stay with one of the pooler's, and
// everybody who migrates that database later, directly too, would wait for it.
var ErrPooled = errors.New("the database URL leads through a pooler, and a migration needs a connection of its own: give that of the server")

// refusePooler returns [ErrPooled] if conn is one of those: a pooler tells its clients other
// process ids than the server's. In which mode it is cannot be found out for certain
// while it is busy, so that one in session mode is refused as well.
func refusePooler(ctx context.Context, conn *pgx.Conn) error {
	var backend int32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&backend); err != nil {
		return err
	}
	if uint32(backend) != conn.PgConn().PID() {
		return ErrPooled
	}
	return nil
}
