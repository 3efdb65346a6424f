package saga

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/sagarow"
)

// newInstanceRow returns the row of an instance that is about to begin.
func newInstanceRow(f *flow.Flow, scope, key, path string) *sagarow.Row {
	id := uuid.Must(uuid.NewV7()).String()
	return &sagarow.Row{
		Instance: flow.Instance{ID: id, Root: id, Scope: scope, Key: key, Path: path},
		Name:     f.Name(), Version: f.Version(), Hash: f.Hash,
	}
}

// storeInstanceRow writes the row of a locked instance. In the transaction of a delivery the statement waits for the
// last round trip, with what the consumer stores.
func (t *transition) storeInstanceRow(ctx context.Context) error {
	args, err := t.moveStatementArgs()
	if err != nil {
		return err
	}
	if t.delivery != nil {
		t.delivery.Queue(t.sql.moveInstance, args...)
		return nil
	}
	if _, err := t.tx.Exec(ctx, t.sql.moveInstance, args...); err != nil {
		return fmt.Errorf("saga: store instance: %w", err)
	}
	return nil
}

// moveStatementArgs returns the arguments of sqlMoveInstance.
func (t *transition) moveStatementArgs() ([]any, error) {
	r := t.row
	progress, err := r.EncodeProgress(t.run.Flow.Machine)
	if err != nil {
		return nil, err
	}
	return []any{r.Scope, r.Key, r.Path, r.Status, r.Reason, progress, string(r.State), t.nextTimerDue(), r.Progress.Phase.Ended(), r.Revision}, nil
}

// insertStatementArgs returns the arguments of sqlInsertInstance.
func (t *transition) insertStatementArgs() ([]any, error) {
	r := t.row
	progress, err := r.EncodeProgress(t.run.Flow.Machine)
	if err != nil {
		return nil, err
	}
	return []any{r.Scope, r.Key, r.Path, r.ID, r.Root, r.Name, r.Version, r.Parent, r.Status, r.Reason, progress, string(r.State),
		r.Trace[0], r.Trace[1], t.nextTimerDue(), r.Progress.Phase.Ended(), r.Hash}, nil
}

// nextTimerDue returns when a timer has something to do, as the statements take it: nil is never. Deferred work is
// due at once.
func (t *transition) nextTimerDue() any {
	if t.run.Deferred && !t.row.Progress.Phase.Ended() {
		return machine.Millis(0)
	}
	if due := t.run.Flow.Machine.Due(&t.row.Progress); due > 0 {
		return due
	}
	return nil
}
