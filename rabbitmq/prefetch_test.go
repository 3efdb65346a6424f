package rabbitmq_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	largePayload  = 256 << 10
	payloadsLimit = 1 << 20
)

// publishSized publishes n messages of so many bytes whose payloads begin with <key>-<number>,
// in turn for each key, and returns those of each key.
func publishSized(t *testing.T, pub *rabbitmq.Publisher, n, bytes int, keys ...string) map[string][]string {
	t.Helper()
	want := map[string][]string{}
	var batch []outbox.Publication
	for i := range n {
		key := keys[i%len(keys)]
		name := fmt.Sprintf("%s-%d-", key, i)
		want[key] = append(want[key], name)
		payload := name + strings.Repeat(".", max(0, bytes-len(name)))
		batch = append(batch, outbox.Publication{Topic: "orders", Message: newMessage(payload)})
	}
	for i, err := range pub.PublishBatch(t.Context(), batch) {
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	return want
}

// nameOf returns the beginning of a payload of publishSized.
func nameOf(msg *message.Message) string { return strings.TrimRight(string(msg.Payload), ".") }

// takeAll acks messages until each of want was acked, and checks that none comes again after
// its ack, and that each key's were acked in their order. It keeps one in hand while others come,
// at first the one that is given, if any.
func takeAll(t *testing.T, messages <-chan *message.Message, inHand *message.Message, want map[string][]string, ordered bool) {
	t.Helper()
	left, acked := 0, map[string][]string{}
	for _, names := range want {
		left += len(names)
	}
	settle := func() {
		if inHand == nil {
			return
		}
		name := nameOf(inHand)
		key, _, _ := strings.Cut(name, "-")
		if slices.Contains(acked[key], name) {
			t.Errorf("%s comes again after its ack", name)
		} else {
			acked[key] = append(acked[key], name)
			left--
		}
		inHand.Ack()
		inHand = nil
	}
	for wait := time.After(patience); left > 0; {
		select {
		case msg := <-messages:
			settle()
			inHand = msg
		case <-time.After(5 * time.Millisecond):
			settle()
		case <-wait:
			t.Fatalf("%d messages do not arrive", left)
		}
	}
	for key, names := range want {
		if ordered && !slices.Equal(acked[key], names) {
			t.Errorf("key %s was acked in the order %v, want %v", key, acked[key], names)
		}
	}
}

// Large messages are taken a few at a time, all of them arrive, and each key's in order. Small
// ones have the whole prefetch again.
func TestPrefetchIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*rabbitmq.SubscriberOptions{"plain": fast(), "keyed": keyed()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := declared(t, "orders")
			opts.PrefetchBytes, opts.Prefetch = payloadsLimit, 64
			sub, err := rabbitmq.NewSubscriber(cfg, opts)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { sub.Close() })
			sub.Consumes().Enable()
			sub.Received().Enable()
			pub := newPublisher(t, cfg, nil)
			want := publishSized(t, pub, 40, largePayload, "a", "b", "c", "d", "e", "f", "g")
			messages, err := sub.Subscribe(t.Context(), "orders")
			if err != nil {
				t.Fatal(err)
			}
			if prefetch := sub.Consumes().Wait(t); prefetch != opts.Prefetch {
				t.Errorf("the first prefetch is %d, want %d", prefetch, opts.Prefetch)
			}
			first := next(t, messages)
			sub.Received().WaitFor(t, func(bytes int) bool { return bytes >= payloadsLimit })
			takeAll(t, messages, first, want, opts.Key != nil)
			if prefetch, most := sub.Consumes().Wait(t), payloadsLimit/largePayload; prefetch != most {
				t.Errorf("the prefetch for large messages is %d, want %d", prefetch, most)
			}
			sub.Received().Send(-1)
			checkReceived(t, sub)
			takeAll(t, messages, nil, publishSized(t, pub, 2*rabbitmq.LongPeriod, 16, "a", "b", "c"), opts.Key != nil)
			if prefetch := sub.Consumes().Wait(t); prefetch != opts.Prefetch {
				t.Errorf("the prefetch after small messages is %d, want %d", prefetch, opts.Prefetch)
			}
		})
	}
}

// Messages in hand count, also those of an earlier channel: no more are taken.
func TestPayloadsInHandAreBounded(t *testing.T) {
	t.Parallel()
	cfg, opts := declared(t, "orders"), fast()
	opts.PrefetchBytes = payloadsLimit
	sub, err := rabbitmq.NewSubscriber(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sub.Close() })
	sub.Full().Enable()
	sub.Received().Enable()
	want := publishSized(t, newPublisher(t, cfg, nil), 12, largePayload, "a")
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	var inHand []*message.Message
	for range payloadsLimit / largePayload {
		inHand = append(inHand, next(t, messages))
	}
	sub.Full().Wait(t)
	sub.Received().Send(-1)
	checkReceived(t, sub)
	for _, msg := range inHand {
		want["a"] = slices.DeleteFunc(want["a"], func(name string) bool { return name == nameOf(msg) })
		msg.Ack()
	}
	takeAll(t, messages, nil, want, false)
}

// checkReceived checks the bytes of payload that were here until now, which -1 ends.
func checkReceived(t *testing.T, sub *rabbitmq.Subscriber) {
	t.Helper()
	for bytes := sub.Received().Wait(t); bytes >= 0; bytes = sub.Received().Wait(t) {
		if bytes > payloadsLimit+largePayload {
			t.Errorf("%d bytes of payload were here, want at most %d and a message", bytes, payloadsLimit)
		}
	}
}

// Where messages are few the prefetch grows with the look at the topology.
func TestPrefetchGrowsWithFewMessages(t *testing.T) {
	t.Parallel()
	cfg, opts := declared(t, "orders"), fast()
	opts.PrefetchBytes, opts.Prefetch, opts.TopologyInterval = payloadsLimit, 64, 100*time.Millisecond
	pub := newPublisher(t, cfg, nil)
	want := publishSized(t, pub, 10, largePayload, "a")
	sub, err := rabbitmq.NewSubscriber(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sub.Close() })
	sub.Consumes().Enable()
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	sub.Consumes().WaitFor(t, func(prefetch int) bool { return prefetch < opts.Prefetch })
	takeAll(t, messages, nil, want, false)
	grown := make(chan struct{})
	go func() {
		defer close(grown)
		sub.Consumes().WaitFor(t, func(prefetch int) bool { return prefetch == opts.Prefetch })
	}()
	for range rabbitmq.LongPeriod - 10 { // or that would be enough
		takeAll(t, messages, nil, publishSized(t, pub, 1, 16, "a"), false)
		select {
		case <-grown:
			return
		default:
		}
	}
	t.Fatal("the prefetch does not grow")
}
