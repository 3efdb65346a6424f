package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// pageBytes is how many bytes of payload a preview reads at once, give or take a letter.
const pageBytes = 32 << 20

// keepBatch is the number of letters with payload that one transaction discards.
const keepBatch = 16

// inboxLetters are the dead letters of the table parked.
type inboxLetters struct {
	engine
	sql inboxQueries
}

func newInboxLetters(db *pgxpool.Pool, o Options) *inboxLetters {
	sql := newInboxQueries(o.Schema)
	return &inboxLetters{sql: sql, engine: engine{
		db: pg.NewOwn(db), by: o.By, why: o.Why, begin: sqlBeginLetters, beginRead: o.beginLimitedRead(), insertJournal: sql.insertJournal, pause: backoff.Sleep,
		beforeCommit: func() error { return failpoint.Hit("redrive/before-commit") },
		afterCommit:  func() error { return failpoint.Hit("redrive/after-commit") },
	}}
}

// describeInbox returns f for the journal, with more names and values.
func (f *Filter) describeInbox(more ...string) map[string]string {
	return journal.What(append(more, "step", f.Step, "kind", f.Kind, "reason", string(f.Reason), "error", f.Error, "scope", f.Scope, "key", f.Key,
		"topic", f.Topic, "message", f.MessageID, "older", formatAge(f.Older), "newer", formatAge(f.Newer), "fingerprint", f.Fingerprint, "no_step", formatFlag(f.NoStep),
		"unchanged_since", formatMoment(f.UnchangedSince))...)
}

func (d *inboxLetters) listLetters(ctx context.Context, filter Filter, after int64, limit int) ([]DeadLetter, error) {
	args, err := d.filterArgs(ctx, filter, after)
	if err != nil {
		return nil, fmt.Errorf("operator: list dead letters: %w", sqlschema.Explain(err))
	}
	letters, err := readRows(ctx, &d.engine, d.sql.list.forState(filter.State), append(args, min(limit, MaxList)), scanInboxLetter)
	if err != nil {
		return nil, fmt.Errorf("operator: list dead letters: %w", sqlschema.Explain(err))
	}
	return letters, nil
}

func (d *inboxLetters) getLetter(ctx context.Context, id int64, limit int) (DeadLetter, error) {
	return readLetter(ctx, &d.engine, d.sql.read, id, limit, scanInboxLetter)
}

func (d *inboxLetters) countLetters(ctx context.Context, filter Filter) (n int, err error) {
	args, err := d.filterArgs(ctx, filter, 0)
	if err == nil {
		err = d.readLimited(ctx, func(db querier) error { return db.QueryRow(ctx, d.sql.count.forState(filter.State), args...).Scan(&n) })
	}
	if err != nil {
		return 0, fmt.Errorf("operator: count dead letters: %w", sqlschema.Explain(err))
	}
	return n, nil
}

func (d *inboxLetters) retryLetters(ctx context.Context, filter Filter) (int, error) {
	filter.State = StateRetrying
	return d.changeEach(ctx, filter, batchSize, "dead retry", func(tx pgx.Tx, args []any) ([]int64, error) {
		rows, _ := tx.Query(ctx, d.sql.retryNow, args...)
		return pgx.CollectRows(rows, pgx.RowTo[int64])
	})
}

func (d *inboxLetters) discardLetters(ctx context.Context, filter Filter, keep Keep) (int, error) {
	const verb = "dead discard"
	if keep == nil {
		return d.changeEach(ctx, filter, batchSize, verb, func(tx pgx.Tx, args []any) ([]int64, error) {
			rows, _ := tx.Query(ctx, d.sql.discard, args...)
			return pgx.CollectRows(rows, pgx.RowTo[int64])
		})
	}
	return d.changeEach(ctx, filter, keepBatch, verb, func(tx pgx.Tx, args []any) ([]int64, error) {
		rows, _ := tx.Query(ctx, d.sql.discardKept, args...)
		letters, err := pgx.CollectRows(rows, scanInboxLetter)
		slices.SortFunc(letters, func(a, b DeadLetter) int { return cmp.Compare(a.ID, b.ID) })
		var ids []int64
		for i := 0; err == nil && i < len(letters); i++ {
			ids = append(ids, letters[i].ID)
			err = keep(letters[i])
		}
		return ids, err
	})
}

// changeEach does verb to the letters that filter picks, in batches of size. change executes
// one statement with the args of its batch and returns the ids that it has changed.
func (d *inboxLetters) changeEach(ctx context.Context, filter Filter, size int, verb string, change func(pgx.Tx, []any) ([]int64, error)) (int, error) {
	args, err := d.filterArgs(ctx, filter, 0)
	if err != nil {
		return 0, fmt.Errorf("operator: dead letters: %w", sqlschema.Explain(err))
	}
	total, err := eachBatch(ctx, size, func(ctx context.Context, after int64) (n int, last int64, err error) {
		args[afterArg] = after
		err = d.commitBatch(ctx, verb, filter.describeInbox(), func(tx pgx.Tx) ([]int64, error) {
			ids, err := change(tx, append(args, size))
			n, last = len(ids), largest(ids)
			return ids, err
		})
		return n, last, err
	})
	if err != nil {
		return total, fmt.Errorf("operator: dead letters: %w", sqlschema.Explain(err))
	}
	return total, nil
}

// afterArg is the index of the id in the args of a filter behind which a batch begins.
const afterArg = 1

// filterArgs are the arguments of a statement with the letters that f picks behind the id
// after: those that failed until now by the clock of the database.
func (d *inboxLetters) filterArgs(ctx context.Context, f Filter, after int64) ([]any, error) {
	if f.State != "" && f.State != StateDead && f.State != StateRetrying {
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
	if since != nil && !f.UnchangedSince.IsZero() {
		*since = f.UnchangedSince.Add(-f.Newer)
	}
	if f.Older > 0 && !f.UnchangedSince.IsZero() {
		until = f.UnchangedSince.Add(-f.Older)
	}
	if f.State == StateRetrying && f.Older == 0 {
		until = until.AddDate(1, 0, 0) // last_at of a message that waits for a call in doubt is in the future
	}
	return []any{plannedAnew, after, until, since, f.IDs, f.Step, f.Kind, f.Reason, f.Error, f.Scope, f.Key, f.Topic, []byte(f.MessageID),
		timeOrNil(f.UnchangedSince), f.Fingerprint, f.NoStep}, nil
}

// dropLastFailure removes the last failure from the earlier ones. It is both while a call is under way, and until the
// call has settled: see inbox.SQLKeepFailure.
func (l *DeadLetter) dropLastFailure() {
	n := len(l.Earlier)
	if n > 0 && (l.Reason == consumer.ReasonCalling || l.Reason == consumer.ReasonUnsettled) && strings.HasPrefix(l.Error, l.Earlier[n-1].Error) {
		l.Earlier = l.Earlier[:n-1]
	}
}

func scanInboxLetter(row pgx.CollectableRow) (l DeadLetter, err error) {
	var id []byte
	var names, values [][]byte
	var due *time.Time
	err = row.Scan(&l.ID, &l.State, &l.Kind, &l.Scope, &l.Key, &l.Step, &l.N, &l.Topic, &id, &names, &values, &l.Payload, &l.Size,
		&l.Reason, &l.Error, &l.Stack, &l.Fingerprint, &l.Attempts, &l.FirstAt, &l.LastAt, &due, &l.digest, &l.InDoubt, &l.Earlier)
	l.Side, l.MessageID, l.Headers = Inbox, string(id), make(message.Metadata, len(names))
	for i, name := range names {
		l.Headers.Set(string(name), string(values[i]))
	}
	l.Edited = l.digest != nil
	l.dropLastFailure()
	if due != nil {
		l.DueAt = *due
	}
	return l, err
}
