package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

var (
	// errStandby reports that another relay is active.
	errStandby = errors.New("outbox: another relay is active")
	// errOvertaken reports that another relay has taken over, or has to, as after
	// a crash of the server.
	errOvertaken = errors.New("outbox: another relay has taken over, or the server has restarted after a crash")
	// errExpired reports that a relay's own lease ended because it could not be renewed in time.
	errExpired = errors.New("outbox: the lease ran out: the database was away, or took too long to renew it")
	// errForeign reports that the log's ids of transactions are another cluster's.
	errForeign = errors.New("outbox: the log is from another cluster")
)

// begin runs do in a transaction begun by sqlBegin.
func (r *Relay) begin(ctx context.Context, do func(pgx.Tx) error) error {
	limit := strconv.FormatInt(r.opts.Lease.Milliseconds(), 10)
	return pgx.BeginTxFunc(ctx, r.db, pgx.TxOptions{BeginQuery: sqlBegin + limit}, do)
}

// A standing is the row of who publishes, locked.
type standing struct {
	Epoch  int64
	Holder string
	System string
	Left   float64 // seconds of the lease
}

// lock locks the row of who publishes. Its error is an errStandby while another
// relay has the lease or is about to take it. A lease of its own is left from an earlier
// tenure, whose end could not be noted.
func (r *Relay) lock(ctx context.Context, tx pgx.Tx) (standing, error) {
	rows, _ := tx.Query(ctx, r.sql.lockRelay)
	s, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[standing])
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return s, errStandby
	case err != nil:
		return s, fmt.Errorf("lock the lease: %w", err)
	case s.Left > 0 && s.Holder != "" && s.Holder != r.holder:
		return s, errStandby
	}
	return s, nil
}

// A tenure is what a relay starts from when it becomes the active one.
type tenure struct {
	epoch int64
	at    cursor
	which int       // of the two tables of cursors
	until time.Time // of the lease, by this process's clock, on the safe side
}

// takeOver makes this relay the active one. The lease, the
// epoch and the first checkpoint of the epoch commit together, so a relay that
// was active before cannot move the cursor any more.
func (r *Relay) takeOver(ctx context.Context) (t tenure, err error) {
	t, err = r.tryTakeOver(ctx)
	if errors.Is(err, errForeign) {
		if err = r.adopt(ctx); err == nil {
			t, err = r.tryTakeOver(ctx)
		}
	}
	if err != nil && !errors.Is(err, errStandby) {
		err = fmt.Errorf("outbox: take over: %w", sqlschema.Explain(err))
	}
	return t, err
}

func (r *Relay) tryTakeOver(ctx context.Context) (t tenure, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	err = r.begin(ctx, func(tx pgx.Tx) error {
		s, err := r.lock(ctx, tx)
		if err != nil {
			return err
		}
		t.epoch = s.Epoch + 1
		if err := r.resume(ctx, tx, s, &t); err != nil {
			return err
		}
		t.until = time.Now().Add(r.opts.Lease)
		batch := &pgx.Batch{}
		batch.Queue(r.sql.takeLease, t.epoch, r.holder, r.opts.Lease.Microseconds())
		batch.Queue(r.sql.beginTenure, t.epoch)
		batch.Queue(r.sql.checkpoint[t.which], t.epoch, 0, t.at.from.text, t.at.toText(), t.at.last)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		return failpoint.Hit("outbox/before-take-over")
	})
	if err == nil {
		err = failpoint.Hit("outbox/after-take-over")
	}
	return t, err
}

// resume sets t's cursor to where the log is published up to.
func (r *Relay) resume(ctx context.Context, tx pgx.Tx, s standing, t *tenure) (err error) {
	system, current, err := r.readSystem(ctx, tx)
	if err != nil {
		return err
	}
	if t.at, t.which, err = r.readCursor(ctx, tx); err != nil {
		return err
	}
	if system != s.System || t.at.newest().xmax > current.xmax {
		return errForeign
	}
	return nil
}

// readSystem reads which cluster this is, and what its transactions are up to.
func (r *Relay) readSystem(ctx context.Context, tx pgx.Tx) (system string, current snapshot, err error) {
	var now string
	if err := tx.QueryRow(ctx, r.sql.readSystem).Scan(&system, &now); err != nil {
		return "", current, fmt.Errorf("read the cluster's identity: %w", err)
	}
	current, err = parseSnapshot(now)
	return system, current, err
}

// adoptTimeout bounds what is done once to each stored message, when a log is adopted.
const adoptTimeout = time.Hour

// adopt makes a log that was restored from another cluster one of this cluster.
// Whose transaction ids a message bears cannot be told any more, so each gets a
// new one. A message that was published already is published once more, and
// absorbed.
func (r *Relay) adopt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	var was, is string
	err := r.begin(ctx, func(tx pgx.Tx) error {
		s, err := r.lock(ctx, tx)
		if err != nil {
			return err
		}
		system, current, err := r.readSystem(ctx, tx)
		if err != nil {
			return err
		}
		was, is = s.System, system
		at := cursor{from: current.before()}
		batch := &pgx.Batch{}
		batch.Queue(r.sql.unlimited)
		batch.Queue(r.sql.restampMessages)
		batch.Queue(r.sql.stampSystem, system)
		batch.Queue(r.sql.takeLease, s.Epoch+1, "", 0)
		batch.Queue(r.sql.beginTenure, s.Epoch+1)
		batch.Queue(r.sql.checkpoint[0], s.Epoch+1, 0, at.from.text, at.toText(), at.last)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		return failpoint.Hit("outbox/before-adopt")
	})
	if err != nil {
		return fmt.Errorf("adopt the log of another cluster: %w", err)
	}
	r.opts.Logger.WarnContext(ctx, "outbox: the database was restored into another cluster; what the outbox still holds is published again",
		"schema", r.opts.Schema, "was", was, "is", is)
	return nil
}

// readCursor reads the newest checkpoint, and which of the two tables has it.
func (r *Relay) readCursor(ctx context.Context, db querier) (c cursor, which int, err error) {
	var epoch, seq int64
	var from string
	var to *string
	err = db.QueryRow(ctx, r.sql.readCursor).Scan(&epoch, &seq, &from, &to, &c.last, &which)
	if errors.Is(err, pgx.ErrNoRows) {
		return cursor{from: beginning}, 0, nil
	}
	if err != nil {
		return c, 0, fmt.Errorf("read the cursor: %w", err)
	}
	if c.from, err = parseSnapshot(from); err == nil && to != nil {
		var s snapshot
		s, err = parseSnapshot(*to)
		c.to = &s
	}
	return c, which, err
}

// A querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// renew prolongs the lease of epoch and returns until when, by this process's
// clock: the answer may have taken a while.
func (r *Relay) renew(ctx context.Context, epoch int64) (until time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Lease)
	defer cancel()
	if err := failpoint.Hit("outbox/before-renew"); err != nil {
		return until, err
	}
	until = time.Now().Add(r.opts.Lease)
	tag, err := r.db.Exec(ctx, r.sql.renewLease, epoch, r.opts.Lease.Microseconds())
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

// releaseTimeout bounds it: the lease ends by itself.
const releaseTimeout = 2 * time.Second

// release ends the lease of epoch, so that nobody has to wait for its end.
func (r *Relay) release(ctx context.Context, epoch int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	err := failpoint.Hit("outbox/before-release")
	if err == nil {
		_, err = r.db.Exec(ctx, r.sql.releaseLease, epoch)
	}
	if err != nil {
		r.opts.Logger.WarnContext(ctx, "outbox: release the lease", "schema", r.opts.Schema, "error", err)
	}
}
