package rabbitmq_test

import (
	"errors"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A confirmed message outlives kill -9, and both sides find the broker again.
func TestPrivateBrokerKilled(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	node := rabbittest.StartNode(t)
	cfg, err := rabbitmq.NewConfig(node.URL(), service, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "orders"); err != nil {
		t.Fatal(err)
	}
	node.Stop(t)
	node.Start(t)
	messages, _ := subscribe(t, cfg, "orders", fast())
	pub := newPublisher(t, cfg, nil)
	ids := mustPublish(t, pub, "orders", 50)
	inHand := next(t, messages)
	node.Kill()
	if err := pub.Publish("orders", newMessage("x")); !errors.Is(err, rabbitmq.ErrUnavailable) || errors.Is(err, outbox.ErrRefused) {
		t.Errorf("Publish without a broker = %v, want ErrUnavailable, no ErrRefused", err)
	}
	inHand.Ack()
	node.Start(t)
	msg := newMessage("x")
	deadline := time.Now().Add(patience)
	for err := pub.Publish("orders", msg); err != nil; err = pub.Publish("orders", msg) {
		if time.Now().After(deadline) {
			t.Fatalf("Publish after restart: %v", err)
		}
	}
	ids[msg.UUID] = true
	ackAll(t, messages, ids)
}
