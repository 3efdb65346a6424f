package adopt

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// Only the outbox: what a transaction writes reaches an old subscriber, with its UUID and its metadata.
func TestOnlyTheOutbox(t *testing.T) {
	t.Parallel()
	database, topic := pgtest.DirectDatabase(t), "greetings-"+rabbittest.Name()
	rabbittest.Delete(t, []string{topic}, nil)
	if err := migrations.Up(t.Context(), database, "greeter", migrations.Outbox); err != nil {
		t.Fatal(err)
	}
	config := wamqp.NewDurableQueueConfig(rabbittest.URL())
	old, err := wamqp.NewSubscriber(config, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = old.Close() })
	received, err := old.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	publisher, err := rabbitmq.NewPublisher(config, &rabbitmq.PublisherOptions{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = publisher.Close() })
	pool := pgtest.Pool(t, database)
	relay, err := outbox.NewRelay(pool, publisher, &outbox.RelayOptions{Schema: "greeter", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: "greeter"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return writer.Write(ctx, tx, outbox.Message{
			Topic: topic, Scope: "greeter", Key: "g-1", Step: "greet", Payload: []byte("hello"), ContentType: "text/plain", Headers: map[string]string{"lang": "en"},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	relay.Wake()
	msg := <-received
	msg.Ack()
	if msg.UUID == "" || string(msg.Payload) != "hello" || msg.Metadata.Get("lang") != "en" || msg.Metadata.Get(outbox.PropertyType) != topic {
		t.Errorf("the old subscriber got %q %v %q", msg.UUID, msg.Metadata, msg.Payload)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Shadow mode: the inbox records and compares, and the old handler acts on every delivery, as it always has.
func TestShadowModeComparesAndTheOldHandlerActs(t *testing.T) {
	t.Parallel()
	database, schema := pgtest.DirectDatabase(t), "greeter"
	if err := migrations.Up(t.Context(), database, schema, migrations.Inbox); err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Pool(t, database)
	shadow, err := consumer.New(pool, nil, []consumer.Step{
		consumer.FromWatermill("greet", "greetings", func(*message.Message) error { return nil }),
	}, &consumer.Options{Schema: schema, Identity: consumer.IdentityFromUUID("greeter"), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	acted := 0
	handler := inShadow(shadow, "greetings")(func(msg *message.Message) ([]*message.Message, error) { acted++; return nil, nil })
	for _, sent := range [][2]string{{"1", "hello"}, {"2", "hi"}, {"1", "hello"}, {"2", "another text under that id"}} {
		if _, err := handler(message.NewMessage(sent[0], []byte(sent[1]))); err != nil {
			t.Fatal(err)
		}
	}
	step := shadow.Counters().Steps[0]
	want := map[consumer.Outcome]uint64{consumer.OutcomeDone: 2, consumer.OutcomeDuplicate: 1, consumer.OutcomeDead: 1}
	if diff := cmp.Diff(want, step.Outcomes); diff != "" || step.Dead[consumer.ReasonKeyReused] != 1 || acted != 4 {
		t.Errorf("the old handler acted %d times; dead %v; outcomes, -want +got:\n%s", acted, step.Dead, diff)
	}
}

// inShadow is middleware of the old Router: the consumer sees a copy of each message first. What becomes of that does
// not matter to the old handler.
func inShadow(shadow *consumer.Consumer, topic string) message.HandlerMiddleware {
	return func(old message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if err := shadow.Handle(msg.Context(), topic, msg.Copy()); err != nil {
				slog.Error("shadow: the inbox has not recorded a message", "uuid", msg.UUID, "error", err)
			}
			return old(msg)
		}
	}
}
