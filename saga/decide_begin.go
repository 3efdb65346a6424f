package saga

import (
	"context"
	"errors"
	"fmt"
)

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
