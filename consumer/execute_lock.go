package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/outbox"
)

var (
	// errGone reports that another instance has settled a parked copy.
	errGone = errors.New("consumer: the parked copy is gone")

	// errBusy reports that another transaction has locked the step of a parked copy.
	errBusy = errors.New("consumer: the step is locked")
)

// claimParked begins a transaction on conn that locks the row of a's step and its parked copy. It returns no
// transaction if there is nothing to do: the copy is gone, or its step is locked and the copy was handed back.
func (c *claimer) claimParked(ctx context.Context, conn *pgx.Conn, a *attempt) (pgx.Tx, error) {
	tx, err := conn.BeginTx(ctx, readCommitted)
	if err != nil {
		return nil, fmt.Errorf("consumer: begin: %w", err)
	}
	switch err := c.lockRow(ctx, tx, a); {
	case errors.Is(err, errGone):
		return nil, nil
	case errors.Is(err, errBusy):
		if err := c.handBackParked(ctx, tx, a); err != nil {
			return nil, err
		}
		return nil, c.database.commit(ctx, tx, &pgx.Batch{}, "")
	case err != nil:
		return nil, err
	}
	return tx, nil
}

// lockRow claims and locks the step's row and sets the savepoint for the handler, in one round trip. For a parked
// attempt it then locks the parked copy and checks the fence. It fails with errGone or errBusy for a parked attempt
// that has nothing to do.
func (c *claimer) lockRow(ctx context.Context, tx pgx.Tx, a *attempt) error {
	a.older = true // even if this transaction inserts the row, it says open and must be moved
	a.setEmitted(nil)
	batch := &pgx.Batch{}
	batch.Queue(c.sql.limitIdle, milliseconds(idleLimit([]*attempt{a})))
	batch.Queue(c.sql.claimStep, a.identity()...)
	if a.parked == nil {
		batch.Queue(c.sql.lockStep, a.identity()...)
	} else {
		batch.Queue(c.sql.tryLockStep, a.identity()...)
	}
	batch.Queue(c.retention.readHorizon)
	if a.parked != nil {
		batch.Queue(pg.PlanAnew) // what follows about the parked copy
	}
	batch.Queue("SAVEPOINT " + stepSavepoint)
	results := tx.SendBatch(ctx, batch)
	a.found = cell{}
	err := results.QueryRow().Scan(nil, &a.role)
	if err == nil {
		_, err = results.Exec()
	}
	if err == nil {
		err = results.QueryRow().Scan(a.found.columns()...)
	}
	missing := errors.Is(err, pgx.ErrNoRows)
	if missing {
		err = nil
	}
	if err == nil {
		a.found.horizon, err = scanHorizon(results.QueryRow())
	}
	if err = errors.Join(err, results.Close()); err != nil {
		return fmt.Errorf("consumer: lock step: %w", err)
	}
	switch {
	case missing && a.parked == nil:
		return cmp.Or(c.database.checkHidden(ctx, tx), errVanished)
	case missing:
		return cmp.Or(c.database.checkHidden(ctx, tx), errBusy)
	case a.parked == nil:
		return c.readNotDone(ctx, tx, a)
	}
	var ours bool
	err = tx.QueryRow(ctx, c.sql.lockParked, a.parked.fence()...).Scan(&ours)
	if errors.Is(err, pgx.ErrNoRows) {
		return cmp.Or(c.database.checkHidden(ctx, tx), errGone)
	}
	if err != nil {
		return fmt.Errorf("consumer: lock parked message: %w", err)
	}
	return c.readNotDone(ctx, tx, a)
}

// readNotDone reads, under the row's lock, whether the failed action that a compensation is for is known to have had no
// effect. Of an Effect its parked message says so. Any other handler must never have been entered, since it may have had
// an effect outside of the database. Where a restored database may have forgotten an entry, nothing is known.
func (c *claimer) readNotDone(ctx context.Context, tx pgx.Tx, a *attempt) error {
	s := a.found.state
	if a.kind != compensation || s != retrying && s != dead || a.step.CancelParked || a.step.AskFirst {
		return nil
	}
	b := &pgx.Batch{}
	args := append(a.identity(), s, []byte(outbox.HeaderReplayed))
	queueAnew(b, c.sql.readNotDone, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&a.found.notDone) })
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("consumer: look for the action of a compensation: %w", err)
	}
	return nil
}

// handBackParked makes a parked copy whose step is locked due again after a short wait.
func (c *claimer) handBackParked(ctx context.Context, tx pgx.Tx, a *attempt) error {
	wait := a.step.retryPolicy().Wait(1)
	if _, err := tx.Exec(ctx, c.sql.handBack, append(a.parked.fence(), wait.Microseconds())...); err != nil {
		return fmt.Errorf("consumer: hand parked message back: %w", err)
	}
	return nil
}
