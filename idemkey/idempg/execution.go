package idempg

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/lazytx"
	"github.com/sagamill/sagamill/internal/txguard"
)

// An execution owns one claim and the connection of its transaction.
type execution struct {
	s       *Store
	conn    *pgxpool.Conn
	pid     uint32 // of its session on the server
	tx      *lazytx.Tx
	id      idemkey.Identity
	token   pgtype.UUID
	record  record    // nil without a key
	expires time.Time // of the record, by the database's clock
	origin  origin    // of the transaction; zero until it has begun
	role    string    // that the transaction runs as, as txguard.Role reads it
	misused func() idemkey.Response

	external           bool          // the handler has effects outside of the database
	keptTTL, failedTTL time.Duration // of the record, from the end of the run on; 0: since its claim

	ended sync.Once
	given bool // the connection was given back

	// of the opener, under its lock
	waiting   *list.Element // nil: it does not wait
	openBy    time.Time
	openLimit time.Duration
	hurry     context.CancelFunc // nil: it was never due
}

// A record ends a claim in the table, when its execution ends.
type record interface {
	// queueKeep queues the statement that keeps r in the business transaction called xid. The
	// statement fails if the claim has been lost, or if it is executed in another transaction.
	queueKeep(b *pgx.Batch, xid string, header []byte, r *idemkey.Response) *pgx.QueuedQuery
	// keepOutside keeps r outside of that transaction. It reports false if the claim has been lost.
	keepOutside(ctx context.Context, db execer, header []byte, r *idemkey.Response) (bool, error)
	// freeRecord lets the request run again, once the transaction is over.
	freeRecord(ctx context.Context, mode idemkey.ReleaseMode, status int) error
	// lookUpRecord asks on another connection whether the record was kept. It is known only once the
	// transaction is over. After ErrTxMisuse the transaction has committed without the record.
	lookUpRecord(ctx context.Context) (kept, known bool, err error)
}

// prepareTx gives e a transaction that is opened by what opening queues. A callback of that
// identifies it.
func (e *execution) prepareTx(c *idemkey.Claim, opening func(*pgx.Batch)) {
	e.misused, e.pid = c.Misused, e.conn.Conn().PgConn().PID()
	options := pgx.TxOptions{IsoLevel: e.s.opts.Isolation, AccessMode: pgx.ReadWrite}
	e.tx = lazytx.New(e.conn.Conn(), options, opening)
}

// readXID reads before, the settings of the transaction, its role, its id and its origin.
func (e *execution) readXID(row pgx.Row, before ...any) error {
	var xid string
	err := row.Scan(append(before, nil, &e.role, &xid, &e.origin.serverStarted, &e.origin.opened)...)
	e.tx.Identify(xid)
	return err
}

// An origin is when and on which server a transaction has got its id. Only that server knows the id, and only
// until it crashes. The times are the server's.
type origin struct{ serverStarted, opened time.Time }

// limitOpening ends an opening that is under way when ctx ends. done ends the execution.
func (e *execution) limitOpening(ctx context.Context) (done func()) {
	if e.s.opener.removeExecution(e) || e.hurry == nil {
		return e.endExecution
	}
	stop := context.AfterFunc(ctx, e.hurry)
	return func() {
		stop()
		e.endExecution()
	}
}

func (e *execution) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, txKey{}, txguard.WrapSession(e.tx.Holder()))
}

// endExecution gives connection and place back. A connection that is still in a
// transaction is closed by the pool, which rolls back. A second call does nothing.
func (e *execution) endExecution() {
	e.ended.Do(func() {
		if !e.s.opener.removeExecution(e) && e.hurry != nil {
			e.hurry()
		}
		e.giveBackConn()
		<-e.s.slot
	})
}

// giveBackConn returns the connection to the pool, or closes it if a call of the
// handler may still use it.
func (e *execution) giveBackConn() {
	if e.given || e.conn == nil {
		return
	}
	e.given = true
	if e.tx == nil || e.tx.End() {
		e.conn.Release()
		return
	}
	lazytx.Cut(e.conn.Hijack())
}

// freezeTx ends the handler's part of the transaction. If a call of the handler, which has returned, still uses the
// connection, that is closed: COMMIT and ROLLBACK on it would be mixed with the call. http.TimeoutHandler inside of the
// middleware leaves such calls behind.
func (e *execution) freezeTx() error {
	if e.tx == nil || e.given || e.tx.Freeze() {
		return nil
	}
	e.giveBackConn()
	return lazytx.ErrInUse
}

// connClosed reports that the connection is closed. It is given back at once, so that
// the statements still to come can get another one from a small pool.
func (e *execution) connClosed() bool {
	if !e.given && e.conn.Conn().IsClosed() {
		e.giveBackConn()
	}
	return e.given
}

// Commit makes the business writes and the record durable together. It looks
// at the transaction's state first and at the command tag last: a COMMIT of a
// failed transaction is answered with ROLLBACK and no error.
func (e *execution) Commit(ctx context.Context, r idemkey.Response) error {
	defer e.limitOpening(ctx)()
	if err := e.freezeTx(); err != nil {
		return e.undoBecause(ctx, &idemkey.CommitError{Err: err})
	}
	if err := e.checkCommittable(ctx); err != nil {
		return err
	}
	header, err := r.MarshalHeader()
	if err != nil {
		return e.undoBecause(ctx, err)
	}
	if err := failpoint.Hit("idempg/before-commit"); err != nil {
		return e.undoBecause(ctx, &idemkey.CommitError{Err: err})
	}
	lost, misused, unchanged := false, false, false
	err = e.tx.Commit(ctx, func(b *pgx.Batch, xid string) {
		last := e.queueLastStatement(b, xid, header, &r)
		if last == nil {
			return
		}
		last.Fn = func(br pgx.BatchResults) error {
			_, err := br.Exec()
			lost = hasCode(err, codeDivisionByZero)
			misused = hasCode(err, codeInvalidText)
			unchanged = hasCode(err, txguard.CodeUnchanged)
			return err
		}
	})
	if err == nil {
		err = failpoint.Hit("idempg/after-commit")
	}
	switch {
	case misused:
		return e.keepMisuse(ctx)
	case lost:
		return e.undoBecause(ctx, fmt.Errorf("idempg: %w", idemkey.ErrLeaseLost))
	case unchanged:
		return e.undoUnwritten(ctx)
	case err == nil:
		return nil
	case serverRefused(err):
		return e.undoBecause(ctx, rollbackError(err, "commit"))
	}
	return e.lookUpCommit(ctx, fmt.Errorf("commit: %w", err))
}

// queueLastStatement queues the last statement before COMMIT, which fails unless it is executed in the
// transaction called xid. Without a record, a transaction that has not begun needs none.
func (e *execution) queueLastStatement(b *pgx.Batch, xid string, header []byte, r *idemkey.Response) *pgx.QueuedQuery {
	switch {
	case e.record != nil:
		if xid != "" { // the handler may have set another role
			b.Queue(txguard.ReturnToRole(e.role))
		}
		return e.record.queueKeep(b, xid, header, r)
	case xid != "":
		return b.Queue(sqlCheckTx, xid)
	}
	return nil
}

// checkCommittable returns why the transaction cannot be committed.
func (e *execution) checkCommittable(ctx context.Context) error {
	switch {
	case errors.Is(e.tx.Err(), idemkey.ErrLeaseLost):
		return e.undoUnwritten(ctx)
	case e.tx.Err() != nil: // it could not be opened
		return e.undoBecause(ctx, &idemkey.CommitError{Err: e.tx.Err()})
	case e.connClosed(): // the handler cancelled a statement; COMMIT was never sent
		return e.undoBecause(ctx, &idemkey.CommitError{Err: errors.New("the connection was closed")})
	case e.tx.EndedByHolder():
		return e.keepMisuse(ctx)
	case txguard.StatusOf(e.conn.Conn()) == txguard.Aborted:
		return e.undoBecause(ctx, &idemkey.CommitError{Err: pgx.ErrTxCommitRollback})
	}
	return nil
}

// keepMisuse keeps the claim's own answer where the handler has ended the transaction itself.
// The handler's commits cannot be undone, so the request must never run again. That holds for
// a handler which has rolled back, too: it may have committed another transaction after that.
func (e *execution) keepMisuse(ctx context.Context) error {
	_ = e.rollBackTx(ctx) // the handler's writes since then
	if e.record == nil {
		return idemkey.ErrTxMisuse
	}
	r := idemkey.Response{Status: http.StatusInternalServerError, Dropped: true}
	var unrendered error
	if e.misused != nil {
		unrendered = guard.Apart(func() error { r = e.misused(); return nil })
	}
	_, err := e.keepResponse(ctx, e.connAfterTx(), &r)
	return errors.Join(idemkey.ErrTxMisuse, err, unrendered)
}

// An execer is a transaction or the pool.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// keepResponse keeps r outside of the transaction. It reports false if the claim has been lost.
func (e *execution) keepResponse(ctx context.Context, db execer, r *idemkey.Response) (bool, error) {
	header, err := r.MarshalHeader()
	if err != nil {
		return false, err
	}
	return e.record.keepOutside(ctx, db, header, r)
}

// undoBecause rolls back and frees the key for the next attempt. It returns cause, or ErrTxMisuse if not
// everything can be rolled back.
func (e *execution) undoBecause(ctx context.Context, cause error) error {
	err := e.releaseRecord(ctx, e.undone(), 0)
	if errors.Is(err, idemkey.ErrTxMisuse) {
		return err
	}
	return errors.Join(cause, err)
}

// undone is how the record of a run is released that is rolled back although its handler has succeeded.
func (e *execution) undone() idemkey.ReleaseMode {
	if e.external {
		return idemkey.Hold
	}
	return idemkey.Bound
}

// undoUnwritten is undoBecause where a statement has not found the record of this claim.
func (e *execution) undoUnwritten(ctx context.Context) error {
	err := e.releaseRecord(ctx, e.undone(), 0)
	if errors.Is(err, idemkey.ErrTxMisuse) {
		return err
	}
	return errors.Join(fmt.Errorf("idempg: %w", e.explainUnwritten(ctx)), err)
}

// explainUnwritten returns why a statement has not found the record of this claim, once the transaction is over: another
// owner has it, it is hidden, or the handler had removed it, which the rollback has undone.
func (e *execution) explainUnwritten(ctx context.Context) error {
	var own *bool
	var hidden bool
	err := e.s.pool.QueryRow(ctx, e.s.q.readUnwritten, e.id.Namespace, e.id.Scope, e.id.Key, e.token).Scan(&own, &hidden)
	switch {
	case err != nil:
		return errors.Join(idemkey.ErrLeaseLost, err)
	case own != nil && *own, own == nil && hidden:
		return idemkey.ErrRecordHidden
	}
	return idemkey.ErrLeaseLost
}

// releaseRecord rolls back and gives the record up.
func (e *execution) releaseRecord(ctx context.Context, mode idemkey.ReleaseMode, status int) error {
	switch err := e.rollBackTx(ctx); {
	case errors.Is(err, idemkey.ErrTxMisuse):
		return e.keepMisuse(ctx)
	case err != nil && ctx.Err() != nil:
		return err // no time left: the record lapses with its lease
	}
	if e.record == nil {
		return nil
	}
	return e.record.freeRecord(ctx, mode, status)
}

// connAfterTx returns the connection for a statement after the transaction: the
// execution's own, which saves another, or the pool if that is no longer usable.
func (e *execution) connAfterTx() execer {
	if !e.connClosed() && txguard.StatusOf(e.conn.Conn()) == txguard.Ended {
		return e.conn
	}
	return e.s.pool
}

// rollBackTx ends the transaction. After ErrTxMisuse the handler has ended it before. After another
// error the connection is closed, and the server rolls back as soon as it notices.
func (e *execution) rollBackTx(ctx context.Context) error {
	var ended bool
	var err error
	if !e.given { // else the connection is closed, or another request has it
		ended, err = e.tx.Rollback(ctx)
	}
	if e.connClosed() {
		ended = e.txCommitted(ctx)
	}
	switch {
	case ended:
		return idemkey.ErrTxMisuse
	case err != nil:
		return fmt.Errorf("idempg: roll back: %w", err)
	}
	return nil
}

// txCommitted reports whether the transaction of a connection that is closed was committed. Where the
// server does not say within a while, it has not noticed yet that the connection is closed, and will roll back.
// A server that was restarted or has crashed since, or another one, does not know: txCommitted then reports
// false. A handler that ended its transaction before that runs again.
func (e *execution) txCommitted(ctx context.Context) bool {
	xid := e.tx.ID()
	if xid == "" {
		return false
	}
	for range freeTries {
		var status string
		err := e.s.pool.QueryRow(ctx, sqlReadCommitted, xid, e.origin.serverStarted, e.origin.opened).Scan(&status)
		if err != nil || status != "in progress" {
			return status == "committed"
		}
		if backoff.Sleep(ctx, freePause) != nil {
			return false
		}
	}
	return false
}

// Reject rolls back and keeps r in a second transaction. A crash in between
// is harmless: the request runs again, and nothing was committed.
func (e *execution) Reject(ctx context.Context, r idemkey.Response) error {
	defer e.limitOpening(ctx)()
	_ = e.freezeTx() // nothing is to be committed
	if err := e.rollBackTx(ctx); errors.Is(err, idemkey.ErrTxMisuse) {
		return e.keepMisuse(ctx)
	} // a connection that cannot roll back is closed
	if e.record == nil {
		return nil
	}
	changed, err := false, failpoint.Hit("idempg/after-rollback")
	if err == nil {
		changed, err = e.keepResponse(ctx, e.connAfterTx(), &r)
	}
	switch {
	case err != nil:
		if state, lookErr := e.readOwnState(ctx); lookErr == nil && state == r.State() {
			return nil // the reply was lost, not the record
		}
		return fmt.Errorf("idempg: keep response: %w", err)
	case !changed:
		return fmt.Errorf("idempg: keep response: %w", e.explainUnwritten(ctx))
	}
	return nil
}

// Release rolls back and releases the record. After an error the record lapses
// with its lease, and the business writes are rolled back all the same. If the owner
// was overtaken before its transaction began, the error is an [idemkey.ErrLeaseLost].
func (e *execution) Release(ctx context.Context, mode idemkey.ReleaseMode, status int) error {
	defer e.limitOpening(ctx)()
	_ = e.freezeTx() // nothing is to be committed
	if errors.Is(e.tx.Err(), idemkey.ErrLeaseLost) {
		return e.undoUnwritten(ctx)
	}
	return e.releaseRecord(ctx, mode, status)
}

// lookUpCommit finds out what became of a COMMIT whose reply was lost. The record
// committed with the business writes, so it is the answer.
func (e *execution) lookUpCommit(ctx context.Context, cause error) error {
	_ = e.conn.Conn().Close(ctx) // a late reply on it would be taken for that of the next statement
	e.connClosed()
	unknown := fmt.Errorf("idempg: %w: %w", idemkey.ErrOutcomeUnknown, cause)
	if e.record == nil {
		return unknown
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.s.opts.LookupTimeout)
	defer cancel()
	for try := range lookups {
		if try > 0 {
			_ = backoff.Sleep(ctx, e.s.opts.LookupTimeout/(2*lookups))
		}
		switch kept, known, err := e.record.lookUpRecord(ctx); {
		case kept:
			return nil
		case errors.Is(err, idemkey.ErrTxMisuse):
			return e.keepMisuse(ctx)
		case err != nil:
			return fmt.Errorf("idempg: %w", err)
		case known:
			return fmt.Errorf("idempg: %w", &idemkey.CommitError{Err: cause})
		}
	}
	return unknown
}

// readOwnState reads the state of this claim's record, on another connection. It
// skips a locked row, whose transaction is not over. The lock is written to the
// log, so the result is as durable as any commit: a COMMIT whose wait for a
// synchronous standby was cut short is visible, and may yet be lost.
func (e *execution) readOwnState(ctx context.Context) (idemkey.State, error) {
	var state idemkey.State
	err := e.s.own.QueryRow(ctx, e.s.q.lockState, e.id.Namespace, e.id.Scope, e.id.Key, e.token).Scan(&state)
	return state, err
}

// A holder says which claim has the record, where readOwnState has found none.
type holder int

const (
	heldByUs     holder = iota // this claim has it; the row is locked, so its outcome is open
	heldByOthers               // another claim has taken it over
	heldByNobody               // there is none, and this claim's cannot have been removed
	heldUntilNow               // there is none: a sweeper may have removed it, in any state
)

// readHolder reads which claim has the record.
func (e *execution) readHolder(ctx context.Context) (holder, error) {
	var own bool
	err := e.s.own.QueryRow(ctx, e.s.q.readHolder, e.id.Namespace, e.id.Scope, e.id.Key, e.token).Scan(&own)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && e.expires.IsZero():
		return heldByNobody, nil
	case errors.Is(err, pgx.ErrNoRows):
		var over bool
		if err := e.s.pool.QueryRow(ctx, "SELECT clock_timestamp() >= $1", e.expires).Scan(&over); err != nil {
			return heldByUs, err
		}
		if over {
			return heldUntilNow, nil
		}
		return heldByNobody, nil
	case err != nil || own:
		return heldByUs, err
	}
	return heldByOthers, nil
}
