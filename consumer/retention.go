package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// The defaults and limits of [SweeperOptions].
const (
	DefaultRetention     = 30 * 24 * time.Hour
	DefaultSweepInterval = 15 * time.Minute

	// MinRetention is shorter than brokers take to redeliver a message.
	MinRetention = time.Hour

	// ClockSkew is how far the clock of a sender may be ahead of the database's.
	ClockSkew = 5 * time.Minute
)

const (
	// sweepBlocks is how many blocks of the inbox are searched at a time: half a megabyte, some thousand rows.
	sweepBlocks = 64

	// sweepRetry is the longest wait after the first failed pass.
	sweepRetry = time.Second

	// sweepRest is the longest wait for rows to become old enough.
	sweepRest = 24 * time.Hour
)

// SweeperOptions configure a [Sweeper]. The zero value works.
type SweeperOptions struct {
	Schema    string        // PostgreSQL schema of the inbox; default: sagamill
	Retention time.Duration // time for which an inbox row is kept after its last change; default: 30 days, at least MinRetention
	Interval  time.Duration // average pause between two passes of the sweeper; each pause is between 0.5 and 1.5 times Interval; default: 15 min

	Observer SweepObserver // Observer is called after each pass, also after a failed pass; default: none
	Logger   *slog.Logger  // Logger gets the errors of failed passes; default: slog.Default()
}

// A SweepObserver sees each pass, failed ones included.
type SweepObserver interface {
	Swept(ctx context.Context, pass Swept)
}

// Swept is the result of a pass.
type Swept struct {
	Removed int
	Horizon time.Time // as far as rows may be gone; zero: none has ever been removed
	Took    time.Duration
}

// A Sweeper removes the rows of steps that ended long ago. Without one the inbox keeps them for good.
//
// It never makes a step run twice. Before it removes rows, it commits to the table inbox_horizon that rows from
// before a certain time may be gone. A message that is older than that time and finds no row may have run: it
// becomes a dead letter (too-old). The horizon goes only as far as rows are really removed. So a message that waited
// out an outage of its consumer does not count as too old. This rests on two rules:
//
//   - A message says when it was sent, in its timestamp or in an id that is a UUIDv7. The sender's clock is at
//     most [ClockSkew] ahead of the database's. A message that its sender sends again with a new time is a new
//     message.
//   - A compensation says when its saga began, in a correlation id that is a UUIDv7 and no younger than the
//     action. If the step has no row, a compensation of an older saga becomes a dead letter; it does not count as
//     a step without anything to undo.
//
// So Retention must exceed the longest time between a step's action and its compensation, and the longest stay of a
// message in a queue. A message with an [outbox.Message.Delay] was sent when it was due.
//
// Rows stay while a message of the step is parked, dead letters included. Any number of sweepers, with different
// settings, may work beside any number of consumers. A sweeper skips a pass that another one has just made, and two
// at once skip each other's rows. A crash at any point leaves rows for the next pass.
type Sweeper struct {
	db   pg.Own
	opts SweeperOptions
	sql  retentionQueries
}

// NewSweeper returns a Sweeper of the inbox in db. It starts nothing: call [Sweeper.Run], or [Sweeper.Sweep] now and
// then. A nil opts means the defaults. An error names the option that is wrong.
func NewSweeper(db *pgxpool.Pool, opts *SweeperOptions) (*Sweeper, error) {
	if db == nil {
		return nil, errors.New("consumer: NewSweeper needs a pool")
	}
	s := &Sweeper{db: pg.NewOwn(db)}
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	o.Schema = cmp.Or(o.Schema, sqlschema.Default)
	o.Retention = cmp.Or(o.Retention, DefaultRetention)
	o.Interval = cmp.Or(o.Interval, DefaultSweepInterval)
	o.Logger = guard.Logger(cleantext.Logger(cmp.Or(o.Logger, slog.Default())))
	if err := sqlschema.Check(o.Schema); err != nil {
		return nil, fmt.Errorf("consumer: option Schema: %w", err)
	}
	switch {
	case o.Retention < MinRetention:
		return nil, fmt.Errorf("consumer: option Retention: %s is less than %s", o.Retention, MinRetention)
	case o.Interval < time.Millisecond:
		return nil, fmt.Errorf("consumer: option Interval: %s is less than a millisecond", o.Interval)
	}
	s.sql = newRetentionQueries(o.Schema)
	return s, nil
}

// Run makes passes until ctx ends, and then returns nil. A statement under way is cancelled, and its rows stay for
// the next pass. A failed pass is logged and repeated, first within a second and at last after the interval.
func (s *Sweeper) Run(ctx context.Context) error {
	wait, failures := s.jitterInterval(), 0
	for {
		if backoff.Sleep(ctx, wait) != nil {
			return nil
		}
		var rest time.Duration
		err := guard.Call(func() (err error) {
			rest, err = s.sweepIfDue(ctx)
			return err
		})
		switch {
		case err == nil:
			wait, failures = max(s.jitterInterval(), rest), 0
		case ctx.Err() == nil:
			failures++
			s.opts.Logger.ErrorContext(ctx, "consumer: old rows of the inbox could not be deleted, trying again later", "failures", failures, "error", sqlschema.Explain(err))
			wait = backoff.Policy{Base: min(sweepRetry, s.opts.Interval), Cap: s.opts.Interval}.Wait(failures)
		}
	}
}

// jitterInterval spreads the passes of processes that were started together.
func (s *Sweeper) jitterInterval() time.Duration { return s.opts.Interval/2 + rand.N(s.opts.Interval) }

// sweepIfDue makes a pass, unless another sweeper has begun one so recently that this one would find nothing. It
// returns how long the next one would find nothing.
func (s *Sweeper) sweepIfDue(ctx context.Context) (rest time.Duration, err error) {
	p, err := s.planSweep(ctx)
	if err != nil || p.horizon.After(p.before.Add(ClockSkew-s.opts.Interval/2)) {
		return 0, err
	}
	err = s.walkBlocks(ctx, p)
	if err == nil && !p.oldest.IsZero() {
		rest = min(p.oldest.Sub(p.before), sweepRest)
	}
	return rest, err
}

// Sweep makes one pass, for a program that is started now and then, and returns how many rows it has removed. After
// an error it has removed that many; the others stay, and nothing else is wrong.
func (s *Sweeper) Sweep(ctx context.Context) (removed int, err error) {
	p, err := s.planSweep(ctx)
	if err == nil {
		err = s.walkBlocks(ctx, p)
	}
	return p.removed, err
}

// A sweepPass is a walk through the inbox.
type sweepPass struct {
	before  time.Time // rows that were moved last before it go
	blocks  int64     // those behind are younger than the pass
	horizon time.Time
	oldest  time.Time // of the rows that were too young; zero: none
	removed int
}

func (s *Sweeper) planSweep(ctx context.Context) (*sweepPass, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	p := &sweepPass{}
	var horizon *time.Time
	err := s.db.QueryRow(ctx, s.sql.planSweep, s.opts.Retention.Microseconds()).Scan(&p.before, &p.blocks, &horizon)
	if err != nil {
		return p, fmt.Errorf("consumer: plan sweep: %w", err)
	}
	if horizon != nil {
		p.horizon = *horizon
	}
	return p, nil
}

// walkBlocks goes through the inbox in the order of its pages. There is no index on updated_at: it would cost every
// step, and prevent in-place updates of its row. After each stretch it pauses for as long as the stretch took, so
// that it never uses more than half of one connection.
func (s *Sweeper) walkBlocks(ctx context.Context, p *sweepPass) (err error) {
	start := time.Now()
	for block := int64(0); block < p.blocks && err == nil; block += sweepBlocks {
		began := time.Now()
		if err = s.sweepStretch(ctx, p, block); err == nil {
			_ = backoff.Sleep(ctx, time.Since(began))
			err = ctx.Err()
		}
	}
	if s.opts.Observer != nil {
		pass := Swept{Removed: p.removed, Horizon: p.horizon, Took: time.Since(start)}
		guard.Hook(ctx, s.opts.Logger, "consumer: option Observer", func() { s.opts.Observer.Swept(ctx, pass) })
	}
	return err
}

// sweepStretch removes the old rows of some blocks in three transactions: it finds them, raises the horizon over
// them, and removes those that are still old.
func (s *Sweeper) sweepStretch(ctx context.Context, p *sweepPass, block int64) error {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	from, to := blockStart(block), blockStart(block+sweepBlocks)
	var last, oldest *time.Time
	if err := s.db.ScanByIndex(ctx, []any{&last, &oldest}, s.sql.findOld, from, to, p.before); err != nil {
		return fmt.Errorf("consumer: find old rows: %w", err)
	}
	if oldest != nil && (p.oldest.IsZero() || oldest.Before(p.oldest)) {
		p.oldest = *oldest
	}
	if last == nil {
		return nil
	}
	if err := s.raiseHorizon(ctx, p, last.Add(ClockSkew)); err != nil {
		return err
	}
	tag, err := s.db.ExecByIndex(ctx, s.sql.removeOld, from, to, p.before, ClockSkew.Microseconds())
	if err != nil {
		return fmt.Errorf("consumer: remove old rows: %w", err)
	}
	p.removed += int(tag.RowsAffected())
	return nil
}

// raiseHorizon makes sure that the horizon is at least at.
func (s *Sweeper) raiseHorizon(ctx context.Context, p *sweepPass, at time.Time) error {
	if !p.horizon.Before(at) {
		return nil
	}
	if _, err := s.db.Exec(ctx, s.sql.raiseHorizon, at); err != nil {
		return fmt.Errorf("consumer: raise horizon: %w", err)
	}
	p.horizon = at
	return nil
}

// blockStart is the place before the first row of a block.
func blockStart(block int64) pgtype.TID {
	return pgtype.TID{BlockNumber: uint32(min(block, 1<<32-1)), Valid: true}
}

// sqlPlanSweep reads three values: the time before which a row must have been moved last to be removed ($1
// microseconds ago), the end of the inbox in blocks, and its horizon.
const sqlPlanSweep = `
SELECT clock_timestamp() - $1 * interval '1 microsecond',
	pg_relation_size('{schema}.inbox') / current_setting('block_size')::bigint,
	nullif(swept_before, '-infinity')
FROM {schema}.inbox_horizon`

// sqlRemovable is the condition on a row i that only a redelivery can still touch. A row with a parked message stays
// as long as the message. The scalar subquery, unlike NOT EXISTS, cannot become a join that reads all of parked for
// every few blocks.
const sqlRemovable = `i.state NOT IN ('retrying', 'undoing') AND (
	SELECT p.id FROM {schema}.parked AS p
	WHERE p.scope = i.scope AND p.key = i.key AND p.step = i.step AND p.n = i.n LIMIT 1) IS NULL`

// sqlFindOld searches the blocks from $1 to $2 for rows that were moved last before $3. It reads when the last of
// them was moved, null if there is none to remove, and when the first of the others was. It takes no lock.
const sqlFindOld = `
SELECT max(i.updated_at) FILTER (WHERE i.updated_at < $3 AND ` + sqlRemovable + `),
	min(i.updated_at) FILTER (WHERE i.updated_at >= $3)
FROM {schema}.inbox AS i
WHERE i.ctid >= $1::tid AND i.ctid < $2::tid`

// sqlRaiseHorizon raises the horizon to $1 and never lowers it: of two at once the second compares with the
// committed value of the first. The caller commits it before it removes anything.
const sqlRaiseHorizon = `
UPDATE {schema}.inbox_horizon
SET swept_before = $1
WHERE swept_before < $1`

// sqlRemoveOld removes rows from the blocks from $1 to $2 that were moved last before $3 and at least $4 microseconds
// before the committed horizon. It skips rows that a consumer or another sweeper has locked. A row that was moved
// meanwhile is no longer old.
const sqlRemoveOld = `
WITH old AS MATERIALIZED (
	SELECT i.ctid FROM {schema}.inbox AS i
	WHERE i.ctid >= $1::tid AND i.ctid < $2::tid AND i.updated_at < $3
		AND i.updated_at <= (SELECT swept_before - $4 * interval '1 microsecond' FROM {schema}.inbox_horizon)
		AND ` + sqlRemovable + `
	FOR UPDATE OF i SKIP LOCKED)
DELETE FROM {schema}.inbox WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))`

// sqlHasTooOld reports, under the step's row lock, whether the message is already a dead letter, or one that was
// redriven.
const sqlHasTooOld = `
SELECT EXISTS (
	SELECT FROM {schema}.parked
	WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND kind = $5 AND reason = $6 AND payload = $7)`

type retentionQueries struct {
	readHorizon, hasTooOld                      string
	planSweep, findOld, raiseHorizon, removeOld string
}

func newRetentionQueries(schema string) retentionQueries {
	bind := func(statement string) string { return sqlschema.Bind(schema, statement) }
	return retentionQueries{
		readHorizon: bind(inbox.SQLReadHorizon), hasTooOld: bind(sqlHasTooOld),
		planSweep: bind(sqlPlanSweep), findOld: bind(sqlFindOld), raiseHorizon: bind(sqlRaiseHorizon), removeOld: bind(sqlRemoveOld),
	}
}
