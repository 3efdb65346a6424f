package evidence

import (
	"context"
	"fmt"
	"time"

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

// closedWithin is how long the broker may take to notice that connections are closed.
const closedWithin = 10 * time.Second

// Rest notes what the services, which have all ended, have left in the servers: sessions,
// transactions, locks, connections to the broker, and what queues hold. The caller must have
// ended its own connections to the broker.
func Rest(ctx context.Context, db *pgxpool.Pool, b Broker, into *record.Final) error {
	if err := db.QueryRow(ctx, sqlRest).Scan(&into.Connections, &into.IdleInTx, &into.Locks); err != nil {
		return fmt.Errorf("evidence: what is left: %w", err)
	}
	if err := b.countConnections(ctx, into); err != nil {
		return err
	}
	queues, err := b.depths(ctx)
	into.Queues = queues
	return err
}

// countConnections notes how many connections the broker has, once it has noticed that
// the others are closed.
func (b Broker) countConnections(ctx context.Context, into *record.Final) (err error) {
	if b.Connections == nil {
		return nil
	}
	patient, cancel := context.WithTimeout(ctx, closedWithin)
	defer cancel()
	for {
		if into.BrokerConnections, err = b.Connections(); err != nil {
			return fmt.Errorf("evidence: connections of the broker: %w", err)
		}
		if into.BrokerConnections == 0 || pause(patient, closedWithin/20) != nil {
			return ctx.Err()
		}
	}
}
