package rabbitmq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A message that amqp091-go cannot read, so that it closes the connection at
// every delivery, is moved to the dead-letter queue by the broker. The topic's
// other messages arrive, and other topics go on.
func TestAnUnreadableMessageIsIsolated(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, rabbittest.URL(), "poisoned", "other")
	cfg.Queue.Arguments["x-delivery-limit"] = int32(8)
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "poisoned", "other"); err != nil {
		t.Fatal(err)
	}
	var nested any = "x"
	for range 33 { // one deeper than the client reads; the broker takes it
		nested = []any{nested}
	}
	ch := rabbittest.Channel(t, rabbittest.URL())
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	c, err := ch.PublishWithDeferredConfirm(cfg.Exchange.GenerateName("poisoned"), "", true, false,
		amqp.Publishing{Headers: amqp.Table{"deep": nested}, MessageId: "poison", DeliveryMode: amqp.Persistent})
	if err != nil || !c.Wait() {
		t.Fatalf("publish poison: %v", err)
	}
	pub := newPublisher(t, cfg, nil)
	sub, err := rabbitmq.NewSubscriber(cfg, fast())
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	// The innocent ones are behind it in the queue, and sent ahead of their acks.
	for _, topic := range []string{"poisoned", "other"} {
		for i := range 5 {
			if err := pub.Publish(topic, message.NewMessage(fmt.Sprint(i), nil)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, topic := range []string{"poisoned", "other"} {
		messages, err := sub.Subscribe(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for len(seen) < 5 {
			select {
			case m := <-messages:
				seen[m.UUID] = true
				m.Ack()
			case <-time.After(patience):
				t.Fatalf("topic %s: only %v arrived", topic, seen)
			}
		}
	}
	// The broker moves it in its own time, and it cannot be consumed to wait for it.
	dead := cfg.Queue.GenerateName("poisoned") + ".dead"
	for deadline := time.Now().Add(patience); ; {
		q, err := ch.QueueDeclarePassive(dead, true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if q.Messages == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the dead-letter queue has %d messages, want the poison", q.Messages)
		}
	}
}
