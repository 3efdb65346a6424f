package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// The words of the state machine, which is in package inbox.
type (
	kind    = inbox.Kind
	state   = inbox.State
	verdict = inbox.Verdict
)

const (
	action       = inbox.Action
	compensation = inbox.Compensation

	absent      = inbox.Absent
	open        = inbox.Open
	retrying    = inbox.Retrying
	dead        = inbox.Dead
	done        = inbox.Done
	refused     = inbox.Refused
	void        = inbox.Void
	undoing     = inbox.Undoing
	undoDead    = inbox.UndoDead
	compensated = inbox.Compensated

	run        = inbox.Run
	duplicate  = inbox.Duplicate
	superseded = inbox.Superseded
	tombstone  = inbox.Tombstone
	wait       = inbox.Wait
	refuse     = inbox.Refuse
	queue      = inbox.Queue
	reused     = inbox.Reused
	outlived   = inbox.Outlived
)

// parkedState is the state of a step whose message has not run to success: it
// is parked, or a dead letter.
func parkedState(k kind, isDead bool) state { return inbox.ParkedState(k, isDead) }

// cell is a row of the inbox as its lock found it.
type cell struct {
	state        state
	attempts     int
	undoAttempts int
	digest       []byte // nil until an action was recorded
	undoDigest   []byte // nil until a compensation was recorded
	horizon      time.Time
}

// entries are those of the handler for k.
func (c *cell) entries(k kind) int {
	if k == compensation {
		return c.undoAttempts
	}
	return c.attempts
}

// arrival is a message that wants to move a cell.
type arrival struct {
	kind         kind
	digest       []byte
	parked       bool // it is the parked copy, not a delivery
	cancelParked bool // Step.CancelParked
	behind       bool // an earlier message of the key has to run first
	since        time.Time
}

// decide is the step's state machine. All that it knows was read under the
// row's lock.
func decide(c cell, a arrival) verdict {
	return inbox.Decide(
		inbox.Cell{State: c.state, Attempts: c.attempts, Digest: c.digest, UndoDigest: c.undoDigest},
		inbox.Arrival{Kind: a.kind, Digest: a.digest, Parked: a.parked, CancelParked: a.cancelParked, Behind: a.behind, TooOld: tooOld(c, a)})
}

func (j *job) arrival() arrival {
	return arrival{kind: j.kind, digest: j.digest, parked: j.parked != nil, cancelParked: j.step.CancelParked, behind: j.behind, since: j.since()}
}

// attempts returns how many entries into the handler there were, the present
// one included.
func (j *job) attempts(c cell) int {
	n := c.entries(j.kind)
	switch {
	case j.parked != nil:
		n = j.parked.attempts
	case !j.counted:
		n++
	default:
		n = max(n, 1) // the row that has counted it may have been swept since
	}
	if j.exhausted {
		n--
	}
	return n
}

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

// readCommitted makes each statement see what was committed before it: a claim
// that meets another's row must be able to read it. A database may have another
// default.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// errVanished reports that a row that kept a claim from being inserted was gone
// when it was to be locked: it has been swept in between.
var errVanished = errors.New("consumer: a row of the inbox was removed while it was claimed")

// open begins a transaction on conn and claims jobs' rows in it, whose
// identities differ, in one round trip, or two where rows of several jobs exist. The
// jobs then know what was found. A savepoint follows the claims: what fails falls
// back to it.
func (c *Consumer) open(ctx context.Context, conn *pgx.Conn, jobs []*job) (pgx.Tx, error) {
	for _, j := range jobs {
		j.older, j.found, j.behind = false, cell{}, false
		j.emits(nil)
	}
	b := &pgx.Batch{}
	b.BeginTx(readCommitted)
	inserted := c.queueClaims(b, jobs)
	alone := len(jobs) == 1
	if alone {
		b.Queue(c.sql.lockOlder, jobs[0].identity()...).Query(jobs[0].readFound)
	}
	c.queueHorizon(b, jobs)
	var xid uint32
	b.Queue(c.sql.openClaims, milliseconds(idleLimit(jobs))).QueryRow(func(row pgx.Row) error { return row.Scan(&xid, nil) })
	c.queueBehind(b, jobs)
	b.Queue("SAVEPOINT " + savepointFor(jobs))
	results := conn.SendBatch(ctx, b)
	err := results.Close()
	if err != nil {
		c.abandon(ctx, conn)
		return nil, fmt.Errorf("consumer: claim steps: %w", err)
	}
	for _, j := range jobs {
		j.xid = xid
	}
	tx := results.Tx()
	if err := c.checkClaims(ctx, tx, jobs, int(*inserted)); err != nil {
		c.abandon(ctx, conn)
		return nil, err
	}
	return tx, nil
}

// savepointFor returns the savepoint that open sets for jobs.
func savepointFor(jobs []*job) string {
	if len(jobs) == 1 {
		return stepSavepoint
	}
	return batchSavepoint
}

// queueClaims inserts the jobs' rows as if they had succeeded already, in the
// order of their identities, so that two batches never wait for each other. It
// returns where the number of those that were absent is going to be.
func (c *Consumer) queueClaims(b *pgx.Batch, jobs []*job) *int64 {
	inserted := new(int64)
	sorted := slices.SortedFunc(slices.Values(jobs), compareIdentity)
	count := func(rows pgx.Rows) error {
		rows.Close()
		*inserted = rows.CommandTag().RowsAffected()
		return rows.Err()
	}
	if len(sorted) == 1 {
		b.Queue(c.sql.claimOne, sorted[0].claim()...).Query(count)
		return inserted
	}
	b.Queue(c.sql.claimMany, claimColumns(sorted)...).Query(count)
	return inserted
}

// queueBehind reads which jobs of ordered steps have to wait behind a parked one.
func (c *Consumer) queueBehind(b *pgx.Batch, jobs []*job) {
	ordered := slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool { return !j.step.Ordered })
	if len(ordered) == 0 {
		return
	}
	b.Queue(c.sql.readBehind, identityColumns(ordered)...).Query(func(rows pgx.Rows) error {
		var ordinal int
		_, err := pgx.ForEachRow(rows, []any{&ordinal}, func() error {
			ordered[ordinal-1].behind = true
			return nil
		})
		return err
	})
}

// checkClaims makes sure that each job's row is either its own or locked.
func (c *Consumer) checkClaims(ctx context.Context, tx pgx.Tx, jobs []*job, inserted int) error {
	if len(jobs) > 1 && inserted < len(jobs) {
		if err := c.lockOlder(ctx, tx, jobs); err != nil {
			return err
		}
	}
	for _, j := range jobs {
		if j.older {
			inserted++
		}
	}
	if inserted != len(jobs) {
		return errVanished
	}
	return nil
}

// lockOlder locks those rows of jobs that had been there before, in the order of
// their identities.
func (c *Consumer) lockOlder(ctx context.Context, tx pgx.Tx, jobs []*job) error {
	sorted := slices.SortedFunc(slices.Values(jobs), compareIdentity)
	b := &pgx.Batch{}
	b.Queue(c.sql.lockMany, identityColumns(sorted)...).Query(func(rows pgx.Rows) error {
		var ordinal int
		var found cell
		_, err := pgx.ForEachRow(rows, append([]any{&ordinal}, found.columns()...), func() error {
			j := sorted[ordinal-1]
			j.older, j.found = true, found
			return nil
		})
		return err
	})
	c.queueHorizon(b, jobs) // behind what was read now
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("consumer: lock steps: %w", err)
	}
	return nil
}

func (j *job) readFound(rows pgx.Rows) error {
	_, err := pgx.ForEachRow(rows, j.found.columns(), func() error {
		j.older = true
		return nil
	})
	return err
}

// columns are where a row's state, counts and digests are scanned to.
func (c *cell) columns() []any {
	return []any{&c.state, &c.attempts, &c.undoAttempts, &c.digest, &c.undoDigest}
}

// abandon rolls back, and closes the connection if that cannot be done: the
// server then does.
func (c *Consumer) abandon(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || txguard.StatusOf(conn) == txguard.Ended {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), databaseTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
		_ = conn.Close(ctx)
	}
}

func compareIdentity(a, b *job) int {
	return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Step, b.Step), cmp.Compare(a.joinedN(), b.joinedN()))
}

// identity are the columns that name the step's row.
func (j *job) identity() []any { return []any{j.Scope, j.Key, j.Step, j.joinedN()} }

// claim are the columns of a row that did not exist: the action is done, or the
// compensation has found nothing to undo.
func (j *job) claim() []any {
	if j.kind == compensation {
		return append(j.identity(), void, 0, nil, j.digest)
	}
	return append(j.identity(), done, 1, j.digest, nil)
}

// identityColumns are the identities of jobs turned on their side, for unnest.
func identityColumns(jobs []*job) []any {
	columns := make([][]string, 4)
	for _, j := range jobs {
		for i, value := range []string{j.Scope, j.Key, j.Step, j.joinedN()} {
			columns[i] = append(columns[i], value)
		}
	}
	return []any{columns[0], columns[1], columns[2], columns[3]}
}

func claimColumns(jobs []*job) []any {
	var states []string
	var attempts []int
	var digests, undoDigests [][]byte
	for _, j := range jobs {
		to, n, digest, undoDigest := done, 1, j.digest, []byte(nil)
		if j.kind == compensation {
			to, n, digest, undoDigest = void, 0, nil, j.digest
		}
		states, attempts = append(states, string(to)), append(attempts, n)
		digests, undoDigests = append(digests, digest), append(undoDigests, undoDigest)
	}
	return append(identityColumns(jobs), states, attempts, digests, undoDigests)
}

// idleLimit is how long the transaction of jobs may be idle: as long as the
// slowest handler computes.
func idleLimit(jobs []*job) time.Duration {
	longest := time.Duration(0)
	for _, j := range jobs {
		longest = max(longest, j.step.Timeout)
	}
	return longest + databaseTimeout
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

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

var (
	// errGone reports that a parked copy was dealt with by somebody else.
	errGone = errors.New("consumer: the parked copy is gone")

	// errBusy reports that somebody else is at work on a parked copy's step.
	errBusy = errors.New("consumer: the step is locked")
)

// lock claims and locks the step's row, and opens the savepoint that a failing
// handler falls back to, in one round trip. For a parked job it then makes
// sure that the copy is still its own.
func (c *Consumer) lock(ctx context.Context, tx pgx.Tx, j *job) (cell, error) {
	j.older = true // whoever made the row: it must be moved
	j.emits(nil)
	batch := &pgx.Batch{}
	batch.Queue(c.sql.limitIdle, milliseconds(idleLimit([]*job{j})))
	batch.Queue(c.sql.claimStep, j.identity()...)
	if j.parked == nil {
		batch.Queue(c.sql.lockStep, j.identity()...)
	} else {
		batch.Queue(c.sql.tryLockStep, j.identity()...)
	}
	batch.Queue(c.retention.readHorizon)
	batch.Queue("SAVEPOINT " + stepSavepoint)
	results := tx.SendBatch(ctx, batch)
	var found cell
	_, err := results.Exec()
	if err == nil {
		_, err = results.Exec()
	}
	if err == nil {
		err = results.QueryRow().Scan(found.columns()...)
	}
	busy := j.parked != nil && errors.Is(err, pgx.ErrNoRows)
	if busy {
		err = nil
	}
	if err == nil {
		found.horizon, err = scanHorizon(results.QueryRow())
	}
	if err = errors.Join(err, results.Close()); err != nil {
		return cell{}, fmt.Errorf("consumer: lock step: %w", err)
	}
	if busy {
		return cell{}, errBusy
	}
	if j.parked == nil {
		return found, nil
	}
	var ours bool
	err = tx.QueryRow(ctx, c.sql.lockParked, j.parked.fence()...).Scan(&ours)
	if errors.Is(err, pgx.ErrNoRows) {
		return cell{}, errGone
	}
	if err != nil {
		return cell{}, fmt.Errorf("consumer: lock parked message: %w", err)
	}
	return found, nil
}

// handBack returns a parked copy whose step is busy, for a little while.
func (c *Consumer) handBack(ctx context.Context, tx pgx.Tx, j *job) error {
	wait := j.step.retry().Wait(1)
	if _, err := tx.Exec(ctx, c.sql.handBack, append(j.parked.fence(), wait.Microseconds())...); err != nil {
		return fmt.Errorf("consumer: hand parked message back: %w", err)
	}
	return nil
}

// reopen takes back a claim that a handler has committed by ending the
// transaction: the row says that the step is done, and only half of it is. One that it
// has rolled back is gone, and the row may be another delivery's, which stays. If that
// fails, whoever records the failure does it first.
func (c *Consumer) reopen(ctx context.Context, j *job) error {
	if j.older {
		return nil
	}
	err := c.inTx(ctx, func(tx pgx.Tx, _ *pgx.Batch) error {
		_, err := c.reopenIn(ctx, tx, j)
		return err
	})
	j.unmended = err != nil
	return err
}

// reopenIn is reopen in tx, and reports whether there was such a claim. An entry is
// counted with it, since what the handler has committed must be undone whoever
// comes before its failure is recorded.
func (c *Consumer) reopenIn(ctx context.Context, tx pgx.Tx, j *job) (reopened bool, err error) {
	entries := 0
	if j.entered {
		entries = 1
	}
	tag, err := tx.Exec(ctx, c.sql.reopen, append(j.identity(), j.digest, entries, j.xid)...)
	if err != nil {
		return false, fmt.Errorf("consumer: reopen step: %w", err)
	}
	reopened = tag.RowsAffected() > 0
	j.counted = j.counted || reopened && j.entered
	return reopened, nil
}
