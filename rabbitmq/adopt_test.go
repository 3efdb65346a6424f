package rabbitmq_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A service that comes from watermill-amqp keeps its Config, and with it its classic queues, exchanges and names. Its
// old processes and its new ones read each other's messages, from queues that either of them has declared.
func TestConfigsOfWatermillKeepTheirQueues(t *testing.T) {
	t.Parallel()
	name := rabbittest.Name()
	for kind, config := range map[string]wamqp.Config{
		"pubsub": wamqp.NewDurablePubSubConfig(rabbittest.URL(), wamqp.GenerateQueueNameTopicNameWithSuffix("service")),
		"queue":  wamqp.NewDurableQueueConfig(rabbittest.URL()),
	} {
		for order, oursFirst := range map[string]bool{"declared by the old": false, "declared by the new": true} {
			t.Run(kind+" "+order, func(t *testing.T) {
				t.Parallel()
				topic := name + "." + rabbittest.Name()
				rabbittest.Delete(t, []string{topic, topic + "_service"}, []string{topic})
				old, ours := stockPair(t, config), ourPair(t, config)
				first, second := old, ours
				if oursFirst {
					first, second = ours, old
				}
				first.subscribe(t, topic).stop()
				in := second.subscribe(t, topic) // as the process that takes over
				for from, pair := range map[string]endpoints{"old": old, "new": ours} {
					sent := message.NewMessage(watermill.NewUUID(), message.Payload("from "+from))
					sent.Metadata.Set(outbox.PropertyType, "t")
					if err := pair.publisher.Publish(topic, sent); err != nil {
						t.Fatalf("publish by the %s: %v", from, err)
					}
					got := next(t, in.messages)
					if !got.Equals(sent) {
						t.Errorf("%s with %v and %q arrived, want %s with %v and %q", got.UUID, got.Metadata, got.Payload, sent.UUID, sent.Metadata, sent.Payload)
					}
					got.Ack()
				}
				in.stop()
			})
		}
	}
}

// endpoints publish and subscribe by one library.
type endpoints struct {
	publisher  message.Publisher
	subscriber func() (message.Subscriber, error)
}

// A subscription to one topic.
type subscriptionTo struct {
	messages <-chan *message.Message
	stop     func()
}

func (e endpoints) subscribe(t *testing.T, topic string) subscriptionTo {
	t.Helper()
	sub, err := e.subscriber()
	if err != nil {
		t.Fatal(err)
	}
	messages, err := sub.Subscribe(context.WithoutCancel(t.Context()), topic)
	if err != nil {
		t.Fatal(err)
	}
	return subscriptionTo{messages, func() {
		if err := sub.Close(); err != nil {
			t.Errorf("close subscriber: %v", err)
		}
	}}
}

func stockPair(t *testing.T, config wamqp.Config) endpoints {
	t.Helper()
	pub, err := wamqp.NewPublisher(config, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pub.Close() })
	return endpoints{pub, func() (message.Subscriber, error) { return wamqp.NewSubscriber(config, watermill.NopLogger{}) }}
}

func ourPair(t *testing.T, config wamqp.Config) endpoints {
	t.Helper()
	pub, err := rabbitmq.NewPublisher(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pub.Close() })
	return endpoints{pub, func() (message.Subscriber, error) { return rabbitmq.NewSubscriber(config, nil) }}
}
