package rabbitmq_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A quorum queue adds integer and array headers to what it delivers again.
// watermill-amqp refuses such a message for ever.
func TestRedeliveryIsHandledAgain(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	messages, _ := subscribe(t, cfg, "orders", fast())
	msg := newMessage("x")
	msg.Metadata[outbox.PropertyRedelivered] = "foreign"
	exchange := cfg.Exchange.GenerateName("orders")
	publishing, _ := rabbitmq.Marshaler{}.Marshal(msg)
	publishing.Headers["x-deaths"] = []any{amqp.Table{"count": int64(3), "queue": "q", "time": time.Unix(1, 0)}}
	publishing.Headers[outbox.PropertyRedelivered] = "foreign"
	if err := rabbittest.Channel(t, rabbittest.URL()).PublishWithContext(t.Context(), exchange, "", true, false, publishing); err != nil {
		t.Fatal(err)
	}
	for attempt, want := range []struct{ redelivered, count string }{{"", ""}, {"true", "1"}, {"true", "2"}} {
		got := next(t, messages)
		count := cmp.Or(got.Metadata["x-delivery-count"], got.Metadata["x-acquired-count"]) // the second since RabbitMQ 4.3, where a nack is no failed delivery
		if got.UUID != msg.UUID || got.Metadata["redelivered"] != want.redelivered || count != want.count || got.Metadata["x-deaths"] == "" {
			t.Errorf("attempt %d: UUID %s, metadata %v; want %s, %+v", attempt, got.UUID, got.Metadata, msg.UUID, want)
		}
		if attempt < 2 {
			got.Nack()
		} else {
			got.Ack()
		}
	}
}

// Messages are handed over without waiting for acks: this test ends only if
// eight are in hand at once.
func TestConcurrentDelivery(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	messages, _ := subscribe(t, cfg, "orders", fast())
	ids := mustPublish(t, newPublisher(t, cfg, nil), "orders", 8)
	var inHand []*message.Message
	for range 8 {
		inHand = append(inHand, next(t, messages))
	}
	for _, msg := range inHand {
		delete(ids, msg.UUID)
		msg.Ack()
	}
	if len(ids) != 0 {
		t.Errorf("%d messages missing", len(ids))
	}
}

// Prefetch is a limit over all channels: after a reconnection the copies in
// hand still count.
func TestPrefetchOutlivesReconnection(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	opts := fast()
	opts.Prefetch = 2
	messages, sub := subscribe(t, through(cfg, proxy.URL()), "orders", opts)
	mustPublish(t, newPublisher(t, cfg, nil), "orders", 5)
	first, second := next(t, messages), next(t, messages)
	sub.Full().Enable()
	proxy.Cut()
	sub.Full().Wait(t) // on the next channel, which has messages to give
	select {
	case <-messages:
		t.Error("third message in hand with a prefetch of 2")
	default:
	}
	first.Ack()
	next(t, messages).Ack()
	second.Ack()
}

func TestConsumeConnectionCut(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	messages, sub := subscribe(t, through(cfg, proxy.URL()), "orders", fast())
	ids := mustPublish(t, newPublisher(t, cfg, nil), "orders", 10)
	old := next(t, messages)
	proxy.Cut()
	again := map[string]bool{}
	for len(again) < 10 { // all of them come, the one in hand too
		msg := next(t, messages)
		again[msg.UUID] = true
		if msg.UUID == old.UUID {
			if old.Context().Err() != nil {
				t.Error("context of a message in hand ended with its channel")
			}
			old.Ack() // belongs to the old channel: dropped
		}
		msg.Ack()
	}
	for id := range ids {
		if !again[id] {
			t.Errorf("message %s did not come again", id)
		}
	}
	// A wrong tag would have closed the channel, and its messages come again.
	last := mustPublish(t, newPublisher(t, cfg, nil), "orders", 1)
	ackAll(t, messages, last)
	if served, cancelled := sub.Subscription("orders"); !served || cancelled > 0 {
		t.Errorf("Subscription = %t, %d; want that it is served, and that nobody cancelled it", served, cancelled)
	}
}

// The broker closes the channel alone: the connection goes on, and so does the other
// subscription. With keys or without.
func TestConsumeChannelClosed(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*rabbitmq.SubscriberOptions{"plain": fast(), "keyed": keyed()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := declared(t, "orders", "bills")
			channels := make(chan *amqp.Channel, 100)
			cfg.TopologyBuilder = channelTaker{cfg.TopologyBuilder, channels}
			proxy := rabbittest.NewProxy(t, rabbittest.URL())
			messages, sub := subscribe(t, through(cfg, proxy.URL()), "orders", opts)
			ch := <-channels
			bills, err := sub.Subscribe(t.Context(), "bills")
			if err != nil {
				t.Fatal(err)
			}
			pub := newPublisher(t, cfg, nil)
			ids := mustPublish(t, pub, "orders", 10)
			inHand := next(t, messages)
			bill := mustPublish(t, pub, "bills", 1)
			billInHand := next(t, bills)
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			if err := ch.Ack(1<<40, false); err != nil { // of a delivery that never was
				t.Fatal(err)
			}
			if e := <-closed; e == nil || e.Code != amqp.PreconditionFailed {
				t.Fatalf("channel was closed with %v, want PRECONDITION_FAILED", e)
			}
			inHand.Ack() // in vain
			ackAll(t, messages, ids)
			if billInHand.Ack(); !bill[billInHand.UUID] {
				t.Errorf("bill has UUID %s, want one of %v", billInHand.UUID, bill)
			}
			ackAll(t, bills, mustPublish(t, pub, "bills", 1))
			if n := proxy.Cut(); n != 2 {
				t.Errorf("%d connections, want the first one of each topic", n)
			}
		})
	}
}

// A channelTaker tells of the channels on which topology is declared.
type channelTaker struct {
	wamqp.TopologyBuilder
	channels chan *amqp.Channel
}

func (b channelTaker) BuildTopology(ch *amqp.Channel, params wamqp.BuildTopologyParams, cfg wamqp.Config, log watermill.LoggerAdapter) error {
	b.channels <- ch
	return b.TopologyBuilder.BuildTopology(ch, params, cfg, log)
}

// A queue that is declared again at once is another queue, and RabbitMQ 3.10
// tells no consumer of the old one.
func TestConsumeQueueDeleted(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	opts := fast()
	opts.TopologyInterval = 50 * time.Millisecond
	messages, sub := subscribe(t, cfg, "orders", opts)
	ch := rabbittest.Channel(t, rabbittest.URL())
	if _, err := ch.QueueDelete(cfg.Queue.GenerateName("orders"), false, false, false); err != nil {
		t.Fatal(err)
	}
	if err := sub.SubscribeInitialize("orders"); err != nil {
		t.Fatal(err)
	}
	ackAll(t, messages, mustPublish(t, newPublisher(t, cfg, nil), "orders", 3))
}

// A queue that stays deleted cancels its consumer, also one with a message in
// hand.
func TestConsumerCancelled(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*rabbitmq.SubscriberOptions{"plain": fast(), "keyed": keyed()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := declared(t, "orders")
			messages, sub := subscribe(t, cfg, "orders", opts)
			pub := newPublisher(t, cfg, nil)
			mustPublish(t, pub, "orders", 2)
			inHand := next(t, messages)
			if _, err := rabbittest.Channel(t, rabbittest.URL()).QueueDelete(cfg.Queue.GenerateName("orders"), false, false, false); err != nil {
				t.Fatal(err)
			}
			msg := newMessage("x")
			publishRouted(t, pub, msg)
			got := next(t, messages)
			if string(got.Payload) == "1" { // was on its way
				got.Ack()
				got = next(t, messages)
			}
			if got.Ack(); got.UUID != msg.UUID || string(got.Payload) != "x" {
				t.Errorf("message %q %q, want %q", got.UUID, got.Payload, msg.UUID)
			}
			inHand.Ack()
			if served, cancelled := sub.Subscription("orders"); !served || cancelled != 1 {
				t.Errorf("Subscription = %t, %d; want that it is served, and was cancelled once", served, cancelled)
			}
		})
	}
}

// With Passive the Subscriber does not declare the queue again. It reports the missing queue until the queue
// is declared.
func TestASubscriptionWithoutItsQueueIsNotServed(t *testing.T) {
	t.Parallel()
	active := declared(t, "orders")
	cfg := active
	cfg.TopologyBuilder = passiveTopology(t)
	messages, sub := subscribe(t, cfg, "orders", fast())
	if served, cancelled := sub.Subscription("nobody's"); served || cancelled != 0 {
		t.Errorf("a topic without a subscription: %t, %d", served, cancelled)
	}
	until(t, "the subscription is served", func() bool { served, _ := sub.Subscription("orders"); return served })
	if _, err := rabbittest.Channel(t, rabbittest.URL()).QueueDelete(cfg.Queue.GenerateName("orders"), false, false, false); err != nil {
		t.Fatal(err)
	}
	until(t, "it was cancelled, and is not served", func() bool {
		served, cancelled := sub.Subscription("orders")
		return !served && cancelled == 1
	})
	if err := rabbitmq.DeclareTopology(t.Context(), active, "orders"); err != nil {
		t.Fatal(err)
	}
	ackAll(t, messages, mustPublish(t, newPublisher(t, active, nil), "orders", 1))
	if served, cancelled := sub.Subscription("orders"); !served || cancelled != 1 {
		t.Errorf("Subscription = %t, %d once it is declared; want true, 1", served, cancelled)
	}
}

func passiveTopology(t *testing.T) wamqp.TopologyBuilder {
	t.Helper()
	cfg, err := rabbitmq.NewConfig(rabbittest.URL(), service, &rabbitmq.ConfigOptions{Passive: true})
	if err != nil {
		t.Fatal(err)
	}
	return cfg.TopologyBuilder
}

// publishRouted publishes msg to orders as soon as there is a queue.
func publishRouted(t *testing.T, pub *rabbitmq.Publisher, msg *message.Message) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		err := pub.Publish("orders", msg)
		if err == nil {
			return
		}
		if !errors.Is(err, rabbitmq.ErrUnroutable) || time.Now().After(deadline) {
			t.Fatalf("Publish: %v", err)
		}
	}
}

// A consumer gets no notice when its exchange is deleted.
func TestConsumeExchangeDeleted(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	opts := fast()
	opts.TopologyInterval = 50 * time.Millisecond
	messages, _ := subscribe(t, cfg, "orders", opts)
	if err := rabbittest.Channel(t, rabbittest.URL()).ExchangeDelete(cfg.Exchange.GenerateName("orders"), false, false); err != nil {
		t.Fatal(err)
	}
	msg := newMessage("x")
	publishRouted(t, newPublisher(t, cfg, nil), msg)
	ackAll(t, messages, map[string]bool{msg.UUID: true})
}

// The same, for a subscription that is never idle.
func TestConsumeExchangeDeletedWhileBusy(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	opts := fast()
	opts.TopologyInterval = 200 * time.Millisecond
	messages, _ := subscribe(t, cfg, "orders", opts)
	ch := rabbittest.Channel(t, rabbittest.URL())
	if err := ch.ExchangeDelete(cfg.Exchange.GenerateName("orders"), false, false); err != nil {
		t.Fatal(err)
	}
	pub := newPublisher(t, cfg, nil)
	for deadline := time.Now().Add(patience); pub.Publish("orders", newMessage("x")) != nil; {
		err := ch.PublishWithContext(t.Context(), "", cfg.Queue.GenerateName("orders"), true, false, amqp.Publishing{})
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("exchange is not bound again (%v)", err)
		}
		next(t, messages).Ack()
	}
}

// In-hand messages are acked during the drain, the others go back, and each
// message is handled once.
func TestDrain(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"context", "Close"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cfg := declared(t, "orders")
			sub, err := rabbitmq.NewSubscriber(cfg, fast())
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			messages, err := sub.Subscribe(ctx, "orders")
			if err != nil {
				t.Fatal(err)
			}
			ids := mustPublish(t, newPublisher(t, cfg, nil), "orders", 20)
			inHand := []*message.Message{next(t, messages), next(t, messages), next(t, messages)}
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				if how == "context" {
					cancel()
				} else {
					sub.Close()
				}
			}()
			for msg := range messages { // one may be on its way
				inHand = append(inHand, msg)
			}
			for _, msg := range inHand {
				if msg.Context().Err() != nil {
					t.Error("context of a message in hand ended with the subscription")
				}
				delete(ids, msg.UUID)
				msg.Ack()
			}
			<-closed
			within(t, "Close", func() { sub.Close() })
			rest, _ := subscribe(t, cfg, "orders", fast())
			for len(ids) > 0 {
				msg := next(t, rest)
				if !ids[msg.UUID] {
					t.Errorf("message %s was acked and came again", msg.UUID)
				}
				delete(ids, msg.UUID)
				msg.Ack()
			}
		})
	}
}

// Acks that nothing else has sent yet are sent before the channel closes.
func TestDrainSendsCollectedAcks(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	sub, err := rabbitmq.NewSubscriber(cfg, fast())
	if err != nil {
		t.Fatal(err)
	}
	sub.CollectAcks(100, time.Hour)
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	ackAll(t, messages, mustPublish(t, newPublisher(t, cfg, nil), "orders", 5))
	within(t, "Close", func() { sub.Close() })
	last := mustPublish(t, newPublisher(t, cfg, nil), "orders", 1)
	rest, _ := subscribe(t, cfg, "orders", fast())
	msg := next(t, rest)
	if msg.Ack(); !last[msg.UUID] {
		t.Errorf("message %s was acked and came again", msg.UUID)
	}
}

// Messages that are not settled within DrainTimeout go back.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	opts := fast()
	opts.DrainTimeout = 20 * time.Millisecond
	messages, sub := subscribe(t, cfg, "orders", opts)
	mustPublish(t, newPublisher(t, cfg, nil), "orders", 1)
	msg := next(t, messages)
	within(t, "Close", func() { sub.Close() })
	if msg.Context().Err() == nil {
		t.Error("context of a message in hand outlived DrainTimeout")
	}
	again := next(t, first(subscribe(t, cfg, "orders", fast())))
	if msg.Ack(); msg.UUID != again.UUID {
		t.Error("another message came back")
	}
	again.Ack()
}

func first[A, B any](a A, _ B) A { return a }

// A nacked message is held for NackDelay, but not when it is time to stop.
func TestNackWhileDraining(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	opts := fast()
	opts.NackDelay = time.Hour
	opts.DrainTimeout = time.Hour
	messages, sub := subscribe(t, cfg, "orders", opts)
	sub.Held().Enable()
	ids := mustPublish(t, newPublisher(t, cfg, nil), "orders", 1)
	next(t, messages).Nack()
	sub.Held().Wait(t)
	last := mustPublish(t, newPublisher(t, cfg, nil), "orders", 1)
	msg := next(t, messages)
	if msg.Ack(); !last[msg.UUID] {
		t.Error("message came again at once")
	}
	within(t, "Close", func() { sub.Close() })
	ackAll(t, first(subscribe(t, cfg, "orders", fast())), ids)
}

func TestSubscribeContextEndsBeforeBroker(t *testing.T) {
	t.Parallel()
	_, absent := unreachable(t)
	silent, dialled := silentBroker(t)
	for name, url := range map[string]string{"silent": silent, "absent": absent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			opts := fast()
			opts.Logger = slog.New(slog.NewTextHandler(calls(cancel), nil)) // when it is to be tried again
			if name == "silent" {
				defer context.AfterFunc(dialled, cancel)()
			}
			sub, err := rabbitmq.NewSubscriber(newConfig(t, url), opts)
			if err != nil {
				t.Fatal(err)
			}
			within(t, "Subscribe", func() {
				if _, err := sub.Subscribe(ctx, "orders"); !errors.Is(err, context.Canceled) {
					t.Errorf("Subscribe = %v, want context.Canceled", err)
				}
			})
			within(t, "Close", func() { sub.Close() })
			if _, err := sub.Subscribe(t.Context(), "orders"); !errors.Is(err, rabbitmq.ErrClosed) {
				t.Errorf("Subscribe after Close = %v, want ErrClosed", err)
			}
		})
	}
}

// silentBroker returns the URL of a listener that accepts and says nothing, and
// a context that ends when it has accepted.
func silentBroker(t *testing.T) (url string, dialled context.Context) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dialled, accepted := context.WithCancel(context.Background())
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			socket, err := listener.Accept()
			if err != nil {
				return
			}
			defer socket.Close()
			accepted()
		}
	})
	t.Cleanup(func() {
		listener.Close()
		accepting.Wait()
		accepted()
	})
	return "amqp://user:secret@" + listener.Addr().String(), dialled
}

// Close ends a Subscribe that waits for the broker.
func TestSubscriberCloseDuringOutage(t *testing.T) {
	t.Parallel()
	_, absent := unreachable(t)
	sub, err := rabbitmq.NewSubscriber(newConfig(t, absent), fast())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := sub.Subscribe(context.Background(), "orders")
		done <- err
	}()
	within(t, "Close", func() { sub.Close() })
	if err := <-done; !errors.Is(err, rabbitmq.ErrClosed) {
		t.Errorf("Subscribe = %v, want ErrClosed", err)
	}
}

// An outage ends, and the subscription is the same as before.
func TestConsumeAfterOutage(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	messages, _ := subscribe(t, through(cfg, proxy.URL()), "orders", fast())
	proxy.Refuse(true)
	ids := mustPublish(t, newPublisher(t, cfg, nil), "orders", 5)
	proxy.Refuse(false)
	ackAll(t, messages, ids)
}

// A queue that exists with other arguments is an error at the start, not a
// retry for ever.
func TestSubscribeMismatch(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, rabbittest.URL(), "orders")
	ch := rabbittest.Channel(t, rabbittest.URL())
	if _, err := ch.QueueDeclare(cfg.Queue.GenerateName("orders"), true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	err := rabbitmq.DeclareTopology(t.Context(), cfg, "orders")
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != amqp.PreconditionFailed {
		t.Errorf("DeclareTopology = %v, want PRECONDITION_FAILED", err)
	}
}

// Every delivery of a foreign publisher becomes a message.
func TestGarbageArrives(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	messages, _ := subscribe(t, cfg, "orders", fast())
	ch := rabbittest.Channel(t, rabbittest.URL())
	garbage := []amqp.Publishing{
		{},
		{MessageId: "\x00\xff\n", Type: "\xff", Body: []byte{0}},
		{Headers: amqp.Table{outbox.HeaderKey: int64(7), outbox.HeaderScope: nil}},
		{Headers: amqp.Table{outbox.HeaderKey: []byte{0xff}, outbox.HeaderScope: true}},
		{Headers: amqp.Table{outbox.HeaderKey: amqp.Table{"a": []any{int8(1), "x", nil}}, outbox.HeaderScope: []any{}}},
		{Headers: amqp.Table{"": "no name", "_watermill_message_uuid": int32(5)}, Timestamp: time.Unix(1<<40, 0)},
	}
	for i, publishing := range garbage {
		if err := ch.PublishWithContext(t.Context(), cfg.Exchange.GenerateName("orders"), "", true, false, publishing); err != nil {
			t.Fatalf("garbage %d: %v", i, err)
		}
	}
	for range garbage {
		next(t, messages).Ack()
	}
}
