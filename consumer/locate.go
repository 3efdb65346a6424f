package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// MaxLocated is how many steps of a saga, and how many of its parked messages, are
// located at once.
const MaxLocated = 1000

// A StepRow is what the inbox knows of a step.
type StepRow struct {
	Scope, Key, Step, N string

	// State is one of
	//   - open: an attempt of the action is counted and has left no trace: it runs,
	//     or its process has died
	//   - retrying, dead: the action's message is parked, or a dead letter
	//   - done: the action has committed
	//   - refused: the action has committed, and says that it has done nothing
	//   - void: the compensation came first, and the action never runs
	//   - undoing, undo-dead: the compensation's message is parked, or a dead letter
	//   - compensated: the compensation has committed
	State string

	Attempts     int // entries into the action's handler
	UndoAttempts int // and into the compensation's
	CreatedAt    time.Time
	UpdatedAt    time.Time // when it was moved last
}

// Whereabouts are what a schema's inbox knows of a saga, at one moment.
type Whereabouts struct {
	Steps  []StepRow    // in the order in which they were begun
	Parked []DeadLetter // dead or retrying, in the order in which they were parked first; without payloads and stacks
	More   bool         // there are more than MaxLocated of either

	// SweptBefore: of steps that were moved last before then, nothing may be known
	// any more. Zero: of none.
	SweptBefore time.Time

	At time.Time // the moment, by the database's clock
}

// A LocateFilter says which saga.
type LocateFilter struct {
	Scope string // default: any
	Key   string // required: the idempotency key, without a step
}

// errIsolation: a message that is run between two statements would be in none of
// what they see, or in both.
var errIsolation = errors.New("consumer: to locate a saga needs a transaction of REPEATABLE READ")

// A Locator says how far the steps of a saga are in a schema. It changes nothing,
// and no consumer waits for it. SELECT on the tables is all it needs.
type Locator struct {
	sql locateQueries
}

// NewLocator returns that of the inbox in schema, by default sagamill. Its only
// error names a schema that is not a plain identifier.
func NewLocator(schema string) (*Locator, error) {
	schema = cmp.Or(schema, sqlschema.Default)
	if err := sqlschema.Check(schema); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	return &Locator{sql: newLocateQueries(schema)}, nil
}

// Locate finds the steps and the parked messages of a saga. No such saga is no
// error. tx has to be one of REPEATABLE READ, so that both are of one moment: that
// of its snapshot. What a handler is doing is seen once it has committed.
//
// Messages that could not be read have no key, so they are not found. With a Scope
// it looks them up by index; without, it does so in each scope that there is: a
// tenth of a second for 5,000 of them.
func (l *Locator) Locate(ctx context.Context, tx pgx.Tx, f LocateFilter) (w Whereabouts, err error) {
	if f.Key == "" {
		return w, errors.New("consumer: to locate a saga needs a key")
	}
	var swept *time.Time
	var isolation string
	batch := &pgx.Batch{}
	batch.Queue(l.sql.moment).QueryRow(func(row pgx.Row) error { return row.Scan(&w.At, &swept, &isolation) })
	batch.Queue(l.sql.steps, f.Scope, f.Key, MaxLocated+1).Query(func(rows pgx.Rows) (err error) {
		w.Steps, err = pgx.CollectRows(rows, pgx.RowToStructByPos[StepRow])
		return err
	})
	batch.Queue(l.sql.parked, f.Scope, f.Key, MaxLocated+1).Query(func(rows pgx.Rows) (err error) {
		w.Parked, err = pgx.CollectRows(rows, scanLetter)
		return err
	})
	switch err := tx.SendBatch(ctx, batch).Close(); {
	case err != nil:
		return Whereabouts{}, fmt.Errorf("consumer: locate a saga: %w", sqlschema.Explain(err))
	case isolation != "repeatable read" && isolation != "serializable":
		return Whereabouts{}, errIsolation
	}
	if swept != nil {
		w.SweptBefore = *swept
	}
	w.More = len(w.Steps) > MaxLocated || len(w.Parked) > MaxLocated
	w.Steps, w.Parked = w.Steps[:min(len(w.Steps), MaxLocated)], w.Parked[:min(len(w.Parked), MaxLocated)]
	return w, nil
}
