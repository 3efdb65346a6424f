package operator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// MaxReplay is the largest number of messages that [Replayer.Replay] replays.
const MaxReplay = outbox.MaxBatch

const (
	// replayBatch and replayBytes bound one transaction of a range, in messages and in bytes of
	// payload, give or take a message.
	replayBatch = 1000
	replayBytes = 32 << 20

	// replayTimeout bounds that transaction, and the count of a range: a scan of the log.
	replayTimeout = 5 * time.Minute
)

// ErrNotKept reports that the log of an outbox holds no message to replay.
var ErrNotKept = errors.New("operator: the outbox retains no such message")

// A NotKeptError is an [ErrNotKept] with the reason.
type NotKeptError struct {
	Schema string
	Oldest time.Time // when the oldest message was written that the log holds, of any saga; zero: it holds none
}

// Error says how long published messages are kept.
func (e *NotKeptError) Error() string {
	switch {
	case e.Oldest.IsZero():
		return fmt.Sprintf("%v in schema %s: its log is empty; RelayOptions.Retention says how long published messages are kept", ErrNotKept, e.Schema)
	default:
		return fmt.Sprintf("%v in schema %s: it wrote no such message, or not since %s, from when the oldest is that it holds; RelayOptions.Retention says how long published messages are kept",
			ErrNotKept, e.Schema, e.Oldest.UTC().Format(time.RFC3339))
	}
}

// Unwrap returns ErrNotKept.
func (e *NotKeptError) Unwrap() error { return ErrNotKept }

// A ReplayFilter picks messages that the log of an outbox holds. A message matches if it
// matches every field that is not zero. Key or Since is required.
type ReplayFilter struct {
	Scope string
	Key   string    // the idempotency key, without a step: all messages of a saga
	Since time.Time // written then or later; a delayed message counts as written when it was due
	Until time.Time // written before
	After int64     // behind the message with this ID, to continue an interrupted replay
}

// validate returns an error unless f can pick messages.
func (f *ReplayFilter) validate() error {
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

// describeReplay returns f for the journal.
func (f *ReplayFilter) describeReplay() map[string]string {
	return journal.What("scope", f.Scope, "key", f.Key, "since", formatTime(f.Since), "until", formatTime(f.Until))
}

// replayArgs are the arguments of a statement about the messages that f picks.
func (f *ReplayFilter) replayArgs(more ...any) []any {
	return append([]any{plannedAnew, f.Scope, f.Key, timeOrNil(f.Since), timeOrNil(f.Until), f.After}, more...)
}

// A LoggedMessage is a message in the log of an outbox.
type LoggedMessage struct {
	ID        int64  // its place in the order of the outbox
	MessageID string // the copy has the same one

	Topic, Type, Scope, Key, Step, N string
	Size                             int // bytes of payload
	CreatedAt                        time.Time
}

// A Replayer publishes messages again that an outbox has published: after a consumer or its
// queue has lost them, or to show that nothing happens. A step that has handled a message
// treats the copy as a duplicate.
//
// It can replay what the log holds: see outbox.RelayOptions.Retention. A delayed message is in
// the log since it was due. Messages that the relay holds, dead letters included, are not
// replayed. A discarded message is replayed, though, and a redriven one is in the log twice.
type Replayer struct {
	engine
	sql    outboxQueries
	schema string
}

// NewReplayer returns the Replayer of a schema. It does no I/O. Its errors name a schema that is
// not a plain identifier, or a missing pool.
func NewReplayer(db *pgxpool.Pool, opts *Options) (*Replayer, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, errors.New("operator: NewReplayer needs a pool")
	}
	sql := newOutboxQueries(o.Schema)
	return &Replayer{sql: sql, schema: o.Schema, engine: engine{
		db: pg.NewOwn(db), by: o.By, why: o.Why, begin: outboxsql.Begin + outboxIdle, insertJournal: sql.insertJournal, pause: backoff.Sleep,
		beforeCommit: func() error { return failpoint.Hit("redrive/outbox-replay-before-commit") },
		afterCommit:  func() error { return failpoint.Hit("redrive/outbox-replay-after-commit") },
	}}, nil
}

// List returns the messages that [Replayer.Replay] would publish, in the order in which they
// were written. It leaves out copies of earlier replays. Its error is a [NotKeptError] if
// there are none. No leaf of the log is emptied before tx ends.
func (r *Replayer) List(ctx context.Context, tx pgx.Tx, f ReplayFilter) ([]LoggedMessage, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	logged, err := r.listLogged(ctx, tx, f, math.MaxInt64, MaxReplay+1)
	switch {
	case err != nil:
		return nil, err
	case len(logged) > MaxReplay:
		return nil, fmt.Errorf("%w: more than %d messages to replay", ErrInvalid, MaxReplay)
	case len(logged) == 0:
		return nil, r.explainEmpty(ctx, tx)
	}
	return logged, nil
}

// Replay stores copies of the messages that [Replayer.List] returns at the end of the outbox, in tx. A copy has
// the same ids, time and content, and the header outbox.HeaderReplayed. If tx commits, the copies are published
// at least once, in their order and behind all messages written since. The journal then has a row: see
// [ReadJournal].
func (r *Replayer) Replay(ctx context.Context, tx pgx.Tx, f ReplayFilter) ([]LoggedMessage, error) {
	logged, err := r.List(ctx, tx, f)
	var ids []int64
	if err == nil {
		ids, err = r.copyLogged(ctx, tx, logged)
	}
	if err == nil {
		err = r.writeReplay(ctx, tx, f, ids)
	}
	if err != nil {
		return nil, err
	}
	return logged, nil
}

// replayVerb is the verb in the journal.
const replayVerb = "replay"

func (r *Replayer) writeReplay(ctx context.Context, tx pgx.Tx, f ReplayFilter, ids []int64) error {
	if err := r.writeJournal(ctx, tx, replayVerb, f.describeReplay(), ids); err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	return nil
}

// Oldest returns when the oldest message was written that can be replayed, and the zero time
// if there is none.
func (r *Replayer) Oldest(ctx context.Context) (time.Time, error) { return r.readOldest(ctx, r.db) }

// A rowQuerier is a pool or a transaction.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (r *Replayer) readOldest(ctx context.Context, db rowQuerier) (oldest time.Time, err error) {
	var at *time.Time
	if err := db.QueryRow(ctx, r.sql.oldestLogged).Scan(&at); err != nil {
		return oldest, fmt.Errorf("operator: read the log: %w", sqlschema.Explain(err))
	}
	if at != nil {
		oldest = *at
	}
	return oldest, nil
}

// explainEmpty returns a NotKeptError.
func (r *Replayer) explainEmpty(ctx context.Context, db rowQuerier) error {
	oldest, err := r.readOldest(ctx, db)
	if err != nil {
		return err
	}
	return &NotKeptError{Schema: r.schema, Oldest: oldest}
}

// listLogged returns the first messages that f picks, up to the id through.
func (r *Replayer) listLogged(ctx context.Context, tx pgx.Tx, f ReplayFilter, through int64, limit int) ([]LoggedMessage, error) {
	rows, _ := tx.Query(ctx, r.sql.listLogged, f.replayArgs(through, limit)...)
	logged, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m LoggedMessage, err error) {
		var id uuid.UUID
		err = row.Scan(&m.ID, &id, &m.Topic, &m.Type, &m.Scope, &m.Key, &m.Step, &m.N, &m.Size, &m.CreatedAt)
		m.MessageID = id.String()
		return m, err
	})
	if err != nil {
		return nil, fmt.Errorf("operator: list messages of the log: %w", sqlschema.Explain(err))
	}
	return logged, nil
}

// copyLogged stores copies of messages and returns the ids of the originals.
func (r *Replayer) copyLogged(ctx context.Context, tx pgx.Tx, logged []LoggedMessage) ([]int64, error) {
	ids := make([]int64, len(logged))
	for i, m := range logged {
		ids[i] = m.ID
	}
	if _, err := tx.Exec(ctx, r.sql.copyLogged, ids); err != nil {
		return nil, fmt.Errorf("operator: replay messages: %w", sqlschema.Explain(err))
	}
	return ids, nil
}

// RangeOptions change [Replayer.ReplayRange]. The zero value is usable.
type RangeOptions struct {
	// Rate is a limit in messages per second; default: none. The relay publishes as fast as it
	// can, so that this limit is what protects consumers.
	Rate float64

	// DryRun stores nothing, and calls Progress with the messages that would be replayed.
	DryRun bool

	// Progress is called after each COMMIT. Its error ends the replay. Default: none.
	Progress func(RangeProgress) error
}

// A RangeProgress says how far the replay of a range has come.
type RangeProgress struct {
	Batch    []LoggedMessage // the last batch; only in a call of Progress
	Replayed int             // messages so far
	Found    int             // messages to replay when it began
	Last     int64           // ID of the last one so far: [ReplayFilter].After to continue
}

// ReplayRange does what [Replayer.Replay] does for any number of messages that f picks when it
// begins, in batches of one transaction each. It holds one batch in memory. Its error is a
// [NotKeptError] if there are none.
//
// When ctx ends, ReplayRange ends between two batches and returns the error of ctx. After any
// error the result says how far it is known to have come: replayed batches stay replayed, and a
// call with f.After set to Last continues. A batch whose outcome is unknown, or that had
// committed when the process died, is then replayed twice, which has no effect, like any
// duplicate.
//
// Fewer messages than found may be replayed: the relay removes messages that are older than
// outbox.RelayOptions.Retention, and those that it holds by now are left out.
func (r *Replayer) ReplayRange(ctx context.Context, f ReplayFilter, opts *RangeOptions) (p RangeProgress, err error) {
	o := RangeOptions{}
	if opts != nil {
		o = *opts
	}
	p.Last = f.After
	if err := f.validate(); err != nil {
		return p, err
	}
	if o.Rate < 0 {
		return p, fmt.Errorf("%w: RangeOptions.Rate is negative", ErrInvalid)
	}
	through, err := r.surveyRange(ctx, f, &p)
	if err != nil {
		return p, err
	}
	for ctx.Err() == nil {
		f.After = p.Last
		batch, err := r.replayNext(ctx, f, through, &o)
		if err != nil || len(batch) == 0 {
			return p, err
		}
		p.Replayed, p.Last = p.Replayed+len(batch), batch[len(batch)-1].ID
		if o.Progress != nil {
			told := p
			told.Batch = batch
			if err := o.Progress(told); err != nil {
				return p, err
			}
		}
		if !o.DryRun {
			r.keepRate(ctx, rate(o.Rate), len(batch))
		}
	}
	return p, ctx.Err()
}

// surveyRange counts the messages that f picks and returns the id of the last one.
func (r *Replayer) surveyRange(ctx context.Context, f ReplayFilter, p *RangeProgress) (through int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	err = r.db.QueryRow(ctx, r.sql.countLogged, f.replayArgs()...).Scan(&p.Found, &through)
	if err != nil {
		return 0, fmt.Errorf("operator: count messages of the log: %w", sqlschema.Explain(err))
	}
	if p.Found == 0 {
		return 0, r.explainEmpty(ctx, r.db)
	}
	return through, nil
}

// errNothingStored rolls a batch back: a dry run, or the end of a range.
var errNothingStored = errors.New("operator: nothing to store")

// replayNext replays the next messages and returns them. A transaction that has begun does not
// end with ctx.
func (r *Replayer) replayNext(ctx context.Context, f ReplayFilter, through int64, o *RangeOptions) (logged []LoggedMessage, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), replayTimeout)
	defer cancel()
	err = r.commitBatch(ctx, replayVerb, f.describeReplay(), func(tx pgx.Tx) ([]int64, error) {
		if _, err := tx.Exec(ctx, r.sql.planByIndex); err != nil {
			return nil, fmt.Errorf("operator: settle plans: %w", err)
		}
		if logged, err = r.listLogged(ctx, tx, f, through, rate(o.Rate).batchSize(replayBatch)); err != nil {
			return nil, err
		}
		if logged = cutBatch(logged); o.DryRun || len(logged) == 0 {
			return nil, errNothingStored
		}
		return r.copyLogged(ctx, tx, logged)
	})
	if err != nil && !errors.Is(err, errNothingStored) {
		return nil, err
	}
	return logged, nil
}

// cutBatch returns the first messages with at most replayBytes of payload, and at least one.
func cutBatch(logged []LoggedMessage) []LoggedMessage {
	bytes := 0
	for i, m := range logged {
		if bytes += m.Size; bytes > replayBytes && i > 0 {
			return logged[:i]
		}
	}
	return logged
}

// timeOrNil returns nil for the zero time.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// formatTime returns t for the journal, and "" for the zero time.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
