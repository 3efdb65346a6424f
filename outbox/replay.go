package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// MaxReplay is how many messages are replayed at once.
const MaxReplay = MaxBatch

// ErrNotKept reports that an outbox has nothing to replay.
var ErrNotKept = errors.New("outbox: nothing is kept of it")

// A NotKeptError is an [ErrNotKept] that says why.
type NotKeptError struct {
	Schema string
	Log    Log       // what its relay does with published messages
	Oldest time.Time // when the oldest message was written that it holds, of whichever saga; zero: it holds none
}

// Error says what its relay does with what is published.
func (e *NotKeptError) Error() string {
	switch {
	case e.Log == LogTable:
		return fmt.Sprintf("%v in schema %s: a relay with LogTable deletes what it has published, and none with LogAppend has run", ErrNotKept, e.Schema)
	case e.Oldest.IsZero():
		return fmt.Sprintf("%v in schema %s: its log is empty; RelayOptions.Retention says how long published messages are kept, by default not at all", ErrNotKept, e.Schema)
	default:
		return fmt.Sprintf("%v in schema %s: it wrote no such message, or not since %s, from when the oldest is that it holds; RelayOptions.Retention says how long published messages are kept",
			ErrNotKept, e.Schema, e.Oldest.UTC().Format(time.RFC3339))
	}
}

// Unwrap returns ErrNotKept.
func (e *NotKeptError) Unwrap() error { return ErrNotKept }

// A ReplayFilter picks messages that an outbox has written and still keeps. They
// match all of its fields that are not zero; one of Key and Since must not be.
type ReplayFilter struct {
	Scope string
	Key   string    // the idempotency key, without a step: all messages of a saga
	Since time.Time // written then or later
	Until time.Time // written before
}

// A Kept is a message that can be replayed.
type Kept struct {
	ID        int64  // its place in the order of the outbox
	MessageID string // that of the copy, too

	Topic, Type, Scope, Key, Step, N string
	Size                             int // bytes of payload
	CreatedAt                        time.Time
}

// A Replayer publishes messages once more that an outbox has published already:
// after a consumer or its queue has lost them, or to see that nothing happens. A
// step that has had a message absorbs its copy.
//
// It knows what the log holds: see [RelayOptions].Retention. Delayed messages are
// not in it, and those that the relay holds, dead letters among them, are left to
// themselves. One that was discarded is published, though.
type Replayer struct {
	sql    queries
	schema string
}

// NewReplayer returns that of the outbox in schema, by default sagamill. Its only
// error names a schema that is not a plain identifier.
func NewReplayer(schema string) (*Replayer, error) {
	schema = cmp.Or(schema, sqlschema.Default)
	if err := sqlschema.Check(schema); err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return &Replayer{sql: newQueries(schema), schema: schema}, nil
}

// List returns the messages that Replay would publish, in the order in which they
// were written, each once. Its error is a [NotKeptError] if there are none. No leaf
// of the log is emptied before tx ends.
func (r *Replayer) List(ctx context.Context, tx pgx.Tx, f ReplayFilter) ([]Kept, error) {
	if f.Key == "" && f.Since.IsZero() {
		return nil, fmt.Errorf("%w: a replay needs a Key or a Since", ErrInvalid)
	}
	rows, _ := tx.Query(ctx, r.sql.listKept, f.Scope, f.Key, orNil(f.Since), orNil(f.Until), MaxReplay+1)
	kept, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k Kept, err error) {
		var id uuid.UUID
		err = row.Scan(&k.ID, &id, &k.Topic, &k.Type, &k.Scope, &k.Key, &k.Step, &k.N, &k.Size, &k.CreatedAt)
		k.MessageID = id.String()
		return k, err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("outbox: list kept messages: %w", sqlschema.Explain(err))
	case len(kept) > MaxReplay:
		return nil, fmt.Errorf("%w: more than %d messages to replay", ErrInvalid, MaxReplay)
	case len(kept) == 0:
		return nil, r.notKept(ctx, tx)
	}
	return kept, nil
}

// Replay stores copies of the messages that List returns at the end of the outbox,
// in tx: with the ids that they had, the time when they were written and all else.
// If tx commits, they are published at least once more, in their order and behind
// what has been written since.
func (r *Replayer) Replay(ctx context.Context, tx pgx.Tx, f ReplayFilter) ([]Kept, error) {
	kept, err := r.List(ctx, tx, f)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, len(kept))
	for i, k := range kept {
		ids[i] = k.ID
	}
	if _, err := tx.Exec(ctx, r.sql.copyKept, ids); err != nil {
		return nil, fmt.Errorf("outbox: replay messages: %w", sqlschema.Explain(err))
	}
	return kept, nil
}

func (r *Replayer) notKept(ctx context.Context, tx pgx.Tx) error {
	e := &NotKeptError{Schema: r.schema}
	var oldest *time.Time
	if err := tx.QueryRow(ctx, r.sql.readKept).Scan(&e.Log, &oldest); err != nil {
		return fmt.Errorf("outbox: read the log: %w", sqlschema.Explain(err))
	}
	if oldest != nil {
		e.Oldest = *oldest
	}
	return e
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
