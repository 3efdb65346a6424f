package operator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// outboxIdle is the limit for an idle transaction on the outbox, in milliseconds. A process
// that stops in the middle of one loses its locks then. Those of a burial keep the relay
// from storing anything.
const outboxIdle = "10000"

// outboxLetters are the dead letters of the table outbox_held.
type outboxLetters struct {
	engine
	sql outboxQueries
}

func newOutboxLetters(db *pgxpool.Pool, o Options) *outboxLetters {
	sql := newOutboxQueries(o.Schema)
	return &outboxLetters{sql: sql, engine: engine{
		db: pg.NewOwn(db), by: o.By, why: o.Why, begin: outboxsql.Begin + outboxIdle, beginRead: o.beginLimitedRead(), insertJournal: sql.insertJournal, pause: backoff.Sleep,
		beforeCommit: func() error { return failpoint.Hit("redrive/outbox-before-commit") },
		afterCommit:  func() error { return failpoint.Hit("redrive/outbox-after-commit") },
	}}
}

// describeOutbox returns f for the journal.
func (f *Filter) describeOutbox() map[string]string {
	return journal.What("message", f.MessageID, "topic", f.Topic, "scope", f.Scope, "key", f.Key, "reason", f.Error, "older", formatAge(f.Older),
		"step", f.Step, "fingerprint", f.Fingerprint, "no_step", formatFlag(f.NoStep), "unchanged_since", formatMoment(f.UnchangedSince))
}

func (d *outboxLetters) listLetters(ctx context.Context, filter Filter, after int64, limit int) ([]DeadLetter, error) {
	statement := d.sql.list
	if filter.State == StateRetrying {
		statement = d.sql.listRetrying
	}
	args, err := d.filterArgs(ctx, filter, after, false)
	if err != nil {
		return nil, fmt.Errorf("operator: list dead letters: %w", sqlschema.Explain(err))
	}
	letters, err := readRows(ctx, &d.engine, statement, append(args, min(limit, MaxList)), scanOutboxLetter)
	if err != nil {
		return nil, fmt.Errorf("operator: list dead letters: %w", sqlschema.Explain(err))
	}
	return letters, nil
}

func (d *outboxLetters) getLetter(ctx context.Context, id int64, limit int) (DeadLetter, error) {
	return readLetter(ctx, &d.engine, d.sql.read, id, limit, scanOutboxLetter)
}

func (d *outboxLetters) countLetters(ctx context.Context, filter Filter) (n int, err error) {
	statement := d.sql.count
	if filter.State == StateRetrying {
		statement = d.sql.countRetrying
	}
	args, err := d.filterArgs(ctx, filter, 0, false)
	if err == nil {
		err = d.readLimited(ctx, func(db querier) error { return db.QueryRow(ctx, statement, args...).Scan(&n) })
	}
	if err != nil {
		return 0, fmt.Errorf("operator: count dead letters: %w", sqlschema.Explain(err))
	}
	return n, nil
}

func (d *outboxLetters) retryLetters(context.Context, Filter) (int, error) {
	return 0, errInboxOnly("RetryNow")
}

func (d *outboxLetters) editLetter(context.Context, int64, Edit) (was, is DeadLetter, err error) {
	return was, is, errInboxOnly("Edit")
}

// errInboxOnly reports a method or an option that only the inbox has.
func errInboxOnly(name string) error { return fmt.Errorf("operator: %s is for the inbox only", name) }

// previewRedrive lists the letters that a redrive publishes: all that filter picks.
func (d *outboxLetters) previewRedrive(ctx context.Context, filter Filter, o PreviewOptions, each func(Preview) error) (Outcomes, error) {
	if o.Force || o.Consumer != nil {
		return Outcomes{}, errInboxOnly("an option of a preview")
	}
	counts := Outcomes{}
	for after := int64(0); ; {
		letters, err := d.listLetters(ctx, filter, after, batchSize)
		if err != nil {
			return counts, err
		}
		for _, l := range letters {
			counts[OutcomeRun]++
			after = l.ID
			if each == nil {
				continue
			}
			if err := each(Preview{DeadLetter: l, Outcome: OutcomeRun, Why: whyPublished}); err != nil {
				return counts, fmt.Errorf("operator: preview: %w", err)
			}
		}
		if len(letters) < batchSize {
			return counts, nil
		}
	}
}

// whyPublished explains the outcome of a letter of the outbox.
const whyPublished = "the relay publishes it again"

func (d *outboxLetters) redriveLetters(ctx context.Context, filter Filter, o RedriveOptions) (Outcomes, error) {
	counts := Outcomes{}
	if o.Force {
		return counts, errInboxOnly("RedriveOptions.Force")
	}
	report := func(n int) {
		if counts[OutcomeRun] += n; o.Progress != nil {
			o.Progress(Outcomes{OutcomeRun: counts[OutcomeRun]})
		}
	}
	_, err := d.changeEach(ctx, filter, outboxVerb{name: "outbox dead redrive", statement: d.sql.redrive, rate: rate(o.Rate), report: report})
	return counts, err
}

func (d *outboxLetters) discardLetters(ctx context.Context, filter Filter, keep Keep) (int, error) {
	if keep != nil {
		return 0, errInboxOnly("a Keep")
	}
	return d.changeEach(ctx, filter, outboxVerb{name: "outbox dead discard", statement: d.sql.discard})
}

func (d *outboxLetters) buryLetters(ctx context.Context, filter Filter) (int, error) {
	filter.State = StateRetrying
	return d.changeEach(ctx, filter, outboxVerb{name: "outbox refused release", statement: d.sql.bury, lead: true})
}

// An outboxVerb changes letters with one statement.
type outboxVerb struct {
	name      string // for the journal
	statement string
	lead      bool // other messages may wait behind the letters
	rate      rate
	report    func(n int) // called after each COMMIT; may be nil
}

// changeEach does v to the letters that filter picks, batch by batch. It leaves out letters
// that were refused after it began, unless filter names their ids.
func (d *outboxLetters) changeEach(ctx context.Context, filter Filter, v outboxVerb) (int, error) {
	args, err := d.filterArgs(ctx, filter, 0, len(filter.IDs) == 0)
	if err != nil {
		return 0, fmt.Errorf("operator: dead letters: %w", sqlschema.Explain(err))
	}
	size := v.rate.batchSize(batchSize)
	total, err := eachBatch(ctx, size, func(work context.Context, after int64) (n int, last int64, err error) {
		args[afterArg] = after
		var ids []int64
		err = d.commitBatch(work, v.name, filter.describeOutbox(), func(tx pgx.Tx) (_ []int64, err error) {
			ids, err = d.changeBatch(work, tx, v, append(args, size))
			return ids, err
		})
		if err != nil {
			return 0, 0, err
		}
		if v.report != nil {
			v.report(len(ids))
		}
		if len(ids) == size {
			d.keepRate(ctx, v.rate, size)
		}
		return len(ids), largest(ids), nil
	})
	if err != nil {
		return total, fmt.Errorf("operator: dead letters: %w", sqlschema.Explain(err))
	}
	return total, nil
}

// changeBatch changes one batch and returns the ids. If messages may wait behind the letters, it
// makes the first message of each ordering key due. The relay waits for this transaction, and its lease would run out
// while the transaction waits for a person's lock. So it gives up after lockPatience.
func (d *outboxLetters) changeBatch(ctx context.Context, tx pgx.Tx, v outboxVerb, args []any) (ids []int64, err error) {
	if v.lead {
		if _, err := tx.Exec(ctx, d.sql.lockLease); err != nil {
			return nil, err
		}
		if _, err := tx.Exec(ctx, d.sql.limitLocks, strconv.FormatInt(lockPatience.Milliseconds(), 10)); err != nil {
			return nil, err
		}
	}
	rows, _ := tx.Query(ctx, v.statement, args...)
	var keys []string
	var id int64
	var key string
	_, err = pgx.ForEachRow(rows, []any{&id, &key}, func() error {
		ids, keys = append(ids, id), append(keys, key)
		return nil
	})
	if err == nil && v.lead {
		_, err = tx.Exec(ctx, d.sql.promote, keys)
	}
	if failure := (*pgconn.PgError)(nil); v.lead && errors.As(err, &failure) && failure.Code == lockNotAvailable {
		err = fmt.Errorf("another session has locked a message, or one that waits behind it; try again after its transaction: %w", err)
	}
	return ids, err
}

// lockNotAvailable is PostgreSQL's code for a lock that was not granted in time.
const lockNotAvailable = "55P03"

// filterArgs are the arguments of a statement with the letters that f picks behind the id
// after. With onlyBefore it excludes letters that are refused from now on by the clock of the
// database; a list includes those.
func (d *outboxLetters) filterArgs(ctx context.Context, f Filter, after int64, onlyBefore bool) ([]any, error) {
	switch {
	case f.Kind != "" || f.Reason != "" || f.Newer != 0:
		return nil, errInboxOnly("a filter by Kind, Reason or Newer")
	case f.State != "" && f.State != StateDead && f.State != StateRetrying:
		return nil, fmt.Errorf("the state %.20q is neither dead nor retrying", f.State)
	case f.Older < 0:
		return nil, errors.New("an age is negative")
	}
	var message *uuid.UUID
	if f.MessageID != "" {
		id, err := uuid.Parse(f.MessageID)
		if err != nil {
			return nil, fmt.Errorf("%w: MessageID is not a UUID", ErrInvalid)
		}
		message = &id
	}
	until := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	if onlyBefore || f.Older > 0 {
		if err := d.db.QueryRow(ctx, d.sql.readClock, f.Older.Microseconds()).Scan(&until); err != nil {
			return nil, err
		}
	}
	if f.Older > 0 && !f.UnchangedSince.IsZero() {
		until.Time = f.UnchangedSince.Add(-f.Older)
	}
	return []any{plannedAnew, after, until, f.IDs, message, f.Topic, f.Scope, f.Key, f.Error, f.Step,
		timeOrNil(f.UnchangedSince), f.Fingerprint, f.NoStep}, nil
}

func scanOutboxLetter(row pgx.CollectableRow) (l DeadLetter, err error) {
	var message uuid.UUID
	var retryAt *time.Time
	err = row.Scan(&l.ID, &message, &l.Topic, &l.Type, &l.Scope, &l.Key, &l.Step, &l.N, &l.OrderingKey,
		&l.CorrelationID, &l.CausationID, &l.ContentType, &l.HeadersJSON, &l.Payload, &l.Size, &l.FirstAt,
		&l.Attempts, &l.Error, &l.Fingerprint, &l.LastAt, &retryAt)
	l.Side, l.State, l.MessageID = Outbox, StateDead, message.String()
	if retryAt != nil {
		l.State, l.DueAt = StateRetrying, *retryAt
	}
	return l, err
}
