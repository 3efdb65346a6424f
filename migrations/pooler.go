package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrPooled reports a database URL that leads through a pooler in transaction mode. The lock
// of who migrates belongs to the session: it would stay with one of the pooler's, and
// everybody who migrates that database later, directly too, would wait for it.
var ErrPooled = errors.New("the database URL leads through a pooler in transaction mode, and a migration needs a connection of its own")

// refusePooler returns [ErrPooled] if conn is one of those connections. A pooler tells its
// clients other process ids than the server's. Behind one in session mode, which will do, a
// connection keeps its process of the server, and a second has another. In transaction mode
// the second takes over that of the first, which has nothing to do, or, where the pooler hands
// its connections out in turn, the first has another one the next time.
func refusePooler(ctx context.Context, conn *pgx.Conn) error {
	server, err := backend(ctx, conn)
	if err != nil || server == conn.PgConn().PID() {
		return err
	}
	second, err := pgx.ConnectConfig(ctx, conn.Config())
	if err != nil {
		return fmt.Errorf("connect again: %w", redact(err))
	}
	defer second.Close(context.WithoutCancel(ctx))
	others, err := backend(ctx, second)
	if err != nil {
		return err
	}
	again, err := backend(ctx, conn)
	if err == nil && (others == server || again != server) {
		return ErrPooled
	}
	return err
}

// backend returns the server's process that answers conn.
func backend(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	var signed int32
	err = conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&signed)
	return uint32(signed), err
}
