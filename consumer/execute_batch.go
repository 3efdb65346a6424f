package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/lazytx"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// maxBatchSize is the largest Options.BatchSize: what is locked, and lost if the
// transaction fails.
const maxBatchSize = 512

// The bytes of payload in a batch. Those of the default are eight payloads of the largest
// size that package outbox takes; the maximum is the most that PostgreSQL takes at once.
const (
	defaultBatchBytes = 8 * outbox.MaxPayload
	maxBatchBytes     = 1 << 30
)

// maxSavepoints is how many handlers of a batch may use their transaction: with
// more than 64 savepoints in one, the server has to look for them on its disk
// whenever anybody reads what it has written.
const maxSavepoints = 60

// A batch is deliveries that share a transaction. What fails in it falls back to a
// savepoint and is parked; the others go on.
type batch struct {
	c    *Consumer
	tx   pgx.Tx
	jobs []*job

	ran        int    // how many of jobs, from the first, have been dealt with
	succeeded  []*job // those whose handlers have, and whose effects are to be committed
	savepoints int
	worked     bool // something was executed after the claims
	prepared   []prepared
}

// settleBatch deals with jobs, and returns those for which there was no time. If
// their transaction fails as a whole, each is tried by itself.
func (c *Consumer) settleBatch(ctx, work context.Context, jobs []*job) (later []*job) {
	switch len(jobs) {
	case 0:
		return nil
	case 1:
		c.settleDelivery(ctx, work, jobs[0])
		return nil
	}
	defer c.deserted(work, jobs)
	b := &batch{c: c, jobs: jobs}
	err := guard.Call(func() error { return b.attempt(ctx, work) })
	if err == nil {
		c.settledBatch(work, jobs[:b.ran])
		c.ack(jobs[:b.ran]...)
		for _, j := range jobs[b.ran:] {
			j.arrived.late = true
		}
		return jobs[b.ran:]
	}
	c.opts.Logger.WarnContext(ctx, "consumer: a batch failed, and its messages are tried one by one", "messages", len(jobs), "error", err)
	if errors.Is(err, errTxEnded) || errors.Is(err, errConnLost) {
		b.mend(ctx, work)
	}
	b.undone(work)
	for _, j := range jobs {
		j.takeBack()
		c.settleDelivery(ctx, work, j)
	}
	return nil
}

// takeBack makes j what it was before a batch that failed. What its handler was
// entered for has been spent.
func (j *job) takeBack() {
	if j.cause != nil { // nothing more is to be done than record it
		return
	}
	if j.entered {
		j.spent++
	}
	j.entered = false
	j.emits(nil)
}

// attempt does what the rows of b's jobs say in one transaction, until time is up
// or intake ends. Handlers run one after the other, in the order of the jobs.
func (b *batch) attempt(intake, work context.Context) error {
	if err := b.c.enterCompany(work); err != nil {
		return err
	}
	defer b.c.company.Release(1)
	ctx, cancel := context.WithTimeout(work, b.c.opts.BatchTime+2*idleLimit(b.jobs))
	defer cancel()
	return b.c.withConn(ctx, func(conn *pgx.Conn) error {
		return b.c.timed(ctx, &b.ran, func() error { return b.run(ctx, intake, conn) })
	})
}

func (b *batch) run(ctx, intake context.Context, conn *pgx.Conn) (err error) {
	if b.tx, err = b.c.open(ctx, conn, b.jobs); err != nil {
		return err
	}
	begun := time.Now()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	for _, j := range b.jobs {
		if b.ran > 0 && (intake.Err() != nil || time.Since(begun) >= b.c.opts.BatchTime || b.savepoints == maxSavepoints) {
			break
		}
		if err := b.take(ctx, j); err != nil {
			return err
		}
		b.ran++
	}
	return b.end(ctx)
}

func (b *batch) take(ctx context.Context, j *job) error {
	v := decide(j.found, j.arrival())
	b.c.signals.decided.Send(v)
	if v != run {
		b.worked = true
		return b.c.settle(ctx, b.tx, j, j.found, v)
	}
	part := lazytx.Nested(b.tx, stepSavepoint)
	err := b.c.enter(b.contextFor(ctx, j.step), b.tx.Conn(), part.Holder(), j, j.found)
	switch {
	case !part.End():
		_ = b.tx.Conn().Close(ctx) // whatever the handler has left running must not reach the next one's
		return errors.Join(errors.New("consumer: a handler returned while it was using its transaction"), err)
	case !j.entered:
		return err
	case err == nil:
		err = checkEmitted(j.out.msgs)
	}
	if part.Began() {
		j.direct, b.worked = true, true
		j.traffic.direct.Store(true)
		b.savepoints++
	}
	if err == nil && b.awaited(j) {
		err = b.flush(ctx, j)
	}
	if err == nil {
		b.succeeded = append(b.succeeded, j)
		return nil
	}
	return b.fail(ctx, j, err)
}

// awaited reports whether another handler of j's saga, which the order of the jobs
// puts behind j, is to see what j's handler has queued.
func (b *batch) awaited(j *job) bool {
	if len(j.out.statements) == 0 {
		return false
	}
	for _, next := range b.jobs[b.ran+1:] {
		if compareSaga(j, next) != 0 {
			return false
		}
		if decide(next.found, next.arrival()) == run {
			return true
		}
	}
	return false
}

// flush executes what j's handler has queued while nothing has come after it, so that
// a failure can be undone with the handler's own work, and be its failure alone.
func (b *batch) flush(ctx context.Context, j *job) error {
	b.worked = true
	if !j.direct {
		if err := b.saveStep(ctx, j); err != nil {
			return err
		}
		b.savepoints++
	}
	return b.sendQueued(ctx, j)
}

// saveStep sets the savepoint that j falls back to. It cannot travel with what is
// queued, as in save.
func (b *batch) saveStep(ctx context.Context, j *job) error {
	if _, err := b.tx.Exec(ctx, "SAVEPOINT "+stepSavepoint); err != nil {
		return fmt.Errorf("consumer: set savepoint: %w", err)
	}
	j.direct = true
	return nil
}

// sendQueued executes what j's handler has queued, once.
func (b *batch) sendQueued(ctx context.Context, j *job) error {
	own := &pgx.Batch{}
	j.out.queueInto(own)
	err := b.tx.Conn().SendBatch(ctx, own).Close()
	if err == nil {
		j.out.statements = nil
	}
	return err
}

// fail undoes what j's handler has done, if that was anything, and records why.
func (b *batch) fail(ctx context.Context, j *job, cause error) error {
	b.worked = true
	b.c.logFailure(ctx, j, cause)
	if conn := b.tx.Conn(); conn.IsClosed() || conn.PgConn().IsBusy() || txguard.StatusOf(conn) == txguard.Ended {
		j.cause = cause
		return cause
	}
	if j.direct {
		if _, err := b.tx.Exec(ctx, "ROLLBACK TO SAVEPOINT "+stepSavepoint); err != nil {
			if err = errors.Join(endedIfGone(err), cause); errors.Is(err, errTxEnded) {
				j.cause = err
			}
			return err
		}
	}
	return b.c.recordFailure(ctx, b.tx, j, j.found, cause)
}

// end sends what the handlers have queued and emitted, and commits. If the former
// fails, it is sent again message by message, so that only the one fails for which it is.
func (b *batch) end(ctx context.Context) error {
	last, queued, reached := &pgx.Batch{}, 0, 0
	for _, j := range b.succeeded {
		queued += j.out.queueInto(last)
	}
	for _, q := range last.QueuedQueries {
		q.Exec(func(pgconn.CommandTag) error { reached++; return nil })
	}
	if err := b.save(ctx, queued); err != nil {
		return err
	}
	if err := b.queueOutcomes(last); err != nil {
		return err
	}
	err := b.c.endHandled(ctx, b.tx, last, savepointFor(b.jobs))
	if err == nil || reached == queued || b.tx.Conn().IsClosed() || txguard.StatusOf(b.tx.Conn()) != txguard.Aborted {
		return err
	}
	if _, lost := b.tx.Conn().Exec(ctx, "ROLLBACK TO SAVEPOINT "+batchSavepoint); lost != nil {
		return errors.Join(endedIfGone(lost), err)
	}
	if err := b.resend(ctx); err != nil {
		return err
	}
	last = &pgx.Batch{}
	if err := b.queueOutcomes(last); err != nil {
		return err
	}
	return b.c.endHandled(ctx, b.tx, last, savepointFor(b.jobs))
}

// save sets the savepoint for what is queued once more, if anything has happened
// since the claims that must not be undone with it: a handler's work, the record
// of a failure, the lock of a row that was there before. It cannot travel with
// what it is for: if one of those statements cannot be prepared, nothing is executed.
func (b *batch) save(ctx context.Context, queued int) error {
	if queued == 0 || !b.worked && !slices.ContainsFunc(b.jobs, func(j *job) bool { return j.older }) {
		return nil
	}
	if _, err := b.tx.Exec(ctx, "SAVEPOINT "+batchSavepoint); err != nil {
		return fmt.Errorf("consumer: set savepoint: %w", err)
	}
	return nil
}

// queueOutcomes adds to last what success changes in the inbox, what was emitted,
// in order, and the removal of claims that nothing came of.
func (b *batch) queueOutcomes(last *pgx.Batch) error {
	for _, j := range b.succeeded {
		b.c.queueMove(last, j, j.found)
	}
	if claims := claimsOf(b.jobs[b.ran:]); len(claims) > 0 {
		last.Queue(b.c.sql.unclaim, identityColumns(claims)...)
	}
	var emitted []outbox.Message
	for _, j := range b.jobs[:b.ran] {
		emitted = append(emitted, j.emitted...)
	}
	for msgs := range slices.Chunk(emitted, outbox.MaxBatch) {
		if err := b.c.queueEmitted(last, msgs); err != nil {
			return err
		}
	}
	return nil
}

// resend executes what the handlers have queued, each handler's for itself, and
// makes failures of those where that fails. A handler that has used its
// transaction before cannot be undone any more without the others that came after it.
func (b *batch) resend(ctx context.Context) error {
	var succeeded []*job
	for _, j := range b.succeeded {
		if len(j.out.statements) == 0 {
			succeeded = append(succeeded, j)
			continue
		}
		before := j.direct
		if err := b.saveStep(ctx, j); err != nil {
			return err
		}
		err := b.sendQueued(ctx, j)
		if err == nil {
			succeeded = append(succeeded, j)
			continue
		}
		if before {
			return err
		}
		if err := b.fail(ctx, j, err); err != nil {
			return err
		}
	}
	b.succeeded = succeeded
	return nil
}

// claimsOf returns those of jobs whose rows this transaction has inserted.
func claimsOf(jobs []*job) []*job {
	return slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool { return j.older })
}

// mend takes back, of a batch that a handler has ended by itself, or may have before its connection
// was lost, the claims that this has committed: until then they count as done. What other handlers have done
// is committed without what they have emitted, so that it is for a person to look
// at. It tries until it succeeds, or the time for work in hand is over.
func (b *batch) mend(ctx, work context.Context) {
	for try := 1; ; try++ {
		err := b.reopen(work)
		if err == nil || work.Err() != nil {
			return
		}
		b.c.opts.Logger.ErrorContext(ctx, "consumer: claims are not taken back", "try", try, "error", err)
		pause(work, failurePolicy.Wait(try), nil, false)
	}
}

func (b *batch) reopen(ctx context.Context) error {
	return b.c.inTx(ctx, func(tx pgx.Tx, _ *pgx.Batch) error {
		for _, j := range claimsOf(b.jobs) {
			reopened, err := b.c.reopenIn(ctx, tx, j)
			if err != nil {
				return err
			}
			if reopened && j.entered && !errors.Is(j.cause, ErrTerminal) {
				shared := errors.New("consumer: a handler ended the transaction that this message's handler shared with those of others")
				j.cause = errors.Join(Terminal(shared), j.cause)
			}
		}
		return nil
	})
}

// A Preparer is called before the handlers of a batch are entered, with the messages
// that they are going to be entered for: what those need of the database can be
// read, and locked, in one round trip for all.
type Preparer struct {
	prepare func(ctx context.Context, tx pgx.Tx, messages []*Delivery) (context.Context, error)
}

// NewPreparer returns a Preparer that calls prepare. The context that prepare returns
// is the one that the handlers' contexts come from. It must not change anything. A
// handler has to do without, since a message that is alone is not prepared. After an
// error, or a panic, the messages are handled one by one.
//
// Rows are to be locked in one order, so that two batches do not wait for each other.
func NewPreparer(prepare func(ctx context.Context, tx pgx.Tx, messages []*Delivery) (context.Context, error)) *Preparer {
	return &Preparer{prepare}
}

// A prepared is what a Preparer has made of a batch.
type prepared struct {
	by       *Preparer
	messages []*Delivery
	ctx      context.Context
}

// prepare prepares those of b's messages whose handlers are going to be entered.
func (b *batch) prepare(ctx context.Context) error {
	for _, j := range b.jobs {
		if j.step.Prepare == nil || decide(j.found, j.arrival()) != run {
			continue
		}
		i := slices.IndexFunc(b.prepared, func(p prepared) bool { return p.by == j.step.Prepare })
		if i < 0 {
			i = len(b.prepared)
			b.prepared = append(b.prepared, prepared{by: j.step.Prepare})
		}
		b.prepared[i].messages = append(b.prepared[i].messages, &j.Delivery)
	}
	for i := range b.prepared {
		b.worked = true // locks would be gone with the savepoint of what is queued
		if err := b.callPrepare(ctx, &b.prepared[i]); err != nil {
			return fmt.Errorf("consumer: prepare a batch: %w", err)
		}
	}
	return nil
}

func (b *batch) callPrepare(ctx context.Context, p *prepared) (err error) {
	err = guarded(func() (err error) {
		p.ctx, err = p.by.prepare(ctx, txguard.Wrap(b.tx), p.messages)
		return err
	})
	if err == nil {
		err = stateAfter(b.tx.Conn())
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
