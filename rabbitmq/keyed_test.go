package rabbitmq_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// keyed are the options of fast, for messages whose payload is <key>-<number>.
func keyed() *rabbitmq.SubscriberOptions {
	opts := fast()
	opts.NackDelay = 1000 // ns: nacks come as fast as they can
	opts.Key = func(msg *message.Message) string {
		key, _, _ := strings.Cut(string(msg.Payload), "-")
		return key
	}
	return opts
}

// publishKeyed publishes n messages for each of keys in turn, and returns what a
// key's messages are.
func publishKeyed(t *testing.T, pub *rabbitmq.Publisher, n int, keys ...string) map[string][]string {
	t.Helper()
	want := map[string][]string{}
	var messages []*message.Message
	for i := range n {
		for _, key := range keys {
			payload := fmt.Sprintf("%s-%d", key, i)
			want[key] = append(want[key], payload)
			messages = append(messages, newMessage(payload))
		}
	}
	if err := pub.Publish("orders", messages...); err != nil {
		t.Fatal(err)
	}
	return want
}

// handlers take messages of any number of subscriptions, and remember in which
// order each key's were first acked.
type handlers struct {
	key func(*message.Message) string

	mu     sync.Mutex
	inHand map[string]string
	acked  map[string][]string
	wrong  []string
	left   int
	moved  chan struct{} // holds one: a message was acked for the first time
}

func newHandlers(key func(*message.Message) string, messages int) *handlers {
	return &handlers{key: key, inHand: map[string]string{}, acked: map[string][]string{}, left: messages, moved: make(chan struct{}, 1)}
}

// run settles messages until there are no more, nacking a third of them.
func (h *handlers) run(messages <-chan *message.Message) {
	for msg := range messages {
		key, payload := h.key(msg), string(msg.Payload)
		h.mu.Lock()
		if other, busy := h.inHand[key]; busy {
			h.wrong = append(h.wrong, fmt.Sprintf("%s came while %s was in hand", payload, other))
		}
		h.inHand[key] = payload
		h.mu.Unlock()
		for range rand.N(200) {
			runtime.Gosched()
		}
		h.settle(msg, key, payload)
	}
}

func (h *handlers) settle(msg *message.Message, key, payload string) {
	h.mu.Lock()
	delete(h.inHand, key)
	ack := rand.N(3) > 0
	if ack && !slices.Contains(h.acked[key], payload) {
		h.acked[key] = append(h.acked[key], payload)
		h.left--
		select {
		case h.moved <- struct{}{}:
		default:
		}
	}
	h.mu.Unlock()
	if ack {
		msg.Ack()
	} else {
		msg.Nack()
	}
}

// await waits until at most left messages have not been acked.
func (h *handlers) await(t *testing.T, left int) {
	t.Helper()
	within(t, "a subscription with keys", func() {
		for {
			h.mu.Lock()
			n := h.left
			h.mu.Unlock()
			if n <= left {
				return
			}
			<-h.moved
		}
	})
}

func (h *handlers) check(t *testing.T, want map[string][]string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, payloads := range want {
		if !slices.Equal(h.acked[key], payloads) {
			t.Errorf("key %s was first acked in the order %v, want %v", key, h.acked[key], payloads)
		}
	}
	for _, wrong := range h.wrong {
		t.Error(wrong)
	}
}

// Each key's messages are first acked in their order, and no two of them are in
// hand, although a third of all deliveries is nacked and the connection is lost
// again and again.
func TestKeyedOrder(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	opts := keyed()
	opts.Prefetch = 20
	const n, cuts = 40, 6
	want := publishKeyed(t, newPublisher(t, cfg, nil), n, "a", "b", "c", "d")
	h := newHandlers(opts.Key, 4*n)
	messages, sub := subscribe(t, through(cfg, proxy.URL()), "orders", opts)
	var work sync.WaitGroup
	for range 6 {
		work.Go(func() { h.run(messages) })
	}
	for i := range cuts {
		h.await(t, 4*n*(cuts-i)/(cuts+1))
		proxy.Cut()
	}
	h.await(t, 0)
	within(t, "Close", func() { sub.Close() })
	work.Wait()
	h.check(t, want)
}

// The same, over subscriptions that follow each other.
func TestKeyedOrderOverDrains(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, rabbittest.URL(), "orders")
	cfg.Queue.Arguments["x-single-active-consumer"] = true
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "orders"); err != nil {
		t.Fatal(err)
	}
	opts := keyed()
	const n, rounds = 40, 5
	want := publishKeyed(t, newPublisher(t, cfg, nil), n, "a", "b", "c", "d")
	h := newHandlers(opts.Key, 4*n)
	for i := range rounds {
		messages, sub := subscribe(t, cfg, "orders", opts)
		var work sync.WaitGroup
		for range 6 {
			work.Go(func() { h.run(messages) })
		}
		h.await(t, 4*n*(rounds-1-i)/rounds)
		within(t, "Close", func() { sub.Close() })
		work.Wait()
	}
	h.check(t, want)
}

// A message in hand holds up its key alone.
func TestKeysAreConcurrent(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	opts := keyed()
	messages, _ := subscribe(t, cfg, "orders", opts)
	publishKeyed(t, newPublisher(t, cfg, nil), 3, "a", "b", "")
	var inHand []*message.Message
	got := map[string]int{}
	for range 5 {
		msg := next(t, messages)
		inHand = append(inHand, msg)
		got[opts.Key(msg)]++
	}
	if got["a"] != 1 || got["b"] != 1 || got[""] != 3 {
		t.Errorf("in hand at once: %v, want one of each key and three without", got)
	}
	for len(inHand) > 0 {
		inHand[0].Ack()
		if inHand = inHand[1:]; got[""]+got["a"]+got["b"] < 9 && len(inHand) < 2 {
			msg := next(t, messages)
			got[opts.Key(msg)]++
			inHand = append(inHand, msg)
		}
	}
	if got["a"] != 3 || got["b"] != 3 {
		t.Errorf("in all: %v, want three of each", got)
	}
}

// A nacked message comes again before the next of its key, and says so.
func TestKeyedNack(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	messages, _ := subscribe(t, cfg, "orders", keyed())
	publishKeyed(t, newPublisher(t, cfg, nil), 2, "a")
	for i, want := range []struct {
		payload, redelivered string
		ack                  bool
	}{{"a-0", "", false}, {"a-0", "true", false}, {"a-0", "true", true}, {"a-1", "", false}, {"a-1", "true", true}} {
		msg := next(t, messages)
		if string(msg.Payload) != want.payload || msg.Metadata["redelivered"] != want.redelivered {
			t.Errorf("message %d is %s, redelivered %q; want %+v", i, msg.Payload, msg.Metadata["redelivered"], want)
		}
		if want.ack {
			msg.Ack()
		} else {
			msg.Nack()
		}
		if err := msg.Context().Err(); err == nil {
			<-msg.Context().Done() // ends with every copy
		}
	}
}

// A message that is dead-lettered is out of the next one's way.
func TestKeyedNackWithoutRequeue(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	cfg.Consume.NoRequeueOnNack = true
	messages, _ := subscribe(t, cfg, "orders", keyed())
	publishKeyed(t, newPublisher(t, cfg, nil), 2, "a")
	next(t, messages).Nack()
	if msg := next(t, messages); string(msg.Payload) != "a-1" {
		t.Errorf("after a-0 comes %s, want a-1", msg.Payload)
	} else {
		msg.Ack()
	}
}

// A subscription with a key in hand is not renewed, however long nothing comes.
func TestKeyedSubscriptionIsNotIdle(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	opts := keyed()
	opts.TopologyInterval = 10 * time.Millisecond
	channels := make(chan *amqp.Channel, 1000)
	cfg.TopologyBuilder = channelTaker{cfg.TopologyBuilder, channels}
	messages, _ := subscribe(t, cfg, "orders", opts)
	publishKeyed(t, newPublisher(t, cfg, nil), 2, "a")
	inHand := next(t, messages)
	for len(channels) > 0 {
		<-channels
	}
	for range 4 {
		<-channels // the topology was looked at
	}
	inHand.Ack()
	msg := next(t, messages)
	if msg.Ack(); string(msg.Payload) != "a-1" { // a-0 again, if its channel was closed
		t.Errorf("after a-0 comes %s, want a-1", msg.Payload)
	}
}
