package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// MaxLocated is how many messages of a saga are located at once.
const MaxLocated = 1000

// ErrMoved reports that the relay has emptied a table since the transaction's
// snapshot was taken, so that how far the log was published then is not known any
// more. Look again in a new transaction, and begin it with [Locator.Pin].
var ErrMoved = errors.New("outbox: how far the log is published has moved on while it was read")

// A Place is where an outbox has a message.
type Place string

// The places. A message that the outbox has nowhere was published, and its place
// in the log is gone; or it was discarded; or it never was in this outbox.
const (
	PlaceStored    Place = "stored"    // committed, to be published next
	PlaceDelayed   Place = "delayed"   // not published before DueAt: written with a Delay, or redriven
	PlaceWaiting   Place = "waiting"   // behind an earlier message of its ordering key, see Behind, or because its topic stalls, see Reason
	PlaceRefused   Place = "refused"   // by the broker; tried again at DueAt
	PlaceDead      Place = "dead"      // refused until the attempts were used up, or released
	PlacePublished Place = "published" // and still kept in the log. A dead letter that was discarded looks so, too, and the first of a redriven one's places
)

// A Located is a message with where it is.
type Located struct {
	ID        int64 // its place in the order of the outbox; another one once it was due, redriven or replayed
	MessageID string
	Place     Place

	Topic, Type, Scope, Key, Step, N, OrderingKey string
	CorrelationID, CausationID                    string
	Size                                          int // bytes of payload
	CreatedAt                                     time.Time

	DueAt     time.Time // when it is sent, or sent again; zero: as soon as it can be, or never
	Attempts  int       // refusals
	Reason    string    // the broker's last one, in its words
	RefusedAt time.Time // when

	// Behind is what a waiting message waits for, often of another saga; nil if it
	// is the first of its ordering key itself. That one is sent next, or waits until the
	// broker takes messages of its topic, if Reason says so.
	Behind *Obstacle
}

// An Obstacle is the first message that is refused, or waits, of an ordering key.
type Obstacle struct {
	ID                         int64 // that of [DeadLetters.Get] and [DeadLetters.Release]
	Topic, Scope, Key, Step, N string
	Attempts                   int
	Reason                     string
	RetryAt                    time.Time
}

// Whereabouts are what an outbox has of a saga, at one moment.
type Whereabouts struct {
	Messages []Located // in the order of their IDs: that in which they were written
	More     bool      // there are more than MaxLocated; the oldest published ones are left out first

	Holder string    // the active relay, as in [Stats]
	At     time.Time // the moment, by the database's clock
}

// A LocateFilter says which saga.
type LocateFilter struct {
	Scope string // default: any
	Key   string // required: the idempotency key, without a step

	// Unpublished leaves out what is published. It costs what the backlog does,
	// whatever is kept: see [RelayOptions].Retention.
	Unpublished bool
}

// A Locator says where the messages of a saga are in an outbox. It changes
// nothing, and neither writers nor the relay wait for it. SELECT on the tables is
// all it needs.
type Locator struct {
	sql queries
}

// NewLocator returns that of the outbox in schema, by default sagamill. Its only
// error names a schema that is not a plain identifier.
func NewLocator(schema string) (*Locator, error) {
	schema = cmp.Or(schema, sqlschema.Default)
	if err := sqlschema.Check(schema); err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return &Locator{sql: newQueries(schema)}, nil
}

// Pin is for a tx of REPEATABLE READ that reads more than this outbox, such as
// those of several services, and comes before anything else in it: none of the
// tables is emptied until tx ends. So Locate does not return an [ErrMoved] and
// misses no message that was in the log at tx's snapshot.
func (l *Locator) Pin(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, l.sql.pin); err != nil {
		return fmt.Errorf("outbox: pin the log: %w", sqlschema.Explain(err))
	}
	return nil
}

// Locate finds the messages of a saga, by one statement, which sees what tx does.
// No such message is no error. The error is an [ErrInvalid] without a key, and may
// be an [ErrMoved] if the snapshot of tx is seconds old and [Locator.Pin] was not
// called.
//
// There is no index on the key. Locate reads the whole log and all that is held,
// once: a fifth of a second for each million messages in memory, and as long as it
// takes to read them where they are not. That is the backlog and, with no
// Retention, some 100 MB, else all that is kept. With Unpublished it passes over
// what is published.
func (l *Locator) Locate(ctx context.Context, tx pgx.Tx, f LocateFilter) (w Whereabouts, err error) {
	if f.Key == "" {
		return w, fmt.Errorf("%w: to locate messages needs a Key", ErrInvalid)
	}
	moved := false
	query := func(tx pgx.Tx, statement string) error {
		rows, _ := tx.Query(ctx, statement, f.Scope, f.Key, MaxLocated+1)
		defer rows.Close()
		for rows.Next() {
			if err := w.scan(rows, &moved); err != nil {
				return err
			}
		}
		return rows.Err()
	}
	if f.Unpublished {
		err = l.byIndex(ctx, tx, func(tx pgx.Tx) error { return query(tx, l.sql.locateUnpublished) })
	} else {
		err = query(tx, l.sql.locate)
	}
	switch {
	case err != nil:
		return Whereabouts{}, fmt.Errorf("outbox: locate messages: %w", sqlschema.Explain(err))
	case moved:
		return Whereabouts{}, ErrMoved
	}
	w.cut()
	return w, nil
}

// byIndex runs do with the settings of sqlPlanByIndex, which end with the
// savepoint: what the caller does next in tx is planned as ever.
func (l *Locator) byIndex(ctx context.Context, tx pgx.Tx, do func(pgx.Tx) error) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	_, err = inner.Exec(ctx, l.sql.planByIndex)
	if err == nil {
		err = do(inner)
	}
	return errors.Join(err, inner.Rollback(ctx))
}

// cut leaves out the one that is more than MaxLocated: the oldest that is
// published, if one is.
func (w *Whereabouts) cut() {
	if len(w.Messages) <= MaxLocated {
		return
	}
	i := slices.IndexFunc(w.Messages, func(m Located) bool { return m.Place == PlacePublished })
	if i < 0 {
		i = MaxLocated
	}
	w.Messages, w.More = slices.Delete(w.Messages, i, i+1), true
}

// scan reads a row: who publishes, and, unless there is none, a message.
func (w *Whereabouts) scan(row pgx.Rows, moved *bool) error {
	var m Located
	var h Obstacle
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
