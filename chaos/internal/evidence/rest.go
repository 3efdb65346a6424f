package evidence

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// sqlRest counts what others have in the database.
const sqlRest = `
SELECT
	(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> current_setting('application_name')),
	(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'),
	(SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
	 WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.application_name <> current_setting('application_name') AND l.locktype = 'relation')`

// Rest notes what the services, which have all ended, have left in the servers: sessions,
// transactions, locks, and what queues hold.
func Rest(ctx context.Context, db *pgxpool.Pool, b Broker, into *record.Final) error {
	if err := db.QueryRow(ctx, sqlRest).Scan(&into.Connections, &into.IdleInTx, &into.Locks); err != nil {
		return fmt.Errorf("evidence: what is left: %w", err)
	}
	queues, err := b.depths(ctx)
	into.Queues = queues
	return err
}
