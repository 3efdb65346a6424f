package rabbitmq_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
)

// A slowTopology delays its declarations, except the first.
type slowTopology struct {
	wamqp.TopologyBuilder
	first   chan struct{} // holds one
	waiting chan struct{} // has an element for each that waits
	answer  chan struct{} // closed: they are answered
}

func (s *slowTopology) BuildTopology(ch *amqp.Channel, params wamqp.BuildTopologyParams, cfg wamqp.Config, log watermill.LoggerAdapter) error {
	select {
	case <-s.first:
	default:
		s.waiting <- struct{}{}
		<-s.answer
	}
	return s.TopologyBuilder.BuildTopology(ch, params, cfg, log)
}

// While the topology is declared again messages are handed over, however long the broker
// takes: a node that stands still delays declarations in its whole cluster.
func TestDeclaringAgainHoldsUpNoMessage(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	pub := newPublisher(t, cfg, nil)
	slow := &slowTopology{cfg.TopologyBuilder, make(chan struct{}, 1), make(chan struct{}), make(chan struct{})}
	slow.first <- struct{}{}
	cfg.TopologyBuilder = slow
	opts := fast()
	opts.Key = func(msg *message.Message) string { return msg.UUID } // nothing is renewed while a message is in hand
	opts.TopologyInterval, opts.Connection.RequestTimeout = 200*time.Millisecond, time.Hour
	ids := mustPublish(t, pub, "orders", 1)
	messages, _ := subscribe(t, cfg, "orders", opts)
	t.Cleanup(func() { close(slow.answer) }) // before Close, which waits for declarations
	inHand := next(t, messages)
	within(t, "the look at the topology", func() { <-slow.waiting })
	ackAll(t, messages, mustPublish(t, pub, "orders", 3))
	if inHand.Ack(); !ids[inHand.UUID] {
		t.Errorf("UUID %s is in hand, want one of %v", inHand.UUID, ids)
	}
}
