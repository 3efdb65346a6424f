package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

const (
	// MaxList is how many dead letters are listed at once.
	MaxList = 1000

	// letterBatch is how many are redriven, discarded or released in one
	// transaction. Their rows are locked no longer than that takes.
	letterBatch = 500

	// letterTimeout is how long that may take.
	letterTimeout = time.Minute
)

// ErrNoDeadLetter reports that there is no dead letter, and no refused message, of
// that id: it was redriven, discarded or published, or never was one.
var ErrNoDeadLetter = errors.New("outbox: no such dead letter")

// A DeadLetter is a message that the broker has refused: until its attempts were
// used up, or, in what [DeadLetters.Refused] lists, for the time being.
type DeadLetter struct {
	ID        int64 // names it here; its place in the order of the outbox
	MessageID string

	Topic, Type, Scope, Key, Step, N, OrderingKey string
	CorrelationID, CausationID, ContentType       string

	Headers   json.RawMessage // as stored: an object; nil if it has none
	Payload   []byte          // from [DeadLetters.Get] alone
	Size      int             // bytes of payload
	CreatedAt time.Time       // when it was written

	Attempts  int       // refusals; 0 while it waits for its topic; 1 if it was released without one
	Reason    string    // the broker's last answer, in its words
	RefusedAt time.Time // of the last refusal, else of the release, else of the write
	RetryAt   time.Time // when it is tried again; zero for a dead letter
}

// A DeadFilter picks dead letters. They match all of its fields that are not
// zero; the zero DeadFilter picks every one.
type DeadFilter struct {
	IDs       []int64
	MessageID string
	Topic     string
	Scope     string
	Key       string        // the idempotency key, without a step
	Reason    string        // a part of the reason, in its very letters
	Older     time.Duration // refused for the last time at least this long ago
}

// DeadLetters are those of an outbox, for the operator: it needs neither a
// [Relay] nor a [Publisher]. What it does is seen by a relay that runs, and done
// once, however many operators do it at the same time. Any number of goroutines
// may use it.
//
// An error of Redrive, Discard and Release comes with how many messages are known
// to be done. It leaves open whether its own batch was: repeat the call, which
// does nothing to those that are. Each batch that has changed something has left a row
// in the journal, and no other has: see [ReadJournal].
type DeadLetters struct {
	db       *pgxpool.Pool
	sql      queries
	operator Operator
	pause    func(ctx context.Context, d time.Duration) // between batches of a limited rate
}

// NewDeadLetters returns those of the outbox in schema, by default sagamill. Its
// only error names a schema that is not a plain identifier, or a missing pool.
func NewDeadLetters(db *pgxpool.Pool, schema string) (*DeadLetters, error) {
	schema = cmp.Or(schema, sqlschema.Default)
	if db == nil {
		return nil, errors.New("outbox: NewDeadLetters needs a pool")
	}
	if err := sqlschema.Check(schema); err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return &DeadLetters{db: db, sql: newQueries(schema), pause: pauseFor}, nil
}

// As returns d as used by o: the journal says so.
func (d *DeadLetters) As(o Operator) *DeadLetters {
	as := *d
	as.operator = o
	return &as
}

// List returns dead letters in the order in which they were written, from the
// one behind the id after on, without their payloads: at most limit, and at most
// [MaxList]. Begin with 0, and go on with the last one's ID.
func (d *DeadLetters) List(ctx context.Context, filter DeadFilter, after int64, limit int) ([]DeadLetter, error) {
	return d.list(ctx, d.sql.listDead, filter, after, limit)
}

// Refused does what [DeadLetters.List] does, for messages that the relay tries again:
// refused ones, and those of stalled topics, which have no Attempts. What comes later in
// their ordering keys waits behind them.
func (d *DeadLetters) Refused(ctx context.Context, filter DeadFilter, after int64, limit int) ([]DeadLetter, error) {
	return d.list(ctx, d.sql.listRefused, filter, after, limit)
}

// Get returns a dead letter, or a refused message, with its payload. Its error is
// an [ErrNoDeadLetter] if there is none.
func (d *DeadLetters) Get(ctx context.Context, id int64) (DeadLetter, error) {
	rows, _ := d.db.Query(ctx, d.sql.readLetter, id)
	letter, err := pgx.CollectExactlyOneRow(rows, scanLetter)
	if errors.Is(err, pgx.ErrNoRows) {
		return letter, ErrNoDeadLetter
	}
	if err != nil {
		return letter, fmt.Errorf("outbox: read dead letter %d: %w", id, err)
	}
	return letter, nil
}

// Count counts the dead letters that filter picks.
func (d *DeadLetters) Count(ctx context.Context, filter DeadFilter) (n int, err error) {
	args, err := d.args(ctx, filter, 0, false)
	if err == nil {
		err = d.db.QueryRow(ctx, d.sql.countDead, args...).Scan(&n)
	}
	if err != nil {
		return 0, fmt.Errorf("outbox: count dead letters: %w", err)
	}
	return n, nil
}

// Redrive sends the dead letters of those ids round again and returns how many:
// an id that is no dead letter, or no longer, is left out. Each keeps its message
// id, so that a step which has had it after all absorbs it, and the timestamp that
// it bears. It is written to the log anew, is due at once and has all its attempts
// again.
//
// It does not hold back what comes later in its ordering key, of which some has
// probably been published meanwhile: it is published behind that, out of order.
// Should the broker refuse it once more, later messages wait behind it again, as
// they do behind any other.
func (d *DeadLetters) Redrive(ctx context.Context, ids ...int64) (n int, err error) {
	return d.eachID(ctx, verb{name: "outbox dead redrive", statement: d.sql.redrive}, ids)
}

// RedriveOptions are what most callers leave alone. The zero value is usable.
type RedriveOptions struct {
	// Rate is how many letters are sent round in a second; default: as many as go. The
	// relay publishes them as fast as it can.
	Rate float64
}

// RedriveAll does what [DeadLetters.Redrive] does, with the dead letters that
// filter picks, up to 500 in a transaction. It leaves alone those that die, or die
// again, after it has begun, so that it comes to an end whatever the broker does.
// A nil opts means the defaults.
func (d *DeadLetters) RedriveAll(ctx context.Context, filter DeadFilter, opts *RedriveOptions) (n int, err error) {
	v := verb{name: "outbox dead redrive", statement: d.sql.redrive}
	if opts != nil {
		v.rate = opts.Rate
	}
	if v.rate < 0 {
		return 0, errors.New("outbox: RedriveOptions.Rate is negative")
	}
	return d.each(ctx, v, filter)
}

// Discard removes the dead letters of those ids, which are then never published,
// and returns how many there were. Nothing waits behind a dead letter.
func (d *DeadLetters) Discard(ctx context.Context, ids ...int64) (n int, err error) {
	return d.eachID(ctx, verb{name: "outbox dead discard", statement: d.sql.discard}, ids)
}

// DiscardAll does what [DeadLetters.Discard] does, with the dead letters that
// filter picks, as [DeadLetters.RedriveAll] does.
func (d *DeadLetters) DiscardAll(ctx context.Context, filter DeadFilter) (n int, err error) {
	return d.each(ctx, verb{name: "outbox dead discard", statement: d.sql.discard}, filter)
}

// Release turns messages into dead letters before their attempts are used up, and lets go
// what waits behind them. It accepts the messages that [DeadLetters.Refused] lists, and
// returns how many: other ids are left out. One that is on its way to the broker at this
// moment may still be published, and is no dead letter then.
func (d *DeadLetters) Release(ctx context.Context, ids ...int64) (n int, err error) {
	return d.eachID(ctx, verb{name: "outbox refused release", statement: d.sql.release, lead: true}, ids)
}

func (d *DeadLetters) list(ctx context.Context, statement string, filter DeadFilter, after int64, limit int) ([]DeadLetter, error) {
	args, err := d.args(ctx, filter, after, false)
	if err != nil {
		return nil, fmt.Errorf("outbox: list dead letters: %w", err)
	}
	rows, _ := d.db.Query(ctx, statement, append(args, min(limit, MaxList))...)
	letters, err := pgx.CollectRows(rows, scanLetter)
	if err != nil {
		return nil, fmt.Errorf("outbox: list dead letters: %w", err)
	}
	return letters, nil
}

// operatorIdle is how long an operator's transaction may do nothing, in milliseconds: a
// process that was stopped in the middle of one would keep its locks, and with that of
// Release the relay from noting anything, for as long as its connection is open.
const operatorIdle = "10000"

// beginLimited runs do in a transaction of an operator's.
func beginLimited(ctx context.Context, db *pgxpool.Pool, do func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{BeginQuery: sqlBegin + operatorIdle}, do)
}

// A verb is something that is done to letters.
type verb struct {
	name      string // for the journal
	statement string
	lead      bool    // others may wait behind them
	rate      float64 // letters in a second; 0: as many as go
}

// size is how many letters a batch has: at a limited rate, those of a second.
func (v *verb) size() int {
	if v.rate == 0 {
		return letterBatch
	}
	return min(letterBatch, max(1, int(v.rate)))
}

// eachID does v to the letters of ids, in batches. No ids are none, while in a
// filter they would be all.
func (d *DeadLetters) eachID(ctx context.Context, v verb, ids []int64) (n int, err error) {
	for chunk := range slices.Chunk(ids, letterBatch) {
		done, err := d.each(ctx, v, DeadFilter{IDs: chunk})
		n += done
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// each does v to the letters that filter picks, in batches, each of which begins
// behind the last. It leaves out what was refused after it began: those that die
// again meanwhile are not met a second time.
func (d *DeadLetters) each(ctx context.Context, v verb, filter DeadFilter) (n int, err error) {
	args, err := d.args(ctx, filter, 0, len(filter.IDs) == 0) // who names a letter means it, whenever it was refused
	if err != nil {
		return 0, fmt.Errorf("outbox: dead letters: %w", err)
	}
	for {
		ids, err := d.batch(ctx, v, filter, args)
		if err != nil {
			return n, fmt.Errorf("outbox: dead letters: %w", err)
		}
		n += len(ids)
		if len(ids) < v.size() {
			return n, nil
		}
		args[afterArg] = slices.Max(ids)
		if v.rate > 0 {
			d.pause(ctx, time.Duration(float64(len(ids))/v.rate*float64(time.Second)))
		}
	}
}

// batch does v to the next letters, and returns which.
func (d *DeadLetters) batch(ctx context.Context, v verb, filter DeadFilter, args []any) (ids []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, letterTimeout)
	defer cancel()
	err = beginLimited(ctx, d.db, func(tx pgx.Tx) error {
		if v.lead {
			if _, err := tx.Exec(ctx, d.sql.lockLease); err != nil {
				return err
			}
		}
		rows, _ := tx.Query(ctx, v.statement, append(args, v.size())...)
		var keys []string
		var id int64
		var key string
		_, err := pgx.ForEachRow(rows, []any{&id, &key}, func() error {
			ids, keys = append(ids, id), append(keys, key)
			return nil
		})
		if err == nil && v.lead {
			_, err = tx.Exec(ctx, d.sql.promote, keys)
		}
		if err == nil {
			err = d.sql.note(ctx, tx, d.operator, v.name, filter.what(), ids)
		}
		return cmp.Or(err, failpoint.Hit("redrive/outbox-before-commit"))
	})
	if err == nil {
		err = failpoint.Hit("redrive/outbox-after-commit")
	}
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// planned lets a statement be planned for its values, each time. A plan for any
// values would sort all dead letters for every batch.
const planned = pgx.QueryExecModeCacheDescribe

// afterArg is where args has the id after which to look.
const afterArg = 1

// args are those of a statement with what filter picks behind the id after, of what was
// refused before now by the database's clock, if that is wanted. A relay may refuse again
// at any moment what is only to be shown.
func (d *DeadLetters) args(ctx context.Context, filter DeadFilter, after int64, before bool) ([]any, error) {
	var message *uuid.UUID
	if filter.MessageID != "" {
		id, err := uuid.Parse(filter.MessageID)
		if err != nil {
			return nil, fmt.Errorf("%w: MessageID is not a UUID", ErrInvalid)
		}
		message = &id
	}
	until := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	if before || filter.Older > 0 {
		if err := d.db.QueryRow(ctx, d.sql.readClock, filter.Older.Microseconds()).Scan(&until); err != nil {
			return nil, err
		}
	}
	return []any{planned, after, until, filter.IDs, message, filter.Topic, filter.Scope, filter.Key, filter.Reason}, nil
}

func scanLetter(row pgx.CollectableRow) (l DeadLetter, err error) {
	var message uuid.UUID
	var retryAt *time.Time
	err = row.Scan(&l.ID, &message, &l.Topic, &l.Type, &l.Scope, &l.Key, &l.Step, &l.N, &l.OrderingKey,
		&l.CorrelationID, &l.CausationID, &l.ContentType, &l.Headers, &l.Payload, &l.Size, &l.CreatedAt,
		&l.Attempts, &l.Reason, &l.RefusedAt, &retryAt)
	l.MessageID = message.String()
	if retryAt != nil {
		l.RetryAt = *retryAt
	}
	return l, err
}
