package consumer

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// readAttempt reads msg as an attempt.
func readAttempt(c *Consumer, topic string, msg *message.Message) (*attempt, *rejection) {
	m, rejected := c.receiver.readMessage(topic, msg)
	return newAttempt(m), rejected
}

// The effects of the test's steps go to a table without a unique key, so that
// one that happened twice is seen.
const sqlCreateEffect = `CREATE TABLE {schema}.effect (id bigserial PRIMARY KEY, what text NOT NULL)`

type payment struct {
	Amount int `json:"amount"`
}

type fixture struct {
	pool   *pgxpool.Pool
	schema string
	sub    *queueSubscriber
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	pool, schema := pgtest.Schema(t, sqlCreateEffect)
	return &fixture{pool: pool, schema: schema, sub: newQueueSubscriber()}
}

func (f *fixture) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), strings.ReplaceAll(statement, "{schema}", f.schema), args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// effect returns a handler that leaves what in the effect table.
func (f *fixture) effect(what string) Handler[payment] {
	return func(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+f.schema+".effect (what) VALUES ($1)", fmt.Sprint(what, " ", in.Key, " ", in.Body.Amount))
		return err
	}
}

// step is a step with an action on topic pay and a compensation on unpay.
func (f *fixture) step(act, undo Handler[payment]) Step {
	s := Step{Name: "process-payment", Action: On("pay", act), RetryBase: 1, RetryCap: 1}
	if undo != nil {
		s.Compensation = On("unpay", undo)
	}
	return s
}

func (f *fixture) consumer(t *testing.T, opts Options, steps ...Step) *Consumer {
	t.Helper()
	return f.consumerOn(t, f.pool, opts, steps...)
}

// consumerOn is a consumer on another pool.
func (f *fixture) consumerOn(t *testing.T, pool *pgxpool.Pool, opts Options, steps ...Step) *Consumer {
	t.Helper()
	opts.Schema = f.schema
	opts.BatchTime = cmp.Or(opts.BatchTime, time.Minute) // a busy machine would split batches
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	c, err := New(pool, f.sub, steps, &opts)
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

// stored is what a test compares after an event. A field that it does not look at is empty in both values.
type stored struct {
	Row     string // "state attempts undo_attempts" of the inbox
	Parked  string // the parked messages
	Effects string // the committed work of handlers
	Calls   string // the provider's effects / with how many different keys
}

// compareStored fails the test if want and got differ.
func compareStored(t *testing.T, want, got stored) {
	t.Helper()
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("stored, -want +got:\n%s", diff)
	}
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

// runParkedOnce runs what is due, and reports how many messages that were.
func runParkedOnce(t *testing.T, c *Consumer) int {
	t.Helper()
	rows, err := c.retrier.takeParked(t.Context(), 100, c.retrier.stepNames...)
	if err != nil {
		t.Fatalf("take parked: %v", err)
	}
	for _, row := range rows {
		c.retrier.runParkedMessage(t.Context(), &row)
	}
	return len(rows)
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

func handle(t *testing.T, c *Consumer, msgs ...*message.Message) {
	t.Helper()
	for _, msg := range msgs {
		if err := c.Handle(t.Context(), msg.Metadata.Get(outbox.PropertyType), msg); err != nil {
			t.Fatalf("Handle: %v", err)
		}
	}
}

// A queueSubscriber is a broker of one process: a nacked message is delivered
// again.
type queueSubscriber struct {
	mu     sync.Mutex
	queues map[string]chan *message.Message
	wg     sync.WaitGroup
	nacked chan string
}

func newQueueSubscriber() *queueSubscriber {
	return &queueSubscriber{queues: map[string]chan *message.Message{}, nacked: make(chan string, 1000)}
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
					s.wg.Go(func() { s.await(msg, queue) })
				case <-ctx.Done():
					queue <- msg
					return
				}
			}
		}
	})
	return out, nil
}

func (s *queueSubscriber) await(msg *message.Message, queue chan *message.Message) {
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
		again := msg.Copy()
		again.Metadata.Set(outbox.PropertyRedelivered, "true")
		s.nacked <- msg.UUID
		queue <- again
	}
}

func (s *queueSubscriber) MarksRedelivered() bool { return true }

func (s *queueSubscriber) Close() error { return nil }
