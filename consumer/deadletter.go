package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

const (
	// MaxList is how many dead letters are listed at once.
	MaxList = 1000

	// letterBatch is how many are dealt with in one transaction. Their rows, and
	// those of their steps, are locked no longer than that takes.
	letterBatch = 500

	// pageBytes is how many bytes of payload are read at once, give or take a
	// letter.
	pageBytes = 32 << 20

	// letterTimeout is how long a batch may take.
	letterTimeout = time.Minute
)

// ErrNoDeadLetter reports that there is no parked message of that id in the state
// asked for: it was redriven, discarded or run, or never was one.
var ErrNoDeadLetter = errors.New("consumer: no such dead letter")

// A LetterState says whether a parked message goes round by itself.
type LetterState string

// The states.
const (
	LetterDead     LetterState = "dead"     // waits for a person
	LetterRetrying LetterState = "retrying" // runs again when it is due
)

// A DeadLetter is a message that was taken off the broker and has not run to
// success: a dead letter, or one that goes round.
type DeadLetter struct {
	ID    int64
	State LetterState
	Kind  string // action, compensation, or unknown: it could not be read

	Scope, Key, Step, N string // the step's identity; empty where it could not be read

	Topic     string
	MessageID string           // as it came: any bytes
	Headers   message.Metadata // as they came, the properties among them: any bytes
	Payload   []byte           // from [DeadLetters.Get], and where it is asked for
	Size      int              // bytes of payload

	Reason   Reason
	Error    string // of the last attempt
	Stack    string // of its panic; from [DeadLetters.Get] alone
	Attempts int    // entries into the handler

	FirstAt time.Time // when it was parked first
	LastAt  time.Time // when it failed for the last time
	DueAt   time.Time // when it runs again; zero for a dead letter, and for one that waits for something else

	Edited  bool // by [DeadLetters.Edit]; the header [HeaderEdited] says when and by whom
	InDoubt bool // an attempt may have had an effect outside the database

	digest []byte // of what it said before it was edited; nil: of Payload
}

// A DeadFilter picks dead letters. They match all of its fields that are not
// zero; the zero DeadFilter picks every one.
type DeadFilter struct {
	IDs       []int64
	State     LetterState // of [DeadLetters.List] and [DeadLetters.Count]; default: LetterDead
	Step      string
	Kind      string // action, compensation or unknown
	Reason    Reason
	Error     string // a part of the error, in its very letters
	Scope     string
	Key       string // the idempotency key, without a step
	Topic     string
	MessageID string
	Older     time.Duration // failed for the last time at least this long ago
	Newer     time.Duration // failed for the last time at most this long ago
}

// DeadLettersOptions are what most callers leave alone.
type DeadLettersOptions struct {
	Schema string // Postgres schema of the inbox; default: sagamill
}

// DeadLetters are the parked messages of a schema, for the operator: it needs no
// [Consumer]. What it does is seen by consumers that run, and done once, however
// many operators do it at the same time. Any number of goroutines may use it.
//
// What changes letters does so in batches of 500, each in a transaction. An error
// comes with the count of what is known to be done. It leaves open whether its own
// batch was: repeat the call, which leaves out what is. Each transaction that has
// changed something has left a row in the journal, and no other has: see
// [outbox.ReadJournal].
type DeadLetters struct {
	db       *pgxpool.Pool
	sql      letterQueries
	operator outbox.Operator
	pause    func(ctx context.Context, d time.Duration) // between batches of a limited rate
}

// NewDeadLetters returns those of a schema. A nil opts means the defaults. Its only
// error names a schema that is not a plain identifier, or a missing pool.
func NewDeadLetters(db *pgxpool.Pool, opts *DeadLettersOptions) (*DeadLetters, error) {
	o := DeadLettersOptions{}
	if opts != nil {
		o = *opts
	}
	o.Schema = cmp.Or(o.Schema, sqlschema.Default)
	if db == nil {
		return nil, errors.New("consumer: NewDeadLetters needs a pool")
	}
	if err := sqlschema.Check(o.Schema); err != nil {
		return nil, fmt.Errorf("consumer: option Schema: %w", err)
	}
	wait := func(ctx context.Context, d time.Duration) { pause(ctx, d, nil, false) }
	return &DeadLetters{db: db, sql: newLetterQueries(o.Schema), pause: wait}, nil
}

// As returns d as used by o: the journal says so.
func (d *DeadLetters) As(o outbox.Operator) *DeadLetters {
	as := *d
	as.operator = o
	return &as
}

// note writes what d's operator has done in tx, unless it was nothing.
func (d *DeadLetters) note(ctx context.Context, tx pgx.Tx, verb string, what map[string]string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, d.sql.insertJournal, journal.Args(d.operator.By, d.operator.Why, verb, what, ids)...)
	return err
}

// what is f for the journal, with what else was asked for.
func (f *DeadFilter) what(more ...string) map[string]string {
	return journal.What(append(more, "step", f.Step, "kind", f.Kind, "reason", string(f.Reason), "error", f.Error, "scope", f.Scope, "key", f.Key,
		"topic", f.Topic, "message", f.MessageID, "older", sayAge(f.Older), "newer", sayAge(f.Newer))...)
}

func sayAge(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// List returns letters in the order in which they were parked first, from the one
// behind the id after on, without payloads and stacks: at most limit, and at most
// [MaxList]. Begin with 0, and go on with the last one's ID.
func (d *DeadLetters) List(ctx context.Context, filter DeadFilter, after int64, limit int) ([]DeadLetter, error) {
	args, err := d.args(ctx, filter, after)
	if err != nil {
		return nil, fmt.Errorf("consumer: list dead letters: %w", sqlschema.Explain(err))
	}
	rows, _ := d.db.Query(ctx, d.sql.list.of(filter.State), append(args, min(limit, MaxList))...)
	letters, err := pgx.CollectRows(rows, scanLetter)
	if err != nil {
		return nil, fmt.Errorf("consumer: list dead letters: %w", sqlschema.Explain(err))
	}
	return letters, nil
}

// Get returns all that is known of a letter, in whichever state. Its error is an
// [ErrNoDeadLetter] if there is none.
func (d *DeadLetters) Get(ctx context.Context, id int64) (DeadLetter, error) {
	rows, _ := d.db.Query(ctx, d.sql.read, id)
	letter, err := pgx.CollectExactlyOneRow(rows, scanLetter)
	if errors.Is(err, pgx.ErrNoRows) {
		return letter, ErrNoDeadLetter
	}
	if err != nil {
		return letter, fmt.Errorf("consumer: read dead letter %d: %w", id, sqlschema.Explain(err))
	}
	return letter, nil
}

// Count counts the letters that filter picks.
func (d *DeadLetters) Count(ctx context.Context, filter DeadFilter) (n int, err error) {
	args, err := d.args(ctx, filter, 0)
	if err == nil {
		err = d.db.QueryRow(ctx, d.sql.count.of(filter.State), args...).Scan(&n)
	}
	if err != nil {
		return 0, fmt.Errorf("consumer: count dead letters: %w", sqlschema.Explain(err))
	}
	return n, nil
}

// RetryNow makes the retrying messages that filter picks due, whatever its State,
// and returns how many. Their attempts stay counted. One that runs at this moment,
// or has a lease for its call, is left out; one that has just been taken to run may be taken once more, which
// costs it an attempt.
func (d *DeadLetters) RetryNow(ctx context.Context, filter DeadFilter) (n int, err error) {
	filter.State = LetterRetrying
	return d.each(ctx, filter, letterBatch, d.changing("dead retry", d.sql.retryNow, &filter))
}

// changing returns what executes a statement that returns the ids of what it has
// changed, which is verb done to what filter picks.
func (d *DeadLetters) changing(verb, statement string, filter *DeadFilter) func(context.Context, []any) (int, int64, error) {
	return func(ctx context.Context, args []any) (int, int64, error) {
		var ids []int64
		err := d.inTx(ctx, func(tx pgx.Tx) (err error) {
			rows, _ := tx.Query(ctx, statement, args...)
			if ids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
				return err
			}
			return d.note(ctx, tx, verb, filter.what(), ids)
		})
		return len(ids), last(ids), err
	}
}

// inTx commits what do does. After an error that is not the server's own it is not
// known whether that has happened.
func (d *DeadLetters) inTx(ctx context.Context, do func(tx pgx.Tx) error) error {
	err := pgx.BeginTxFunc(ctx, d.db, pgx.TxOptions{BeginQuery: sqlBeginLetters}, func(tx pgx.Tx) error {
		if err := do(tx); err != nil {
			return err
		}
		return failpoint.Hit("redrive/before-commit")
	})
	if err != nil {
		return err
	}
	return failpoint.Hit("redrive/after-commit")
}

// Discard removes the dead letters of those ids, which then never run, and returns
// how many there were: an id that is no dead letter, or no longer, is left out. The
// row of the step stays as it is, so that no further copy of the message runs
// either: of an action that is dead nothing is ever known.
func (d *DeadLetters) Discard(ctx context.Context, ids ...int64) (n int, err error) {
	for chunk := range slices.Chunk(ids, letterBatch) {
		done, err := d.DiscardAll(ctx, DeadFilter{IDs: chunk}, nil)
		n += done
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Keep is told, one by one and with payload and stack, of letters that are about to
// be discarded. Its error keeps them, and the others of their transaction, and so does
// half a minute in which it does not return: their rows are locked.
type Keep func(DeadLetter) error

// DiscardAll does what [DeadLetters.Discard] does, with the dead letters that
// filter picks. A keep that is not nil is called before the commit: nothing is
// thrown away that it has not seen, but what it has seen may still be there.
func (d *DeadLetters) DiscardAll(ctx context.Context, filter DeadFilter, keep Keep) (n int, err error) {
	if filter.State == LetterRetrying {
		return 0, errRetrying
	}
	if keep == nil {
		return d.each(ctx, filter, letterBatch, d.changing(verbDiscard, d.sql.discard, &filter))
	}
	return d.each(ctx, filter, keepBatch, func(ctx context.Context, args []any) (n int, behind int64, err error) {
		err = d.inTx(ctx, func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, d.sql.discardKept, args...)
			letters, err := pgx.CollectRows(rows, scanLetter)
			slices.SortFunc(letters, func(a, b DeadLetter) int { return cmp.Compare(a.ID, b.ID) })
			var ids []int64
			for i := 0; err == nil && i < len(letters); i++ {
				ids = append(ids, letters[i].ID)
				err = keep(letters[i])
			}
			n, behind = len(letters), last(ids)
			if err != nil {
				return err
			}
			return d.note(ctx, tx, verbDiscard, filter.what(), ids)
		})
		return n, behind, err
	})
}

// verbDiscard is what the journal says.
const verbDiscard = "dead discard"

// keepBatch is how many letters with payload are discarded in one transaction.
const keepBatch = 16

// errRetrying: discarding one would leave its step retrying, with nobody to do it.
var errRetrying = errors.New("consumer: the message is retrying: make it a dead letter first")

// each lets do work off what filter picks, batch by batch, each of which begins
// behind the last. do returns how many there were, fewer than size at the end, and
// the last one's id. What fails after each has begun is left out, so that what
// fails again meanwhile is not met a second time.
func (d *DeadLetters) each(ctx context.Context, filter DeadFilter, size int, do func(context.Context, []any) (int, int64, error)) (n int, err error) {
	args, err := d.args(ctx, filter, 0)
	for err == nil {
		var done int
		done, args[afterArg], err = bounded(ctx, append(args, size), do)
		if err != nil {
			break
		}
		n += done
		if done < size {
			return n, nil
		}
	}
	return n, fmt.Errorf("consumer: dead letters: %w", sqlschema.Explain(err))
}

func bounded(ctx context.Context, args []any, do func(context.Context, []any) (int, int64, error)) (int, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, letterTimeout)
	defer cancel()
	return do(ctx, args)
}

func last(ids []int64) int64 {
	if len(ids) == 0 {
		return 0
	}
	return slices.Max(ids)
}

// planned lets a statement be planned for its values, each time. A plan for any
// values would sort all letters for every batch.
const planned = pgx.QueryExecModeCacheDescribe

// afterArg is where args has the id after which to look.
const afterArg = 1

// args are those of a statement with what filter picks behind the id after, up to
// now by the database's clock.
func (d *DeadLetters) args(ctx context.Context, f DeadFilter, after int64) ([]any, error) {
	if f.State != "" && f.State != LetterDead && f.State != LetterRetrying {
		return nil, fmt.Errorf("the state %.20q is neither dead nor retrying", f.State)
	}
	if f.Older < 0 || f.Newer < 0 {
		return nil, errors.New("an age is negative")
	}
	var until time.Time
	var since *time.Time
	if err := d.db.QueryRow(ctx, d.sql.readClock, f.Older.Microseconds(), f.Newer.Microseconds()).Scan(&until, &since); err != nil {
		return nil, err
	}
	if f.State == LetterRetrying && f.Older == 0 {
		until = until.AddDate(1, 0, 0) // of what waits for a call in doubt, last_at is ahead: see sqlPostpone
	}
	return []any{planned, after, until, since, f.IDs, f.Step, f.Kind, f.Reason, f.Error, f.Scope, f.Key, f.Topic, []byte(f.MessageID)}, nil
}

func scanLetter(row pgx.CollectableRow) (l DeadLetter, err error) {
	var id []byte
	var names, values [][]byte
	var due *time.Time
	err = row.Scan(&l.ID, &l.State, &l.Kind, &l.Scope, &l.Key, &l.Step, &l.N, &l.Topic, &id, &names, &values, &l.Payload, &l.Size,
		&l.Reason, &l.Error, &l.Stack, &l.Attempts, &l.FirstAt, &l.LastAt, &due, &l.digest, &l.InDoubt)
	l.MessageID, l.Headers = string(id), metadata(names, values)
	l.Edited = l.digest != nil
	if due != nil {
		l.DueAt = *due
	}
	return l, err
}

// metadata is the reverse of headers.
func metadata(names, values [][]byte) message.Metadata {
	m := make(message.Metadata, len(names))
	for i, name := range names {
		m.Set(string(name), string(values[i]))
	}
	return m
}
