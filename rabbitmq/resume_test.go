package rabbitmq_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

// After a lost connection a subscription consumes without a declaration, which a broker may not answer while another node
// stands still. It declares a queue that has gone meanwhile.
func TestALostSubscriptionResumesWithoutDeclaring(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	declarations := make(chan *amqp.Channel, 100)
	cfg.TopologyBuilder = channelTaker{cfg.TopologyBuilder, declarations}
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	opts := fast()
	opts.TopologyInterval = time.Hour
	messages, _ := subscribe(t, through(cfg, proxy.URL()), "orders", opts)
	pub := newPublisher(t, cfg, nil)
	ackAll(t, messages, mustPublish(t, pub, "orders", 1))
	proxy.Cut()
	ackAll(t, messages, mustPublish(t, pub, "orders", 1))
	if n := len(declarations); n != 1 {
		t.Errorf("the topology was declared %d times, want once, at the start", n)
	}
	proxy.Refuse(true)
	if _, err := rabbittest.Channel(t, rabbittest.URL()).QueueDelete(cfg.Queue.GenerateName("orders"), false, false, false); err != nil {
		t.Fatal(err)
	}
	proxy.Refuse(false)
	msg := newMessage("x")
	publishRouted(t, pub, msg)
	ackAll(t, messages, map[string]bool{msg.UUID: true})
	if n := len(declarations); n != 2 {
		t.Errorf("the topology was declared %d times, want once more, because the queue was gone", n)
	}
}
