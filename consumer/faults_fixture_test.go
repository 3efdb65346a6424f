//go:build failpoints

package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	yardEnv   = "SAGAMILL_TEST_YARD"
	yardTopic = "steps" // of action and compensation: one queue

	yardConns   = 4                     // of each pool on a yard
	yardBudget  = 6                     // MaxAttempts
	mostEntries = 3                     // into a handler, whatever strikes once
	soon        = 20 * time.Millisecond // until a nacked message comes again, and between looks for parked ones
)

// A yard is a schema and a queue of the broker on which one case after the other is
// tried, with processes that are struck and a consumer that takes over.
type yard struct {
	*fixture
	config    yardConfig
	proxy     *rabbittest.Proxy // before the process that is struck
	topology  wamqp.Config
	publisher *rabbitmq.Publisher
	control   *amqp.Channel
	queue     string
}

// A yardConfig is what a process on a yard is told.
type yardConfig struct {
	AMQP, Prefix, Schema string
	Entries              string // file that a handler notes its entry in
	Unmarked             bool   // its subscriber does not tell redeliveries
}

func newYard(t *testing.T) *yard {
	t.Helper()
	y := &yard{fixture: newFixture(t), proxy: rabbittest.NewProxy(t, rabbittest.URL()), control: rabbittest.Channel(t, rabbittest.URL())}
	y.exec(t, "ALTER TABLE {schema}.effect ADD COLUMN key text")
	y.config = yardConfig{AMQP: rabbittest.URL(), Prefix: rabbittest.Name(), Schema: y.schema, Entries: filepath.Join(t.TempDir(), "entries")}
	y.topology = y.config.topology()
	y.queue = y.topology.Queue.GenerateName(yardTopic)
	rabbittest.Delete(t, []string{y.queue, y.queue + ".dead"}, []string{y.topology.Exchange.GenerateName(yardTopic)})
	if err := rabbitmq.DeclareTopology(t.Context(), y.topology, yardTopic); err != nil {
		t.Fatal(err)
	}
	var err error
	if y.publisher, err = rabbitmq.NewPublisher(y.topology, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { y.publisher.Close() })
	return y
}

// clear removes what the case before has left.
func (y *yard) clear(t *testing.T) {
	t.Helper()
	y.forget(t)
	if _, err := y.control.QueuePurge(y.queue, false); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(y.config.Entries, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// forget removes what is stored.
func (f *fixture) forget(t *testing.T) {
	t.Helper()
	for _, table := range []string{"inbox", "parked", "effect", "outbox"} {
		f.exec(t, "DELETE FROM {schema}."+table)
	}
}

func (y yardConfig) topology() wamqp.Config {
	config, err := rabbitmq.NewConfig(y.AMQP, "yard", &rabbitmq.ConfigOptions{Prefix: y.Prefix})
	if err != nil {
		panic(err)
	}
	return config
}

// step notes its entries, leaves an effect and emits a receipt of it; for a key that
// begins with "bad" it gives up.
func (y yardConfig) step() Step {
	work := func(what string) Handler[payment] {
		return func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
			if err := y.enter(in.Key, what); err != nil {
				return err
			}
			if strings.HasPrefix(in.Key, "bad") {
				return Terminal(errors.New("bad"))
			}
			emit(outbox.Message{Topic: "receipts", Type: what, Step: "receive", N: what, Payload: in.Payload})
			_, err := tx.Exec(ctx, "INSERT INTO "+y.Schema+".effect (key, what) VALUES ($1, $2)", in.Key, what)
			return err
		}
	}
	s := Step{
		Name: "process-payment", Action: On(yardTopic, work("paid")), Compensation: On(yardTopic, work("refunded")),
		MaxAttempts: yardBudget, RetryBase: 1, RetryCap: 1,
	}
	s.Action.Type, s.Compensation.Type = "pay", "unpay"
	return s
}

// enter notes an entry, also of a process that dies.
func (y yardConfig) enter(key, what string) error {
	f, err := os.OpenFile(y.Entries, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, key, what)
	return errors.Join(err, f.Close())
}

// unmarked hides what a subscriber knows of redeliveries.
type unmarked struct{ message.Subscriber }

// open returns a consumer, and what runs it until a context ends.
func (y yardConfig) open(ctx context.Context, log *slog.Logger) (*Consumer, func(context.Context) error, error) {
	config, err := pgxpool.ParseConfig(pgtest.URL())
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = yardConns
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	amqp, err := rabbitmq.NewSubscriber(y.topology(), &rabbitmq.SubscriberOptions{NackDelay: soon, Logger: log})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	var sub message.Subscriber = amqp
	if y.Unmarked {
		sub = unmarked{sub}
	}
	c, err := New(pool, sub, []Step{y.step()}, &Options{Schema: y.Schema, Lanes: 2, ParkedWorkers: 2, ParkedPoll: soon, Logger: log})
	if err != nil {
		amqp.Close()
		pool.Close()
		return nil, nil, err
	}
	return c, func(ctx context.Context) error {
		defer pool.Close()
		defer amqp.Close()
		err := c.Run(ctx)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil // it had not subscribed yet
		}
		return err
	}, nil
}

// serveYard is the main of a process on a yard.
func serveYard(text string) error {
	var config yardConfig
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	_, run, err := config.open(ctx, slog.Default())
	if err != nil {
		return err
	}
	return run(ctx)
}

// start starts a process that f is to strike.
func (y *yard) start(t *testing.T, f faulttest.Fault, unmarked bool) *faulttest.Victim {
	t.Helper()
	config := y.config
	config.AMQP, config.Unmarked = y.proxy.URL(), unmarked
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return faulttest.Start(t, f, yardEnv+"="+string(text))
}

// takeOver runs a consumer in this process until the returned function is called.
func (y *yard) takeOver(t *testing.T) (c *Consumer, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c, run, err := y.config.open(ctx, slog.New(slog.DiscardHandler))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the consumer that takes over: %v", err)
		}
	}
	t.Cleanup(stop)
	return c, stop
}

// settledBy returns how many messages c has settled: it acks them, also if it is stopped.
func settledBy(c *Consumer) (n int) {
	counters := c.Counters()
	for _, count := range counters.Rejected {
		n += int(count)
	}
	for _, step := range counters.Steps {
		for outcome, count := range step.Outcomes {
			if outcome != OutcomeUndecided && outcome != OutcomeUndone {
				n += int(count)
			}
		}
	}
	return n
}

func (y *yard) publish(t *testing.T, msgs []*message.Message) {
	t.Helper()
	if len(msgs) == 0 {
		return
	}
	if err := y.publisher.Publish(yardTopic, msgs...); err != nil {
		t.Fatal(err)
	}
}

// expire lets the leases of parked messages run out, except those whose handlers run.
func (y *yard) expire(t *testing.T) {
	t.Helper()
	y.exec(t, `UPDATE {schema}.parked SET due_at = clock_timestamp() WHERE id IN (
		SELECT id FROM {schema}.parked WHERE state = 'retrying' FOR UPDATE SKIP LOCKED)`)
}

// queued returns how many messages wait in the queue, and how many consumers it has.
func (y *yard) queued(t *testing.T) (waiting, consumers int) {
	t.Helper()
	q, err := y.control.QueueDeclarePassive(y.queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages, q.Consumers
}

// A scene is all that can be seen on a yard.
type scene struct {
	Steps    []string // by key
	Effects  []string // by key, in their order
	Receipts []string // that are in the outbox
	Parked   []string
}

const sqlLook = `SELECT
	ARRAY(SELECT key || ' ' || state FROM {schema}.inbox ORDER BY key),
	ARRAY(SELECT key || ' ' || string_agg(what, ' ' ORDER BY id) FROM {schema}.effect GROUP BY key ORDER BY key),
	ARRAY(SELECT key || ' ' || ` + outboxsql.LoggedType + ` FROM {schema}.outbox m ORDER BY 1),
	ARRAY(SELECT concat_ws(' ', key, state, kind, reason) FROM {schema}.parked ORDER BY 1)`

// look returns the scene. A message that cannot be read may be a dead letter twice,
// once for each delivery; more is not forgiven.
func (y *yard) look(t *testing.T) scene {
	t.Helper()
	var s scene
	err := y.pool.QueryRow(t.Context(), strings.ReplaceAll(sqlLook, "{schema}", y.schema)).Scan(&s.Steps, &s.Effects, &s.Receipts, &s.Parked)
	if err != nil {
		t.Fatal(err)
	}
	if twice := "dead unknown key-missing"; slices.Equal(s.Parked, []string{twice, twice}) {
		s.Parked = s.Parked[:1]
	}
	return s
}

// comesTo waits until the queue is empty and the scene is want.
func (y *yard) comesTo(t *testing.T, want scene, said func() string) {
	t.Helper()
	var got scene
	var waiting int
	faulttest.Await(t, "it has come to its end", func() bool {
		got = y.look(t)
		waiting, _ = y.queued(t)
		return waiting == 0 && cmp.Equal(got, want, cmpopts.EquateEmpty())
	}, func() string {
		return fmt.Sprintf("%d messages are in the queue; (-want +got):\n%s\nthe process said:\n%s", waiting, cmp.Diff(want, got, cmpopts.EquateEmpty()), said())
	})
}

// waiting returns how many messages wait once no consumer has any in hand.
func (y *yard) waiting(t *testing.T) (n int) {
	t.Helper()
	faulttest.Await(t, "the queue has no consumers", func() bool {
		waiting, consumers := y.queued(t)
		n = waiting
		return consumers == 0
	}, nil)
	return n
}

// withinBudget fails the test if a handler was entered more often than one fault can
// account for, or more often than is known.
func (y *yard) withinBudget(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(y.config.Entries)
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]int{}
	for line := range strings.Lines(string(text)) {
		entries[strings.TrimSpace(line)]++
	}
	for what, n := range entries {
		if n > mostEntries {
			t.Errorf("%s: %d entries into the handler, want at most %d", what, n, mostEntries)
		}
	}
	if over := y.texts(t, "SELECT key || ' ' || attempts || ' ' || undo_attempts FROM {schema}.inbox WHERE greatest(attempts, undo_attempts) > $1", yardBudget); len(over) > 0 {
		t.Errorf("over the budget of %d: %q", yardBudget, over)
	}
}
