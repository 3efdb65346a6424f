package rabbitmq_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/sagamill/sagamill/internal/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// TestSuite runs watermill's own suite on a broker of its own, since the suite
// does not tell which topics it leaves behind.
func TestSuite(t *testing.T) {
	node := rabbittest.StartNode(t)
	construct := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		cfg, err := rabbitmq.NewConfig(node.URL(), strings.ReplaceAll(group, ".", "-"), nil)
		if err != nil {
			t.Fatal(err)
		}
		pub, err := rabbitmq.NewPublisher(cfg, &rabbitmq.PublisherOptions{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		// One message in hand keeps the order; the suite never acks some.
		sub, err := rabbitmq.NewSubscriber(cfg, &rabbitmq.SubscriberOptions{Logger: quiet, Prefetch: 1, DrainTimeout: 100 * time.Millisecond, NackDelay: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sub.Close() }) // the suite leaves one of fifty open
		return pub, sub
	}
	tests.TestPubSub(t,
		tests.Features{ConsumerGroups: true, GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true, Persistent: true},
		func(t *testing.T) (message.Publisher, message.Subscriber) { return construct(t, service) },
		construct)
}
