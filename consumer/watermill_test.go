package consumer_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A routed is a step in a watermill Router.
type routed struct {
	pool    *pgxpool.Pool
	schema  string
	steps   *consumer.Consumer
	entries atomic.Int64
}

func newRouted(t *testing.T) *routed {
	t.Helper()
	r := &routed{}
	r.pool, r.schema = pgtest.Schema(t, "CREATE TABLE {schema}.effect (key text, undo boolean)")
	handler := func(ctx context.Context, tx pgx.Tx, in consumer.Message[charge], _ consumer.Emit) error {
		if r.entries.Add(1)%7 == 0 {
			panic("some entries do")
		}
		_, err := tx.Exec(ctx, "INSERT INTO "+r.schema+".effect SELECT $1, $2 FROM pg_sleep(0.002)", in.Key, in.Undo)
		return err
	}
	var err error
	r.steps, err = consumer.New(r.pool, nil, []consumer.Step{{
		Name: "pay", Action: consumer.On("pay", handler), Compensation: consumer.On("unpay", handler), RetryBase: time.Millisecond, RetryCap: time.Millisecond,
	}}, &consumer.Options{Schema: r.schema, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// route runs a Router with the middleware that goes with a step.
func (r *routed) route(t *testing.T, sub message.Subscriber) (stop func()) {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	router.AddMiddleware(
		middleware.CorrelationID,
		middleware.NewThrottle(2000, time.Second).Middleware,
		middleware.Timeout(time.Minute),
		middleware.Retry{MaxRetries: 3, InitialInterval: 10 * time.Millisecond}.Middleware,
		middleware.Recoverer,
	)
	for _, topic := range r.steps.Topics() {
		router.AddConsumerHandler(topic, topic, sub, r.steps.HandlerFunc(topic))
	}
	done := make(chan error, 1)
	go func() { done <- router.Run(context.WithoutCancel(t.Context())) }()
	<-router.Running()
	return func() {
		t.Helper()
		if err := router.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func (r *routed) count(t *testing.T, what string) (n int) {
	t.Helper()
	if err := r.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+r.schema+"."+what).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (r *routed) await(t *testing.T, what string, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); r.count(t, what) < n; <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %s, want %d", r.count(t, what), what, n)
		}
	}
}

func routedMessage(topic string, i int) *message.Message {
	msg := message.NewMessage(uuid.NewString(), []byte(`{"amount": 1}`))
	msg.Metadata = message.Metadata{outbox.HeaderKey: fmt.Sprint(i, ":pay"), outbox.HeaderScope: "tenant", outbox.PropertyType: topic}
	return msg
}

// judge waits for the parked messages and compares the effects with what was sent.
func (r *routed) judge(t *testing.T, sent int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.steps.Run(ctx) }()
	r.await(t, "effect", 2*sent)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if all, ones := r.count(t, "effect"), r.count(t, "effect e WHERE (SELECT count(*) FROM "+r.schema+".effect f WHERE (f.key, f.undo) = (e.key, e.undo)) = 1"); all != 2*sent || ones != all {
		t.Errorf("%d effects, %d of them once; want %d", all, ones, 2*sent)
	}
	if n := r.count(t, "parked"); n != 1 { // the poison
		t.Errorf("%d dead letters, want 1", n)
	}
}

// A Router over gochannel: everything happens once, compensations after their
// actions, and a poison message stops nothing.
func TestAStepInARouter(t *testing.T) {
	t.Parallel()
	const sent = 40
	r := newRouted(t)
	broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	defer broker.Close()
	stop := r.route(t, broker)
	publish := func(msgs ...*message.Message) {
		t.Helper()
		for _, msg := range msgs {
			if err := broker.Publish(msg.Metadata[outbox.PropertyType], msg, msg.Copy()); err != nil {
				t.Fatal(err)
			}
		}
	}
	poison := message.NewMessage("poison", []byte("{"))
	if err := broker.Publish("pay", poison); err != nil {
		t.Fatal(err)
	}
	for i := range sent {
		publish(routedMessage("pay", i))
	}
	r.await(t, "inbox", sent)
	for i := range sent {
		publish(routedMessage("unpay", i))
	}
	// Each compensation is recorded. One that came while its action was only counted waits behind it in parked.
	r.await(t, "inbox WHERE undo_digest IS NOT NULL", sent)
	r.judge(t, sent)
	stop()
}

// A Router that is closed under load, over RabbitMQ: what it has in hand is
// finished, the rest comes to the next one, and nothing is lost or doubled.
func TestARouterIsClosedUnderLoad(t *testing.T) {
	t.Parallel()
	const sent = 120
	r := newRouted(t)
	cfg, err := rabbitmq.NewConfig(rabbittest.URL(), "svc", &rabbitmq.ConfigOptions{Prefix: rabbittest.Name()})
	if err != nil {
		t.Fatal(err)
	}
	var queues, exchanges []string
	for _, topic := range r.steps.Topics() {
		queues = append(queues, cfg.Queue.GenerateName(topic), cfg.Queue.GenerateName(topic)+".dead")
		exchanges = append(exchanges, cfg.Exchange.GenerateName(topic))
	}
	rabbittest.Delete(t, queues, exchanges)
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, r.steps.Topics()...); err != nil {
		t.Fatal(err)
	}
	pub, err := rabbitmq.NewPublisher(cfg, &rabbitmq.PublisherOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	publish := func(topic string, msgs ...*message.Message) {
		t.Helper()
		if err := pub.Publish(topic, msgs...); err != nil {
			t.Fatal(err)
		}
	}
	round := func(until string, n int) {
		t.Helper()
		sub, err := rabbitmq.NewSubscriber(cfg, &rabbitmq.SubscriberOptions{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		stop := r.route(t, sub)
		r.await(t, until, n)
		stop()
	}
	publish("pay", message.NewMessage("poison", []byte("{")))
	for i := range sent {
		publish("pay", routedMessage("pay", i))
	}
	for n := 20; n < sent; n += 20 {
		round("inbox", n) // closed while there is more
	}
	round("inbox", sent)
	for i := range sent {
		publish("unpay", routedMessage("unpay", i))
	}
	round("inbox WHERE state IN ('compensated', 'undoing')", sent/2)
	round("inbox WHERE state IN ('compensated', 'undoing', 'retrying')", sent)
	sub, err := rabbitmq.NewSubscriber(cfg, &rabbitmq.SubscriberOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	stop := r.route(t, sub)
	r.judge(t, sent)
	stop()
	if n := r.entries.Load(); n-n/7 != 2*sent { // every seventh panics
		t.Errorf("%d entries into handlers for %d effects: some were broken off", n, 2*sent)
	}
}

// A step in a watermill Router: the Router has the subscription and the
// middleware; Run has only what was parked.
func Example_router() {
	ctx := context.Background()
	db := get(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	defer db.Close()
	broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	steps := get(consumer.New(db, nil, []consumer.Step{{
		Name: "hold-room",
		Action: consumer.On("booking.made", func(ctx context.Context, tx pgx.Tx, in consumer.Message[Booking], emit consumer.Emit) error {
			_, err := tx.Exec(ctx, "INSERT INTO hold (room, booking) VALUES ($1, $2)", in.Body.Room, in.Key)
			return err
		}),
	}}, &consumer.Options{Schema: "hotel"}))

	router := get(message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}))
	// An error means that nothing is decided: retry it, and do not swallow it.
	router.AddMiddleware(middleware.Retry{MaxRetries: 3, InitialInterval: 100 * time.Millisecond}.Middleware)
	for _, topic := range steps.Topics() {
		router.AddConsumerHandler(topic, topic, broker, steps.HandlerFunc(topic))
	}
	go func() { must(steps.Run(ctx)) }()
	if err := router.Run(ctx); err != nil {
		log.Print(err)
	}
}
