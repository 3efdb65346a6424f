package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// A LocateFilter names a saga.
type LocateFilter struct {
	Scope string // default: any
	Key   string // required: the idempotency key, without a step

	// Unpublished leaves out published messages of the outbox. The cost is then that of the
	// backlog, whatever outbox.RelayOptions.Retention keeps.
	Unpublished bool
}

// requireKey returns an error unless f names a saga.
func (f *LocateFilter) requireKey() error {
	if f.Key == "" {
		return fmt.Errorf("%w: to locate messages needs a Key", ErrInvalid)
	}
	return nil
}

// A Locator finds the steps and messages of one saga in a schema. It changes nothing, and no
// writer, relay or consumer waits for it. SELECT on the tables is the only privilege it needs.
type Locator struct {
	inbox  inboxQueries
	outbox outboxQueries
}

// NewLocator returns the Locator of a schema. It does no I/O. Its only error names a schema
// that is not a plain identifier. By and Why are not used.
func NewLocator(opts *Options) (*Locator, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Locator{newInboxQueries(o.Schema), newOutboxQueries(o.Schema)}, nil
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
	if err := f.requireKey(); err != nil {
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

// ErrMoved reports that the relay has emptied a table of the log after the snapshot of the transaction. How far the
// relay had published at the snapshot is then unknown. Read again in a new transaction, and begin it with [Locator.Pin].
var ErrMoved = errors.New("operator: the relay emptied a table of the log after the transaction's snapshot: read again in a new transaction")

// A Place says where an outbox has a message.
type Place string

// The places. A message in none of them was published and removed from the log, or was
// discarded, or was never in this outbox.
const (
	PlaceStored  Place = "stored"  // committed, to be published next
	PlaceDelayed Place = "delayed" // not published before DueAt: written with a Delay, or redriven
	// PlaceWaiting is behind an earlier message of its ordering key, see Behind, or in a topic that stalls, see Reason.
	PlaceWaiting Place = "waiting"
	PlaceRefused Place = "refused" // by the broker; published again at DueAt
	PlaceDead    Place = "dead"    // a dead letter
	// PlacePublished: the message is still in the log. A discarded dead letter counts too, and so does the first
	// place of a redriven one.
	PlacePublished Place = "published"
)

// An OutboxMessage is a message with its place.
type OutboxMessage struct {
	ID        int64 // its place in the order of the outbox; it changes when the message is due, redriven or replayed
	MessageID string
	Place     Place

	Topic, Type, Scope, Key, Step, N, OrderingKey string
	CorrelationID, CausationID                    string
	Size                                          int // bytes of payload
	CreatedAt                                     time.Time

	DueAt     time.Time // when it is published, or published again; zero: as soon as possible, or never
	Attempts  int       // refusals
	Reason    string    // the broker's last answer
	RefusedAt time.Time // of that answer

	// Behind is the message, often of another saga, that a waiting message waits for. It is nil if the message
	// is the first of its ordering key. Such a message is sent next or, depending on Reason, when the broker
	// takes messages of its topic again.
	Behind *Blocker
}

// A Blocker is the first message of an ordering key that is refused or waits.
type Blocker struct {
	ID                         int64 // for [DeadLetters.Get] and [DeadLetters.Bury]
	Topic, Scope, Key, Step, N string
	Attempts                   int
	Reason                     string
	RetryAt                    time.Time
}

// OutboxMessages are the messages of one saga in an outbox, at one moment.
type OutboxMessages struct {
	Messages []OutboxMessage // in the order of their IDs: that in which they were written
	More     bool            // there are more than [MaxList]; the oldest published ones are left out first

	Holder string    // the active relay, as in outbox.Stats
	At     time.Time // the moment, by the clock of the database
}

// Pin is for a tx of REPEATABLE READ that reads more than this outbox, for example those of several services.
// It must be the first statement of tx. Until tx ends, no table of the log is emptied. So Outbox does not
// return [ErrMoved], and it finds every message that was in the log at the snapshot of tx.
func (l *Locator) Pin(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, l.outbox.pin); err != nil {
		return fmt.Errorf("operator: pin the log: %w", sqlschema.Explain(err))
	}
	return nil
}

// Outbox finds the messages of a saga with one statement in tx. It is no error if there are
// none. Its error may be an [ErrMoved] if the snapshot of tx is seconds old and [Locator.Pin]
// was not called.
//
// It reads the parts of the log that may have the key, by the index outbox_search, and all held messages. Autovacuum
// summarizes new parts of the log for this index. Parts without a summary are read as a whole: 0.4 s for each million
// messages in memory. With Unpublished it reads the messages that are not published.
func (l *Locator) Outbox(ctx context.Context, tx pgx.Tx, f LocateFilter) (found OutboxMessages, err error) {
	if err := f.requireKey(); err != nil {
		return found, err
	}
	moved := false
	query := func(tx pgx.Tx, statement string) error {
		rows, _ := tx.Query(ctx, statement, f.Scope, f.Key, MaxList+1)
		defer rows.Close()
		for rows.Next() {
			if err := found.scanMessage(rows, &moved); err != nil {
				return err
			}
		}
		return rows.Err()
	}
	if f.Unpublished {
		err = queryWith(ctx, tx, l.outbox.planByIndex, func(tx pgx.Tx) error { return query(tx, l.outbox.locateUnpublished) })
	} else {
		err = queryWith(ctx, tx, l.outbox.planBySearch, func(tx pgx.Tx) error { return query(tx, l.outbox.locate) })
	}
	switch {
	case err != nil:
		return OutboxMessages{}, fmt.Errorf("operator: locate messages: %w", sqlschema.Explain(err))
	case moved:
		return OutboxMessages{}, ErrMoved
	}
	found.limitMessages()
	return found, nil
}

// queryWith runs do with settings for the planner. They end with the savepoint, so that they do not affect later
// statements of tx.
func queryWith(ctx context.Context, tx pgx.Tx, settings string, do func(pgx.Tx) error) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	_, err = inner.Exec(ctx, settings)
	if err == nil {
		err = do(inner)
	}
	return errors.Join(err, inner.Rollback(ctx))
}

// limitMessages removes the message beyond MaxList: the oldest published one, if there is one.
func (w *OutboxMessages) limitMessages() {
	if len(w.Messages) <= MaxList {
		return
	}
	i := slices.IndexFunc(w.Messages, func(m OutboxMessage) bool { return m.Place == PlacePublished })
	if i < 0 {
		i = MaxList
	}
	w.Messages, w.More = slices.Delete(w.Messages, i, i+1), true
}

// scanMessage reads a row: the active relay and, unless there is none, a message.
func (w *OutboxMessages) scanMessage(row pgx.Rows, moved *bool) error {
	var m OutboxMessage
	var h Blocker
	var id *int64
	null := func(s *string) *zeronull.Text { return (*zeronull.Text)(s) }
	at := func(t *time.Time) *zeronull.Timestamptz { return (*zeronull.Timestamptz)(t) }
	err := row.Scan(&w.Holder, &w.At, moved,
		&id, null(&m.MessageID), (*zeronull.Text)(&m.Place),
		null(&m.Topic), null(&m.Type), null(&m.Scope), null(&m.Key), null(&m.Step), null(&m.N), null(&m.OrderingKey), null(&m.CorrelationID), null(&m.CausationID),
		&m.Size, at(&m.CreatedAt), at(&m.DueAt), &m.Attempts, null(&m.Reason), at(&m.RefusedAt),
		&h.ID, null(&h.Topic), null(&h.Scope), null(&h.Key), null(&h.Step), null(&h.N), &h.Attempts, null(&h.Reason), at(&h.RetryAt))
	if err != nil || id == nil {
		return err
	}
	m.ID = *id
	if h.ID != 0 {
		m.Behind = &h
	}
	w.Messages = append(w.Messages, m)
	return nil
}
