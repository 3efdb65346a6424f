package saga

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/drain"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/testsignal"
	"github.com/sagamill/sagamill/outbox"
)

const (
	// timerTimeout bounds the work on one instance.
	timerTimeout = 30 * time.Second

	// timerLease is how long other timers skip a claimed instance. The work then holds the lock of the row, which
	// they skip too. If the process dies between the two, another one claims the instance after the lease.
	timerLease = 10 * time.Second

	// maxTimerTries is how often an instance's timer is tried before the instance is stuck.
	maxTimerTries = 10

	// suspectPause is the least time between two claims of suspects while fresh instances are due: the statement
	// finds suspects behind all instances that are due.
	suspectPause = time.Second
)

// timerPolicy spaces tries.
var timerPolicy = backoff.Policy{Base: time.Second, Cap: 5 * time.Minute}

var errTimerKills = errors.New("saga: earlier attempts ended without a result, most likely with their process")

// timers run instances whose deadline, retry or deferred work is due.
type timers struct {
	db      pg.Own
	sql     *statements
	plans   *planSet
	mover   *mover
	log     *slog.Logger
	poll    time.Duration // Options.TimerPoll
	workers int           // Options.TimerWorkers

	suspected time.Time // the last claim of suspects

	passed testsignal.Signal[int] // how many timers a pass has run
}

// A claimed instance is one whose timer this process runs.
type claimed struct {
	sagarow.Address
	tries    int
	revision int // of the claim
}

// runTimerLoop runs what is due until ctx ends, and then finishes the work that has begun.
func (t *timers) runTimerLoop(ctx context.Context) {
	work, cancel := drain.Context(ctx, timerTimeout)
	defer cancel()
	for ctx.Err() == nil {
		n, more, wait := 0, false, time.Duration(0)
		err := guard.Call(func() (err error) { // of the pool's hooks
			if wait, err = t.readNextDue(work); err == nil && wait <= 0 {
				n, more, err = t.runDueTimers(work)
			}
			return err
		})
		switch {
		case err != nil:
			t.log.ErrorContext(ctx, "saga: timers cannot be claimed", "error", err)
			wait = t.poll
		case wait <= 0 && n == 0: // another process has claimed what is due
			wait = t.poll
		}
		t.passed.Send(n)
		if more && err == nil {
			continue
		}
		_ = backoff.Sleep(ctx, wait)
	}
}

// readNextDue returns how long it is until the next instance is due, at most TimerPoll: an instance may start
// meanwhile.
func (t *timers) readNextDue(ctx context.Context) (time.Duration, error) {
	var micros *int64
	ctx, cancel := context.WithTimeout(ctx, timerTimeout)
	defer cancel()
	err := t.db.ScanByIndex(ctx, []any{&micros}, t.sql.nextDue, t.plans.names, t.plans.versions, t.plans.hashes)
	if err != nil || micros == nil {
		return t.poll, err
	}
	return min(t.poll, time.Duration(*micros)*time.Microsecond), nil
}

// runDueTimers claims as many instances as there are workers, so that no claimed instance waits, and runs their
// timers. It returns how many, and whether there may be more. An instance whose earlier try failed is a suspect: it
// may kill this process. It runs alone, so that a crash costs only its own tries.
func (t *timers) runDueTimers(ctx context.Context) (n int, more bool, err error) {
	fresh, err := t.claimDueInstances(ctx, t.workers, false)
	if err != nil {
		return 0, false, err
	}
	t.runClaimedTimers(ctx, fresh)
	if len(fresh) == t.workers && time.Since(t.suspected) < suspectPause {
		return len(fresh), true, nil
	}
	t.suspected = time.Now()
	suspect, err := t.claimDueInstances(ctx, 1, true)
	t.runClaimedTimers(ctx, suspect)
	return len(fresh) + len(suspect), len(fresh) == t.workers || len(suspect) > 0, err
}

func (t *timers) claimDueInstances(ctx context.Context, limit int, suspect bool) ([]claimed, error) {
	ctx, cancel := context.WithTimeout(ctx, timerTimeout)
	defer cancel()
	read := func(r pgx.CollectableRow) (c claimed, err error) {
		return c, r.Scan(&c.Scope, &c.Key, &c.Path, &c.tries, &c.revision)
	}
	all, err := pg.CollectByIndex(ctx, t.db, read, t.sql.claimDue, t.plans.names, t.plans.versions, limit, timerLease.Microseconds(), suspect, t.plans.hashes)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all, failpoint.Hit("saga/after-timer-claim")
}

// runClaimedTimers runs the timers of all, and waits for them.
func (t *timers) runClaimedTimers(ctx context.Context, all []claimed) {
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() { t.runInstanceTimer(ctx, c) })
	}
	wg.Wait()
}

// runInstanceTimer does what is due of an instance, or notes the error. An instance that has moved since its claim is
// left alone: its row says when it is due next.
func (t *timers) runInstanceTimer(ctx context.Context, c claimed) {
	err := errTimerKills
	if c.tries <= maxTimerTries {
		err = t.mover.moveInOwnTransaction(ctx, c.Address, c.revision, func(context.Context, *transition) ([]flow.Event, error) {
			return []flow.Event{{Event: machine.Event{Kind: machine.Timer}}}, nil
		})
	}
	if err != nil && !errors.Is(err, ErrNoInstance) && !errors.Is(err, errMoved) {
		t.postponeTimer(c, err)
	}
}

// postponeTimer notes that an instance's timer has failed, and when to try again. If the note is lost, the claim's
// lease says when.
func (t *timers) postponeTimer(c claimed, cause error) {
	ctx, cancel := context.WithTimeout(context.Background(), timerTimeout)
	defer cancel()
	last := c.tries >= maxTimerTries || errors.Is(cause, flow.ErrUnfit)
	t.log.ErrorContext(ctx, "saga: an instance's timer failed", "scope", c.Scope, "key", c.Key, "path", c.Path, "try", c.tries, "stuck", last, "error", cause)
	err := guard.Call(func() error {
		_, err := t.db.ExecByIndex(ctx, t.sql.postpone, c.Scope, c.Key, c.Path, flow.ClipReason(cause.Error()), timerPolicy.Wait(c.tries).Microseconds(), last, c.revision, c.tries)
		return err
	})
	if err != nil {
		t.log.ErrorContext(ctx, "saga: the failure of the timer could not be stored", "error", err)
	}
}

// A mover moves one instance in one transaction. Timers and housekeeping enter the decide stage by it.
type mover struct {
	db      pg.Own
	sql     *statements
	plans   *planSet
	decider *decider
	writer  *outbox.Writer
	wake    func() // Options.Wake

	limitTransaction string // with Options.Consumer.ConnectionCheck

	log *slog.Logger
}

// errMoved reports an instance that another transaction moved since its revision was read.
var errMoved = errors.New("saga: the instance has moved since it was claimed")

// anyRevision is the revision of an instance that was not claimed. Its events are decided under the lock, and the work
// that follows is left to a timer: that counts failures, and asks for a person in the end.
const anyRevision = -1

// An eventsFunc returns what happened to a locked instance, whose state is open. Its error rolls the transaction back.
type eventsFunc func(ctx context.Context, t *transition) ([]flow.Event, error)

// moveInOwnTransaction locks an instance, has its events decided, and commits the instance with what it sends. Its
// error is an errMoved if the instance has another revision. After an error that is not the server's own the
// transaction may have committed.
func (m *mover) moveInOwnTransaction(ctx context.Context, at sagarow.Address, revision int, events eventsFunc) error {
	ctx, cancel := context.WithTimeout(ctx, timerTimeout)
	defer cancel()
	wakes := false
	err := guard.Apart(func() error {
		return m.db.InSharedTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			if wakes, err = m.moveInstanceIn(ctx, tx, at, revision, events); err != nil {
				return err
			}
			return failpoint.Hit("saga/before-timer-commit")
		})
	})
	if err != nil {
		return err
	}
	if wakes && m.wake != nil {
		guard.Hook(ctx, m.log, "saga: option Wake", m.wake)
	}
	return failpoint.Hit("saga/after-timer-commit")
}

// moveInstanceIn moves an instance in tx, and reports whether it sent something.
func (m *mover) moveInstanceIn(ctx context.Context, tx pgx.Tx, at sagarow.Address, revision int, events eventsFunc) (sent bool, err error) {
	if _, err := tx.Exec(ctx, m.limitTransaction, strconv.FormatInt(timerTimeout.Milliseconds(), 10)); err != nil {
		return false, err
	}
	row, err := m.sql.rows.LockRow(ctx, tx, at)
	if err != nil {
		return false, err
	}
	if revision != anyRevision && revision != row.Revision {
		return false, errMoved
	}
	f, err := m.plans.flowOfInstance(row)
	if err != nil {
		return false, err
	}
	t := newTransition(m.sql, tx, row, f)
	t.run.Deferred = revision == anyRevision
	if err := t.run.OpenState(); err != nil {
		return false, err
	}
	happened, err := events(ctx, t)
	if err != nil {
		return false, err
	}
	if err := m.decider.decideEvents(ctx, t, happened...); err != nil {
		return false, err
	}
	return len(t.sent.AllUntraced()) > 0, m.writer.Write(ctx, tx, t.sent.AllTraced()...)
}
