package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

// ReasonTooOld is that of a message that may have run already: its step has no
// row, and it is older than what a [Sweeper] has removed, or its age is unknown.
const ReasonTooOld Reason = "too-old"

// since returns a time before which nothing can have moved the row of j's step,
// zero if none is known. For an action that is when it was sent. A compensation
// is younger than its action, whose row may have been removed before it was sent:
// there it is the beginning of the saga.
func (j *job) since() time.Time {
	if j.kind == compensation {
		return sagaSince(j.Metadata.Get(outbox.PropertyCorrelation), j.ID)
	}
	if t, err := time.Parse(time.RFC3339, j.Metadata.Get(outbox.PropertyTimestamp)); err == nil {
		return t
	}
	return uuidTime(j.ID)
}

// sagaSince returns when a saga began, which its id tells if it is a UUIDv7. The
// id of the message itself stands where the sender knew of no saga.
func sagaSince(correlation, messageID string) time.Time {
	if correlation == messageID {
		return time.Time{}
	}
	return uuidTime(correlation)
}

// uuidTime returns the time in a UUIDv7, and the zero time for anything else.
func uuidTime(id string) time.Time {
	u, err := uuid.Parse(id)
	if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
		return time.Time{}
	}
	var ms int64
	for _, b := range u[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms).UTC()
}

// tooOld reports whether the step may once have had another row than c: there is
// none, or one that a count ahead of an attempt has inserted, and one that was
// moved for a may have been removed. Without a horizon nothing was.
func tooOld(c cell, a arrival) bool {
	return (c.state == absent || c.state == open) && !c.horizon.IsZero() && a.since.Before(c.horizon)
}

func tooOldError(j *job, horizon time.Time) error {
	since, what := j.since(), "message"
	if j.kind == compensation {
		what = "saga"
	}
	if since.IsZero() {
		return fmt.Errorf("consumer: the inbox has no row of the step, those from before %s may have been removed, and the age of the %s is not known: it may have run",
			horizon.UTC().Format(time.RFC3339), what)
	}
	return fmt.Errorf("consumer: the inbox has no row of the step, and those from before %s may have been removed: the %s, of %s, may have run",
		horizon.UTC().Format(time.RFC3339), what, since.UTC().Format(time.RFC3339))
}

// queueHorizon reads the horizon behind the claims in b.
func (c *Consumer) queueHorizon(b *pgx.Batch, jobs []*job) {
	b.Queue(c.retention.readHorizon).QueryRow(func(row pgx.Row) error {
		horizon, err := scanHorizon(row)
		for _, j := range jobs {
			j.found.horizon = horizon
		}
		return err
	})
}

// scanHorizon reads the answer of sqlReadHorizon.
func scanHorizon(row pgx.Row) (time.Time, error) {
	var horizon *time.Time
	err := row.Scan(&horizon)
	if errors.Is(err, pgx.ErrNoRows) {
		err = errors.New("table inbox_horizon is empty")
	}
	if err != nil || horizon == nil {
		return time.Time{}, err
	}
	return *horizon, nil
}

// buryTooOld makes a dead letter of j, once for each message, and leaves the
// step's row absent: what is true of j is true of the step's other message, too.
func (c *Consumer) buryTooOld(ctx context.Context, tx pgx.Tx, j *job, found cell) error {
	kept, err := c.keptTooOld(ctx, tx, j)
	if err == nil && !kept {
		f := failure{reason: ReasonTooOld, dead: true, err: tooOldError(j, found.horizon), attempts: j.attempts(found)}
		if !j.exhausted {
			f.attempts-- // the entry that is to come does not
		}
		err = c.park(ctx, tx, j, f)
	}
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, c.sql.unclaim, identityColumns([]*job{j})...); err != nil {
		return fmt.Errorf("consumer: take claim back: %w", err)
	}
	return nil
}

// keptTooOld reports whether an earlier delivery of j is parked as too old. A
// parked copy stays itself.
func (c *Consumer) keptTooOld(ctx context.Context, tx pgx.Tx, j *job) (kept bool, err error) {
	if j.parked != nil {
		return false, nil
	}
	args := append(j.identity(), j.kind, ReasonTooOld, bytesOf(j.Payload))
	if err := tx.QueryRow(ctx, c.retention.hasTooOld, args...).Scan(&kept); err != nil {
		return false, fmt.Errorf("consumer: look for dead letter: %w", err)
	}
	return kept, nil
}
