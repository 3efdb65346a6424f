package rabbitmq_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// mixed returns n messages, every second one to topic bad.
func mixed(good, bad string, n int) []outbox.Publication {
	batch := batchOf(good, n)
	for i := 1; i < n; i += 2 {
		batch[i].Topic = bad
	}
	return batch
}

// publishMixed publishes a mixed batch and checks that the good half of it goes
// through and that the other half has the result want.
func publishMixed(t *testing.T, pub *rabbitmq.Publisher, good, bad string, want error) {
	t.Helper()
	batch := mixed(good, bad, 20)
	for i, err := range pub.PublishBatch(t.Context(), batch) {
		if batch[i].Topic == good && err != nil || batch[i].Topic == bad && !errors.Is(err, want) {
			t.Fatalf("message %d to %s = %v, want nil to %s and %v to %s", i, batch[i].Topic, err, good, want, bad)
		}
	}
}

// untilPublished publishes to topic until the broker takes it.
func untilPublished(t *testing.T, pub *rabbitmq.Publisher, topic string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		err := pub.Publish(topic, newMessage("x"))
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("Publish: %v", err)
		}
	}
}

// A topic whose exchange exists with another type costs the others nothing:
// their channel stays. Once the exchange is mended its messages pass.
func TestPublishExchangeOfAnotherType(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	wrong := cfg.Exchange.GenerateName("wrong")
	queue := cfg.Queue.GenerateName("wrong")
	rabbittest.Delete(t, []string{queue, queue + ".dead"}, []string{wrong})
	ch := rabbittest.Channel(t, rabbittest.URL())
	if err := ch.ExchangeDeclare(wrong, "direct", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	pub := newPublisher(t, cfg, nil)
	rabbitmq.Opened(pub).Enable()
	for range 10 {
		publishMixed(t, pub, "orders", "wrong", rabbitmq.ErrRejected)
	}
	if n := rabbitmq.OpenedBy(t, pub); n != 1 {
		t.Errorf("ten batches opened %d channels, want 1", n)
	}
	if err := ch.ExchangeDelete(wrong, false, false); err != nil {
		t.Fatal(err)
	}
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "wrong"); err != nil {
		t.Fatal(err)
	}
	untilPublished(t, pub, "wrong")
	publishMixed(t, pub, "orders", "wrong", nil)
	if n := rabbitmq.OpenedBy(t, pub); n != 0 {
		t.Errorf("mending the exchange opened %d channels, want none", n)
	}
}

// The broker is asked for a refused exchange once in a while, not for each
// batch.
func TestPublishRemembersARefusedExchange(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	wrong := cfg.Exchange.GenerateName("wrong")
	rabbittest.Delete(t, nil, []string{wrong})
	if err := rabbittest.Channel(t, rabbittest.URL()).ExchangeDeclare(wrong, "direct", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	builder := &countingBuilder{}
	cfg.TopologyBuilder = builder
	pub := newPublisher(t, cfg, nil)
	start := time.Now()
	const batches = 20
	for range batches {
		publishMixed(t, pub, "orders", "wrong", rabbitmq.ErrRejected)
	}
	most := 1 + int(time.Since(start)/rabbitmq.RefusalMemory)
	if got := builder.declared[wrong]; got > most {
		t.Errorf("%d batches declared the exchange %d times, want %d at most", batches, got, most)
	}
}

// A countingBuilder counts the declarations of each exchange.
type countingBuilder struct {
	wamqp.DefaultTopologyBuilder
	declared map[string]int
}

func (b *countingBuilder) ExchangeDeclare(ch *amqp.Channel, exchange string, cfg wamqp.Config) error {
	if b.declared == nil {
		b.declared = make(map[string]int)
	}
	b.declared[exchange]++
	return b.DefaultTopologyBuilder.ExchangeDeclare(ch, exchange, cfg)
}

// An existing builder declares no exchange of the topics in it.
type existing struct {
	wamqp.DefaultTopologyBuilder
	exchange string
}

func (b *existing) ExchangeDeclare(ch *amqp.Channel, exchange string, cfg wamqp.Config) error {
	if exchange == b.exchange {
		return nil
	}
	return b.DefaultTopologyBuilder.ExchangeDeclare(ch, exchange, cfg)
}

// depth returns how many messages the queue of topic holds.
func depth(t *testing.T, ch *amqp.Channel, cfg wamqp.Config, topic string) int {
	t.Helper()
	q, err := ch.QueueDeclarePassive(cfg.Queue.GenerateName(topic), true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

// An exchange that may not be written to ends the channel of the first message
// that tries. From then on its messages go last and alone, so that trying again
// sends no other message twice, and when they are let in they pass.
func TestPublishExchangeForbidden(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	internal := cfg.Exchange.GenerateName("internal")
	rabbittest.Delete(t, nil, []string{internal})
	ch := rabbittest.Channel(t, rabbittest.URL())
	if err := ch.ExchangeDeclare(internal, "fanout", true, false, true, false, nil); err != nil {
		t.Fatal(err)
	}
	cfg.TopologyBuilder = &existing{exchange: internal}
	pub := newPublisher(t, cfg, nil)
	rabbitmq.Opened(pub).Enable()
	publishMixed(t, pub, "orders", "internal", rabbitmq.ErrRejected)
	if n := rabbitmq.OpenedBy(t, pub); n > 3 { // the first, one by one, after the culprit
		t.Errorf("ten forbidden messages took %d channels, want 3 at most", n)
	}
	publishMixed(t, pub, "orders", "internal", rabbitmq.ErrRejected) // opens what is missing
	before, good := depth(t, ch, cfg, "orders"), 0
	rabbitmq.OpenedBy(t, pub)
	for opened, deadline := 0, time.Now().Add(patience); opened < 2; opened += rabbitmq.OpenedBy(t, pub) {
		publishMixed(t, pub, "orders", "internal", rabbitmq.ErrRejected)
		good += 10
		if time.Now().After(deadline) {
			t.Fatal("the broker was not asked again")
		}
	}
	if got := depth(t, ch, cfg, "orders") - before; got != good {
		t.Errorf("the good topic got %d messages, want %d: asking again sends none of them twice", got, good)
	}
	if err := ch.ExchangeDelete(internal, false, false); err != nil {
		t.Fatal(err)
	}
	if err := ch.ExchangeDeclare(internal, "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(cfg.Queue.GenerateName("orders"), "", internal, false, nil); err != nil {
		t.Fatal(err)
	}
	untilPublished(t, pub, "internal")
	if _, err := ch.QueuePurge(cfg.Queue.GenerateName("orders"), false); err != nil {
		t.Fatal(err)
	}
	publishMixed(t, pub, "orders", "internal", nil)
	for i := range 20 { // both exchanges have the same queue now
		d, _, err := ch.Get(cfg.Queue.GenerateName("orders"), true)
		if err != nil || string(d.Body) != fmt.Sprint(i) {
			t.Fatalf("message %d is %q, %v: nobody is suspected any more, so they come in order", i, d.Body, err)
		}
	}
}

// An exchange of a type that the broker does not have closes the connection. It
// is refused, and the other topics go on, also if there are two of them.
func TestPublishExchangeOfNoType(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	cfg.TopologyBuilder = &noType{except: cfg.Exchange.GenerateName("orders")}
	pub := newPublisher(t, cfg, nil)
	for range 2 {
		batch := batchOf("orders", 9)
		for i := range batch {
			batch[i].Topic = []string{"orders", "strange", "stranger"}[i%3]
		}
		for i, err := range pub.PublishBatch(t.Context(), batch) {
			if strange := i%3 > 0; strange != errors.Is(err, rabbitmq.ErrRejected) || !strange && err != nil {
				t.Errorf("message %d to %s = %v", i, batch[i].Topic, err)
			}
		}
	}
}

type noType struct {
	wamqp.DefaultTopologyBuilder
	except string
}

func (b *noType) ExchangeDeclare(ch *amqp.Channel, exchange string, cfg wamqp.Config) error {
	if exchange != b.except {
		cfg.Exchange.Type = "no-such-type"
	}
	return b.DefaultTopologyBuilder.ExchangeDeclare(ch, exchange, cfg)
}

// A topic without subscribers gets its exchange. The result of its message says that it has no queue.
func TestPublishUnknownTopic(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	unknown := cfg.Exchange.GenerateName("unknown")
	rabbittest.Delete(t, nil, []string{unknown})
	pub := newPublisher(t, cfg, nil)
	publishMixed(t, pub, "orders", "unknown", rabbitmq.ErrUnroutable)
	if err := rabbittest.Channel(t, rabbittest.URL()).ExchangeDeclarePassive(unknown, "fanout", true, false, false, false, nil); err != nil {
		t.Errorf("exchange of the topic: %v", err)
	}
	err := pub.Publish("unknown", newMessage("x"))
	if err == nil || !strings.Contains(err.Error(), unknown) || !strings.Contains(err.Error(), "NO_ROUTE") {
		t.Errorf("Publish = %v, want the exchange and NO_ROUTE in it", err)
	}
}
