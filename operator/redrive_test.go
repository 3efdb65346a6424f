package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// manyDead leaves n dead actions, of keys k0, k1 …
func (f *letterFixture) manyDead(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		handle(t, f.c, act(fmt.Sprint("k", i)))
	}
}

func TestNewDeadLettersChecksWhatItIsGiven(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	pgtest.PrepareAll(t, preparable(newInboxQueries(schema)))
	if _, err := NewDeadLetters(nil, Inbox, nil); err == nil {
		t.Error("NewDeadLetters without a pool = nil error")
	}
	if _, err := NewDeadLetters(pool, Inbox, &Options{Schema: "no such"}); err == nil {
		t.Error("NewDeadLetters of a schema with a blank = nil error")
	}
}

// preparable is q with its fields as PrepareAll takes them.
func preparable(q inboxQueries) any {
	return struct {
		inboxQueries [21]string
		byState      [10]string
	}{
		[21]string{
			q.readClock, q.read, q.lock, q.readLetters, q.page, q.retryNow, q.discard, q.discardKept, q.edit, q.limitLocks, q.readHorizon,
			q.send, q.drop, q.reject, q.bury, q.moveSteps, q.forceStep, q.insertJournal,
			q.locateMoment, q.locateSteps, q.locateParked,
		},
		[10]string{q.count[0], q.count[1], q.list[0], q.list[1], q.pick[0], q.pick[1], q.seeLetters[0], q.holdLetters[1], q.tryHoldSteps, q.readCopies},
	}
}

// Redriving while consumers run and the broker delivers again, from two places at
// once, each letter runs once.
func TestRedrivesRaceWithDeliveries(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	const keys, copies = 20, 3
	f.manyDead(t, keys)
	f.broken.Store(false)
	f.sub.acked.Add(keys * copies)
	stop := runConsumer(t, f.c)
	for range copies {
		for i := range keys {
			f.sub.queue("pay") <- act(fmt.Sprint("k", i))
		}
	}
	var redriving sync.WaitGroup
	var mu sync.Mutex
	sum := Outcomes{}
	for range 2 {
		redriving.Go(func() {
			for left := 1; left > 0; {
				done, err := f.letters.Redrive(t.Context(), Filter{}, nil)
				if err != nil {
					t.Errorf("RedriveAll: %v", err)
				}
				left = done[OutcomeBusy]
				delete(done, OutcomeBusy)
				mu.Lock()
				sum.addAll(done)
				mu.Unlock()
			}
		})
	}
	redriving.Wait()
	f.sub.acked.Wait()
	for f.due(t) > 0 {
	}
	stop()
	if diff := cmp.Diff(Outcomes{OutcomeRun: keys}, sum); diff != "" {
		t.Errorf("outcomes of both redrives (-want +got):\n%s", diff)
	}
	if got := strings.Count(f.effects(t), "paid"); got != keys {
		t.Errorf("%d effects, want %d", got, keys)
	}
	if got := f.texts(t, "SELECT DISTINCT state FROM {schema}.inbox"); len(got) != 1 || got[0] != "done" {
		t.Errorf("states %q, want all done", got)
	}
}

// holdStep locks the row of a key's step, as a handler that runs does.
func (f *letterFixture) holdStep(t *testing.T, key string) (release func()) {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "SELECT 1 FROM "+f.schema+".inbox WHERE key = $1 FOR UPDATE", key)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
}

// A letter whose step is locked blocks no other letter, and is redriven by the next call.
func TestABusyStepDelaysNoOther(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.manyDead(t, 3)
	release := f.holdStep(t, "k1")
	outcomes, err := f.letters.Redrive(t.Context(), Filter{}, nil)
	if diff := cmp.Diff(Outcomes{OutcomeRun: 2, OutcomeBusy: 1}, outcomes); err != nil || diff != "" {
		t.Errorf("RedriveAll: %v (-want +got):\n%s", err, diff)
	}
	release()
	if got := f.redriveID(t, 1, 2, 3); got[OutcomeRun] != 1 || len(got) != 1 {
		t.Errorf("said again %v, want one that runs", got)
	}
	f.runAll(t)
	if got, want := f.effects(t), 3; strings.Count(got, "paid") != want {
		t.Errorf("effects %q, want %d", got, want)
	}
}

// A row that is inserted during a forced redrive counts.
func TestAForcedRedriveSeesARowOfNow(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	handle(t, f.c, written(act("k"), "2020-01-01T00:00:00Z"))
	f.sweep(t, "2020-01-02")
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &pass{inboxLetters: f.inbox(), state: StateDead}
	h, err := p.holdLetters(t.Context(), tx, []int64{1}, true)
	if err != nil {
		t.Fatal(err)
	}
	f.working(t, written(act("k"), "2020-01-03T00:00:00Z")) // sent later than what was swept
	_, _, err = f.inbox().redriveHeld(t.Context(), tx, h, policy{horizon: h.horizon, force: true})
	if !isContended(err) {
		t.Errorf("redrive = %v, want that it was taken meanwhile", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	outcomes, err := f.letters.Redrive(t.Context(), Filter{}, &RedriveOptions{Force: true})
	if err != nil || outcomes[OutcomeDuplicate] != 1 {
		t.Errorf("said again: %v, %v", outcomes, err)
	}
}

// A limited rate spaces the batches, and what is interrupted goes on when it is
// said again.
func TestARedriveIsPacedAndResumed(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.manyDead(t, 5)
	var pauses []time.Duration
	f.inbox().pause = func(_ context.Context, d time.Duration) error {
		pauses = append(pauses, d)
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	outcomes, err := f.letters.Redrive(ctx, Filter{}, &RedriveOptions{Rate: 2, Progress: func(o Outcomes) {
		if o.Sent() == 4 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || outcomes.Sent() != 4 {
		t.Errorf("interrupted: %v, %v; want 4 sent", outcomes, err)
	}
	if n, err := f.letters.Count(t.Context(), Filter{}); n != 1 || err != nil {
		t.Errorf("%d letters left, %v; want 1", n, err)
	}
	outcomes, err = f.letters.Redrive(t.Context(), Filter{}, &RedriveOptions{Rate: 0.5})
	if err != nil || outcomes.Sent() != 1 {
		t.Errorf("said again: %v, %v; want 1 sent", outcomes, err)
	}
	if want := []time.Duration{time.Second, time.Second, 2 * time.Second}; !cmp.Equal(want, pauses) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	if _, err := f.letters.Redrive(t.Context(), Filter{}, &RedriveOptions{Rate: -1}); err == nil {
		t.Error("a negative rate = nil error")
	}
}

// Letters that die, or die again, during a redrive do not keep it from ending.
func TestARedriveLeavesAloneWhatDiesAgain(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.manyDead(t, 4)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pauses := 0
	f.inbox().pause = func(context.Context, time.Duration) error {
		if pauses++; pauses > 10 {
			cancel()
			return nil
		}
		f.runDue(t, f.c) // they fail again
		handle(t, f.c, act(fmt.Sprint("later", f.newest(t))))
		return nil
	}
	outcomes, err := f.letters.Redrive(ctx, Filter{}, &RedriveOptions{Rate: 1})
	if err != nil || outcomes.Sent() != 4 {
		t.Errorf("RedriveAll = %v, %v; want each of 4 once", outcomes, err)
	}
	if got := f.texts(t, "SELECT DISTINCT state || ' ' || attempts FROM {schema}.parked"); !cmp.Equal(got, []string{"dead 1"}) {
		t.Errorf("the letters are %q, want all dead", got)
	}
}

// A redriven letter has all its attempts again.
func TestARedriveGivesAllAttempts(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	step := f.step(func(context.Context, pgx.Tx, consumer.Message[payment], consumer.Emit) error { return errors.New("no") }, nil)
	step.MaxAttempts = 2
	c := f.consumer(t, consumer.Options{}, step)
	handle(t, c, act("k"))
	for range 2 {
		f.runDue(t, c)
		f.compareStored(t, stored{Row: "dead 2 0", Parked: "dead action attempts-exhausted 2"})
		f.redriveID(t, 1)
		f.compareStored(t, stored{Row: "retrying 2 0", Parked: "retrying action attempts-exhausted 0"})
	}
}

func TestBury(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.working(t, act("undone"))
	failing := func(context.Context, pgx.Tx, consumer.Message[payment], consumer.Emit) error { return errors.New("no") }
	c := f.consumer(t, consumer.Options{}, f.step(failing, failing))
	handle(t, c, act("a"), act("b"), undo("undone"), undo("a")) // the last one waits
	release := f.holdStep(t, "b")
	n, err := f.letters.Bury(t.Context(), ByID(1, 2, 3, 4, 99))
	if n != 3 || err != nil {
		t.Errorf("Bury = %d, %v; want 3", n, err)
	}
	release()
	want := []string{"a dead", "b retrying", "undone undo-dead"}
	if got := f.texts(t, "SELECT key || ' ' || state FROM {schema}.inbox ORDER BY 1"); !cmp.Equal(got, want) {
		t.Errorf("steps %q, want %q", got, want)
	}
	if got, want := f.parked(t), "dead action failed 1; retrying action failed 1; dead compensation failed 1; dead compensation waits-for-action 0"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
	// They are dead letters like others.
	if got := f.redriveID(t, 1, 3, 4); got[OutcomeRun] != 2 || got[OutcomeWaits] != 1 {
		t.Errorf("redriven: %v", got)
	}
	f.runAll(t)
	if got, want := strings.Count(f.effects(t), "refunded"), 2; got != want {
		t.Errorf("%d compensations, want %d: %s", got, want, f.effects(t))
	}
}

func TestRetryNow(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.manyDead(t, 3)
	f.redriveID(t, 1, 2)
	f.exec(t, "UPDATE {schema}.parked SET due_at = 'infinity', attempts = 5")
	if n, err := f.letters.RetryNow(t.Context(), Filter{Key: "k1"}); n != 1 || err != nil {
		t.Errorf("RetryNow of k1 = %d, %v; want 1", n, err)
	}
	if n := f.due(t); n != 1 {
		t.Errorf("%d are due, want 1", n)
	}
	f.runDue(t, f.c)
	tx, err := f.pool.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "SELECT 1 FROM "+f.schema+".parked WHERE id = 1 FOR UPDATE") // it runs
	}
	if err != nil {
		t.Fatal(err)
	}
	if n, err := f.letters.RetryNow(t.Context(), Filter{}); n != 0 || err != nil {
		t.Errorf("RetryNow of one that runs = %d, %v; want 0", n, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := f.letters.RetryNow(t.Context(), Filter{State: StateDead}); n != 1 || err != nil {
		t.Errorf("RetryNow of all = %d, %v; want 1", n, err)
	}
	if got := f.texts(t, "SELECT attempts::text FROM {schema}.parked WHERE id = 1"); got[0] != "5" {
		t.Errorf("attempts %q, want those that it had", got)
	}
}

// An operator's process that is suspended in the middle of a transaction does not
// hold up the steps of its letters for ever.
func TestAnOperatorsTransactionIsLimited(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	var limit, isolation string
	err := f.inbox().commitBatch(t.Context(), "none", nil, func(tx pgx.Tx) ([]int64, error) {
		if err := tx.QueryRow(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&limit); err != nil {
			return nil, err
		}
		return nil, tx.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&isolation)
	})
	if err != nil || limit != "30s" || isolation != "read committed" {
		t.Errorf("an operator's transaction is ended after %q without a statement, isolation %q, %v", limit, isolation, err)
	}
}

// A change whose caller goes away at its COMMIT is made and counted: else a run that is paused would count too few.
func TestAChangeThatIsReadyIsCommittedAndCounted(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.manyDead(t, 1)
	ctx, leave := context.WithCancel(t.Context())
	d := f.inbox()
	d.beforeCommit = func() error { leave(); return nil }
	if n, err := d.discardLetters(ctx, Filter{}, nil); n != 1 || err != nil {
		t.Errorf("discard = %d, %v; want 1", n, err)
	}
	if left := f.texts(t, "SELECT id::text FROM {schema}.parked"); len(left) != 0 {
		t.Errorf("the letters %q are left", left)
	}
}

// A compensation waited for its action, and became a dead letter with it. Where the
// action alone is redriven, a further delivery of the compensation is a duplicate,
// and the dead letter is what undoes the action.
func TestTheCompensationOfARedrivenActionIsRedrivenToo(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	failing := f.consumer(t, consumer.Options{}, f.step(func(context.Context, pgx.Tx, consumer.Message[payment], consumer.Emit) error { return errors.New("no") }, f.effect("refunded")))
	handle(t, failing, act("k"), undo("k"))
	f.runDue(t, f.c)
	f.compareStored(t, stored{Row: "dead 2 0", Parked: "dead action terminal 2; dead compensation action-dead 0"})
	why := ""
	_, err := f.letters.Preview(t.Context(), Filter{IDs: []int64{1}}, nil, func(p Preview) error { why = p.Why; return nil })
	if err != nil || why != whyUndone {
		t.Errorf("the plan says of the action %q, %v; want %q", why, err, whyUndone)
	}
	f.redriveID(t, 1)
	f.runAll(t)
	f.working(t, undo("k"))
	f.compareStored(t, stored{Row: "done 1 0", Parked: "dead compensation action-dead 0", Effects: "paid k 1"})
	f.redriveID(t, 2)
	f.runAll(t)
	f.compareStored(t, stored{Row: "compensated 1 1", Effects: "paid k 1, refunded k 2"})
}

// The database's default isolation level is stricter. A redrive that waits for a step sees the changes of the
// transaction that had the step locked.
func TestARedriveDoesNotDependOnTheDefaultIsolation(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.manyDead(t, 1)
	config := pgtest.DirectConfig(t)
	config.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	strict, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(strict.Close)
	f.inbox().db = pg.NewOwn(strict)
	holder, err := f.pool.Begin(t.Context())
	if err == nil {
		_, err = holder.Exec(t.Context(), "UPDATE "+f.schema+".inbox SET updated_at = clock_timestamp()")
	}
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	go func() {
		for waiting := 0; waiting == 0; {
			const query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND position($1 IN query) > 0"
			if err := f.pool.QueryRow(t.Context(), query, f.schema).Scan(&waiting); err != nil {
				released <- err
				return
			}
		}
		released <- holder.Commit(t.Context())
	}()
	if got := f.redriveID(t, 1); got[OutcomeRun] != 1 {
		t.Errorf("redriven: %v, want one that runs", got)
	}
	if err := <-released; err != nil {
		t.Error(err)
	}
}
