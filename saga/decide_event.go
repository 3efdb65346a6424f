package saga

import (
	"context"
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
