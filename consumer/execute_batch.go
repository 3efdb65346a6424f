package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/lazytx"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// maxBatchSize is the largest Options.BatchSize. It bounds the rows that are locked, and the work that is lost if
// the transaction fails.
const maxBatchSize = 512

// The bytes of payload in a batch. The default is eight payloads of the largest size that package outbox accepts.
// The maximum is the most that PostgreSQL takes at once.
const (
	defaultBatchBytes = 8 * outbox.MaxPayload
	maxBatchBytes     = 1 << 30
)

// maxSavepoints is how many handlers of a batch may use their transaction. With more than 64 savepoints, the server
// looks them up on disk whenever another session reads a row of the transaction.
const maxSavepoints = 60

// A batch is several attempts in one transaction. A failed one rolls back to a savepoint and is parked; the others
// go on.
type batch struct {
	x        *executor
	tx       pgx.Tx
	attempts []*attempt

	ran        int        // how many attempts, from the first, have been executed
	succeeded  []*attempt // attempts whose handlers have succeeded, to be committed
	savepoints int
	worked     bool // something was executed after the claims
	otherRole  bool // a function of the user has used the transaction, and may have set another role
	prepared   []preparedGroup
}

// executeBatch executes attempts in one transaction and returns those for which there was no time. If the
// transaction loses against others, it is repeated once. If it fails as a whole, executeBatch executes each attempt alone.
func (x *executor) executeBatch(ctx, work context.Context, attempts []*attempt) (later []*attempt) {
	defer x.reporter.reportDeserted(work, attempts)
	b := &batch{x: x, attempts: attempts}
	err := guard.Call(func() error { return b.runTransaction(ctx, work) })
	if b.wasContested(err) && backoff.Sleep(work, repeatPolicy.Wait(1)) == nil && !b.wasHandedOver() {
		x.reporter.log.DebugContext(ctx, "consumer: deadlock or serialization failure, repeating the batch", "messages", len(attempts), "error", err)
		x.reporter.reportUndone(work, attempts)
		for _, a := range attempts {
			a.takeBack(0)
		}
		b = &batch{x: x, attempts: attempts}
		err = guard.Call(func() error { return b.runTransaction(ctx, work) })
	}
	if err == nil {
		x.reporter.reportBatch(work, attempts[:b.ran])
		x.settler.ackAttempts(attempts[:b.ran]...)
		for _, a := range attempts[b.ran:] {
			a.origin.late = true
		}
		return attempts[b.ran:]
	}
	x.reporter.log.WarnContext(ctx, "consumer: a batch failed, and its messages are tried one by one", "messages", len(attempts), "error", err)
	if errors.Is(err, errTxEnded) || errors.Is(err, errConnLost) || errors.Is(err, errTxInUse) {
		b.reopenUntilDone(ctx, work)
	}
	x.reporter.reportUndone(work, attempts)
	spent := 1
	if b.wasContested(err) {
		spent = 0
	}
	for _, a := range attempts {
		a.takeBack(spent)
		x.executeOne(ctx, work, a)
	}
	return nil
}

// wasHandedOver reports whether a queue of the batch was handed over since.
func (b *batch) wasHandedOver() bool {
	return slices.ContainsFunc(b.attempts, func(a *attempt) bool { return b.x.outage.hasHandedOver(a.origin) })
}

// wasContested reports whether the batch, which ended with err, has lost against other transactions, and was rolled back.
func (b *batch) wasContested(err error) bool {
	lost := slices.ContainsFunc(b.attempts, func(a *attempt) bool { return a.phase == phaseLost })
	return isConflict(err) && !errors.Is(err, errTxEnded) && !lost
}

// takeBack resets a after a batch that failed. Its entry into the handler, if there was one, costs spent entries.
func (a *attempt) takeBack(spent int) {
	if a.phase == phaseLost {
		return
	}
	if a.phase == phaseEntered {
		a.spent += spent
		a.entered = true
	}
	a.direct = false
	a.noteOutcome("", "", nil)
	a.phase = phasePending
	a.setEmitted(nil)
}

// runTransaction executes the attempts in one transaction, one after the other, until time is up or intake ends.
func (b *batch) runTransaction(intake, work context.Context) error {
	if err := b.x.acquireShared(work); err != nil {
		return err
	}
	defer b.x.slots.Release(1)
	ctx, cancel := context.WithTimeout(work, b.x.batchTime+2*idleLimit(b.attempts))
	defer cancel()
	return b.x.database.withConnection(ctx, func(conn *pgx.Conn) error {
		return b.x.reporter.reportTransaction(ctx, &b.ran, func() error { return b.runHandlers(ctx, intake, conn) })
	})
}

func (b *batch) runHandlers(ctx, intake context.Context, conn *pgx.Conn) (err error) {
	if b.tx, err = b.x.claimer.openTransaction(ctx, conn, b.attempts); err != nil {
		return err
	}
	begun := time.Now()
	if err := b.prepareMembers(ctx); err != nil {
		return err
	}
	for _, a := range b.attempts {
		if b.ran > 0 && (intake.Err() != nil || time.Since(begun) >= b.x.batchTime || b.savepoints == maxSavepoints) {
			break
		}
		if err := b.executeMember(ctx, a); err != nil {
			return err
		}
		b.ran++
	}
	return b.commitBatch(ctx)
}

func (b *batch) executeMember(ctx context.Context, a *attempt) error {
	v := a.decideVerdict()
	b.x.signals.decided.Send(v)
	if v != run {
		b.worked = true
		if err := b.returnToRole(ctx); err != nil {
			return err
		}
		return b.x.settler.settleVerdict(ctx, b.tx, a, v)
	}
	part := lazytx.Nested(b.tx, stepSavepoint, b.queueReturnToRole)
	err := b.x.handlers.enterHandler(b.contextFor(ctx, a.step), b.tx.Conn(), part, a)
	switch {
	case errors.Is(err, errTxInUse):
		a.lose(err)
		return err
	case a.phase == phasePending:
		return err
	case err == nil:
		err = checkEmitted(a.out.msgs)
	}
	if part.Began() {
		a.direct, b.worked, b.otherRole = true, true, true
		a.load.direct.Store(true)
		b.savepoints++
	}
	if err == nil && b.mustFlush(a) {
		err = b.flushQueued(ctx, a)
	}
	if err == nil {
		b.succeeded = append(b.succeeded, a)
		return nil
	}
	return b.recordFailure(ctx, a, err)
}

// queueReturnToRole adds to batch what makes the transaction run as the role with which it was opened, if a function of
// the user may have set another one.
func (b *batch) queueReturnToRole(batch *pgx.Batch) {
	if b.otherRole {
		batch.Queue(txguard.ReturnToRole(b.attempts[0].role))
		b.otherRole = false // else the transaction has failed
	}
}

func (b *batch) returnToRole(ctx context.Context) error {
	own := &pgx.Batch{}
	if b.queueReturnToRole(own); own.Len() == 0 {
		return nil
	}
	if err := b.tx.SendBatch(ctx, own).Close(); err != nil {
		return fmt.Errorf("consumer: return to role: %w", err)
	}
	return nil
}

// mustFlush reports whether what a's handler has queued must be executed before the next handler is entered: a later
// handler of the same key must see it. A handler that has used its transaction may have set a role for it.
func (b *batch) mustFlush(a *attempt) bool {
	if len(a.out.statements) == 0 {
		return false
	}
	if a.direct {
		return true
	}
	for _, next := range b.attempts[b.ran+1:] {
		if compareKey(a, next) != 0 {
			return false
		}
		if next.decideVerdict() == run {
			return true
		}
	}
	return false
}

// flushQueued executes what a's handler has queued before the next handler is entered. If it fails, only a fails,
// and its work is rolled back with it.
func (b *batch) flushQueued(ctx context.Context, a *attempt) error {
	b.worked = true
	if !a.direct {
		if err := b.returnToRole(ctx); err != nil {
			return err
		}
		if err := b.setStepSavepoint(ctx, a); err != nil {
			return err
		}
		b.savepoints++
	}
	return b.sendQueued(ctx, a)
}

// setStepSavepoint sets the savepoint to which a rolls back. It needs a separate round
// trip: see setBatchSavepoint.
func (b *batch) setStepSavepoint(ctx context.Context, a *attempt) error {
	if _, err := b.tx.Exec(ctx, "SAVEPOINT "+stepSavepoint); err != nil {
		return fmt.Errorf("consumer: set savepoint: %w", err)
	}
	a.direct = true
	return nil
}

// sendQueued executes what a's handler has queued, once.
func (b *batch) sendQueued(ctx context.Context, a *attempt) error {
	own := &pgx.Batch{}
	a.out.queueInto(own)
	b.otherRole = true
	err := b.tx.Conn().SendBatch(ctx, own).Close()
	if err == nil {
		a.out.statements = nil
	}
	return err
}

// recordFailure rolls back what a's handler has done, if it did anything, and parks a.
func (b *batch) recordFailure(ctx context.Context, a *attempt, cause error) error {
	b.worked = true
	conn := b.tx.Conn()
	isLost := conn.IsClosed() || conn.PgConn().IsBusy() || txguard.StatusOf(conn) == txguard.Ended
	if isContested(conn, cause) {
		if _, err := b.tx.Exec(ctx, "ROLLBACK TO SAVEPOINT "+batchSavepoint); err != nil {
			err = errors.Join(endedIfGone(err), cause)
			a.lose(err)
			return err
		}
		return cause // which says nothing about a: the batch is repeated
	}
	b.x.reporter.logFailure(ctx, a, cause)
	b.x.database.suspectSession(conn, cause)
	if isLost {
		a.lose(cause)
		return cause
	}
	if a.direct {
		if _, err := b.tx.Exec(ctx, "ROLLBACK TO SAVEPOINT "+stepSavepoint); err != nil {
			if err = errors.Join(endedIfGone(err), cause); errors.Is(err, errTxEnded) {
				a.lose(err)
			}
			return err
		}
		b.otherRole = false // which the handler had set behind the savepoint
	}
	if err := b.returnToRole(ctx); err != nil {
		return err
	}
	return b.x.settler.recordFailure(ctx, b.tx, a, cause)
}

// commitBatch sends what the handlers have queued and emitted, and commits. If a queued statement fails, it sends
// the statements again handler by handler, so that only the handler fails to which the statement belongs.
func (b *batch) commitBatch(ctx context.Context) error {
	last, queued, reached := &pgx.Batch{}, 0, 0
	otherRole := b.otherRole
	b.queueReturnToRole(last)
	for _, a := range b.succeeded {
		queued += a.out.queueInto(last)
	}
	for _, q := range last.QueuedQueries[last.Len()-queued:] {
		q.Exec(func(pgconn.CommandTag) error { reached++; return nil })
	}
	if err := b.setBatchSavepoint(ctx, queued); err != nil {
		return err
	}
	b.otherRole = queued > 0
	b.queueReturnToRole(last)
	if err := b.queueOutcomes(last); err != nil {
		return err
	}
	err := b.x.database.commit(ctx, b.tx, last, savepointFor(b.attempts))
	if err == nil || reached == queued || b.tx.Conn().IsClosed() || txguard.StatusOf(b.tx.Conn()) != txguard.Aborted {
		return err
	}
	if _, lost := b.tx.Conn().Exec(ctx, "ROLLBACK TO SAVEPOINT "+batchSavepoint); lost != nil {
		return errors.Join(endedIfGone(lost), err)
	}
	if isConflict(err) {
		return err
	}
	b.otherRole = otherRole
	if err := b.resendQueued(ctx); err != nil {
		return err
	}
	last = &pgx.Batch{}
	b.queueReturnToRole(last)
	if err := b.queueOutcomes(last); err != nil {
		return err
	}
	return b.x.database.commit(ctx, b.tx, last, savepointFor(b.attempts))
}

// setBatchSavepoint sets the savepoint for the queued statements, if anything since the claims must not be rolled
// back with them: a handler's work, a recorded failure, the lock of a row that existed before. It cannot travel with
// the statements: if one of them cannot be prepared, the server executes none.
func (b *batch) setBatchSavepoint(ctx context.Context, queued int) error {
	if queued == 0 || !b.worked && !slices.ContainsFunc(b.attempts, func(a *attempt) bool { return a.older }) {
		return nil
	}
	if _, err := b.tx.Exec(ctx, "SAVEPOINT "+batchSavepoint); err != nil {
		return fmt.Errorf("consumer: set savepoint: %w", err)
	}
	return nil
}

// queueOutcomes adds to last the moves of the inbox rows, the removal of claims that were not used, and the emitted
// messages in their order.
func (b *batch) queueOutcomes(last *pgx.Batch) error {
	for _, a := range b.succeeded {
		b.x.settler.queueMove(last, a)
	}
	if claims := insertedClaims(b.attempts[b.ran:]); len(claims) > 0 {
		queueAnew(last, b.x.sql.unclaim, identityColumns(claims)...)
	}
	var emitted []outbox.Message
	for _, a := range b.attempts[:b.ran] {
		emitted = append(emitted, a.emitted...)
	}
	for msgs := range slices.Chunk(emitted, outbox.MaxBatch) {
		if err := b.x.settler.queueEmitted(last, msgs); err != nil {
			return err
		}
	}
	return nil
}

// resendQueued executes the queued statements of each handler separately and records a failure where that fails. A
// handler that has used its transaction before cannot be rolled back any more without the handlers after it: then
// the whole batch fails.
func (b *batch) resendQueued(ctx context.Context) error {
	var succeeded []*attempt
	for _, a := range b.succeeded {
		if len(a.out.statements) == 0 {
			succeeded = append(succeeded, a)
			continue
		}
		before := a.direct
		if err := b.returnToRole(ctx); err != nil {
			return err
		}
		if err := b.setStepSavepoint(ctx, a); err != nil {
			return err
		}
		err := b.sendQueued(ctx, a)
		if err == nil {
			succeeded = append(succeeded, a)
			continue
		}
		if before {
			return err
		}
		if err := b.recordFailure(ctx, a, err); err != nil {
			return err
		}
	}
	b.succeeded = succeeded
	return nil
}

// insertedClaims returns those of attempts whose rows this transaction has inserted.
func insertedClaims(attempts []*attempt) []*attempt {
	return slices.DeleteFunc(slices.Clone(attempts), func(a *attempt) bool { return a.older })
}

// reopenUntilDone takes back the claims of a batch whose transaction a handler has ended, or may have ended before
// the connection was lost. Until then these rows count as done. The work of other handlers is committed without what
// they emitted, so a person has to look at it. reopenUntilDone tries until it succeeds or work ends.
func (b *batch) reopenUntilDone(ctx, work context.Context) {
	for try := 1; ; try++ {
		err := b.reopenClaims(work)
		if err == nil || work.Err() != nil {
			return
		}
		b.x.reporter.log.ErrorContext(ctx, "consumer: the claims of a failed batch could not be removed, trying again", "try", try, "error", err)
		_ = backoff.Sleep(work, failurePolicy.Wait(try))
	}
}

func (b *batch) reopenClaims(ctx context.Context) error {
	return b.x.database.inTransaction(ctx, func(tx pgx.Tx, _ *pgx.Batch) error {
		for _, a := range insertedClaims(b.attempts) {
			reopened, err := b.x.claimer.reopenClaimIn(ctx, tx, a)
			if err != nil {
				return err
			}
			if reopened && a.phase != phasePending && !errors.Is(a.cause, ErrTerminal) {
				shared := errors.New("consumer: a handler ended the transaction that this message's handler shared with those of others")
				a.lose(errors.Join(Terminal(shared), a.cause))
			}
		}
		return nil
	})
}

// A preparedGroup is the part of a batch that one Preparer has prepared.
type preparedGroup struct {
	by       *Preparer
	messages []*Delivery
	ctx      context.Context
}

// prepareMembers calls the Preparers for the attempts whose handlers will be entered.
func (b *batch) prepareMembers(ctx context.Context) error {
	for _, a := range b.attempts {
		if a.step.Prepare == nil || a.decideVerdict() != run {
			continue
		}
		i := slices.IndexFunc(b.prepared, func(p preparedGroup) bool { return p.by == a.step.Prepare })
		if i < 0 {
			i = len(b.prepared)
			b.prepared = append(b.prepared, preparedGroup{by: a.step.Prepare})
		}
		b.prepared[i].messages = append(b.prepared[i].messages, &a.Delivery)
	}
	for i := range b.prepared {
		b.worked, b.otherRole = true, true // a rollback to the savepoint of the queued statements would release its locks
		if err := b.callPrepare(ctx, &b.prepared[i]); err != nil {
			return fmt.Errorf("consumer: prepare a batch: %w", err)
		}
	}
	return nil
}

func (b *batch) callPrepare(ctx context.Context, p *preparedGroup) (err error) {
	err = callGuarded(func() (err error) {
		p.ctx, err = p.by.prepare(ctx, txguard.Wrap(b.tx), p.messages)
		return err
	})
	if err == nil {
		err = checkAfterHandler(b.tx.Conn())
	}
	if err == nil && p.ctx == nil {
		err = errors.New("a Preparer returned no context")
	}
	return err
}

// contextFor returns the context for the handlers of step.
func (b *batch) contextFor(ctx context.Context, step *Step) context.Context {
	for _, p := range b.prepared {
		if p.by == step.Prepare {
			return p.ctx
		}
	}
	return ctx
}
