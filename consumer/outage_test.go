package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// An outageTest is a watch without a database and without a broker, in a bubble of synctest.
type outageTest struct {
	*testing.T
	*outageWatch
	board *board
	began time.Time

	mu    sync.Mutex
	lost  error    // the answer to each question
	log   []string // what the watch has done, with the second in which it did that
	fresh int      // questions on a new connection
}

// inOutage runs do beside the watch.
func inOutage(t *testing.T, do func(o *outageTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := &outageTest{T: t, outageWatch: newOutageWatch(nil, []string{"pay"}, nil, slog.New(slog.DiscardHandler)), began: time.Now()}
		o.pauser, o.forget = o, func() { o.note("forget") }
		o.ask = func(_ context.Context, fresh bool) error {
			o.note("ask")
			o.mu.Lock()
			defer o.mu.Unlock()
			if fresh {
				o.fresh++
			}
			return o.lost
		}
		o.board = newBoard(&Options{Lanes: 2, BatchSize: 2}, 1, o.outageWatch)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); o.runLoop(ctx, o.board) }()
		do(o)
		cancel()
		<-ended
	})
}

func (o *outageTest) Pause(string) { o.note("pause") }

func (o *outageTest) Resume(string) { o.note("resume") }

func (o *outageTest) note(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.log = append(o.log, fmt.Sprintf("%s %.0f", what, time.Since(o.began).Seconds()))
}

// wait lets the bubble's time pass.
func (o *outageTest) wait(d time.Duration) {
	_ = backoff.Sleep(o.Context(), d)
	synctest.Wait()
}

// put puts a message on the board. It reports whether the board has taken it.
func (o *outageTest) put(key string) (*message.Message, bool) {
	msg := act(key)
	return msg, o.board.putEntry(o.Context(), boardEntry{topic: "pay", msg: msg, queue: key, alone: true})
}

// takeLog returns the log and begins a new one.
func (o *outageTest) takeLog() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	log := o.log
	o.log = nil
	return strings.Join(log, ", ")
}

// want compares the log with what must be in it.
func (o *outageTest) want(after, want string) {
	o.Helper()
	if got := o.takeLog(); got != want {
		o.Errorf("after %s: %s; want %s", after, got, want)
	}
}

// lose sets the answer to each question from now on.
func (o *outageTest) lose(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost = err
}

func isNacked(msg *message.Message) bool {
	select {
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}

// The database is asked after a second without an answer, while something is in hand, and otherwise never.
func TestTheDatabaseIsAskedOnlyWhenItIsSilent(t *testing.T) {
	t.Parallel()
	inOutage(t, func(o *outageTest) {
		o.wait(time.Hour)
		o.want("an hour without a delivery", "")
		for range 10 {
			o.put("k")
			o.wait(100 * time.Millisecond)
			o.board.releaseLoad(o.board.takeLoad(1, 0), nil)
			o.noteAnswer()
			o.wait(950 * time.Millisecond)
		}
		o.put("k")
		for range 10 {
			o.wait(500 * time.Millisecond)
			o.noteAnswer() // to another delivery
		}
		o.wait(900 * time.Millisecond)
		if got := o.takeLog(); strings.Contains(got, "ask") {
			o.Errorf("deliveries that are handled at once: %s", got)
		}
		o.wait(2200 * time.Millisecond)
		if got := o.takeLog(); strings.Count(got, "ask") != 3 {
			o.Errorf("a slow handler: %s, want a question each second", got)
		}
		o.noteFailure(&pgconn.PgError{Code: "25006"})
		o.wait(time.Second)
		o.noteAnswer()
		o.wait(1100 * time.Millisecond)
		if got := o.takeLog(); strings.Count(got, "ask") != 2 || o.fresh != 1 {
			o.Errorf("a failure and an answer: %s, %d on a new connection; want the first of two", got, o.fresh)
		}
		o.board.releaseLoad(o.board.takeLoad(1, 0), nil)
		o.wait(time.Hour)
		if got := o.takeLog(); strings.Contains(got, "ask") || !strings.Contains(got, "forget") {
			o.Errorf("after the last delivery: %s", got)
		}
	})
}

// A pause drops what has not begun, and takes nothing. It lasts until the database answers, and at least ten seconds.
func TestALostDatabasePausesTheConsumer(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]time.Duration{"for a moment": 3 * time.Second, "for long": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inOutage(t, func(o *outageTest) {
				begun, _ := o.put("a")
				l := o.board.takeLoad(1, 0)
				behind, _ := o.put("a")
				other, _ := o.put("b")
				o.lose(context.DeadlineExceeded)
				o.wait(1100 * time.Millisecond)
				o.want("a second", "ask 1, pause 1")
				if !isNacked(behind) || !isNacked(other) || isNacked(begun) {
					t.Errorf("nacked: %t and %t of those that had not begun, %t of that which had", isNacked(behind), isNacked(other), isNacked(begun))
				}
				if _, taken := o.put("c"); taken || !o.isPaused() {
					t.Error("a paused consumer takes a delivery")
				}
				if !o.hasHandedOver(l.entries[0]) {
					t.Error("a delivery that a lane has is not known as an old copy")
				}
				o.board.releaseLoad(l, l.entries)
				if !isNacked(begun) || o.board.inHand != 0 || len(o.board.room) != 0 || len(o.board.queues) != 0 {
					t.Errorf("a delivery that has not begun after all goes back to the board: %+v", o.board)
				}
				o.wait(away)
				if !o.isPaused() {
					t.Error("the pause was over before the outage")
				}
				o.lose(nil)
				o.wait(askPause + askLimit)
				if log := o.takeLog(); o.isPaused() || !strings.Contains(log, "resume") || strings.Count(log, "ask") < int(away/(askPause+askLimit)) {
					t.Errorf("the database answers, paused: %t, %s", o.isPaused(), log)
				}
				if again, taken := o.put("a"); !taken || isNacked(again) || o.hasHandedOver(o.board.takeLoad(1, 0).entries[0]) {
					t.Error("after the pause it does not take a delivery")
				}
			})
		})
	}
}

// Which answers mean that the database is lost.
func TestWhatALostDatabaseIs(t *testing.T) {
	t.Parallel()
	code := func(code string) error { return fmt.Errorf("connect: %w", &pgconn.PgError{Code: code}) }
	for _, tt := range []struct {
		answer           error
		lost, afterwards bool // afterwards: a delivery has failed by that, too
	}{
		{nil, false, false},
		{errors.New("connection refused"), true, true},
		{context.DeadlineExceeded, true, true},
		{errReadOnly, true, true},
		{code("57P03"), true, true}, // it starts
		{code("08P01"), true, true}, // a pooler has no server
		{code("53300"), false, true},
		{code("28P01"), false, true},
		{fmt.Errorf("%w: no token", errHook), false, true},
		{fmt.Errorf("connect: %w", &net.DNSError{Err: "no such host"}), false, true},
	} {
		w := &outageWatch{}
		if got := w.isLost(tt.answer); got != tt.lost {
			t.Errorf("%v: lost %t, want %t", tt.answer, got, tt.lost)
		}
		w.noteFailure(&pgconn.ConnectError{})
		if got := w.isLost(tt.answer); got != tt.afterwards {
			t.Errorf("%v after a failure: lost %t, want %t", tt.answer, got, tt.afterwards)
		}
	}
}

// A path that comes and goes costs at most one hand-over in ten seconds.
func TestAFlappingPathHandsOverSeldom(t *testing.T) {
	t.Parallel()
	inOutage(t, func(o *outageTest) {
		o.ask = func(_ context.Context, fresh bool) error { // it answers when that ends a pause
			if fresh {
				return nil
			}
			return context.DeadlineExceeded
		}
		began := time.Now()
		for range 600 {
			o.put("k")
			o.wait(time.Second)
		}
		log := o.takeLog()
		pauses, most := strings.Count(log, "pause"), int(time.Since(began)/handOverEvery)+1
		if pauses < most/2 || pauses > most {
			t.Errorf("%d hand-overs in %s, want at most %d: %.300s", pauses, time.Since(began), most, log)
		}
	})
}

// An attempt whose queue was handed over before it began does not begin, and one that failed is not tried again.
func TestAnOldCopyDoesNotBegin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	msg := act("k")
	e := c.router.newBoardEntry("pay", msg)
	attempts, _ := c.router.readLoad(t.Context(), t.Context(), []boardEntry{e})
	tries := 0
	away := func() error {
		tries++
		c.outage.pauses.Add(1)
		return &pgconn.PgError{Code: "57P01"}
	}
	if c.executor.retryUntilDone(t.Context(), e, away) || tries != 1 {
		t.Errorf("a delivery that was handed over after its first try was tried %d times", tries)
	}
	if left := c.executor.executeLoad(t.Context(), t.Context(), attempts); len(left) != 1 {
		t.Errorf("%d attempts were left, want the one", len(left))
	}
	c.executor.executeOne(t.Context(), t.Context(), attempts[0])
	if !isNacked(msg) || f.row(t) != "" {
		t.Errorf("an old copy was executed: %q", f.row(t))
	}
}

// An attempt that loses its transaction while its queue is handed over leaves the message to the copy of the next
// process. Were it parked, that process would take it for settled and go on with the next message of the key. A handler
// that has ended its transaction is still a dead letter: what it has committed must not happen again.
func TestAnOldCopyParksNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name             string
		handedOver, ends bool
		row, parked      string
	}{
		{name: "handed over", handedOver: true},
		{name: "handed over, and the handler has committed", handedOver: true, ends: true, row: "dead 1 0", parked: "dead action terminal 1"},
		{name: "not handed over", row: "retrying 1 0", parked: "retrying action failed 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var c *Consumer
			c = f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
				if tt.handedOver {
					c.outage.pauses.Add(1)
				}
				if tt.ends {
					_, err := tx.Conn().Exec(ctx, "COMMIT")
					return err
				}
				_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
				return err
			}, nil))
			msg := act("k")
			attempts, _ := c.router.readLoad(t.Context(), t.Context(), []boardEntry{c.router.newBoardEntry("pay", msg)})
			c.executor.executeOne(t.Context(), t.Context(), attempts[0])
			if row, parked := f.row(t), f.parked(t); isNacked(msg) != (tt.row == "") || row != tt.row || parked != tt.parked {
				t.Errorf("nacked %t, row %q, parked %q; want %q, %q", isNacked(msg), row, parked, tt.row, tt.parked)
			}
		})
	}
}

// A pausingSubscriber is a queueSubscriber that counts pauses.
type pausingSubscriber struct {
	*queueSubscriber
	paused, resumed atomic.Int32
}

func (s *pausingSubscriber) Pause(string) { s.paused.Add(1) }

func (s *pausingSubscriber) Resume(string) { s.resumed.Add(1) }

// While a consumer is paused it is not ready. What has begun goes on, and what has not begun does not. Its end ends the
// pause for whom comes next.
func TestAPausedConsumer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	sub := &pausingSubscriber{queueSubscriber: f.sub}
	entered, proceed := make(chan string, 10), make(chan struct{})
	pay := f.effect("paid")
	step := f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		entered <- in.Key
		<-proceed
		return pay(ctx, tx, in, emit)
	}, f.effect("refunded"))
	c, err := New(f.pool, sub, []Step{step}, &Options{Schema: f.schema, Lanes: 1, BatchSize: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c.outage.ask = func(context.Context, bool) error { return errReadOnly }
	c.outage.signals.paused.Enable()
	c.signals.settled.Enable()
	stop := start(t, c)
	first, second := act("first"), act("second")
	f.sub.queue("pay") <- first
	<-entered
	f.sub.queue("pay") <- second
	if !c.outage.signals.paused.Wait(t) || c.Ready() || !c.Counters().Paused || sub.paused.Load() != 2 {
		t.Errorf("without its database: ready %t, %d of 2 topics paused", c.Ready(), sub.paused.Load())
	}
	if id := <-f.sub.nacked; id != second.UUID {
		t.Errorf("nacked %s, want the message that has not begun", id)
	}
	close(proceed)
	if id := c.signals.settled.Wait(t); id != first.UUID {
		t.Errorf("acked %s, want the message that has begun", id)
	}
	stop()
	if sub.resumed.Load() != 2 || c.Counters().Paused {
		t.Errorf("the end of Run resumed %d of 2 topics", sub.resumed.Load())
	}
	if got := f.effects(t); got != "paid first 1" {
		t.Errorf("effects %q, want that of the message that has begun", got)
	}
}

// Where the queues are handed over, a first delivery is not nacked before the watch has decided.
func TestAPauserNeedsNoEarlyNack(t *testing.T) {
	t.Parallel()
	first, again := boardEntry{msg: act("k")}, boardEntry{msg: act("k")}
	again.msg.Metadata.Set(outbox.PropertyRedelivered, "true")
	away := &pgconn.PgError{Code: "57P01"}
	nacking, pausing := &executor{outage: &outageWatch{}}, &executor{outage: &outageWatch{pauser: &pausingSubscriber{}}}
	for _, tt := range []struct {
		x    *executor
		e    boardEntry
		err  error
		want int
	}{
		{nacking, first, away, maxTries}, {nacking, again, away, redeliveredTries}, {pausing, first, away, redeliveredTries},
		{pausing, first, errors.New("other"), maxTries}, {nacking, again, errors.New("other"), maxTries},
	} {
		if got := tt.x.maxTriesFor(tt.e, tt.err); got != tt.want {
			t.Errorf("%v is tried %d times, want %d", tt.err, got, tt.want)
		}
	}
}

// A transaction that commits is an answer.
func TestACommitIsAnAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	c.outage.failed.Store(true)
	if handle(t, c, act("k")); c.outage.answered.Load() == 0 || c.outage.failed.Load() {
		t.Error("the commit of a delivery is no answer of the database")
	}
}

// The question is answered by the server, whatever the pool is busy with, and a session that ended is not the server.
func TestAQuestionToTheDatabase(t *testing.T) {
	t.Parallel()
	config := pgtest.DirectConfig(t)
	config.MaxConns = 1
	pool := pgtest.PoolOf(t, config)
	busy, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Release()
	a := &asker{db: pool}
	defer a.closeConnection()
	if err := a.askDatabase(t.Context(), false); err != nil {
		t.Fatalf("beside a busy pool: %v", err)
	}
	first := a.conn
	if err := a.askDatabase(t.Context(), false); err != nil || a.conn != first {
		t.Errorf("again: %v, kept %t", err, a.conn == first)
	}
	_ = first.PgConn().Conn().Close()
	if err := a.askDatabase(t.Context(), false); err != nil || a.conn == first {
		t.Errorf("after the end of the session: %v", err)
	}
	second := a.conn
	if err := a.askDatabase(t.Context(), true); err != nil || a.conn == second {
		t.Errorf("on a new connection: %v", err)
	}
}

// Where no new connection can be made, because others have the last one or a hook fails, those of the pool answer.
func TestAQuestionThroughThePool(t *testing.T) {
	t.Parallel()
	config := pgtest.DirectConfig(t)
	config.MaxConns = 1
	refuses, hooked := false, 0
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		if refuses {
			return errors.New("no token")
		}
		return nil
	}
	config.AfterConnect = func(context.Context, *pgx.Conn) error { hooked++; return nil }
	pool := pgtest.PoolOf(t, config)
	a := &asker{db: pool}
	if err := a.askDatabase(t.Context(), true); err != nil || hooked != 1 {
		t.Fatalf("ask: %v, AfterConnect was called %d times", err, hooked)
	}
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	refuses = true
	if err := a.askDatabase(t.Context(), true); err != nil || a.conn != nil {
		t.Errorf("with a connection in the pool: %v", err)
	}
	pool.Reset()
	if err := a.askDatabase(t.Context(), true); !errors.Is(err, errHook) {
		t.Errorf("without one: %v", err)
	}
}

func TestAQuestionToADatabaseThatIsReadOnly(t *testing.T) {
	t.Parallel()
	config := pgtest.DirectConfig(t)
	config.BeforeConnect = func(_ context.Context, to *pgx.ConnConfig) error {
		to.RuntimeParams["default_transaction_read_only"] = "on"
		return nil
	}
	a := &asker{db: pgtest.PoolOf(t, config)}
	if err := a.askDatabase(t.Context(), false); !errors.Is(err, errReadOnly) || a.conn != nil {
		t.Errorf("a session that is read-only: %v", err)
	}
}
