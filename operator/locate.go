package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// A LocateFilter names a saga.
type LocateFilter struct {
	Scope string // default: any
	Key   string // required: the idempotency key, without a step
}

// check returns an error unless f names a saga.
func (f *LocateFilter) check() error {
	if f.Key == "" {
		return errors.New("operator: LocateFilter.Key is required")
	}
	return nil
}

// A Locator finds the steps and messages of one saga in a schema. It changes nothing, and no
// writer, relay or consumer waits for it. SELECT on the tables is the only privilege it needs.
type Locator struct {
	inbox inboxQueries
}

// NewLocator returns the Locator of a schema. It does no I/O. Its only error names a schema
// that is not a plain identifier. By and Why are not used.
func NewLocator(opts *Options) (*Locator, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Locator{inbox: newInboxQueries(o.Schema)}, nil
}

// A StepRow is a row of the inbox.
type StepRow struct {
	Scope, Key, Step, N string

	// State is one of
	//   - open: an attempt of the action is counted and has left no trace: it runs,
	//     or its process has died
	//   - retrying, dead: the message of the action is retrying, or a dead letter
	//   - done: the action has committed
	//   - refused: the action has committed and reported that it has done nothing
	//   - void: the compensation came first, and the action never runs
	//   - undoing, undo-dead: the message of the compensation is retrying, or a dead letter
	//   - compensated: the compensation has committed
	State string

	Attempts     int // entries into the handler of the action
	UndoAttempts int // and of the compensation
	CreatedAt    time.Time
	UpdatedAt    time.Time // the last change of state
}

// InboxRows are the rows of one saga in an inbox, at one moment.
type InboxRows struct {
	Steps   []StepRow    // in the order in which they began
	Letters []DeadLetter // dead or retrying, in the order in which they were stored; without payloads and stacks
	More    bool         // there are more than [MaxList] of either

	// Horizon: rows of steps that moved last before it may be removed. Zero: none is.
	Horizon time.Time

	At time.Time // the moment, by the clock of the database
}

// errIsolation reports a transaction in which each statement has its own snapshot. A message
// that runs between two statements would be in neither or in both.
var errIsolation = errors.New("operator: to locate a saga needs a transaction of REPEATABLE READ")

// Inbox finds the steps of a saga, and its dead and retrying messages. It is no error if there
// are none. tx must be REPEATABLE READ, so that both are of the moment of its snapshot. The
// work of a handler is visible after its COMMIT.
//
// Messages that could not be read have no key and are not found. With a Scope, Inbox uses one
// index look-up; without, one for each scope that exists: 0.1 s for 5,000 scopes.
func (l *Locator) Inbox(ctx context.Context, tx pgx.Tx, f LocateFilter) (found InboxRows, err error) {
	if err := f.check(); err != nil {
		return found, err
	}
	var horizon *time.Time
	var isolation string
	batch := &pgx.Batch{}
	batch.Queue(l.inbox.locateMoment).QueryRow(func(row pgx.Row) error { return row.Scan(&found.At, &horizon, &isolation) })
	batch.Queue(l.inbox.locateSteps, f.Scope, f.Key, MaxList+1).Query(func(rows pgx.Rows) (err error) {
		found.Steps, err = pgx.CollectRows(rows, pgx.RowToStructByPos[StepRow])
		return err
	})
	batch.Queue(l.inbox.locateParked, f.Scope, f.Key, MaxList+1).Query(func(rows pgx.Rows) (err error) {
		found.Letters, err = pgx.CollectRows(rows, scanInboxLetter)
		return err
	})
	switch err := tx.SendBatch(ctx, batch).Close(); {
	case err != nil:
		return InboxRows{}, fmt.Errorf("operator: locate a saga: %w", sqlschema.Explain(err))
	case isolation != "repeatable read" && isolation != "serializable":
		return InboxRows{}, errIsolation
	}
	if horizon != nil {
		found.Horizon = *horizon
	}
	found.More = len(found.Steps) > MaxList || len(found.Letters) > MaxList
	found.Steps, found.Letters = found.Steps[:min(len(found.Steps), MaxList)], found.Letters[:min(len(found.Letters), MaxList)]
	return found, nil
}
