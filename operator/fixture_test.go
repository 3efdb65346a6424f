package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// The effects of the steps go to a table without a unique key, so that a test sees an effect
// that happened twice.
const sqlCreateEffect = `CREATE TABLE {schema}.effect (id bigserial PRIMARY KEY, what text NOT NULL)`

type payment struct {
	Amount int `json:"amount"`
}

type handler = consumer.Handler[payment]

// A fixture is a schema with a service's tables, and a broker for its consumers.
type fixture struct {
	pool   *pgxpool.Pool
	schema string
	sub    *queueSubscriber
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	pool, schema := pgtest.Schema(t, sqlCreateEffect)
	return &fixture{pool: pool, schema: schema, sub: &queueSubscriber{queues: map[string]chan *message.Message{}}}
}

func (f *fixture) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), strings.ReplaceAll(statement, "{schema}", f.schema), args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// effect returns a handler that stores what in the effect table.
func (f *fixture) effect(what string) handler {
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[payment], _ consumer.Emit) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+f.schema+".effect (what) VALUES ($1)", fmt.Sprint(what, " ", in.Key, " ", in.Body.Amount))
		return err
	}
}

// step is a step with an action on topic pay and a compensation on unpay.
func (f *fixture) step(act, undo handler) consumer.Step {
	s := consumer.Step{Name: "process-payment", Action: consumer.On("pay", act), RetryBase: 1, RetryCap: 1}
	if undo != nil {
		s.Compensation = consumer.On("unpay", undo)
	}
	return s
}

func (f *fixture) consumer(t *testing.T, opts consumer.Options, steps ...consumer.Step) *consumer.Consumer {
	t.Helper()
	opts.Schema = f.schema
	opts.ParkedWorkers = cmp.Or(opts.ParkedWorkers, 1) // one after the other, in the order in which they are due
	opts.ParkedPoll = cmp.Or(opts.ParkedPoll, 20*time.Millisecond)
	opts.Logger = slog.New(slog.DiscardHandler)
	c, err := consumer.New(f.pool, f.sub, steps, &opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return c
}

func (f *fixture) effects(t *testing.T) string {
	t.Helper()
	return strings.Join(f.texts(t, "SELECT what FROM {schema}.effect ORDER BY id"), ", ")
}

// texts returns the only column of a query.
func (f *fixture) texts(t *testing.T, query string, args ...any) []string {
	t.Helper()
	rows, _ := f.pool.Query(t.Context(), strings.ReplaceAll(query, "{schema}", f.schema), args...)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return all
}

// row returns "state attempts undo_attempts" of the only row of the inbox.
func (f *fixture) row(t *testing.T) string {
	t.Helper()
	return strings.Join(f.texts(t, "SELECT state || ' ' || attempts || ' ' || undo_attempts FROM {schema}.inbox"), "; ")
}

// parked returns "state kind reason attempts" of every parked message.
func (f *fixture) parked(t *testing.T) string {
	t.Helper()
	return strings.Join(f.texts(t, "SELECT concat_ws(' ', state, kind, reason, attempts) FROM {schema}.parked ORDER BY id"), "; ")
}

// stored is what a test compares after an event.
type stored struct {
	Row     string // "state attempts undo_attempts" of the inbox
	Parked  string // the parked messages
	Effects string // the committed work of handlers
}

// compareStored ends the test if the schema holds something other than want.
func (f *fixture) compareStored(t *testing.T, want stored) {
	t.Helper()
	if diff := gocmp.Diff(want, stored{f.row(t), f.parked(t), f.effects(t)}); diff != "" {
		t.Fatalf("stored, -want +got:\n%s", diff)
	}
}

// due counts the parked messages that are due, or run: a consumer that has taken one keeps
// it for some seconds.
func (f *fixture) due(t *testing.T) (n int) {
	t.Helper()
	const query = ".parked WHERE state = 'retrying' AND due_at < clock_timestamp() + interval '1 minute'"
	if err := f.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+f.schema+query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// runDue runs c until no parked message is due.
func (f *fixture) runDue(t *testing.T, c *consumer.Consumer) {
	t.Helper()
	stop := runConsumer(t, c)
	defer stop()
	for deadline := time.Now().Add(time.Minute); f.due(t) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("parked messages are retried for ever")
		}
	}
}

// runConsumer runs c until stop is called.
func runConsumer(t *testing.T, c *consumer.Consumer) (stop func()) {
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

func newMessage(topic, key string, body any) *message.Message {
	payload, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	msg := message.NewMessage(uuid.NewString(), payload)
	msg.Metadata.Set(outbox.HeaderKey, key+":process-payment")
	msg.Metadata.Set(outbox.HeaderScope, "tenant")
	msg.Metadata.Set(outbox.PropertyType, topic)
	return msg
}

func act(key string) *message.Message  { return newMessage("pay", key, payment{1}) }
func undo(key string) *message.Message { return newMessage("unpay", key, payment{2}) }

func handle(t *testing.T, c *consumer.Consumer, msgs ...*message.Message) {
	t.Helper()
	for _, msg := range msgs {
		if err := c.Handle(t.Context(), msg.Metadata.Get(outbox.PropertyType), msg); err != nil {
			t.Fatalf("Handle: %v", err)
		}
	}
}

// A queueSubscriber is a broker of one process. It delivers a nacked message again.
type queueSubscriber struct {
	mu     sync.Mutex
	queues map[string]chan *message.Message
	wg     sync.WaitGroup
	acked  sync.WaitGroup // by whoever adds to it
}

func (s *queueSubscriber) queue(topic string) chan *message.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[topic] == nil {
		s.queues[topic] = make(chan *message.Message, 1000)
	}
	return s.queues[topic]
}

func (s *queueSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	queue := s.queue(topic)
	s.wg.Go(func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case msg := <-queue:
				select {
				case out <- msg:
					s.wg.Go(func() { s.awaitEnd(msg, queue) })
				case <-ctx.Done():
					queue <- msg
					return
				}
			}
		}
	})
	return out, nil
}

func (s *queueSubscriber) awaitEnd(msg *message.Message, queue chan *message.Message) {
	select {
	case <-msg.Acked():
		s.acked.Done()
	case <-msg.Nacked():
		again := msg.Copy()
		again.Metadata.Set(outbox.PropertyRedelivered, "true")
		queue <- again
	}
}

func (s *queueSubscriber) MarksRedelivered() bool { return true }

func (s *queueSubscriber) Close() error { return nil }

// explain returns the nodes of a plan as type and relation.
func (f *fixture) explain(t *testing.T, mode, statement, args string) (nodes []string) {
	t.Helper()
	return f.explainWith(t, "SET LOCAL plan_cache_mode = "+mode, statement, args)
}

func (f *fixture) explainWith(t *testing.T, settings, statement, args string) (nodes []string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		for _, s := range []string{settings, "PREPARE explained AS " + statement} {
			if _, err := tx.Exec(t.Context(), s); err != nil {
				return err
			}
		}
		var out []byte
		if err := tx.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) EXECUTE explained"+args).Scan(&out); err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), "DEALLOCATE explained"); err != nil {
			return err
		}
		var plan any
		if err := json.Unmarshal(out, &plan); err != nil {
			return err
		}
		nodes = planNodes(plan)
		return nil
	})
	if err != nil {
		t.Fatalf("explain: %v", err)
	}
	return nodes
}

func planNodes(plan any) (nodes []string) {
	switch v := plan.(type) {
	case []any:
		for _, e := range v {
			nodes = append(nodes, planNodes(e)...)
		}
	case map[string]any:
		if typ, ok := v["Node Type"].(string); ok {
			if on, ok := v["Relation Name"].(string); ok {
				typ += " on " + on
			}
			nodes = append(nodes, typ)
		}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			nodes = append(nodes, planNodes(v[k])...)
		}
	}
	return nodes
}
