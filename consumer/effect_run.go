package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/drain"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/outbox"
)

// An attempt at an Effect takes three steps, from one commit to the next:
//
//	leaseCall      in the transaction that decided: park the message with the attempt counted, in doubt, not due
//	               before its lease is over, and move the step's row to retrying or undoing
//	makeCall       without a lock: ask verify if there is a doubt, make the call, and
//	recordOutcome  lock the row and the parked copy, which must still belong to this attempt (attempts and round
//	               are the fence), and commit either record's work and the end of the copy, or its next attempt
//
// If the process dies in between, the parked message holds all that another one needs. A process that has lost its
// lease finds the fence raised.

// effectMargin is the part of a lease for everything besides verify and call: the commit before them and the lock
// after them.
const effectMargin = 5 * time.Second

// recordGrace is how long after a drain the result of a call that ended with it may still be recorded. It is shorter
// than deafGrace.
const recordGrace = 3 * time.Second

var (
	errLate      = NotDone(errors.New("consumer: the attempt's lease was over before its call; it was not made"))
	errSpent     = errors.New("consumer: all attempts are used up")
	errUnsettled = errors.New("consumer: verify finds nothing yet, but the call in doubt may still have its effect")
)

// An effectCall is an attempt at an Effect whose lease is committed.
type effectCall struct {
	parked    parkedCopy
	doubt     bool          // an earlier attempt may have had the effect
	notDone   bool          // all earlier entries are known to have had none, also those before the step was an Effect
	unsettled time.Duration // time until a not-found answer of verify is trusted; 0 or less: now
	until     time.Time     // the lease's end, or somewhat before it
}

// A callResult is the result of an effectCall.
type callResult struct {
	result    any
	err       error
	doubt     bool          // it may have had the effect; of no meaning without err
	unsettled time.Duration // positive: only asked, too early; come back then
	rest      time.Duration // of a question that failed: time until a not-found answer is trusted
}

// hasVerify reports whether verify can answer for an attempt in doubt.
func (in *Input) hasVerify() bool { return in.effect != nil && in.effect.verify != nil }

// wasReplayed reports whether m was published before, so that the database may have forgotten an earlier call.
func (m *received) wasReplayed() bool { return m.Metadata.Get(outbox.HeaderReplayed) != "" }

// effects makes the calls of Effects.
type effects struct {
	sql          queries
	effectSQL    effectQueries
	effectMargin time.Duration // effectMargin

	handlers *handlers
	settler  *settler
	database *database
	reporter *reporter
}

// leaseCall takes the lease for one attempt at a's effect, in the transaction that holds the lock of its step, and
// commits. The call follows.
func (e *effects) leaseCall(ctx context.Context, tx pgx.Tx, a *attempt) error {
	a.barred = false
	u := effectCall{parked: parkedCopy{attempts: a.countEntries()}}
	a.barred = u.parked.attempts > a.step.MaxAttempts
	a.Attempt = a.countEntries()
	if err := e.readDoubt(ctx, tx, a, &u); err != nil {
		return err
	}
	lease := e.effectLease(a, u.doubt)
	u.until = time.Now().Add(lease) // before the database begins to count
	last := &pgx.Batch{}
	err := e.takeLease(ctx, tx, last, a, &u, lease)
	if errors.Is(err, errOtherCopy) {
		if err := e.settler.buryOtherPayload(ctx, tx, a, a.found.entries(a.kind)); err != nil {
			return err
		}
		return e.settler.commitEmitted(ctx, tx, a)
	}
	if err != nil {
		return err
	}
	last.Queue(e.sql.moveStep, a.transition(parkedState(a.kind, false), a.Attempt)...)
	if err := e.database.commit(ctx, tx, last, ""); err != nil {
		return err
	}
	if u.parked.id == 0 {
		a.noteOutcome(OutcomeDuplicate, "", nil)
		return nil
	}
	a.call = &u
	return nil
}

// effectLease is how long an attempt may take before another one may begin.
func (e *effects) effectLease(a *attempt, doubt bool) time.Duration {
	if doubt && a.input.hasVerify() {
		return 2*a.step.Timeout + e.effectMargin
	}
	return a.step.Timeout + e.effectMargin
}

// readDoubt reads what is known of earlier attempts. Earlier attempts of a delivery were made before the step was an
// Effect: only their number is known.
func (e *effects) readDoubt(ctx context.Context, tx pgx.Tx, a *attempt, u *effectCall) error {
	u.doubt, u.unsettled, u.notDone = u.parked.attempts > 1, a.step.Settle, u.parked.attempts == 1 && !a.redelivered
	forgotten, waits := e.effectLease(a, true)+a.step.Settle, false
	if a.parked != nil {
		var err error
		if forgotten, waits, err = e.readParkedDoubt(ctx, tx, a, u); err != nil {
			return err
		}
	}
	if a.input.hasVerify() && !waits {
		a.suspectForgotten(u, forgotten)
	}
	return nil
}

// suspectForgotten marks the attempt as possibly not the first, because a restored database may have forgotten one.
// The call for a replayed message may have been made before the message arrived, or before an operator redrove it
// with the mark. The end of that call may be unknown. Until forgotten has passed, a not-found answer of verify is
// not trusted for it. After that, and for a step with [Step].AskFirst, verify is asked and its answer is trusted at
// once: one question must not cost each message a wait.
func (a *attempt) suspectForgotten(u *effectCall, forgotten time.Duration) {
	switch {
	case a.wasReplayed() && u.doubt:
		u.unsettled = max(u.unsettled, forgotten)
	case a.wasReplayed():
		u.doubt, u.unsettled = true, forgotten
	case a.step.AskFirst && !u.doubt:
		u.doubt, u.unsettled = true, 0
	}
}

// readParkedDoubt reads what the last attempt has left in the parked copy. waits is set if that attempt has asked
// verify too early. forgotten is how much longer a call may be under way that the database does not know.
func (e *effects) readParkedDoubt(ctx context.Context, tx pgx.Tx, a *attempt, u *effectCall) (forgotten time.Duration, waits bool, err error) {
	unseen := e.effectLease(a, true) + a.step.Settle
	var left, forgottenLeft int64
	err = tx.QueryRow(ctx, e.effectSQL.readDoubt, a.parked.id, unseen.Microseconds(), a.step.Settle.Microseconds()).Scan(&u.doubt, &left, &forgottenLeft, &waits, &u.notDone)
	if err != nil {
		return 0, false, fmt.Errorf("consumer: read doubt: %w", err)
	}
	u.unsettled = time.Duration(left) * time.Microsecond
	return time.Duration(forgottenLeft) * time.Microsecond, waits, nil
}

// takeLease parks the message for the time of the attempt. A copy is updated with last. A delivery is inserted at
// once, because an existing copy decides how the row is moved: a copy of the same message leaves u without an id,
// and another message is errOtherCopy.
func (e *effects) takeLease(ctx context.Context, tx pgx.Tx, last *pgx.Batch, a *attempt, u *effectCall, lease time.Duration) error {
	if a.parked != nil {
		u.parked.id, u.parked.round = a.parked.id, a.parked.round
		last.Queue(e.effectSQL.leaseParked, a.parked.id, lease.Microseconds())
		return nil
	}
	columns := append(a.parkedColumns(ReasonCalling, "", "", u.parked.attempts), lease.Microseconds())
	err := tx.QueryRow(ctx, e.effectSQL.leaseDelivery, columns...).Scan(&u.parked.id)
	other := false
	if errors.Is(err, pgx.ErrNoRows) {
		b := &pgx.Batch{}
		queueAnew(b, e.effectSQL.readOther, append(a.identity(), a.kind, a.digest)...).QueryRow(func(row pgx.Row) error { return row.Scan(&other) })
		err = tx.SendBatch(ctx, b).Close()
	}
	switch {
	case err != nil:
		return fmt.Errorf("consumer: lease message: %w", err)
	case other:
		return errOtherCopy
	}
	return nil
}

// makeCall makes the attempt for which a has the lease, and records its result. It returns no error: a is parked in
// every case, and if nothing can be recorded, the lease ends.
func (e *effects) makeCall(ctx context.Context, a *attempt) {
	a.watch.delivered = a.parked == nil
	a.parked = &a.call.parked
	if err := failpoint.Hit("effect/after-claim"); err != nil {
		return // as if the process had died
	}
	o := e.resolveCall(ctx, a)
	work, cancel := drain.Context(ctx, recordGrace)
	defer cancel()
	e.recordOutcome(work, a, o)
}

// resolveCall asks verify about earlier attempts if there is a doubt, and makes the call if it must.
func (e *effects) resolveCall(ctx context.Context, a *attempt) callResult {
	u := a.call
	if u.doubt && a.input.hasVerify() {
		result, found, err := e.askVerify(ctx, a)
		switch {
		case err != nil:
			return callResult{err: fmt.Errorf("consumer: verify: %w", err), doubt: true, rest: u.unsettled}
		case found:
			return callResult{result: result}
		case u.unsettled > 0:
			return callResult{err: errUnsettled, doubt: true, unsettled: u.unsettled}
		}
		u.doubt = false
	}
	if a.barred {
		return callResult{err: errSpent, doubt: u.doubt}
	}
	result, err := e.callProvider(ctx, a)
	return callResult{result: result, err: err, doubt: u.doubt || !errors.Is(err, ErrNotDone)}
}

func (e *effects) askVerify(ctx context.Context, a *attempt) (result any, found bool, err error) {
	if err := failpoint.Hit("effect/before-verify"); err != nil {
		return nil, false, err
	}
	err = e.callWithinLease(ctx, a, func(ctx context.Context) (err error) {
		result, found, err = a.input.effect.verify(ctx, a.Delivery, a.body)
		return err
	})
	return result, found, cmp.Or(err, failpoint.Hit("effect/after-verify"))
}

func (e *effects) callProvider(ctx context.Context, a *attempt) (result any, err error) {
	if err := failpoint.Hit("effect/before-call"); err != nil {
		return nil, err
	}
	err = e.callWithinLease(ctx, a, func(ctx context.Context) (err error) {
		result, err = a.input.effect.call(ctx, a.Delivery, a.body)
		return err
	})
	return result, cmp.Or(err, failpoint.Hit("effect/after-call"))
}

// callWithinLease runs do in a's entry with the step's deadline. It does not run do if the lease is over, as after
// the process was suspended. A panic becomes an error.
func (e *effects) callWithinLease(ctx context.Context, a *attempt, do func(ctx context.Context) error) (err error) {
	now := time.Now()
	if !now.Before(a.call.until) {
		return errLate
	}
	limit := now.Add(a.step.Timeout)
	if a.call.until.Before(limit) {
		limit = a.call.until
	}
	ctx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	ctx = e.reporter.reportEntry(ctx, a)
	err = errNoReturn
	defer func() { e.reporter.reportExit(a, err) }()
	err = callGuarded(func() error { return do(ctx) })
	return err
}

// recordOutcome records o. It tries several times for a result: without it the next attempt has to ask or to call
// again.
func (e *effects) recordOutcome(ctx context.Context, a *attempt, o callResult) {
	if o.err == nil {
		o.err = retryRecording(ctx, func() error { return e.recordResult(ctx, a, o.result) })
		if o.err == nil {
			return
		}
		o.doubt = true
	}
	var err error
	if o.unsettled > 0 {
		err = e.postponeCall(ctx, a, o.unsettled)
	} else {
		e.reporter.logFailure(ctx, a, o.err)
		err = retryRecording(ctx, func() error { return e.recordUndone(ctx, a, o) })
	}
	if err != nil {
		a.noteOutcome(OutcomeUndecided, "", err)
		e.reporter.logAttempt(ctx, slog.LevelError, "consumer: the outcome of an effect cannot be recorded; another attempt follows its lease", a, slog.Any("error", err))
	}
}

// retryRecording runs do until it succeeds, [maxTries] times at most and until ctx ends. It returns at once an error
// that another try cannot change.
func retryRecording(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		var panicked *PanicError
		if err == nil || try == maxTries || errors.Is(err, ErrTerminal) || errors.Is(err, ErrParked) || errors.As(err, &panicked) || ctx.Err() != nil {
			return err
		}
		_ = backoff.Sleep(ctx, failurePolicy.Wait(try))
	}
}

// recordResult commits record's work and the end of the parked copy.
func (e *effects) recordResult(ctx context.Context, a *attempt, result any) error {
	err := e.underFence(ctx, a, func(ctx context.Context, tx pgx.Tx) error {
		if err := failpoint.Hit("effect/before-record"); err != nil {
			return err
		}
		r := a.withRecord(result)
		defer func() { a.watch, a.emitted = r.watch, r.emitted }()
		if err := e.handlers.enterAlone(ctx, tx, r); err != nil {
			return err
		}
		return e.settler.commitSuccess(ctx, tx, r)
	})
	if err == nil {
		err = failpoint.Hit("effect/after-record")
	}
	return err
}

// withRecord returns a with record, given result, as its handler.
func (a *attempt) withRecord(result any) *attempt {
	r, e := *a, a.input.effect
	r.older, r.load = true, nil // the row is there, and record's time is not the step's
	r.input.run = func(ctx context.Context, tx pgx.Tx, d Delivery, body any, emit Emit) error {
		return e.record(ctx, tx, d, body, result, emit)
	}
	return &r
}

// recordUndone parks a's copy for its next attempt or makes it a dead letter.
func (e *effects) recordUndone(ctx context.Context, a *attempt, o callResult) error {
	return e.underFence(ctx, a, func(ctx context.Context, tx pgx.Tx) error {
		f := a.failureOfCall(o)
		if err := e.settler.parkMessage(ctx, tx, a, f); err != nil {
			return err
		}
		last := &pgx.Batch{}
		last.Queue(e.effectSQL.setDoubt, a.parked.id, o.doubt, max(0, o.rest-a.step.Settle).Microseconds(), a.call.notDone && !o.doubt && !a.wasReplayed())
		last.Queue(e.sql.moveStep, a.transition(parkedState(a.kind, f.dead), f.attempts)...)
		if err := e.settler.queueEmitted(last, a.emitted); err != nil {
			return err
		}
		return e.database.commit(ctx, tx, last, "")
	})
}

// failureOfCall says how o is parked. If the last attempt is in doubt, the message gets another turn in which verify
// is asked once.
func (a *attempt) failureOfCall(o callResult) failure {
	f := a.failureOf(o.err)
	spent := f.reason == ReasonExhausted || f.reason == ReasonUnavailable
	if spent && o.doubt && a.input.hasVerify() && !a.barred {
		f.reason, f.dead = ReasonFailed, false
	}
	return f
}

// postponeCall makes a's copy due later without spending an attempt. Do not try it twice: it lowers the fence, so
// that after a COMMIT without an answer the copy could belong to another attempt.
func (e *effects) postponeCall(ctx context.Context, a *attempt, wait time.Duration) error {
	return e.underFence(ctx, a, func(ctx context.Context, tx pgx.Tx) error {
		a.noteOutcome(OutcomeRetry, ReasonUnsettled, errUnsettled)
		last := &pgx.Batch{}
		last.Queue(e.effectSQL.postpone, a.parked.id, wait.Microseconds(), a.step.Settle.Microseconds())
		last.Queue(e.sql.moveStep, a.transition(parkedState(a.kind, false), a.parked.attempts-1)...)
		return e.database.commit(ctx, tx, last, "")
	})
}

// underFence runs do, which commits, under the locks of a's step and of its parked copy, if the copy still belongs
// to this attempt. Otherwise nothing happens, without an error: either an earlier COMMIT without an answer has done
// it, or another attempt has begun and asks for itself.
func (e *effects) underFence(ctx context.Context, a *attempt, do func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, a.step.Timeout+databaseTimeout)
	defer cancel()
	err := e.database.withConnection(ctx, func(conn *pgx.Conn) error {
		return e.reporter.reportTransaction(ctx, new(int), func() error {
			tx, err := e.lockLeased(ctx, conn, a)
			if err != nil {
				return err
			}
			return do(ctx, tx)
		})
	})
	if errors.Is(err, errGone) {
		a.noteOutcome(OutcomeDuplicate, "", nil)
		e.reporter.logAttempt(ctx, slog.LevelWarn, "consumer: the outcome of an effect is not recorded: it is already, or another attempt has taken over", a)
		return nil
	}
	return err
}

// lockLeased begins a transaction and locks the step's row and then the parked copy, in one round trip. Unlike
// lockRow it waits for the row, since there is a result to record.
func (e *effects) lockLeased(ctx context.Context, conn *pgx.Conn, a *attempt) (pgx.Tx, error) {
	a.setEmitted(nil)
	a.found = cell{}
	ours := false
	b := &pgx.Batch{}
	b.BeginTx(readCommitted)
	b.Queue(e.sql.limitIdle, milliseconds(idleLimit([]*attempt{a}))).QueryRow(func(row pgx.Row) error { return row.Scan(nil, &a.role) })
	b.Queue(e.sql.lockStep, a.identity()...).QueryRow(func(row pgx.Row) error { return row.Scan(a.found.columns()...) })
	queueAnew(b, e.sql.lockParked, a.parked.fence()...).QueryRow(func(row pgx.Row) error { return row.Scan(&ours) })
	b.Queue("SAVEPOINT " + stepSavepoint)
	results := conn.SendBatch(ctx, b)
	err := results.Close()
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, cmp.Or(e.database.checkHidden(ctx, results.Tx()), errGone)
	case err != nil:
		return nil, fmt.Errorf("consumer: lock effect: %w", err)
	}
	return results.Tx(), nil
}
