package migrations

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// ErrPooled reports a database URL that leads through a pooler. The migrator's lock belongs to the session.
// In transaction mode it would stay with a session of the pooler. Every later migrator of the database would
// wait for it, also one that connects directly.
var ErrPooled = errors.New("the database URL leads through a pooler, but a migration needs a session of the server: give the URL of the server")

// refusePooler returns [ErrPooled] if conn leads through a pooler: a pooler gives its clients process ids
// that are not the server's. The mode of a busy pooler cannot be found out for certain, so a pooler in
// session mode is refused as well.
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
