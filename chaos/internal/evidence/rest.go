package evidence

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/backoff"
)

// sqlRest counts the sessions, transactions and locks of others in the database.
const sqlRest = `
SELECT
	(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> current_setting('application_name')),
	(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'),
	(SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
	 WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.application_name <> current_setting('application_name') AND l.locktype = 'relation')`

// closedWithin is how long a server may take to notice that connections are closed.
const closedWithin = 10 * time.Second

// RecordFinal records what the services have left in the servers: sessions, transactions, locks, connections to
// the broker, and the queues' depths. All services must have ended, and the caller must have closed its own
// connections to the broker.
func RecordFinal(ctx context.Context, db *pgxpool.Pool, b Broker, into *record.Final) error {
	if err := untilNone(ctx, func() (int, error) {
		err := db.QueryRow(ctx, sqlRest).Scan(&into.Connections, &into.IdleInTx, &into.Locks)
		return into.Connections + into.IdleInTx + into.Locks, err
	}); err != nil {
		return fmt.Errorf("evidence: count the rest in the database: %w", err)
	}
	if b.Connections != nil {
		if err := untilNone(ctx, func() (_ int, err error) {
			into.BrokerConnections, err = b.Connections()
			return into.BrokerConnections, err
		}); err != nil {
			return fmt.Errorf("evidence: connections of the broker: %w", err)
		}
	}
	queues, err := b.queueDepths(ctx)
	into.Queues = queues
	return err
}

// untilNone counts until the result is 0, at most for closedWithin.
func untilNone(ctx context.Context, count func() (int, error)) error {
	patient, cancel := context.WithTimeout(ctx, closedWithin)
	defer cancel()
	for {
		n, err := count()
		if err != nil {
			return err
		}
		if n == 0 || backoff.Sleep(patient, closedWithin/20) != nil {
			return ctx.Err()
		}
	}
}
