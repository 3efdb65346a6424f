package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

// What a hostile review found, each as a test.

var errNo = errors.New("no")

// A parked message whose step is locked by another transaction goes back at once. It costs no attempt and holds
// no worker.
func TestAParkedMessageOfABusyStepGoesBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var acts, undos atomic.Int32
	step := f.step(f.failing(1, "paid", &acts), f.failing(0, "refunded", &undos))
	step.MaxAttempts = 3
	c := f.consumer(t, Options{}, step)
	handle(t, c, act("k"), undo("k"))
	busy, err := f.pool.Begin(t.Context()) // as a slow attempt of the action would
	if err != nil {
		t.Fatal(err)
	}
	if _, err := busy.Exec(t.Context(), "SELECT 1 FROM "+f.schema+".inbox FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		runParkedOnce(t, c)
	}
	if got, want := f.parked(t), "retrying action failed 1; retrying compensation waits-for-action 0"; got != want || undos.Load() != 0 {
		t.Errorf("while the step was busy: %q, want %q", got, want)
	}
	if err := busy.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		runParkedOnce(t, c)
	}
	compareStored(t, stored{Row: "compensated 2 1", Effects: "paid k 1, refunded k 2"}, stored{Row: f.row(t), Effects: f.effects(t)})
}

// A duplicate of a waiting compensation is handled first and fails: the copy
// that is parked already learns of that entry.
func TestTheBudgetCountsADuplicateOfAWaitingCompensation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var acts, undos atomic.Int32
	step := f.step(f.failing(1, "paid", &acts), f.failing(1<<30, "refunded", &undos))
	step.MaxAttempts = 3
	c := f.consumer(t, Options{}, step)
	handle(t, c, act("k"))
	rows, err := c.retrier.takeParked(t.Context(), 1, c.retrier.stepNames...)
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	handle(t, c, undo("k"))                           // parked behind the action
	c.retrier.runParkedMessage(t.Context(), &rows[0]) // the action is done
	handle(t, c, undo("k"))                           // enters the handler, and fails
	for range 6 {
		runParkedOnce(t, c)
	}
	if got, want := f.parked(t), "dead compensation attempts-exhausted 3"; got != want || undos.Load() != 3 {
		t.Errorf("%d entries, %q; want 3, %q", undos.Load(), got, want)
	}
}

func TestACompensationBesideAWaitingOneIsADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var acts atomic.Int32
	c := f.consumer(t, Options{}, f.step(f.failing(1<<30, "paid", &acts), f.effect("refunded")))
	handle(t, c, act("k"), undo("k"), newMessage("unpay", "k", payment{777}))
	if got, want := f.parked(t), "retrying action failed 1; retrying compensation waits-for-action 0; dead compensation key-reused 0"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}

// The first delivery of an action may have died after an effect outside the
// database. A compensation that finds no row cannot know; when the broker
// delivers the action again, a person is told.
func TestARedeliveredActionThatWasVoidedIsReportedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), f.effect("refunded")))
	again := act("k")
	again.Metadata.Set(outbox.PropertyRedelivered, "true")
	handle(t, c, undo("k"), act("k"))
	if got := f.parked(t); got != "" {
		t.Errorf("a first delivery is reported: %q", got)
	}
	handle(t, c, again, again.Copy())
	if got, want := f.parked(t), "dead action superseded 0"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
	if got := f.effects(t); got != "" {
		t.Errorf("effects %q", got)
	}
}

type bomb struct{}

func (*bomb) UnmarshalJSON([]byte) error { panic("a decoder's panic") }

func TestAPanicInADecoderIsADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, Step{Name: "process-payment", Action: On("pay", func(context.Context, pgx.Tx, Message[bomb], Emit) error { return nil })})
	handle(t, c, act("k"))
	if got, want := f.parked(t), "dead unknown undecodable 0"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}

func TestAHandlerThatEndsItsGoroutineDoesNotEndItsLane(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	paid := f.effect("paid")
	var deaths atomic.Int32
	c := f.consumer(t, Options{Lanes: 1}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if in.Key == "deadly" && deaths.Add(1) == 1 {
			runtime.Goexit()
		}
		return paid(ctx, tx, in, emit)
	}, nil))
	c.signals.settled.Enable()
	stop := start(t, c)
	f.sub.queue("pay") <- act("deadly")
	<-f.sub.nacked
	f.sub.queue("pay") <- act("next")
	c.signals.settled.Wait(t)
	c.signals.settled.Wait(t)
	stop()
	if got := len(strings.Split(f.effects(t), ", ")); got != 2 {
		t.Errorf("effects %q, want both", f.effects(t))
	}
}

func TestRunReturnsAlthoughAHandlerIgnoresItsContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	entered, release := make(chan struct{}), make(chan struct{})
	step := f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error {
		close(entered)
		<-release // ignores its context
		return nil
	}, nil)
	step.Timeout = time.Millisecond
	c := f.consumer(t, Options{DrainTimeout: time.Millisecond}, step)
	c.grace = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	f.sub.queue("pay") <- act("k")
	<-entered
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "still runs") {
		t.Errorf("Run = %v, want an error that says a handler still runs", err)
	}
	close(release)
}

// brokerAway waits for its broker, as a subscriber should.
type brokerAway struct{}

func (brokerAway) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (brokerAway) Close() error { return nil }

func TestParkedMessagesRunWithoutTheBroker(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var entries atomic.Int32
	c, err := New(f.pool, brokerAway{}, []Step{f.step(f.failing(1, "paid", &entries), nil)}, &Options{Schema: f.schema, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	handle(t, c, act("k"))
	c.signals.ranParked.Enable()
	stop := start(t, c)
	c.signals.ranParked.Wait(t)
	if c.Ready() {
		t.Error("it is ready without its broker")
	}
	stop()
	if got, want := f.effects(t), "paid k 1"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
}

// A step whose parked messages hang leaves a worker to the others.
func TestAHangingStepLeavesAWorkerToOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release := make(chan struct{})
	entered := make(chan string, 10)
	hang := func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		if in.Attempt == 1 {
			return errNo
		}
		entered <- in.Step
		<-release
		return nil
	}
	quick := func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		if in.Attempt == 1 {
			return errNo
		}
		entered <- in.Step
		return nil
	}
	slow := f.step(hang, nil)
	other := Step{Name: "z-other", Action: On("other", quick), RetryBase: 1, RetryCap: 1}
	c := f.consumer(t, Options{ParkedWorkers: 2}, slow, other)
	for i := range 5 {
		handle(t, c, act(fmt.Sprint("k", i)))
	}
	stop := start(t, c)
	if got := <-entered; got != "process-payment" {
		t.Errorf("the first was %s", got)
	}
	handle(t, c, newMessage("other", "k", payment{1}))
	if got := <-entered; got != "z-other" {
		t.Errorf("the second was %s, want the other step's", got)
	}
	close(release)
	stop()
}

func TestInheritedTraceHeadersNeverExceedTheLimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	own := map[string]string{}
	for i := range outbox.MaxHeaders {
		own[fmt.Sprint("x-", i)] = ""
	}
	c := f.consumer(t, Options{}, f.step(func(_ context.Context, _ pgx.Tx, _ Message[payment], emit Emit) error {
		emit(outbox.Message{Topic: "t", Step: "s", Headers: own})
		return nil
	}, nil))
	msg := act("k")
	msg.Metadata.Set(outbox.HeaderTraceParent, "00-1")
	handle(t, c, msg)
	if got := f.row(t); got != "done 1 0" {
		t.Errorf("row %q, parked %q", got, f.parked(t))
	}
}

// A process that hangs with the row's lock loses its session after a while,
// and a copy that was taken again is not run by the first taker.
func TestZombiesAreFenced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var limit string
	var entries atomic.Int32
	failing := f.failing(1, "paid", &entries)
	c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if err := tx.QueryRow(ctx, "SELECT current_setting('idle_in_transaction_session_timeout')").Scan(&limit); err != nil {
			return err
		}
		return failing(ctx, tx, in, emit)
	}, nil))
	handle(t, c, act("k"))
	if limit != "40s" { // Timeout and databaseTimeout
		t.Errorf("an idle transaction is ended after %s, want 40s", limit)
	}
	c.retrier.lease = 0
	first, err := c.retrier.takeParked(t.Context(), 1, c.retrier.stepNames...)
	if err != nil || len(first) != 1 {
		t.Fatal(first, err)
	}
	second, err := c.retrier.takeParked(t.Context(), 1, c.retrier.stepNames...)
	if err != nil || len(second) != 1 {
		t.Fatal(second, err)
	}
	c.retrier.runParkedMessage(t.Context(), &first[0])
	if got, want := entries.Load(), int32(1); got != want {
		t.Errorf("%d entries after the first taker went on, want %d", got, want)
	}
	c.retrier.runParkedMessage(t.Context(), &second[0])
	if got, want := f.effects(t), "paid k 1"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
}
