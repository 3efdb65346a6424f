package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

var (
	// errStandby reports that another relay is active.
	errStandby = errors.New("outbox: another relay is active")
	// errOvertaken reports that another relay has taken over, or that this one must take over
	// again after a crash of the server.
	errOvertaken = errors.New("outbox: another relay has taken over, or the server has restarted after a crash")
	// errExpired reports that the relay's own lease ended because it was not renewed in time.
	errExpired = errors.New("outbox: the lease ran out: the database was away, or took too long to renew it")
	// errForeign reports that the log's transaction ids are those of another cluster.
	errForeign = errors.New("outbox: the log is from another cluster")
)

// A lease is the right to be the active relay. It is a row of the database.
type lease struct{ *core }

// A tenure is the time in which a relay is the active one. These values are its start.
type tenure struct {
	epoch int64
	at    cursor    // how far the log is published
	which int       // the table of cursors in use, of two
	until time.Time // end of the lease by this process's clock, on the safe side
}

// takeOver makes this relay the active one. The lease, the epoch and the first checkpoint of
// the epoch commit together. A relay that was active before cannot move the cursor any more. Before anything is published,
// the sequence of ids is behind all rows: the order of a key is that of its ids.
func (l lease) takeOver(ctx context.Context) (t tenure, err error) {
	t, err = l.takeOverOnce(ctx)
	if errors.Is(err, errForeign) {
		if err = l.adoptForeignLog(ctx); err == nil {
			t, err = l.takeOverOnce(ctx)
		}
	}
	if err != nil && !errors.Is(err, errStandby) {
		err = fmt.Errorf("outbox: take over: %w", sqlschema.Explain(err))
	}
	return t, err
}

// takeOverOnce is takeOver, with an errForeign for the log of another cluster.
func (l lease) takeOverOnce(ctx context.Context) (t tenure, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	raised := false
	err = l.runTx(ctx, func(tx pgx.Tx) error {
		s, err := l.lockStanding(ctx, tx)
		if err != nil {
			return err
		}
		t.epoch = s.Epoch + 1
		if err := l.readStart(ctx, tx, s, &t); err != nil {
			return err
		}
		if raised, err = pg.OutboxSequence.Raise(ctx, tx, l.opts.Schema); err != nil {
			return err
		}
		t.until = time.Now().Add(l.opts.Lease)
		batch := &pgx.Batch{}
		batch.Queue(l.sql.takeLease, t.epoch, l.holder, l.opts.Lease.Microseconds())
		batch.Queue(l.sql.beginTenure, t.epoch)
		batch.Queue(l.sql.checkpoint[t.which], t.epoch, 0, t.at.from.text, t.at.toText(), t.at.last)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		return failpoint.Hit("outbox/before-take-over")
	})
	if raised {
		l.opts.Logger.WarnContext(ctx, "outbox: the sequence of ids was behind the rows, as after a data-only restore, and has been raised", "schema", l.opts.Schema)
	}
	if err == nil {
		err = failpoint.Hit("outbox/after-take-over")
	}
	return t, err
}

// A standing is the locked row that names the active relay.
type standing struct {
	Epoch  int64
	Holder string
	System string
	Left   float64 // seconds of the lease
}

// lockStanding locks the row that names the active relay. Its error is an errStandby while
// another relay has the lease or is about to take it. A lease of this relay itself is left
// from an earlier tenure, whose end could not be noted.
func (l lease) lockStanding(ctx context.Context, tx pgx.Tx) (standing, error) {
	rows, _ := tx.Query(ctx, l.sql.lockRelay)
	s, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[standing])
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return s, errStandby
	case err != nil:
		return s, fmt.Errorf("lock the lease: %w", err)
	case s.Left > 0 && s.Holder != "" && s.Holder != l.holder:
		return s, errStandby
	}
	return s, nil
}

// readStart sets t's cursor to the newest checkpoint.
func (l lease) readStart(ctx context.Context, tx pgx.Tx, s standing, t *tenure) (err error) {
	system, current, err := l.readSystem(ctx, tx)
	if err != nil {
		return err
	}
	if t.at, t.which, err = l.readCheckpoint(ctx, tx); err != nil {
		return err
	}
	if system != s.System || t.at.newestSnapshot().xmax > current.xmax {
		return errForeign
	}
	return nil
}

// readSystem reads the identity of the cluster and its current snapshot.
func (l lease) readSystem(ctx context.Context, tx pgx.Tx) (system string, current snapshot, err error) {
	var now string
	if err := tx.QueryRow(ctx, l.sql.readSystem).Scan(&system, &now); err != nil {
		return "", current, fmt.Errorf("read the cluster's identity: %w", err)
	}
	current, err = parseSnapshot(now)
	return system, current, err
}

// adoptTimeout bounds the adoption of a log, which updates each stored message once.
const adoptTimeout = time.Hour

// adoptForeignLog makes a log that was restored from another cluster one of this cluster. The
// transaction ids of its messages mean nothing here, so each message gets a new one. A message
// that was published already is published once more, and consumers absorb it.
func (l lease) adoptForeignLog(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	var was, is string
	err := l.runTx(ctx, func(tx pgx.Tx) error {
		s, err := l.lockStanding(ctx, tx)
		if err != nil {
			return err
		}
		system, current, err := l.readSystem(ctx, tx)
		if err != nil {
			return err
		}
		was, is = s.System, system
		at := cursor{from: current.withoutRunning()}
		batch := &pgx.Batch{}
		batch.Queue(l.sql.unlimited)
		batch.Queue(l.sql.restampMessages)
		batch.Queue(l.sql.stampSystem, system)
		batch.Queue(l.sql.takeLease, s.Epoch+1, "", 0)
		batch.Queue(l.sql.beginTenure, s.Epoch+1)
		batch.Queue(l.sql.checkpoint[0], s.Epoch+1, 0, at.from.text, at.toText(), at.last)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		return failpoint.Hit("outbox/before-adopt")
	})
	if err != nil {
		return fmt.Errorf("adopt the log of another cluster: %w", err)
	}
	l.opts.Logger.WarnContext(ctx, "outbox: the database was restored into another cluster; all messages that are still in the outbox are published again",
		"schema", l.opts.Schema, "was", was, "is", is)
	return nil
}

// renewLease prolongs the lease of epoch and returns its new end. That is by this process's
// clock before the call, because the answer may have taken a while. The error is an
// errOvertaken if the tenure is over.
func (l lease) renewLease(ctx context.Context, epoch int64) (until time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.Lease)
	defer cancel()
	if err := failpoint.Hit("outbox/before-renew"); err != nil {
		return until, err
	}
	until = time.Now().Add(l.opts.Lease)
	tag, err := l.db.Exec(ctx, l.sql.renewLease, epoch, l.opts.Lease.Microseconds())
	if err == nil {
		err = failpoint.Hit("outbox/after-renew")
	}
	switch {
	case err != nil:
		return until, fmt.Errorf("outbox: renew the lease: %w", err)
	case tag.RowsAffected() == 0:
		return until, errOvertaken
	}
	return until, nil
}

// releaseTimeout bounds the release of a lease, which would also run out.
const releaseTimeout = 2 * time.Second

// releaseLease ends the lease of epoch, so that no relay has to wait for its end. It does
// nothing to the lease of another relay.
func (l lease) releaseLease(ctx context.Context, epoch int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	err := failpoint.Hit("outbox/before-release")
	if err == nil {
		_, err = l.db.Exec(ctx, l.sql.releaseLease, epoch)
	}
	if err != nil {
		l.opts.Logger.WarnContext(ctx, "outbox: the lease of the relay could not be released, another relay waits until it ends", "schema", l.opts.Schema, "error", err)
	}
}

// runTx runs do in a transaction begun by outboxsql.Begin.
func (s *core) runTx(ctx context.Context, do func(pgx.Tx) error) error {
	limit := strconv.FormatInt(s.opts.Lease.Milliseconds(), 10)
	return s.db.InTx(ctx, pgx.TxOptions{BeginQuery: outboxsql.Begin + limit}, do)
}

// runFencedTx runs do in a transaction in which no other relay can take over from epoch. Its
// error is an errOvertaken if one has.
func (s *core) runFencedTx(ctx context.Context, epoch int64, do func(pgx.Tx) error) error {
	return s.runTx(ctx, func(tx pgx.Tx) error {
		var found int64
		if err := tx.QueryRow(ctx, s.sql.fence, epoch).Scan(&found); err != nil {
			return explainFence(err)
		}
		return do(tx)
	})
}

// runImpatientTx is runFencedTx for a transaction that gives up rather than wait for a lock.
func (s *core) runImpatientTx(ctx context.Context, epoch int64, do func(pgx.Tx) error) error {
	return s.runTx(ctx, func(tx pgx.Tx) error {
		var found int64
		batch := &pgx.Batch{}
		batch.Queue(s.sql.lockSoon, lockPatience)
		batch.Queue(s.sql.planByIndex)
		batch.Queue(s.sql.fence, epoch).QueryRow(func(row pgx.Row) error { return explainFence(row.Scan(&found)) })
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		return do(tx)
	})
}

// explainFence returns an errOvertaken if the fence has found no row.
func explainFence(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return errOvertaken
	}
	return err
}

// sqlLockRelay locks the row that names the active relay, and reads it. While another relay is
// about to take over, the row looks absent: that relay is not waited for.
const sqlLockRelay = `
SELECT epoch, holder, system_identifier, extract(epoch FROM lease_until - clock_timestamp())::float8 AS left
FROM {schema}.outbox_relay FOR UPDATE SKIP LOCKED`

// sqlTakeLease follows sqlLockRelay in its transaction. $3 is in microseconds.
const sqlTakeLease = `
UPDATE {schema}.outbox_relay
SET epoch = $1, holder = $2, lease_until = clock_timestamp() + $3 * interval '1 microsecond'`

// sqlBeginTenure goes with sqlTakeLease. The table is unlogged: a crash of the server removes
// its row, and with it the tenure. After a crash the server may reuse transaction ids. The relay
// may have seen these as ended, but they never reached the disk.
const sqlBeginTenure = `
WITH before AS (DELETE FROM {schema}.outbox_tenure)
INSERT INTO {schema}.outbox_tenure (epoch) VALUES ($1)`

// sqlRenewLease changes nothing for a relay whose tenure is over.
const sqlRenewLease = `
UPDATE {schema}.outbox_relay SET lease_until = clock_timestamp() + $2 * interval '1 microsecond'
WHERE epoch = $1 AND EXISTS (SELECT FROM {schema}.outbox_tenure WHERE epoch = $1)`

// sqlReleaseLease lets the next relay take over at once.
const sqlReleaseLease = `UPDATE {schema}.outbox_relay SET lease_until = 'epoch', holder = '' WHERE epoch = $1`

// sqlReadSystem reads the identity of the cluster and its snapshot. Transaction ids mean
// nothing in another cluster.
const sqlReadSystem = `SELECT system_identifier::text, pg_current_snapshot()::text FROM pg_control_system()`

const sqlStampSystem = `UPDATE {schema}.outbox_relay SET system_identifier = $1`

// sqlFence keeps another relay from taking over until the transaction ends. It finds no row if
// the tenure is over.
const sqlFence = `
SELECT epoch FROM {schema}.outbox_relay
WHERE epoch = $1 AND EXISTS (SELECT FROM {schema}.outbox_tenure WHERE epoch = $1) FOR SHARE`

// sqlLockSoon limits the wait of the transaction for a lock. If the relay waited longer, later
// sessions would queue up behind it.
const sqlLockSoon = `SELECT set_config('lock_timeout', $1, true)`

// lockPatience is how long a statement after sqlLockSoon waits for a lock, and the relay with
// it: for a transaction that has written to a leaf, or a person who has locked a message.
const lockPatience = "10ms"

// sqlUnlimited lets the transaction's statements take as long as they need, whatever the role's
// settings are.
const sqlUnlimited = `SELECT set_config('statement_timeout', '0', true)`

// sqlRestampMessages gives every message the id of this transaction in place of an id of
// another cluster.
const sqlRestampMessages = `UPDATE {schema}.outbox SET xid = pg_current_xact_id()`
