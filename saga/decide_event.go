package saga

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/sagarow"
)

// A decider moves locked instances. Replies and timers enter here.
type decider struct {
	counters *counters
	log      *slog.Logger
}

// decideEvents applies events to the instance of t, whose state is open, does the work that follows in the
// transaction, and stores the instance. Package internal/machine makes the decisions. After an error the caller rolls
// back.
func (d *decider) decideEvents(ctx context.Context, t *transition, events ...flow.Event) error {
	was, ended := t.row.Status, t.row.Progress.Phase.Ended()
	for _, e := range events {
		if err := t.run.TakeEvent(e); err != nil {
			return err
		}
		if err := t.doPendingWork(ctx); err != nil {
			return err
		}
	}
	if !ended || t.row.Progress.Revoke {
		t.sent.AnswerParent()
	}
	if err := t.storeInstanceRow(ctx); err != nil {
		return err
	}
	d.noteStatusChange(ctx, t.row, was)
	return nil
}

// noteStatusChange counts a change of status, and logs an instance that is stuck. It runs before COMMIT, so a
// transaction that is repeated is counted and logged twice.
func (d *decider) noteStatusChange(ctx context.Context, row *sagarow.Row, was sagarow.Status) {
	if row.Status == was {
		return
	}
	switch row.Status {
	case sagarow.Completed:
		d.counters.completed.Add(1)
	case sagarow.Compensated:
		d.counters.compensated.Add(1)
	case sagarow.Stuck:
		d.counters.stuck.Add(1)
		d.log.WarnContext(ctx, "saga: an instance is stuck", "saga", row.Name, "scope", row.Scope, "key", row.Key, "path", row.Path, "reason", row.Reason)
	}
}

// errExists reports that an instance with the key has begun before.
var errExists = errors.New("saga: the instance exists")

// A beginning is the transition of an instance that has no row yet.
type beginning struct {
	*transition
	state    any
	inserted bool
}

// beginInstance inserts the instance, after it has done what the first steps ask for. If there is a row with its key,
// it changes nothing and reports that the instance existed. After an error the caller rolls back.
func (b *beginning) beginInstance(ctx context.Context) (existed bool, err error) {
	b.insertEarly = b.insertUnmoved
	err = b.runFirstSteps(ctx)
	switch {
	case err == nil && b.inserted:
		err = b.storeInstanceRow(ctx)
	case err == nil:
		err = b.insertNewRow(ctx)
	}
	b.insertEarly = nil
	if errors.Is(err, errExists) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("saga: begin %s: %w", b.row.Name, err)
	}
	b.sent.AnswerParent()
	return false, nil
}

// runFirstSteps sets the first state, and does the work that follows.
func (b *beginning) runFirstSteps(ctx context.Context) error {
	b.run.SetFirstState(b.state)
	return b.doPendingWork(ctx)
}

// insertUnmoved inserts the row as it is before the first step. The moved row is stored at the end.
func (b *beginning) insertUnmoved(ctx context.Context) (err error) {
	moved := b.row.Instance
	defer func() { b.row.Instance = moved }()
	b.row.Progress = b.run.Flow.Machine.NewProgress()
	if b.row.State, err = b.run.Flow.State.Encode(b.state); err != nil {
		return fmt.Errorf("saga: state: %w", err)
	}
	return b.insertNewRow(ctx)
}

// insertNewRow inserts the row. Its error is an errExists if there is one.
func (b *beginning) insertNewRow(ctx context.Context) error {
	args, err := b.insertStatementArgs()
	if err != nil {
		return err
	}
	tag, err := b.tx.Exec(ctx, b.sql.insertInstance, args...)
	if err == nil && tag.RowsAffected() == 0 {
		err = errExists
	}
	b.inserted = err == nil
	return err
}
