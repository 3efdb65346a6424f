package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// MaxReplay is how many messages are replayed in one transaction.
const MaxReplay = MaxBatch

// ErrNotKept reports that an outbox has nothing to replay.
var ErrNotKept = errors.New("outbox: nothing is kept of it")

// A NotKeptError is an [ErrNotKept] that says why.
type NotKeptError struct {
	Schema string
	Oldest time.Time // when the oldest message was written that it holds, of whichever saga; zero: it holds none
}

// Error says what its relay does with what is published.
func (e *NotKeptError) Error() string {
	switch {
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
	Since time.Time // written then or later; a delayed message was written when it was due
	Until time.Time // written before
	After int64     // behind the message with that ID, as of a replay that was interrupted
}

// check says what is wrong with f.
func (f *ReplayFilter) check() error {
	switch {
	case f.Key == "" && f.Since.IsZero():
		return fmt.Errorf("%w: a replay needs a Key or a Since", ErrInvalid)
	case !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until):
		return fmt.Errorf("%w: nothing is written since %s and until %s", ErrInvalid, f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339))
	case f.After < 0:
		return fmt.Errorf("%w: After is negative", ErrInvalid)
	}
	return nil
}

// args are those of a statement about what f picks.
func (f *ReplayFilter) args(more ...any) []any {
	return append([]any{planned, f.Scope, f.Key, orNil(f.Since), orNil(f.Until), f.After}, more...)
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
// It knows what the log holds: see [RelayOptions].Retention. Delayed messages are in
// it since they were due. Those that the relay holds, dead letters among them, are left
// to themselves. One that was discarded is published, though, and one that was redriven
// is in the log twice.
type Replayer struct {
	sql      queries
	schema   string
	operator Operator
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

// As returns r as used by o: the journal says so.
func (r *Replayer) As(o Operator) *Replayer {
	as := *r
	as.operator = o
	return &as
}

// List returns the messages that Replay would publish, in the order in which they
// were written. A copy that a replay has written is not one of them. Its error is a
// [NotKeptError] if there are none. No leaf of the log is emptied before tx ends.
func (r *Replayer) List(ctx context.Context, tx pgx.Tx, f ReplayFilter) ([]Kept, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	kept, err := r.list(ctx, tx, f, math.MaxInt64, MaxReplay+1)
	switch {
	case err != nil:
		return nil, err
	case len(kept) > MaxReplay:
		return nil, fmt.Errorf("%w: more than %d messages to replay", ErrInvalid, MaxReplay)
	case len(kept) == 0:
		return nil, r.notKept(ctx, tx)
	}
	return kept, nil
}

// Replay stores copies of the messages that List returns at the end of the outbox,
// in tx: with the ids that they had, the time when they were written and all else,
// and with [HeaderReplayed].
// If tx commits, they are published at least once more, in their order and behind
// what has been written since, and the journal says who has done so: see [ReadJournal].
func (r *Replayer) Replay(ctx context.Context, tx pgx.Tx, f ReplayFilter) ([]Kept, error) {
	kept, err := r.List(ctx, tx, f)
	if err == nil {
		err = r.copy(ctx, tx, f, kept)
	}
	if err != nil {
		return nil, err
	}
	return kept, nil
}

// list returns the first messages that f picks, up to the id through.
func (r *Replayer) list(ctx context.Context, tx pgx.Tx, f ReplayFilter, through int64, limit int) ([]Kept, error) {
	rows, _ := tx.Query(ctx, r.sql.listKept, f.args(through, limit)...)
	kept, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k Kept, err error) {
		var id uuid.UUID
		err = row.Scan(&k.ID, &id, &k.Topic, &k.Type, &k.Scope, &k.Key, &k.Step, &k.N, &k.Size, &k.CreatedAt)
		k.MessageID = id.String()
		return k, err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: list kept messages: %w", sqlschema.Explain(err))
	}
	return kept, nil
}

// copy stores copies of kept, which f has picked.
func (r *Replayer) copy(ctx context.Context, tx pgx.Tx, f ReplayFilter, kept []Kept) error {
	ids := make([]int64, len(kept))
	for i, k := range kept {
		ids[i] = k.ID
	}
	if _, err := tx.Exec(ctx, r.sql.copyKept, ids); err != nil {
		return fmt.Errorf("outbox: replay messages: %w", sqlschema.Explain(err))
	}
	if err := r.sql.note(ctx, tx, r.operator, "replay", f.what(), ids); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// Oldest returns when the oldest message was written that can be replayed: what was
// before it is not kept any more. It is zero if there is none.
func (r *Replayer) Oldest(ctx context.Context, db *pgxpool.Pool) (time.Time, error) {
	return r.kept(ctx, db)
}

func (r *Replayer) notKept(ctx context.Context, db querier) error {
	e := &NotKeptError{Schema: r.schema}
	var err error
	if e.Oldest, err = r.kept(ctx, db); err != nil {
		return err
	}
	return e
}

// kept reads when the oldest message was written that the log holds.
func (r *Replayer) kept(ctx context.Context, db querier) (oldest time.Time, err error) {
	var at *time.Time
	if err := db.QueryRow(ctx, r.sql.readKept).Scan(&at); err != nil {
		return oldest, fmt.Errorf("outbox: read the log: %w", sqlschema.Explain(err))
	}
	if at != nil {
		oldest = *at
	}
	return oldest, nil
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
