package consumer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/lazytx"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// A settler records the outcome of attempts, commits it, and acks the deliveries.
type settler struct {
	sql       queries
	retention retentionQueries
	outbox    *outbox.Writer
	wake      func()
	retries   chan<- struct{} // has room for one value, which says that messages may be due for a retry soon
	signals   *signals

	database *database
	reporter *reporter
}

// commitSuccess records the handler's success with all that it has queued and emitted, and commits.
func (s *settler) commitSuccess(ctx context.Context, tx pgx.Tx, a *attempt) error {
	last := &pgx.Batch{}
	if queued := a.out.queueInto(last); queued > 0 || a.direct {
		last.Queue(txguard.ReturnToRole(a.role))
	}
	s.queueMove(last, a)
	if err := s.queueEmitted(last, a.emitted); err != nil {
		return err
	}
	if !a.direct { // it could not end the transaction
		return s.database.commit(ctx, tx, last, "")
	}
	return s.database.commit(ctx, tx, last, stepSavepoint)
}

// queueMove adds to last the move of the inbox row after the handler's success. A row that the claim has inserted
// needs no move.
func (s *settler) queueMove(last *pgx.Batch, a *attempt) {
	to := done
	switch {
	case a.kind == compensation:
		to = compensated
	case a.out.nothing:
		to = refused
	}
	if a.older || to == refused {
		last.Queue(s.sql.moveStep, a.transition(to, a.Attempt)...)
	}
	if a.parked != nil {
		last.Queue(s.sql.deleteParked, a.parked.id)
	}
	a.setEmitted(a.out.msgs)
	a.noteOutcome(OutcomeDone, "", nil)
}

// commitVerdict settles an attempt that does not enter the handler, and commits.
func (s *settler) commitVerdict(ctx context.Context, tx pgx.Tx, a *attempt, v verdict) error {
	if err := s.settleVerdict(ctx, tx, a, v); err != nil {
		return err
	}
	return s.commitEmitted(ctx, tx, a)
}

// settleVerdict settles an attempt that does not enter the handler.
func (s *settler) settleVerdict(ctx context.Context, tx pgx.Tx, a *attempt, v verdict) error {
	switch v {
	case superseded:
		if err := s.reportSuperseded(ctx, tx, a); err != nil {
			return err
		}
		if a.watch.outcome == "" { // else it was reported as a dead letter
			a.noteOutcome(OutcomeSuperseded, "", nil)
		}
		return s.deleteParked(ctx, tx, a)
	case duplicate:
		a.noteOutcome(OutcomeDuplicate, "", a.cause)
		return s.deleteParked(ctx, tx, a)
	case tombstone:
		a.noteOutcome(OutcomeTombstone, "", nil)
		if !a.older { // the claim was the tombstone
			s.reportTombstone(ctx, a, Unhandled{})
			return nil
		}
		u, err := s.cancelAction(ctx, tx, a)
		if err == nil {
			err = s.moveStep(ctx, tx, a, void, a.found.undoAttempts)
		}
		if err != nil {
			return err
		}
		s.reportTombstone(ctx, a, u)
		return s.deleteParked(ctx, tx, a)
	case wait:
		spent := 0
		if a.parked != nil {
			spent = a.parked.attempts - 1
		}
		// The row learns the payload, so that another one is a reused key.
		return s.parkAndMove(ctx, tx, a, failure{reason: ReasonWaits, attempts: spent}, a.found.state, a.found.undoAttempts)
	case queue:
		to := map[kind]state{action: retrying, compensation: undoing}[a.kind]
		spent := a.countEntries() - 1 // the entry that was to come does not
		if a.entered || a.redelivered && a.parked == nil {
			spent = max(spent, 1) // one may have had an effect
		}
		return s.parkAndMove(ctx, tx, a, failure{reason: ReasonOrder, attempts: spent}, to, spent)
	case refuse:
		return s.parkMessage(ctx, tx, a, failure{reason: ReasonActionDead, dead: true,
			err: errors.New("consumer: the action is a dead letter, so it is not known whether there is anything to undo")})
	case outlived:
		return s.buryTooOld(ctx, tx, a)
	case reused:
		return s.parkMessage(ctx, tx, a, failure{reason: ReasonKeyReused, dead: true,
			err: errors.New(inbox.ReusedText)})
	default:
		return fmt.Errorf("consumer: verdict %q cannot be settled", v)
	}
}

// cancelAction removes the parked message of the action that the compensation a is for. It returns why the action had
// failed, if it had.
func (s *settler) cancelAction(ctx context.Context, tx pgx.Tx, a *attempt) (u Unhandled, err error) {
	b := &pgx.Batch{}
	queueAnew(b, s.sql.cancelParked, a.identity()...).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&u.Reason, &u.Error}, func() error { return nil })
		return err
	})
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return u, fmt.Errorf("consumer: cancel parked action: %w", err)
	}
	return u, nil
}

// reportTombstone logs that a compensation came before its action, or has cancelled it, and emits what Unhandled answers
// to u.
func (s *settler) reportTombstone(ctx context.Context, a *attempt, u Unhandled) {
	s.reporter.logTombstone(ctx, a)
	s.emitUnhandled(ctx, a, u)
}

// reportSuperseded makes a dead letter of an action that is redelivered although its compensation found nothing to
// undo: the earlier delivery may have died after an effect outside its transaction, of which no row knows. The row
// then remembers an attempt, so that further copies are not reported.
func (s *settler) reportSuperseded(ctx context.Context, tx pgx.Tx, a *attempt) error {
	if !a.redelivered && !a.entered || a.found.state != void || a.found.attempts > 0 || a.step.CancelParked || a.input.effect != nil {
		return nil // an Effect's call leaves a row before it is made
	}
	err := s.parkMessage(ctx, tx, a, failure{reason: ReasonSuperseded, dead: true,
		err: errors.New("consumer: the compensation came first and undid nothing, but an earlier delivery of the action may have died in its handler")})
	if err != nil {
		return err
	}
	args := append(a.identity(), void, 1, a.found.undoAttempts, nil, nil)
	if _, err := tx.Exec(ctx, s.sql.moveStep, args...); err != nil {
		return fmt.Errorf("consumer: note superseded action: %w", err)
	}
	return nil
}

// moveStep moves the step's row to state to, after attempts entries into the handler of a's kind.
func (s *settler) moveStep(ctx context.Context, tx pgx.Tx, a *attempt, to state, attempts int) error {
	if _, err := tx.Exec(ctx, s.sql.moveStep, a.transition(to, attempts)...); err != nil {
		return fmt.Errorf("consumer: move step to %s: %w", to, err)
	}
	return nil
}

// transition are the arguments of sqlMoveStep.
func (a *attempt) transition(to state, attempts int) []any {
	if a.kind == compensation {
		return append(a.identity(), to, a.found.attempts, attempts, nil, a.digest)
	}
	return append(a.identity(), to, attempts, a.found.undoAttempts, a.digest, nil)
}

// deleteParked deletes the parked copy of a, if a is one.
func (s *settler) deleteParked(ctx context.Context, tx pgx.Tx, a *attempt) error {
	if a.parked == nil {
		return nil
	}
	if _, err := tx.Exec(ctx, s.sql.deleteParked, a.parked.id); err != nil {
		return fmt.Errorf("consumer: delete parked message: %w", err)
	}
	return nil
}

// A database lends connections and ends their transactions. It tells the outage watch of each success.
type database struct {
	db        pg.Own
	sql       queries
	outage    *outageWatch
	suspected atomic.Int64
}

// checkHidden returns a [pg.HiddenError] if row-level security hides rows of the inbox in tx. It is for a transaction
// that may be shared with a handler, in which a row was not found.
func (d *database) checkHidden(ctx context.Context, tx pgx.Tx) error {
	if err := pg.CheckHidden(ctx, tx, d.sql.findHidden); err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	return nil
}

// withConnection lends do a connection. Afterwards it rolls back a transaction that is still open.
func (d *database) withConnection(ctx context.Context, do func(conn *pgx.Conn) error) (err error) {
	conn, err := d.db.Pool().Acquire(ctx)
	if err != nil {
		return fmt.Errorf("consumer: connect: %w", err)
	}
	inUse := false
	defer func() {
		if inUse {
			lazytx.Cut(conn.Hijack())
			return
		}
		d.rollbackOrClose(ctx, conn.Conn())
		d.closeIfSuspect(ctx, conn.Conn(), err)
		err = pg.RaiseIfTaken(ctx, conn.Conn(), err)
		disconnectLater(conn.Conn())
		conn.Release()
	}()
	if err = do(conn.Conn()); err == nil {
		d.outage.noteAnswer()
	}
	inUse = errors.Is(err, errTxInUse)
	return err
}

// suspectKey finds, among the data of a connection, the error of a handler that may come from its session.
const suspectKey = "sagamill/suspect"

// suspectSession marks conn to be closed after its transaction if cause, the error of a handler, may come from the
// session: an earlier handler may have changed its role or its search_path. It does so once a second at most. A handler
// that always fails like this must not cost a connection each time, and sessions that were changed are found one after
// the other. A handler that may not write (25006) has made its own transaction read-only, since the claim was written.
func (d *database) suspectSession(conn *pgx.Conn, cause error) {
	if conn.IsClosed() || !strings.HasPrefix(sqlState(cause), "42") {
		return
	}
	now := time.Now().UnixNano()
	if last := d.suspected.Load(); now-last >= int64(time.Second) && d.suspected.CompareAndSwap(last, now) {
		conn.PgConn().CustomData()[suspectKey] = true
	}
}

// closeIfSuspect closes conn if err, the error of a statement of this package, or an earlier error of a handler may come
// from its session. The pool opens another one.
func (d *database) closeIfSuspect(ctx context.Context, conn *pgx.Conn, err error) {
	if conn.IsClosed() {
		return
	}
	if suspect, _ := conn.PgConn().CustomData()[suspectKey].(bool); suspect || pg.IsOfSession(err) || errors.Is(err, pg.ErrHidden) {
		_ = conn.Close(context.WithoutCancel(ctx))
	}
}

// inTransaction commits the work of do and the statements that do has added to last.
func (d *database) inTransaction(ctx context.Context, do func(tx pgx.Tx, last *pgx.Batch) error) error {
	return d.withConnection(ctx, func(conn *pgx.Conn) error {
		begin := &pgx.Batch{}
		begin.BeginTx(readCommitted)
		begin.Queue(d.sql.limitIdle, milliseconds(databaseTimeout))
		begin.Queue(pg.SQLShowAll) // it is shared with no handler
		begin.Queue(pg.PlanAnew)
		results := conn.SendBatch(ctx, begin)
		if err := results.Close(); err != nil {
			return fmt.Errorf("consumer: begin: %w", err)
		}
		tx, last := results.Tx(), &pgx.Batch{}
		if err := do(tx, last); err != nil {
			return err
		}
		return d.commit(ctx, tx, last, "")
	})
}

// commitEmitted commits with what Unhandled has emitted.
func (s *settler) commitEmitted(ctx context.Context, tx pgx.Tx, a *attempt) error {
	last := &pgx.Batch{}
	if err := s.queueEmitted(last, a.emitted); err != nil {
		return err
	}
	return s.database.commit(ctx, tx, last, "")
}

// The savepoints behind the claims of a transaction, for one step or for a batch of them.
const stepSavepoint, batchSavepoint = "sagamill_step", "sagamill_queued"

// commit sends last and COMMIT in one round trip. The server skips COMMIT if a statement before it fails. commit also
// checks that the server answered COMMIT: on an aborted transaction it answers ROLLBACK, without an error. After an
// error that is not the server's own, the outcome is unknown.
//
// Of a transaction that a handler has used, savepoint is the one behind its claims; else it is empty. commit fails with
// errTxEnded if that savepoint is gone: the handler has ended the transaction on the bare connection and begun another.
func (d *database) commit(ctx context.Context, tx pgx.Tx, last *pgx.Batch, savepoint string) error {
	var gone error
	if savepoint != "" {
		last.Queue("RELEASE SAVEPOINT " + savepoint).Fn = func(results pgx.BatchResults) error {
			_, err := results.Exec()
			gone = endedIfGone(err)
			return err
		}
	}
	if err := failpoint.Hit("consumer/before-commit"); err != nil {
		return err
	}
	tag := ""
	last.Queue("commit").Query(func(rows pgx.Rows) error {
		rows.Close()
		tag = rows.CommandTag().String()
		return rows.Err()
	})
	err := tx.Conn().SendBatch(ctx, last).Close()
	if err == nil && tag != "COMMIT" {
		err = pgx.ErrTxCommitRollback
	}
	if errors.Is(gone, errTxEnded) {
		return gone
	}
	if err != nil {
		return fmt.Errorf("consumer: commit: %w", err)
	}
	return failpoint.Hit("consumer/after-commit")
}

// codeNoSavepoint is PostgreSQL's answer for a savepoint that does not exist.
const codeNoSavepoint = "3B001"

// endedIfGone adds errTxEnded to an error that says that a savepoint of this package does not exist.
func endedIfGone(err error) error {
	if sqlState(err) == codeNoSavepoint {
		return errors.Join(Terminal(errTxEnded), err)
	}
	return err
}

// ackAttempts acks settled attempts, and wakes the relay if their transactions have put messages into the outbox.
func (s *settler) ackAttempts(attempts ...*attempt) {
	if failpoint.Hit("consumer/before-ack") != nil {
		return
	}
	wakes := false
	for _, a := range attempts {
		a.origin.msg.Ack()
		wakes = wakes || a.wakes()
		s.wakeRetrier(a)
		s.signals.settled.Send(a.ID)
	}
	if failpoint.Hit("consumer/after-ack") != nil {
		return
	}
	s.wakeRelay(wakes)
}

// wakeAfterCommit wakes the relay if a's committed transaction has put messages into the outbox.
func (s *settler) wakeAfterCommit(a *attempt) {
	s.wakeRelay(a != nil && a.wakes())
	s.wakeRetrier(a)
}

// wakeRetrier makes the retrier look when the next parked message is due, unless a has only been the first to arrive for
// its step, and has succeeded.
func (s *settler) wakeRetrier(a *attempt) {
	if a != nil && a.reported == OutcomeDone && !a.older && a.parked == nil {
		return
	}
	select {
	case s.retries <- struct{}{}:
	default:
	}
}

// wakeRelay calls the option Wake if there is work for the relay. Without Wake the relay looks a little later.
func (s *settler) wakeRelay(wakes bool) {
	if wakes && s.wake != nil {
		guard.Hook(context.Background(), s.reporter.log, "consumer: option Wake", s.wake)
	}
}

// readCommitted lets each statement see what was committed before it. A claim that meets the row of another
// transaction must be able to read that row. A database may have another default.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// rollbackOrClose rolls back. If that fails it closes the connection, and the server rolls back.
func (d *database) rollbackOrClose(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || txguard.StatusOf(conn) == txguard.Ended {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), databaseTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
		_ = conn.Close(ctx)
	}
}

// disconnectAfter is how long pgx may take to end a statement on a connection that it has closed.
const disconnectAfter = time.Second

// disconnectLater cuts a connection that pgx has closed, for example because a context ended. pgx sends one cancel
// request, and then waits up to 15 s for the server. A server that has not yet begun the statement ignores the request,
// and executes the statement to its end. Once the connection is cut, the server notices (Options.ConnectionCheck).
func disconnectLater(conn *pgx.Conn) {
	if !conn.IsClosed() {
		return
	}
	socket := conn.PgConn().Conn()
	time.AfterFunc(disconnectAfter, func() {
		tcp := socket
		if tls, ok := socket.(interface{ NetConn() net.Conn }); ok {
			tcp = tls.NetConn()
		}
		if tcp, ok := tcp.(interface{ SetLinger(sec int) error }); ok {
			_ = tcp.SetLinger(0) // the end of the connection must not wait behind data that the server does not read
		}
		_ = socket.Close()
	})
}
