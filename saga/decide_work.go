package saga

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/lazytx"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// A transition is the work of one transaction on one instance, which is locked or new.
type transition struct {
	sql  *statements
	tx   pgx.Tx
	row  *sagarow.Row
	run  *flow.Run
	sent *sagarow.Messages

	// delivery, if set, executes statements with the last round trip of its transaction.
	delivery *consumer.Delivery

	// starts says that the caller of Start waits for the transition: it gets an invalid message as its error, and no
	// instance that is stuck.
	starts bool

	// insertEarly, if set, inserts the row of a new instance before the first work that may wait, fail or write: of
	// two callers with one key, only one does that work. See [beginning].
	insertEarly func(ctx context.Context) error
}

func newTransition(sql *statements, tx pgx.Tx, row *sagarow.Row, f *flow.Flow) *transition {
	return &transition{
		sql: sql, tx: tx, row: row, sent: sagarow.NewMessages(row),
		run: &flow.Run{Flow: f, Instance: &row.Instance, Now: row.Now},
	}
}

// doPendingWork does what the run asks for, until nothing is left.
func (t *transition) doPendingWork(ctx context.Context) error {
	for {
		work, err := t.run.NextWork()
		if err != nil || work == nil {
			return err
		}
		switch {
		case work.Command != nil:
			t.sent.AddCommand(work.Command)
		case work.Child != nil:
			err = t.beginNestedInstance(ctx, work.Child)
		default:
			err = t.runLocalStep(ctx, work.Local)
		}
		if err != nil {
			return fmt.Errorf("step %s: %w", work.Step, err)
		}
	}
}

// insertFirst inserts the row of a new instance, unless that has happened.
func (t *transition) insertFirst(ctx context.Context) error {
	if t.insertEarly == nil {
		return nil
	}
	insert := t.insertEarly
	t.insertEarly = nil
	return insert(ctx)
}

// beginNestedInstance begins a nested instance in the same transaction. It does nothing if the instance exists.
func (t *transition) beginNestedInstance(ctx context.Context, c *flow.Child) error {
	if err := t.insertFirst(ctx); err != nil {
		return err
	}
	row := newInstanceRow(c.Flow, t.row.Scope, t.row.Key, c.Path)
	row.Root, row.Parent, row.Trace = t.row.Root, t.row.Name, t.row.Trace
	child := &beginning{transition: newTransition(t.sql, t.tx, row, c.Flow), state: c.State}
	existed, err := child.beginInstance(ctx)
	if err != nil || existed {
		return err
	}
	t.sent.AppendFrom(child.sent)
	return nil
}

// runLocalStep runs a local step. A step that fails leaves nothing in the database or in the state.
func (t *transition) runLocalStep(ctx context.Context, step *flow.LocalStep) error {
	queued := false // the statements of the step are for the last round trip
	failed, err := t.inSavepoint(ctx, func(tx pgx.Tx, used func() bool) error {
		err := step.ExecuteStep(ctx, tx)
		if err == nil {
			err = t.sent.ValidateEmitted(step.Messages)
		}
		// A step that has used its transaction may have set a role for them.
		if queued = t.delivery != nil && !used(); err == nil && !queued {
			err = step.ExecuteQueued(ctx, tx)
		}
		return err
	})
	if err != nil {
		return err
	}
	if t.starts && errors.Is(failed, outbox.ErrInvalid) {
		return failed
	}
	if failed == nil {
		if queued {
			for _, s := range step.Statements {
				t.delivery.Queue(s.SQL, s.Args...)
			}
		}
		t.sent.AddEmitted(step.Messages)
	}
	return t.run.EndLocal(step, failed)
}

// inSavepoint runs do, and rolls back what it did if it fails. The first statement of do sets the savepoint; without
// a statement, which used tells, there is none. Afterwards the transaction runs as the role that it had before. An error
// beside failed means that the transaction cannot go on.
func (t *transition) inSavepoint(ctx context.Context, do func(tx pgx.Tx, used func() bool) error) (failed, err error) {
	if err := t.insertFirst(ctx); err != nil {
		return nil, err
	}
	var role string
	part := lazytx.Nested(t.tx, "sagamill_local", func(b *pgx.Batch) {
		b.Queue("SELECT " + txguard.Role).QueryRow(func(row pgx.Row) error { return row.Scan(&role) })
	})
	failed = do(txguard.Wrap(part.Holder()), part.Began)
	if !part.End() {
		lazytx.Cut(t.tx.Conn()) // or the statement that still runs could reach the next one's place
		return nil, errors.Join(fmt.Errorf("saga: a local step returned, and %w", lazytx.ErrInUse), failed)
	}
	if !part.Began() {
		return failed, part.Lost()
	}
	conn := t.tx.Conn()
	switch {
	case conn.IsClosed(), conn.PgConn().IsBusy(), txguard.StatusOf(conn) == txguard.Ended:
		return nil, errors.Join(errors.New("saga: a local step has lost its transaction, ended it, or left rows unread"), failed)
	case failed == nil && txguard.StatusOf(conn) == txguard.Aborted:
		failed = errors.New("the step returned nil after a statement had failed")
	}
	end := txguard.ReturnToRole(role)
	if failed != nil {
		end = "ROLLBACK TO SAVEPOINT sagamill_local" // which returns to the role too
	}
	if _, err := t.tx.Exec(ctx, end); err != nil {
		return nil, fmt.Errorf("saga: end local step: %w", errors.Join(err, failed))
	}
	return failed, nil
}
