package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// start runs c and returns what stops it and waits for its end.
func start(t *testing.T, c *Consumer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}
}

func TestRunHandlesDeliveriesAndParkedMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var entries atomic.Int32
	c := f.consumer(t, Options{}, f.step(f.failing(2, "paid", &entries), f.effect("refunded")))
	c.signals.settled.Enable()
	c.signals.ranParked.Enable()
	stop := start(t, c)
	first := act("k")
	f.sub.queue("pay") <- first
	if id := c.signals.settled.Wait(t); id != first.UUID {
		t.Errorf("acked %s, want %s", id, first.UUID)
	}
	c.signals.ranParked.Wait(t)
	c.signals.ranParked.Wait(t)
	if !c.Ready() {
		t.Error("a running consumer is not ready")
	}
	f.sub.queue("unpay") <- undo("k")
	c.signals.settled.Wait(t)
	stop()
	if c.Ready() {
		t.Error("a stopped consumer is ready")
	}
	compareStored(t, stored{Row: "compensated 3 1", Effects: "paid k 1, refunded k 2"}, stored{Row: f.row(t), Effects: f.effects(t)})
	if s, err := c.Stats(t.Context()); err != nil || s.Retrying+s.Dead+len(s.Parked) != 0 {
		t.Errorf("Stats = %+v, %v", s, err)
	}
}

// Six instances, every message five times, and a handler that always fails:
// the limit is over all of them. A savepoint must hold the row's lock whatever
// the handler fails by.
func TestTheBudgetHoldsOverManyInstances(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]Handler[payment]{
		"a returned error": func(context.Context, pgx.Tx, Message[payment], Emit) error { return errors.New("not now") },
		"a direct statement": func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
			_, err := tx.Exec(ctx, "SELECT 1/($1::integer - 1)", 1)
			return err
		},
		"a direct statement that cannot be prepared": func(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
			_, err := tx.Exec(ctx, "INSERT INTO nowhere VALUES ($1)", in.Key)
			return err
		},
		"a query that cannot be prepared": func(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
			return tx.QueryRow(ctx, "SELECT nothing FROM nowhere WHERE key = $1", in.Key).Scan(new(int))
		},
		"a batch that cannot be prepared": func(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
			b := &pgx.Batch{}
			b.Queue("INSERT INTO nowhere VALUES ($1)", in.Key)
			return tx.SendBatch(ctx, b).Close()
		},
		"a queued statement": func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
			in.Queue("SELECT 1/($1::integer - 1)", 1)
			return nil
		},
		"a queued statement that cannot be prepared": func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
			in.Queue("SELECT nothing FROM nowhere")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exhaustBudget(t, fail)
		})
	}
}

// exhaustBudget delivers copies of messages to several instances until all are dead letters, and compares the entries
// into fail with the budget.
func exhaustBudget(t *testing.T, fail Handler[payment]) {
	t.Helper()
	f := newFixture(t)
	const instances, keys, copies, budget = 6, 5, 5, 3
	var entries atomic.Int32
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	var consumers []*Consumer
	for range instances {
		step := f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
			entries.Add(1)
			return fail(ctx, tx, in, emit)
		}, nil)
		step.MaxAttempts = budget
		c := f.consumer(t, Options{Lanes: 2, ParkedWorkers: 2}, step)
		c.signals.settled.Enable()
		consumers = append(consumers, c)
		running.Go(func() { _ = c.Run(ctx) })
	}
	for i := range keys * copies {
		f.sub.queue("pay") <- act(fmt.Sprint("k", i%keys))
	}
	for {
		s, err := consumers[0].Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.Dead == keys && s.Retrying == 0 {
			break
		}
	}
	stop()
	running.Wait()
	if got := entries.Load(); got != keys*budget {
		t.Errorf("%d entries into the handler, want %d", got, keys*budget)
	}
}

// A stop lets work in hand finish and be acked, and gives back what has not
// begun; the next instance does that, and nothing twice.
func TestDrainFinishesWhatHasBegunAndGivesBackTheRest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	entered, release := make(chan string, 10), make(chan struct{})
	paid := f.effect("paid")
	step := f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		entered <- in.Key
		<-release
		if ctx.Err() != nil {
			return ctx.Err() // the stop must not reach work in hand
		}
		return paid(ctx, tx, in, emit)
	}, nil)
	c := f.consumer(t, Options{Lanes: 1}, step)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for i := range 5 {
		f.sub.queue("pay") <- act(fmt.Sprint("k", i))
	}
	first := <-entered
	stop()
	close(release)
	if err := <-done; err != nil {
		t.Fatalf("Run = %v", err)
	}
	if got, want := f.effects(t), "paid "+first+" 1"; got != want {
		t.Fatalf("effects after the stop %q, want %q", got, want)
	}
	next := f.consumer(t, Options{}, step)
	next.signals.settled.Enable()
	stopNext := start(t, next)
	for range 4 {
		next.signals.settled.Wait(t)
	}
	stopNext()
	if got := strings.Split(f.effects(t), ", "); len(got) != 5 {
		t.Errorf("effects in the end %q, want five", got)
	}
	if got := f.texts(t, "SELECT DISTINCT state || attempts FROM {schema}.inbox"); len(got) > 2 || got[0][:4] != "done" {
		t.Errorf("rows %q", got)
	}
}

// However long a handler runs, no other worker takes its parked message meanwhile.
func TestARunningParkedMessageIsNotTakenAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	entered, release := make(chan struct{}), make(chan struct{})
	paid := f.effect("paid")
	c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if in.Attempt == 1 {
			return errors.New("park it")
		}
		close(entered)
		<-release
		return paid(ctx, tx, in, emit)
	}, nil))
	c.retrier.lease = 0 // over at once
	handle(t, c, act("k"))
	var running sync.WaitGroup
	running.Go(func() { runParkedOnce(t, c) })
	<-entered
	if rows, err := c.retrier.takeParked(t.Context(), 1, c.retrier.stepNames...); err != nil || len(rows) != 0 {
		t.Errorf("take parked = %v, %v; want nothing while the handler runs", rows, err)
	}
	close(release)
	running.Wait()
	compareStored(t, stored{Row: "done 2 0", Effects: "paid k 1"}, stored{Row: f.row(t), Effects: f.effects(t)})
}

type brokenSubscriber struct{ err error }

func (s brokenSubscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	ended := make(chan *message.Message)
	close(ended)
	return ended, s.err
}
func (brokenSubscriber) Close() error { return nil }

func TestRunSaysWhenASubscriptionCannotBeHad(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, want := range []error{errors.New("no such queue"), nil} {
		c, err := New(f.pool, brokenSubscriber{want}, []Step{f.step(f.effect("paid"), nil)}, &Options{Schema: f.schema})
		if err != nil {
			t.Fatal(err)
		}
		err = c.Run(t.Context())
		if err == nil || want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), "pay") {
			t.Errorf("Run = %v, want an error about topic pay", err)
		}
	}
}

// Without a database nothing is acked, alone or in a batch.
func TestADeliveryWhoseEndCannotBeRecordedGoesBack(t *testing.T) {
	t.Parallel()
	for name, msgs := range map[string][]*message.Message{"alone": {act("k")}, "in a batch": {act("k"), act("other")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			pool := pgtest.Pool(t, pgtest.URL())
			c := f.consumerOn(t, pool, Options{}, f.step(f.effect("paid"), nil))
			pool.Close()
			if acked := settle(t, c, msgs...); len(acked) > 0 { // the others were nacked
				t.Errorf("acked %q without a database", acked)
			}
		})
	}
}

func TestRunLeavesNothingBehind(t *testing.T) {
	f := newFixture(t) // not parallel: goleak looks at the whole process
	before := goleak.IgnoreCurrent()
	for range 3 {
		c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
		c.signals.parkedPass.Enable()
		stop := start(t, c)
		c.signals.parkedPass.Wait(t)
		stop()
		f.sub.wg.Wait()
	}
	goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"))
}

// Handle makes a step fit a watermill Router.
func TestHandlerFuncIsAWatermillHandler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	msg := act("k")
	msg.SetContext(t.Context())
	var h message.NoPublishHandlerFunc = c.HandlerFunc("pay")
	if err := h(msg); err != nil {
		t.Fatalf("handler: %v", err)
	}
	if got, want := f.effects(t), "paid k 1"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
}

// A consumer whose schema has no tables says what is to be done about it.
func TestRunWithoutTables(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.schema = "no_such_schema"
	var log bytes.Buffer
	c := f.consumer(t, Options{Logger: slog.New(bareHandler{&log})}, f.step(f.effect("paid"), nil))
	c.signals.parkedPass.Enable()
	stop := start(t, c)
	c.signals.parkedPass.Wait(t)
	stop()
	const advice = "has it been migrated ("
	if !strings.Contains(log.String(), advice) {
		t.Errorf("the log does not ask %q:\n%s", advice, log.String())
	}
	for _, msg := range []*message.Message{act("k"), without(act("k"), outbox.HeaderKey)} {
		if err := c.Handle(t.Context(), "pay", msg); err == nil || !strings.Contains(err.Error(), advice) {
			t.Errorf("Handle: %v", err)
		}
	}
	if _, err := c.Stats(t.Context()); err == nil || !strings.Contains(err.Error(), advice) {
		t.Errorf("Stats: %v", err)
	}
}
