package rabbitmq_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// publishPoison publishes a message that amqp091-go cannot read: a header is nested one
// deeper than it reads. The broker takes it.
func publishPoison(t *testing.T, cfg wamqp.Config, topic string) {
	t.Helper()
	var nested any = "x"
	for range 33 {
		nested = []any{nested}
	}
	ch := rabbittest.Channel(t, rabbittest.URL())
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	c, err := ch.PublishWithDeferredConfirm(cfg.Exchange.GenerateName(topic), "", true, false,
		amqp.Publishing{Headers: amqp.Table{"deep": nested}, MessageId: "poison", DeliveryMode: amqp.Persistent})
	if err != nil || !c.Wait() {
		t.Fatalf("publish poison: %v", err)
	}
}

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
	publishPoison(t, cfg, "poisoned")
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
	ch := rabbittest.Channel(t, rabbittest.URL())
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

// A topic with an unreadable message has its messages one at a time for a while, and not for as
// long as there are always some.
func TestABusyTopicIsNotIsolatedForLong(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	for _, tt := range []struct {
		name   string
		opts   *rabbitmq.SubscriberOptions
		settle func(*message.Message) bool
	}{
		{"plain", fast(), (*message.Message).Ack},
		{"keyed", keyed(), (*message.Message).Ack},
		{"keyed and refused", keyed(), (*message.Message).Nack}, // the first of all comes again and again
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			opts := tt.opts
			opts.TopologyInterval, opts.Prefetch = time.Second, 4
			busy := isolatedTraffic(t, opts)
			busy.settle = tt.settle
			busy.settleAll() // what comes now was sent alone, or is sent later
			for deadline := time.Now().Add(patience); len(busy.inHand) < opts.Prefetch; busy.step() {
				if time.Now().After(deadline) {
					t.Fatalf("%d messages were never in hand at once: the topic is still isolated", opts.Prefetch)
				}
			}
		})
	}
}

// Without keys an isolated topic waits for no message that takes long: the others would.
func TestASlowMessageDoesNotKeepATopicIsolated(t *testing.T) {
	t.Parallel()
	opts := fast()
	opts.TopologyInterval, opts.Prefetch = 100*time.Millisecond, 4
	busy := isolatedTraffic(t, opts)
	busy.settleAll()
	for wait := time.After(patience); len(busy.inHand) < opts.Prefetch; { // of which none is settled
		select {
		case msg := <-busy.messages:
			busy.inHand = append(busy.inHand, msg)
		case <-wait:
			t.Fatalf("%d messages are in hand, want %d: the topic is still isolated", len(busy.inHand), opts.Prefetch)
		}
	}
}

// isolatedTraffic returns traffic of a topic that is isolated over a message which was alone in
// its queue, and which the broker moves away with the next delivery.
func isolatedTraffic(t *testing.T, opts *rabbitmq.SubscriberOptions) *traffic {
	t.Helper()
	cfg := newConfig(t, rabbittest.URL(), "busy")
	cfg.Queue.Arguments["x-delivery-limit"] = int32(2)
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "busy"); err != nil {
		t.Fatal(err)
	}
	publishPoison(t, cfg, "busy")
	sub, err := rabbitmq.NewSubscriber(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sub.Close() })
	sub.Isolated().Enable()
	messages, err := sub.Subscribe(context.Background(), "busy")
	if err != nil {
		t.Fatal(err)
	}
	sub.Isolated().Wait(t)
	return newTraffic(t, newPublisher(t, cfg, nil), "busy", messages)
}

// Traffic is a topic that never runs out of messages, with some of them in hand.
type traffic struct {
	t        *testing.T
	pub      *rabbitmq.Publisher
	topic    string
	messages <-chan *message.Message
	settle   func(*message.Message) bool
	inHand   []*message.Message
	sent     int
}

func newTraffic(t *testing.T, pub *rabbitmq.Publisher, topic string, messages <-chan *message.Message) *traffic {
	b := &traffic{t: t, pub: pub, topic: topic, messages: messages, settle: (*message.Message).Ack}
	t.Cleanup(b.settleAll)
	for range 20 {
		b.publish()
	}
	return b
}

func (b *traffic) publish() {
	b.t.Helper()
	if err := b.pub.Publish(b.topic, newMessage(fmt.Sprint(b.sent))); err != nil {
		b.t.Fatal(err)
	}
	b.sent++
}

// step takes one more message in hand; if none comes soon it settles what is in hand, and
// publishes as many.
func (b *traffic) step() {
	b.t.Helper()
	select {
	case msg, ok := <-b.messages:
		if !ok {
			b.t.Fatal("subscription ended")
		}
		b.inHand = append(b.inHand, msg)
	case <-time.After(20 * time.Millisecond):
		for range b.inHand {
			b.publish()
		}
		b.settleAll()
	}
}

func (b *traffic) settleAll() {
	for _, msg := range b.inHand {
		b.settle(msg)
	}
	b.inHand = nil
}

// A message that takes long keeps the unreadable one behind it from being sent, on a connection
// with one message at a time. That is no sign that there is none.
func TestATopicStaysIsolatedBehindASlowMessage(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	for name, opts := range map[string]*rabbitmq.SubscriberOptions{"plain": fast(), "keyed": keyed()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := declared(t, "poisoned")
			var isolations counted
			opts.TopologyInterval, opts.Prefetch, opts.Logger = time.Second, 4, slog.New(&isolations)
			if err := newPublisher(t, cfg, nil).Publish("poisoned", message.NewMessage("slow", []byte("a-1"))); err != nil {
				t.Fatal(err)
			}
			messages, _ := subscribe(t, cfg, "poisoned", opts)
			held := []*message.Message{<-messages}
			publishPoison(t, cfg, "poisoned")
			t.Cleanup(func() {
				for _, msg := range held {
					msg.Ack()
				}
			})
			for wait := time.After(patience); isolations.Load() == 0; {
				select {
				case msg := <-messages:
					held = append(held, msg)
				case <-time.After(10 * time.Millisecond):
				case <-wait:
					t.Fatal("the topic is not isolated")
				}
			}
			for wait := time.After(5 * opts.TopologyInterval); wait != nil; {
				select {
				case msg := <-messages:
					held = append(held, msg)
				case <-wait:
					wait = nil
				}
			}
			if n := isolations.Load(); n != 1 {
				t.Errorf("it was isolated %d times, want once", n)
			}
		})
	}
}

// Counted counts what is logged about isolations.
type counted struct{ atomic.Int32 }

func (*counted) Enabled(context.Context, slog.Level) bool { return true }
func (c *counted) WithAttrs([]slog.Attr) slog.Handler     { return c }
func (c *counted) WithGroup(string) slog.Handler          { return c }
func (c *counted) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelError && strings.Contains(r.Message, "one message at a time") {
		c.Add(1)
	}
	return nil
}
