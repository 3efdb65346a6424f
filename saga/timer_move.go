package saga

import (
	"context"
	"errors"
	"log/slog"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/outbox"
)

// A mover moves one instance in one transaction. Timers and housekeeping enter the decide station by it.
type mover struct {
	db      *pgxpool.Pool
	sql     *statements
	plans   *planSet
	decider *decider
	writer  *outbox.Writer
	wake    func() // Options.Wake
	log     *slog.Logger
}

// errMoved reports an instance that another transaction moved since its revision was read.
var errMoved = errors.New("saga: the instance has moved since it was claimed")

// anyRevision is the revision of an instance that was not claimed. Its events are decided under the lock, and the work
// that follows is left to a timer: that counts failures, and asks for a person in the end.
const anyRevision = -1

// An eventsFunc returns what happened to a locked instance, whose state is open. Its error rolls the transaction back.
type eventsFunc func(ctx context.Context, t *transition) ([]flow.Event, error)

// moveInOwnTransaction locks an instance, has its events decided, and commits the instance with what it sends. Its
// error is an errMoved if the instance has another revision. After an error that is not the server's own the
// transaction may have committed.
func (m *mover) moveInOwnTransaction(ctx context.Context, at sagarow.Address, revision int, events eventsFunc) error {
	ctx, cancel := context.WithTimeout(ctx, timerTimeout)
	defer cancel()
	wakes := false
	err := guard.Apart(func() error {
		return pgx.BeginTxFunc(ctx, m.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			if wakes, err = m.moveInstanceIn(ctx, tx, at, revision, events); err != nil {
				return err
			}
			return failpoint.Hit("saga/before-timer-commit")
		})
	})
	if err != nil {
		return err
	}
	if wakes && m.wake != nil {
		guard.Hook(ctx, m.log, "saga: option Wake", m.wake)
	}
	return failpoint.Hit("saga/after-timer-commit")
}

// moveInstanceIn moves an instance in tx, and reports whether it sent something.
func (m *mover) moveInstanceIn(ctx context.Context, tx pgx.Tx, at sagarow.Address, revision int, events eventsFunc) (sent bool, err error) {
	if _, err := tx.Exec(ctx, m.sql.limitIdle, strconv.FormatInt(timerTimeout.Milliseconds(), 10)); err != nil {
		return false, err
	}
	row, err := m.sql.rows.LockRow(ctx, tx, at)
	if err != nil {
		return false, err
	}
	if revision != anyRevision && revision != row.Revision {
		return false, errMoved
	}
	f, err := m.plans.flowOfInstance(row)
	if err != nil {
		return false, err
	}
	t := newTransition(m.sql, tx, row, f)
	t.run.Deferred = revision == anyRevision
	if err := t.run.OpenState(); err != nil {
		return false, err
	}
	happened, err := events(ctx, t)
	if err != nil {
		return false, err
	}
	if err := m.decider.decideEvents(ctx, t, happened...); err != nil {
		return false, err
	}
	return len(t.sent.AllUntraced()) > 0, m.writer.Write(ctx, tx, t.sent.AllTraced()...)
}
