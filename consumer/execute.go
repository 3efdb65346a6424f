package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/semaphore"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/lazytx"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// databaseTimeout is how long an attempt may take besides its handler and besides waiting for the lock of a
// concurrent duplicate. pgx has no deadline by default.
const databaseTimeout = 10 * time.Second

var (
	errTxEnded   = errors.New("consumer: the handler ended the transaction")
	errConnLost  = errors.New("consumer: the connection was lost while the handler ran")
	errTxAborted = errors.New("consumer: the handler returned nil after a statement had failed in its transaction")
	errTxInUse   = fmt.Errorf("consumer: the handler returned, and %w", lazytx.ErrInUse)
)

// An attempt is a received message while it is executed. It lives until the message is settled, through several
// transactions if one of them is lost.
type attempt struct {
	received
	claim
	origin boardEntry  // zero: the message came from Handle or from the table parked
	parked *parkedCopy // nil: the message is a delivery

	phase     phase
	cause     error // in phaseLost: why the transaction was lost
	spent     int   // entries in batches that failed; the database does not know of them
	recorded  int   // attempts that an earlier transaction tried to record with cause; it may have failed
	counted   bool  // the coming entry into the handler is already counted in the database
	barred    bool  // that entry does not happen: MaxAttempts are used up
	entered   bool  // the handler was entered in a batch that was rolled back
	direct    bool  // the handler has used the transaction; in a batch: behind a savepoint of its own
	bodyTaken bool  // a handler had the decoded body, and may have changed it
	leaked    bool  // the handler may have committed the claim by ending the transaction; it is to be reopened

	emitted  []outbox.Message // messages that the present transaction puts into the outbox
	call     *effectCall      // the call of an Effect that the present transaction has leased
	watch    watch            // data for the Observer, until it was called
	reported Outcome          // the last one that the Observer was told
}

// newAttempt returns an attempt at m, nil for nil.
func newAttempt(m *received) *attempt {
	if m == nil {
		return nil
	}
	return &attempt{received: *m}
}

// A phase says how far an attempt has come.
type phase int

// lose ends a's execution: only cause is recorded from here on.
func (a *attempt) lose(cause error) { a.phase, a.cause = phaseLost, cause }

// wakes reports whether the present transaction gives the relay work.
func (a *attempt) wakes() bool { return len(a.emitted) > 0 }

// A parkedCopy is a row of the table parked that this instance has taken.
type parkedCopy struct {
	id       int64
	attempts int // entries into the handler, the coming one included; with round it is the fence
	round    int // how often the message was redriven
}

// fence are the arguments of sqlLockParked.
func (p *parkedCopy) fence() []any { return []any{p.id, p.attempts, p.round} }

// An executor runs attempts in transactions.
type executor struct {
	sql       queries
	marked    bool // the subscriber marks redeliveries
	batchSize int
	batchTime time.Duration
	slots     *semaphore.Weighted // taken while handlers run: see acquireSlot
	signals   *signals

	claimer  *claimer
	handlers *handlers
	effects  *effects
	settler  *settler
	database *database
	outage   *outageWatch
	reporter *reporter
}

// executeLoad executes attempts from the first on, one alone or several in one transaction, and acks or nacks them.
// It returns the others, which are all if their queue was handed over since they arrived.
func (x *executor) executeLoad(ctx, work context.Context, attempts []*attempt) (left []*attempt) {
	n := x.countTogether(attempts)
	for i, part := range sortByKey(attempts[:n]) {
		if i > 0 && ctx.Err() != nil || len(part) > 0 && x.outage.hasHandedOver(part[0].origin) {
			left = append(left, part...)
			continue
		}
		if len(part) == 1 {
			x.executeOne(ctx, work, part[0])
		} else if len(part) > 1 {
			left = append(left, x.executeBatch(ctx, work, part)...)
		}
	}
	return append(left, attempts[n:]...)
}

// mayShare reports whether a message of step may share a transaction. A redelivered message may not: it may have
// killed a process. A message whose next entry is its last may not: others could make the transaction fail.
func (x *executor) mayShare(step *Step, redelivered bool, spent int) bool {
	return x.batchSize > 1 && x.marked && !redelivered && !step.Single && spent+1 < step.MaxAttempts
}

// countTogether returns how many attempts, from the first on, may share a transaction. Each row is claimed once in
// it. An ordered step takes part with one message of each key, because the next one depends on whether that is
// parked. No more handlers take part than there are savepoints for.
func (x *executor) countTogether(attempts []*attempt) int {
	seen, direct := map[identity]bool{}, 0
	for i, a := range attempts {
		id := identity{Scope: a.Scope, Key: a.Key, Step: a.Step, N: a.joinedN()}
		if a.step.Ordered {
			id.N = ""
		}
		if a.load.direct.Load() {
			direct++
		}
		if !x.mayShare(a.step, a.redelivered, a.spent) || seen[id] || direct > maxSavepoints {
			return max(i, 1)
		}
		seen[id] = true
	}
	return len(attempts)
}

// sortByKey returns attempts in the order of scope and key, in one part or two. Handlers lock rows of their saga:
// two batches that reached the same keys in opposite orders would deadlock. The messages of one key keep their
// order.
//
// To avoid starvation, a batch starts with the key that was skipped longest. The keys that sort before it are the
// second part.
func sortByKey(attempts []*attempt) [][]*attempt {
	attempts = slices.Clone(attempts)
	slices.SortStableFunc(attempts, compareKey)
	var late *attempt
	for _, a := range attempts {
		if a.origin.late && (late == nil || a.origin.at.Before(late.origin.at)) {
			late = a
		}
	}
	if late == nil {
		return [][]*attempt{attempts}
	}
	first := slices.IndexFunc(attempts, func(a *attempt) bool { return compareKey(a, late) == 0 })
	return [][]*attempt{attempts[first:], attempts[:first]}
}

func compareKey(a, b *attempt) int {
	return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Key, b.Key))
}

// executeOne executes a in a transaction without others and acks it. If nothing could be decided it nacks a.
func (x *executor) executeOne(ctx, work context.Context, a *attempt) {
	if x.retryUntilDone(ctx, a.origin, func() error { return x.executeAttempt(work, a) }) {
		x.settler.ackAttempts(a)
	} else {
		a.origin.msg.Nack()
	}
}

// failurePolicy is the wait between tries while the database is away.
var failurePolicy = backoff.Policy{Base: 100 * time.Millisecond, Cap: 5 * time.Second}

// How often a delivery is tried if its outcome cannot be recorded: before it is nacked for the first time, and after
// the broker has delivered it again.
const (
	maxTries         = 5
	redeliveredTries = 14
)

// maxTriesFor returns how often e is tried before it is nacked. The first nack comes early, since another process
// may reach a database that this one cannot. A redelivered message is tried for half a minute while the database is
// away. Otherwise an outage would use up the broker's delivery limit.
//
// Where the queues are handed over, no nack has to do that. Long before the last try the watch has decided.
func (x *executor) maxTriesFor(e boardEntry, err error) int {
	again := x.outage.canPause() || e.msg.Metadata.Get(outbox.PropertyRedelivered) == "true"
	if again && (isUnavailable(err) || isNoLogin(err) || errors.Is(err, pg.ErrHidden) || errors.Is(err, ErrVerifyLater)) {
		return redeliveredTries
	}
	return maxTries
}

// retryUntilDone reports whether do, which settles e, has succeeded. While the database is away it waits here and
// tries again, which costs the broker no delivery. In the end it gives up, so that one message does not occupy its
// lane for ever. It gives up at once if the queue is handed over.
func (x *executor) retryUntilDone(ctx context.Context, e boardEntry, do func() error) bool {
	for try := 1; !x.outage.hasHandedOver(e); try++ {
		err := guard.Call(do) // the pool's hooks may panic; the step's functions are guarded separately
		if err == nil || errors.Is(err, errHandedOver) {
			return err == nil
		}
		x.reporter.log.ErrorContext(ctx, "consumer: the outcome of a delivery could not be recorded, trying again", "topic", e.topic, "message_id", e.msg.UUID, "try", try, "error", sqlschema.Explain(err))
		x.outage.noteFailure(err)
		if try >= x.maxTriesFor(e, err) || ctx.Err() != nil {
			return false
		}
		_ = backoff.Sleep(ctx, failurePolicy.Wait(try)) // after ctx has ended, do is tried once more
	}
	return false
}

// executeAttempt executes a to its end. After nil its effect, its parked copy or its dead letter has committed, and a
// delivery may be acked. After an error nothing is decided: call executeAttempt again with the same attempt, or nack.
func (x *executor) executeAttempt(ctx context.Context, a *attempt) error {
	return x.reporter.reportOutcome(ctx, a, func() error {
		release, err := x.acquireSlot(ctx, a)
		if err != nil {
			return err
		}
		defer release()
		if a.phase != phaseLost {
			a.call = nil // it was of a transaction that did not commit
			err := x.countBeforehand(ctx, a)
			if err == nil {
				err = x.runTransaction(ctx, a)
			}
			if err == nil && a.call != nil {
				x.effects.makeCall(ctx, a)
			}
			if err == nil || a.phase == phasePending {
				return err
			}
			a.lose(err)
		}
		return x.recordLostAttempt(ctx, a)
	})
}

// exclusiveWeight takes the whole semaphore; a handler takes 1.
const exclusiveWeight = 1 << 20

// exclusiveWait is how long a message that should run alone waits for running handlers. A handler that hangs must
// not delay the message for ever: after that time it runs beside others.
const exclusiveWait = 5 * time.Second

const (
	phasePending phase = iota // the handler was not entered since the last transaction that was rolled back
	phaseEntered              // the handler was entered: a failure from here on costs an entry and is recorded
	phaseLost                 // the transaction was lost: nothing is left to be done but to record cause
)

// acquireSlot waits until a may run beside the other handlers of this process, and returns the function that
// releases its slot. A message that may have killed a process runs beside others until its last attempt. Its
// attempts are counted before each entry, so if a neighbour kills the process, that costs it one attempt. For its
// last attempt it runs alone.
func (x *executor) acquireSlot(ctx context.Context, a *attempt) (leave func(), err error) {
	last, err := x.isLastChance(ctx, a)
	if err != nil {
		return nil, err
	}
	if last {
		wait, cancel := context.WithTimeout(ctx, exclusiveWait)
		defer cancel()
		if x.slots.Acquire(wait, exclusiveWeight) == nil {
			return func() { x.slots.Release(exclusiveWeight) }, nil
		}
	}
	if err := x.acquireShared(ctx); err != nil {
		return nil, err
	}
	return func() { x.slots.Release(1) }, nil
}

// acquireShared waits while another message runs alone.
func (x *executor) acquireShared(ctx context.Context) error {
	if x.slots.TryAcquire(1) {
		return nil
	}
	if err := x.slots.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("consumer: wait for a message that is handled alone: %w", err)
	}
	return nil
}

// isLastChance reports whether a may have killed a process and has one attempt left.
func (x *executor) isLastChance(ctx context.Context, a *attempt) (bool, error) {
	if a.phase == phaseLost || a.parked != nil || a.input.effect != nil || a.counted || !a.redelivered && x.marked {
		return false, nil // the delivery of an Effect enters nothing: its calls belong to a parked copy
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var entries, undoEntries int
	err := x.database.db.QueryRow(ctx, x.sql.readAttempts, a.identity()...).Scan(&entries, &undoEntries)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, fmt.Errorf("consumer: read attempts: %w", err)
	}
	if a.kind == compensation {
		entries = undoEntries
	}
	if a.redelivered && x.marked {
		entries = max(entries, 1) // the first delivery left no row
	}
	return entries > 0 && entries+1 == a.step.MaxAttempts, nil
}

// countBeforehand commits the coming entry into the handler before it happens, if an earlier entry may have killed
// the process: no other trace of such an entry remains. A step with MaxAttempts 1 is always counted so, and so is
// every step if the subscriber does not mark redeliveries.
//
// A first delivery that crashed left no row. Unless every entry is counted beforehand, its redelivery therefore
// counts as two. Entries in batches that failed left no row either and are added.
func (x *executor) countBeforehand(ctx context.Context, a *attempt) error {
	always := a.step.MaxAttempts == 1 || !x.marked
	if a.parked != nil || a.input.effect != nil || a.counted || !a.redelivered && a.spent == 0 && !always {
		return nil // leaseCall always counts
	}
	first := a.spent + 1
	if a.redelivered && !always {
		first = 2
	}
	statement := x.sql.countAction
	if a.kind == compensation {
		statement = x.sql.countCompensation
	}
	ctx, cancel := context.WithTimeout(ctx, a.step.Timeout+databaseTimeout)
	defer cancel()
	var attempts int
	err := x.database.db.QueryRow(ctx, statement, append(a.identity(), first)...).Scan(&attempts)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // it will not be entered
	}
	if err != nil {
		return fmt.Errorf("consumer: count attempt: %w", err)
	}
	if err := a.noteCounted(attempts); err != nil {
		return err
	}
	return failpoint.Hit("consumer/after-count")
}

// noteCounted takes in that the coming entry brings the count to attempts. It returns an error if the entry must not
// happen.
func (a *attempt) noteCounted(attempts int) error {
	a.counted = true
	if attempts <= a.step.MaxAttempts {
		return nil
	}
	a.barred = true
	a.lose(errors.New("consumer: earlier attempts ended without a result, most likely with their process"))
	return a.cause
}

// runTransaction claims the row of a's step and does what the row says, in one transaction. After an error in
// phaseEntered the transaction is lost, or its outcome is unknown.
func (x *executor) runTransaction(ctx context.Context, a *attempt) error {
	ctx, cancel := context.WithTimeout(ctx, 2*a.step.Timeout+databaseTimeout)
	defer cancel()
	return x.database.withConnection(ctx, func(conn *pgx.Conn) error {
		return x.reporter.reportTransaction(ctx, new(int), func() error {
			var tx pgx.Tx
			var err error
			if a.parked == nil {
				tx, err = x.claimer.openTransaction(ctx, conn, []*attempt{a})
			} else {
				tx, err = x.claimer.claimParked(ctx, conn, a)
			}
			if err != nil || tx == nil {
				return err
			}
			v := a.decideVerdict()
			x.signals.decided.Send(v)
			switch {
			case v != run:
				return x.settler.commitVerdict(ctx, tx, a, v)
			case a.input.effect != nil:
				return x.effects.leaseCall(ctx, tx, a)
			}
			return x.runHandler(ctx, tx, a)
		})
	})
}

// runHandler enters the handler, records under the row's lock how that ended, and commits.
func (x *executor) runHandler(ctx context.Context, tx pgx.Tx, a *attempt) error {
	err := x.enterAndCommit(ctx, tx, a)
	for begun, repeats := time.Now(), 1; err != nil && a.phase != phasePending && x.repeatContested(ctx, tx, a, begun, repeats, err); repeats++ {
		err = x.enterAndCommit(ctx, tx, a)
	}
	if err == nil || a.phase == phasePending {
		return err
	}
	x.reporter.logFailure(ctx, a, err)
	if errors.Is(err, errTxInUse) {
		a.leaked = !a.older
		return err
	}
	x.database.suspectSession(tx.Conn(), err)
	switch {
	case errors.Is(err, errTxEnded):
		return errors.Join(err, x.claimer.reopenClaim(ctx, a))
	case errors.Is(err, errConnLost): // COMMIT was not sent, unless by the handler
		a.leaked = !a.older
		return err
	case tx.Conn().IsClosed(), txguard.StatusOf(tx.Conn()) == txguard.Ended:
		return err
	}
	if _, lost := tx.Conn().Exec(ctx, "ROLLBACK TO SAVEPOINT "+stepSavepoint); lost != nil {
		if err = errors.Join(endedIfGone(lost), err); errors.Is(err, errTxEnded) {
			err = errors.Join(err, x.claimer.reopenClaim(ctx, a))
		}
		return err
	}
	if err := x.settler.recordFailure(ctx, tx, a, err); err != nil {
		return err
	}
	return x.settler.commitEmitted(ctx, tx, a)
}

// recordLostAttempt records, in a new transaction, that an entry into the handler ended with its transaction lost.
// The row tells first whether that transaction committed after all, or whether another attempt has succeeded since.
//
// If neither is so and the queue was handed over, it returns errHandedOver: the broker delivers the message elsewhere,
// marked as redelivered, which counts the entry. A parked copy would let the next message of the key overtake it there.
func (x *executor) recordLostAttempt(ctx context.Context, a *attempt) error {
	a.noteOutcome("", "", nil) // forgets the outcome in the lost transaction
	ctx, cancel := context.WithTimeout(ctx, a.step.Timeout+databaseTimeout)
	defer cancel()
	return x.database.inTransaction(ctx, func(tx pgx.Tx, last *pgx.Batch) error {
		if a.leaked {
			reopened, err := x.claimer.reopenClaimIn(ctx, tx, a)
			if err != nil {
				return err
			}
			if reopened && !errors.Is(a.cause, errTxEnded) {
				a.cause = errors.Join(Terminal(errTxEnded), a.cause)
			}
		}
		switch err := x.claimer.lockRow(ctx, tx, a); {
		case errors.Is(err, errGone):
			a.noteOutcome(OutcomeDuplicate, "", a.cause)
			return nil
		case errors.Is(err, errBusy) && a.barred:
			return x.claimer.handBackParked(ctx, tx, a)
		case errors.Is(err, errBusy):
			return nil // the entry is counted; the lease runs out and another attempt follows
		case err != nil:
			return err
		case x.outage.hasHandedOver(a.origin) && a.decideVerdict() == run && !errors.Is(a.cause, ErrTerminal):
			return errHandedOver
		}
		if err := x.settleLostAttempt(ctx, tx, a); err != nil {
			return err
		}
		return x.settler.queueEmitted(last, a.emitted)
	})
}

// settleLostAttempt settles a lost entry by the state of the locked row.
func (x *executor) settleLostAttempt(ctx context.Context, tx pgx.Tx, a *attempt) error {
	switch v := a.decideVerdict(); {
	case v == run:
		a.recorded = a.countEntries()
		return x.settler.recordFailure(ctx, tx, a, a.cause)
	case v == duplicate && a.recorded > 0 && a.found.entries(a.kind) >= a.recorded:
		a.noteOutcome(OutcomeRetry, ReasonFailed, a.cause)
		return nil // the last try has recorded it, and its COMMIT was not answered
	case v == duplicate && (a.found.state == retrying || a.found.state == undoing):
		return x.countParkedAttempt(ctx, tx, a)
	default:
		return x.settler.settleVerdict(ctx, tx, a, v)
	}
}

// countParkedAttempt adds the lost entry to the count of the parked copy that another delivery of the message has
// left meanwhile.
func (x *executor) countParkedAttempt(ctx context.Context, tx pgx.Tx, a *attempt) error {
	if _, err := tx.Exec(ctx, x.sql.countParked, append(a.identity(), a.kind)...); err != nil {
		return fmt.Errorf("consumer: count attempt: %w", err)
	}
	a.noteOutcome(OutcomeRetry, ReasonFailed, a.cause)
	return nil
}
