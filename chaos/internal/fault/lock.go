package fault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/chaos/internal/site"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// The statements of the lock faults, with their timeout and numbers of rows.
const (
	sqlLockSoon = `SET LOCAL lock_timeout = '3s'`

	sqlLockInbox = `LOCK TABLE {schema}.inbox IN EXCLUSIVE MODE`
	sqlLockLease = `SELECT FROM {schema}.outbox_relay FOR UPDATE`
	sqlLockRows  = `SELECT FROM {schema}.inbox ORDER BY updated_at DESC LIMIT 50 FOR UPDATE SKIP LOCKED`

	// A service locks its inbox row before it writes to the outbox. This fault locks them in the opposite order.
	sqlLockOutbox = `LOCK TABLE ONLY {schema}.outbox IN SHARE MODE`
	sqlLockBoth   = `LOCK TABLE {schema}.inbox IN SHARE MODE`

	// sqlCountWaiting counts the sessions that this session blocks. sqlCountCaught counts those that wait at the
	// outbox while they hold a lock on the inbox.
	sqlCountWaiting = `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pg_backend_pid() = ANY (pg_blocking_pids(pid))`
	sqlCountCaught  = `
SELECT count(DISTINCT w.pid) FROM pg_locks w JOIN pg_locks h USING (pid)
WHERE NOT w.granted AND w.relation = '{schema}.outbox'::regclass
	AND h.granted AND h.relation = '{schema}.inbox'::regclass AND h.mode = 'RowExclusiveLock'`
)

// A deadlock needs a session that waits at the outbox, and processes that have just restarted may not do so at
// once. PostgreSQL detects it after a second.
const (
	deadlockPause = 20 * time.Millisecond
	deadlockWait  = 4 * time.Second
)

// beginPause is the pause between two attempts to begin a transaction.
const beginPause = 100 * time.Millisecond

// lockTable holds a lock for as long as p says. Its hits are the sessions that wait for it. For rows they are
// the locked rows, because sessions may skip them or wait.
func (c *carrier) lockTable(p *record.Planned) outcome {
	statement := map[string]string{LockInbox: sqlLockInbox, LockLease: sqlLockLease, LockRows: sqlLockRows}[p.Fault]
	var o outcome
	o.err = c.holdLocks(func(ctx context.Context, tx pgx.Tx) error {
		locked, err := tx.Exec(ctx, bindSchema(p.Target, statement))
		if err != nil {
			return err
		}
		waiting := c.watchCount(p.For, 0, func() (n int) {
			if err == nil { // else the transaction is over
				err = tx.QueryRow(ctx, sqlCountWaiting).Scan(&n)
			}
			return n
		})
		o.note = fmt.Sprintf("%d sessions waited", waiting)
		if o.hits = waiting; p.Fault == LockRows {
			o.hits = int(locked.RowsAffected())
			o.note += fmt.Sprintf(", %d rows were locked", o.hits)
		}
		return err
	})
	return o
}

// deadlock provokes a deadlock with a session that works on a step of the service. PostgreSQL rolls back either
// transaction.
func (c *carrier) deadlock(p *record.Planned) outcome {
	caught, note := 0, "nobody was caught"
	err := c.holdLocks(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, bindSchema(p.Target, sqlLockOutbox)); err != nil {
			return err
		}
		for began := time.Now(); caught == 0 && time.Since(began) < deadlockWait && c.waitFor(deadlockPause); {
			if err := tx.QueryRow(ctx, bindSchema(p.Target, sqlCountCaught)).Scan(&caught); err != nil {
				return err
			}
		}
		if caught == 0 {
			return nil
		}
		_, err := tx.Exec(ctx, bindSchema(p.Target, sqlLockBoth))
		var refused *pgconn.PgError
		switch note = "theirs was rolled back"; {
		case errors.As(err, &refused) && refused.Code == codeDeadlock:
			note = "ours was rolled back"
		case errors.As(err, &refused) && refused.Code == codeLockTimeout:
			note = "nobody was rolled back in time"
		case err != nil:
			return err
		}
		return nil
	})
	return outcome{hits: caught, err: err, note: note}
}

// PostgreSQL's codes for a deadlock and for a lock timeout.
const (
	codeDeadlock    = "40P01"
	codeLockTimeout = "55P03"
)

// beginTx begins a transaction. It waits for a server that is recovering.
func (c *carrier) beginTx(ctx context.Context) (tx pgx.Tx, err error) {
	for {
		if tx, err = c.site.DatabasePool().Begin(ctx); err == nil {
			return tx, nil
		}
		if backoff.Sleep(ctx, beginPause) != nil {
			return nil, err
		}
	}
}

// holdLocks runs do in a transaction that is rolled back.
func (c *carrier) holdLocks(do func(context.Context, pgx.Tx) error) error {
	ctx, cancel := c.finishContext()
	defer cancel()
	tx, err := c.beginTx(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // an error if the connection is gone, and the locks with it
	if _, err := tx.Exec(ctx, sqlLockSoon); err != nil {
		return err
	}
	return do(ctx, tx)
}

func bindSchema(service, statement string) string {
	return sqlschema.Bind(site.SchemaOf(service), statement)
}
