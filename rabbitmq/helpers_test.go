package rabbitmq_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// service is the one service of the tests that need no second one.
const service = "svc"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == restartWord {
		if err := askForRestart(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m,
		// The suite leaves behind what collects the ids of its published messages.
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/pubsub/tests.TestReconnect.func2"),
		// One pool lends the schemas of all tests.
		goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"))
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// fast are options for tests that do not wait for what they do not test.
func fast() *rabbitmq.SubscriberOptions {
	return &rabbitmq.SubscriberOptions{NackDelay: 20 * time.Millisecond, DrainTimeout: 5 * time.Second, Logger: quiet}
}

// newConfig returns settings for the test alone, on the broker at url, and
// deletes the topology of topics afterwards.
func newConfig(t testing.TB, url string, topics ...string) wamqp.Config {
	t.Helper()
	cfg, err := rabbitmq.NewConfig(url, service, &rabbitmq.ConfigOptions{Prefix: rabbittest.Name()})
	if err != nil {
		t.Fatal(err)
	}
	var queues, exchanges []string
	for _, topic := range topics {
		queue := cfg.Queue.GenerateName(topic)
		queues = append(queues, queue, queue+".dead")
		exchanges = append(exchanges, cfg.Exchange.GenerateName(topic))
	}
	rabbittest.Delete(t, queues, exchanges)
	return cfg
}

// declared is newConfig with the topology in place.
func declared(t testing.TB, topics ...string) wamqp.Config {
	t.Helper()
	cfg := newConfig(t, rabbittest.URL(), topics...)
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, topics...); err != nil {
		t.Fatalf("DeclareTopology (run `make test` for a broker): %v", err)
	}
	return cfg
}

// through returns cfg with another URL.
func through(cfg wamqp.Config, url string) wamqp.Config {
	cfg.Connection.AmqpURI = url
	return cfg
}

func newPublisher(t testing.TB, cfg wamqp.Config, opts *rabbitmq.PublisherOptions) *rabbitmq.Publisher {
	t.Helper()
	if opts == nil {
		opts = &rabbitmq.PublisherOptions{}
	}
	if opts.Logger == nil {
		opts.Logger = quiet
	}
	pub, err := rabbitmq.NewPublisher(cfg, opts)
	if err != nil {
		t.Fatalf("NewPublisher: %v", err)
	}
	t.Cleanup(func() { pub.Close() })
	return pub
}

// subscribe returns the messages of topic, and the Subscriber.
func subscribe(t testing.TB, cfg wamqp.Config, topic string, opts *rabbitmq.SubscriberOptions) (<-chan *message.Message, *rabbitmq.Subscriber) {
	t.Helper()
	sub, err := rabbitmq.NewSubscriber(cfg, opts)
	if err != nil {
		t.Fatalf("NewSubscriber: %v", err)
	}
	t.Cleanup(func() { sub.Close() })
	messages, err := sub.Subscribe(context.Background(), topic)
	if err != nil {
		t.Fatalf("Subscribe: %v", err)
	}
	return messages, sub
}

// batchOf returns n messages to topic.
func batchOf(topic string, n int) []outbox.Publication {
	batch := make([]outbox.Publication, n)
	for i := range batch {
		batch[i] = outbox.Publication{Topic: topic, Message: newMessage(fmt.Sprint(i))}
	}
	return batch
}

func newMessage(payload string) *message.Message {
	return message.NewMessage(uuid.Must(uuid.NewV7()).String(), message.Payload(payload))
}

// mustPublish publishes n messages to topic and returns their UUIDs.
func mustPublish(t testing.TB, pub *rabbitmq.Publisher, topic string, n int) map[string]bool {
	t.Helper()
	batch := batchOf(topic, n)
	ids := make(map[string]bool, n)
	for i, err := range pub.PublishBatch(t.Context(), batch) {
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		ids[batch[i].Message.UUID] = true
	}
	return ids
}

// next waits for a message.
func next(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if !ok {
			t.Fatal("subscription ended")
		}
		return msg
	case <-time.After(patience):
		t.Fatal("no message")
	}
	return nil
}

// ackAll acks messages until each of ids has come.
func ackAll(t testing.TB, messages <-chan *message.Message, ids map[string]bool) {
	t.Helper()
	for len(ids) > 0 {
		msg := next(t, messages)
		delete(ids, msg.UUID)
		msg.Ack()
	}
}

// within fails the test if f takes for ever.
func within(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s hangs", what)
	}
}

// calls is a writer that calls a function each time.
type calls func()

func (c calls) Write(b []byte) (int, error) {
	c()
	return len(b), nil
}

// noTopology consumes from what is there.
type noTopology struct{ wamqp.TopologyBuilder }

func (noTopology) BuildTopology(*amqp.Channel, wamqp.BuildTopologyParams, wamqp.Config, watermill.LoggerAdapter) error {
	return nil
}
