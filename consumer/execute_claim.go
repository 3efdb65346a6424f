package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/inbox"
)

// The types of the state machine, which is in package inbox.
type (
	kind    = inbox.Kind
	state   = inbox.State
	verdict = inbox.Verdict

	identity = inbox.Identity
)

const (
	action       = inbox.Action
	compensation = inbox.Compensation
	unread       = inbox.Unread

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

// parkedState is the state of a step whose message is parked, or a dead letter.
func parkedState(k kind, isDead bool) state { return inbox.ParkedState(k, isDead) }

// A cell is a row of the inbox as its lock has found it.
type cell struct {
	state        state
	attempts     int
	undoAttempts int
	digest       []byte // nil until an action was recorded
	undoDigest   []byte // nil until a compensation was recorded
	horizon      time.Time
	notDone      bool // the failed action is known to have had no effect; read for a compensation only
}

// entries returns the entries into the handler for k.
func (c *cell) entries(k kind) int {
	if k == compensation {
		return c.undoAttempts
	}
	return c.attempts
}

// An arrival is a message that asks to move a cell.
type arrival struct {
	kind         kind
	digest       []byte
	parked       bool // it is the parked copy, not a delivery
	cancelParked bool // Step.CancelParked
	behind       bool // an earlier message of the key has to run first
	since        time.Time
}

// decide is the step's state machine. All its inputs were read under the row's lock.
func decide(c cell, a arrival) verdict {
	return inbox.Decide(
		inbox.Cell{State: c.state, Attempts: c.attempts, Digest: c.digest, UndoDigest: c.undoDigest, NotDone: c.notDone},
		inbox.Arrival{Kind: a.kind, Digest: a.digest, Parked: a.parked, CancelParked: a.cancelParked, Behind: a.behind, TooOld: tooOld(c, a)})
}

// decideVerdict asks the state machine about a and the row that its claim has found.
func (a *attempt) decideVerdict() verdict { return decide(a.found, a.arrival()) }

func (a *attempt) arrival() arrival {
	return arrival{kind: a.kind, digest: a.digest, parked: a.parked != nil, cancelParked: a.step.CancelParked, behind: a.behind, since: a.since()}
}

// countEntries returns the number of entries into the handler, the present one included. The caller has locked the row.
func (a *attempt) countEntries() int {
	n := a.found.entries(a.kind)
	switch {
	case a.parked != nil:
		n = a.parked.attempts
	case !a.counted:
		n++
	default:
		n = max(n, 1) // the row that has counted it may have been swept since
	}
	if a.barred {
		n--
	}
	return n
}

// tooOld reports whether the row of the step may have been removed: the row is absent or open, and messages as old
// as a are before the horizon. An open row may have been inserted by a count ahead of the entry. Without a horizon
// no row was ever removed.
func tooOld(c cell, a arrival) bool {
	return (c.state == absent || c.state == open) && !c.horizon.IsZero() && a.since.Before(c.horizon)
}

// errVanished reports that a sweeper has removed a row between the claim that met it and the lock. PostgreSQL may also
// hide the row: that is a [pg.HiddenError].
var errVanished = errors.New("consumer: a row of the inbox was removed while it was claimed")

// A claim is what a transaction knows of the step's row. openTransaction begins with a new one. lockRow and lockLeased
// keep xid and behind: recordLostAttempt reopens the claim of the transaction before.
type claim struct {
	older  bool   // the row existed before, or says open: it must be updated at the end
	found  cell   // the row as the claim found it
	xid    uint32 // of the transaction, in which rows that it inserted have their xmin
	role   string // that the transaction runs as, as txguard.Role reads it
	behind bool   // the step is ordered, and an earlier message of the key is parked
}

// A claimer claims and locks rows of the inbox.
type claimer struct {
	sql       queries
	retention retentionQueries
	database  *database
}

// openTransaction begins a transaction on conn and claims the rows of attempts, which belong to different steps. It
// needs one round trip, or two if a row exists that was not expected. Afterwards each attempt has its claim. A savepoint
// follows the claims, to which a failure rolls back, unless no handler will be entered: see savepointFor.
func (c *claimer) openTransaction(ctx context.Context, conn *pgx.Conn, attempts []*attempt) (pgx.Tx, error) {
	for _, a := range attempts {
		a.claim = claim{xid: a.xid} // recordLostAttempt reopens by the last xid if this transaction cannot be opened
		a.setEmitted(nil)
	}
	b := &pgx.Batch{}
	b.BeginTx(readCommitted)
	var session opened
	inserted, isOpen := new(int64), new(bool)
	if len(attempts) == 1 && attempts[0].isMostLikelyNew(time.Now()) {
		inserted, isOpen = c.queueNewClaim(b, attempts[0], &session)
	} else {
		if len(attempts) > 1 { // one of the claims may wait for a row while the transaction holds others
			b.Queue(c.sql.limitIdle, milliseconds(idleLimit(attempts)))
		}
		inserted, *isOpen = c.queueClaims(b, attempts), true
		c.queueOpening(b, attempts, &session)
	}
	c.queueBehind(b, attempts)
	if savepoint := savepointFor(attempts); savepoint != "" {
		b.Queue("SAVEPOINT " + savepoint)
	}
	results := conn.SendBatch(ctx, b)
	err := results.Close()
	if err != nil {
		c.database.rollbackOrClose(ctx, conn)
		return nil, fmt.Errorf("consumer: claim steps: %w", err)
	}
	tx := results.Tx()
	if !*isOpen {
		if err := c.openAfterwards(ctx, tx, attempts, &session); err != nil {
			c.database.rollbackOrClose(ctx, conn)
			return nil, err
		}
	}
	for _, a := range attempts {
		a.xid, a.role = session.xid, session.role
	}
	err = c.checkClaims(ctx, tx, attempts, int(*inserted))
	for _, a := range attempts {
		err = cmp.Or(err, c.readNotDone(ctx, tx, a))
	}
	if err != nil {
		c.database.rollbackOrClose(ctx, conn)
		return nil, err
	}
	return tx, nil
}

// An opened transaction has a number, and runs as a role.
type opened struct {
	xid  uint32
	role string
}

// savepointFor returns the savepoint that openTransaction sets for attempts. The transaction of an Effect needs none: it
// ends before the call, and no handler is entered in it.
func savepointFor(attempts []*attempt) string {
	switch {
	case len(attempts) > 1:
		return batchSavepoint
	case attempts[0].input.effect != nil:
		return ""
	}
	return stepSavepoint
}

// queueClaims inserts the rows as if the steps had already succeeded. It inserts in the order of identities, so that
// two batches do not wait for each other. The result will hold how many rows were absent.
func (c *claimer) queueClaims(b *pgx.Batch, attempts []*attempt) *int64 {
	inserted := new(int64)
	sorted := slices.SortedFunc(slices.Values(attempts), compareIdentity)
	count := func(rows pgx.Rows) error {
		rows.Close()
		*inserted = rows.CommandTag().RowsAffected()
		return rows.Err()
	}
	if len(sorted) == 1 {
		b.Queue(c.sql.claimOne, sorted[0].claimArgs()...).Query(count)
		return inserted
	}
	b.Queue(c.sql.claimMany, claimColumns(sorted)...).Query(count)
	return inserted
}

// recentAge is how old a message is at most that no horizon can concern: a Sweeper removes no row, and raises the horizon
// to none, before the row is MinRetention old. The rest is for the clocks of senders and of failed-over servers.
const recentAge = MinRetention / 2

// isMostLikelyNew reports whether the row of a's step is most likely absent, and no horizon concerns a.
func (a *attempt) isMostLikelyNew(now time.Time) bool {
	return a.kind == action && !a.redelivered && !a.counted && now.Sub(a.since()) < recentAge
}

// queueNewClaim claims the row of a step that is most likely new, by one statement. Afterwards isOpen says whether it was
// new, and the message is recent by the clock of the database. If not, call openAfterwards.
func (c *claimer) queueNewClaim(b *pgx.Batch, a *attempt, session *opened) (inserted *int64, isOpen *bool) {
	inserted, isOpen = new(int64), new(bool)
	args := append(a.claimArgs(), milliseconds(idleLimit([]*attempt{a})))
	b.Queue(c.sql.claimNew, args...).Query(func(rows pgx.Rows) error {
		var now time.Time
		_, err := pgx.ForEachRow(rows, []any{&session.xid, &session.role, nil, &now}, func() error {
			*inserted, *isOpen = 1, now.Sub(a.since()) < recentAge
			return nil
		})
		return err
	})
	return inserted, isOpen
}

// openAfterwards does what queueOpening does, for the one attempt in attempts whose row queueNewClaim has not found new.
// A rollback to a savepoint releases the locks behind it, so the savepoint is set anew behind the lock of the row.
func (c *claimer) openAfterwards(ctx context.Context, tx pgx.Tx, attempts []*attempt, session *opened) error {
	b := &pgx.Batch{}
	savepoint := savepointFor(attempts)
	if savepoint != "" {
		b.Queue("RELEASE SAVEPOINT " + savepoint)
	}
	c.queueOpening(b, attempts, session)
	attempts[0].behind = false
	c.queueBehind(b, attempts)
	if savepoint != "" {
		b.Queue("SAVEPOINT " + savepoint)
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("consumer: lock step: %w", err)
	}
	return nil
}

// queueBehind reads which messages of ordered steps must wait behind a parked one.
func (c *claimer) queueBehind(b *pgx.Batch, attempts []*attempt) {
	ordered := slices.DeleteFunc(slices.Clone(attempts), func(a *attempt) bool { return !a.step.Ordered })
	if len(ordered) == 0 {
		return
	}
	queueAnew(b, c.sql.readBehind, identityColumns(ordered)...).Query(func(rows pgx.Rows) error {
		var ordinal int
		_, err := pgx.ForEachRow(rows, []any{&ordinal}, func() error {
			ordered[ordinal-1].behind = true
			return nil
		})
		return err
	})
	b.Queue("SET LOCAL plan_cache_mode TO DEFAULT") // for the handler
}

// checkClaims makes sure that each row was inserted by this transaction, or is locked.
func (c *claimer) checkClaims(ctx context.Context, tx pgx.Tx, attempts []*attempt, inserted int) error {
	if len(attempts) > 1 && inserted < len(attempts) {
		if err := c.lockExistingRows(ctx, tx, attempts); err != nil {
			return err
		}
	}
	for _, a := range attempts {
		if a.older {
			inserted++
		}
	}
	if inserted != len(attempts) {
		return cmp.Or(c.database.checkHidden(ctx, tx), errVanished)
	}
	return nil
}

// lockExistingRows locks the rows that existed before, in the order of identities.
func (c *claimer) lockExistingRows(ctx context.Context, tx pgx.Tx, attempts []*attempt) error {
	sorted := slices.SortedFunc(slices.Values(attempts), compareIdentity)
	b := &pgx.Batch{}
	b.Queue(c.sql.lockMany, identityColumns(sorted)...).Query(func(rows pgx.Rows) error {
		var ordinal int
		var found cell
		_, err := pgx.ForEachRow(rows, append([]any{&ordinal}, found.columns()...), func() error {
			a := sorted[ordinal-1]
			a.older, a.found = true, found
			return nil
		})
		return err
	})
	c.queueHorizon(b, attempts) // after the locks
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("consumer: lock steps: %w", err)
	}
	return nil
}

// idleLimit is how long the transaction of attempts may be idle: the longest Timeout of their steps and
// databaseTimeout.
func idleLimit(attempts []*attempt) time.Duration {
	longest := time.Duration(0)
	for _, a := range attempts {
		longest = max(longest, a.step.Timeout)
	}
	return longest + databaseTimeout
}

// queueOpening reads the transaction's number, its role and the horizon after the claims in b. For one attempt it also locks the
// row that existed before.
func (c *claimer) queueOpening(b *pgx.Batch, attempts []*attempt, session *opened) {
	if len(attempts) > 1 {
		b.Queue(c.sql.openClaims).QueryRow(func(row pgx.Row) error { return noteHorizon(row, attempts, &session.xid, &session.role) })
		return
	}
	a := attempts[0]
	b.Queue(c.sql.openClaim, append(a.identity(), milliseconds(idleLimit(attempts)))...).QueryRow(func(row pgx.Row) error { return a.readOpening(row, session) })
}

// readOpening reads the answer of sqlOpenClaim.
func (a *attempt) readOpening(row pgx.Row, session *opened) error {
	var found *state
	var attempts, undoAttempts *int
	var digest, undoDigest []byte
	err := noteHorizon(row, []*attempt{a}, &session.xid, &session.role, nil, &found, &attempts, &undoAttempts, &digest, &undoDigest)
	if err != nil || found == nil {
		return err
	}
	a.older = true
	a.found = cell{state: *found, attempts: *attempts, undoAttempts: *undoAttempts, digest: digest, undoDigest: undoDigest, horizon: a.found.horizon}
	return nil
}

// queueHorizon reads the horizon after the locks in b.
func (c *claimer) queueHorizon(b *pgx.Batch, attempts []*attempt) {
	b.Queue(c.retention.readHorizon).QueryRow(func(row pgx.Row) error { return noteHorizon(row, attempts) })
}

// noteHorizon reads a row that begins with the horizon. It scans the other columns into others.
func noteHorizon(row pgx.Row, attempts []*attempt, others ...any) error {
	horizon, err := scanHorizon(row, others...)
	for _, a := range attempts {
		a.found.horizon = horizon
	}
	return err
}

// scanHorizon reads a row of inbox_horizon that begins with the horizon, as that of inbox.SQLReadHorizon does. It scans
// the other columns into others.
func scanHorizon(row pgx.Row, others ...any) (time.Time, error) {
	var horizon *time.Time
	err := row.Scan(append([]any{&horizon}, others...)...)
	if errors.Is(err, pgx.ErrNoRows) {
		err = errors.New("table inbox_horizon is empty")
	}
	if err != nil || horizon == nil {
		return time.Time{}, err
	}
	return *horizon, nil
}

// reopenClaim takes back a claim that a handler has committed by ending the transaction: the row says that the step
// is done, but only a part of it is. A claim that the handler has rolled back is gone. The row may then belong to
// another delivery, and stays. If reopenClaim fails, a.leaked lets recordLostAttempt do it first.
func (c *claimer) reopenClaim(ctx context.Context, a *attempt) error {
	if a.older {
		return nil
	}
	a.leaked = true // also if a hook of the pool panics
	err := c.database.inTransaction(ctx, func(tx pgx.Tx, _ *pgx.Batch) error {
		_, err := c.reopenClaimIn(ctx, tx, a)
		return err
	})
	a.leaked = err != nil
	return err
}

// reopenClaimIn is reopenClaim in tx. It reports whether there was such a claim. The entry is counted in the same
// statement. So the handler's committed work is undone even if a compensation comes before the failure is recorded.
func (c *claimer) reopenClaimIn(ctx context.Context, tx pgx.Tx, a *attempt) (reopened bool, err error) {
	entries := 0
	if a.phase != phasePending {
		entries = 1
	}
	tag, err := tx.Exec(ctx, c.sql.reopen, append(a.identity(), a.digest, entries, a.xid)...)
	if err != nil {
		return false, fmt.Errorf("consumer: reopen step: %w", err)
	}
	reopened = tag.RowsAffected() > 0
	a.counted = a.counted || reopened && a.phase != phasePending
	return reopened, nil
}
