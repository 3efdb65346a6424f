package rabbitmq_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// singleActive returns settings for a queue with a single active consumer, and declares it.
func singleActive(t *testing.T) wamqp.Config {
	t.Helper()
	cfg := newConfig(t, rabbittest.URL(), "orders")
	cfg.Queue.Arguments["x-single-active-consumer"] = true
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "orders"); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// take acks n messages and returns their payloads with the mark of a redelivery, one key after the other.
func take(t *testing.T, messages <-chan *message.Message, n int) (got []string) {
	t.Helper()
	for range n {
		msg := next(t, messages)
		got = append(got, string(msg.Payload)+msg.Metadata["redelivered"])
		msg.Ack()
	}
	return byKey(got)
}

// byKey sorts payloads by their keys. The messages of each key keep their order.
func byKey(payloads []string) []string {
	slices.SortStableFunc(payloads, func(a, b string) int { return cmp.Compare(a[0], b[0]) })
	return payloads
}

// A paused subscription gives back what was in hand, what waited here and what the broker had sent ahead, in one order.
// The next consumer gets that before anything else, and nothing that is acked or nacked here later counts.
func TestPauseHandsTheQueueOver(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*rabbitmq.SubscriberOptions{"with keys": keyed(), "without keys": fast()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := singleActive(t)
			pub := newPublisher(t, cfg, nil)
			opts.Prefetch, opts.NackDelay = 4, 20*time.Millisecond
			mine, here := subscribe(t, cfg, "orders", opts)
			publish := func(from, to int) (want []string) {
				for i := from; i < to; i++ {
					want = append(want, fmt.Sprintf("%c-%d", 'a'+rune(i%2), i))
					if err := pub.Publish("orders", newMessage(want[i-from])); err != nil {
						t.Fatal(err)
					}
				}
				return want
			}
			want := publish(0, 10)
			inHand := []*message.Message{next(t, mine), next(t, mine)}
			theirs, there := subscribe(t, cfg, "orders", opts)
			if served, _ := here.Subscription("orders"); !served {
				t.Error("a subscription that has messages in hand is not served")
			}
			here.Consumes().Enable()
			within(t, "Pause", func() { here.Pause("orders"); here.Pause("orders") })
			if served, _ := here.Subscription("orders"); served {
				t.Error("a paused subscription is served")
			}
			inHand[0].Ack()
			inHand[1].Nack()
			got := take(t, theirs, len(want))
			for i := range want[:opts.Prefetch] {
				want[i] += "true" // the broker had sent them ahead
			}
			if want = byKey(want); !slices.Equal(got, want) {
				t.Errorf("the next consumer gets %q, want %q", got, want)
			}
			want = byKey(publish(10, 13))
			if got := take(t, theirs, 3); !slices.Equal(got, want) {
				t.Errorf("the next consumer gets %q later, want %q", got, want)
			}
			others, elsewhere := subscribe(t, cfg, "orders", opts)
			there.Close()
			want = byKey(publish(13, 16))
			if got := take(t, others, 3); !slices.Equal(got, want) {
				t.Errorf("another consumer that comes during the pause gets %q, want %q", got, want)
			}
			publish(16, 17)
			for range 10 {
				next(t, others).Nack() // takes a NackDelay, in which the paused one could come back
			}
			take(t, others, 1)
			here.Resume("orders")
			elsewhere.Close()
			want = byKey(publish(17, 20))
			if got := take(t, mine, 3); !slices.Equal(got, want) {
				t.Errorf("after Resume it gets %q, want %q", got, want)
			}
			here.Consumes().Send(0)
			if first, second := here.Consumes().Wait(t), here.Consumes().Wait(t); first == 0 || second != 0 {
				t.Error("the queue was consumed in the pause")
			}
		})
	}
}

// A subscription that is made in a pause consumes after it. The end of its context ends it before.
func TestSubscribeInAPause(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	sub, err := rabbitmq.NewSubscriber(cfg, fast())
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	sub.Pause("orders")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sub.Subscribe(ctx, "orders"); !errors.Is(err, context.Canceled) {
		t.Errorf("Subscribe with a context that has ended = %v", err)
	}
	mustPublish(t, newPublisher(t, cfg, nil), "orders", 1)
	subscribed := make(chan (<-chan *message.Message))
	go func() {
		messages, err := sub.Subscribe(context.Background(), "orders")
		if err != nil {
			t.Error(err)
		}
		subscribed <- messages
	}()
	sub.Resume("orders")
	sub.Resume("orders")
	next(t, <-subscribed).Ack()
}

// Close ends a subscription that is paused, and a Pause after Close returns.
func TestCloseInAPause(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	messages, sub := subscribe(t, cfg, "orders", fast())
	mustPublish(t, newPublisher(t, cfg, nil), "orders", 2)
	inHand := next(t, messages)
	sub.Pause("orders")
	inHand.Ack()
	within(t, "Close", func() { sub.Close(); sub.Pause("orders") })
	for range messages {
		t.Error("a paused subscription hands over a message")
	}
}

// A pause over and over, beside nacks and acks, keeps the order of each key, and loses nothing.
func TestKeyedOrderOverPauses(t *testing.T) {
	t.Parallel()
	cfg := singleActive(t)
	opts := keyed()
	opts.Prefetch = 20
	const n, pauses = 40, 8
	want := publishKeyed(t, newPublisher(t, cfg, nil), n, "a", "b", "c", "d")
	h := newHandlers(opts.Key, 4*n)
	messages, sub := subscribe(t, cfg, "orders", opts)
	done := make(chan struct{})
	for range 6 {
		go func() { h.run(messages); done <- struct{}{} }()
	}
	for i := range pauses {
		h.await(t, 4*n*(pauses-i)/(pauses+1))
		within(t, "Pause", func() { sub.Pause("orders") })
		sub.Resume("orders")
	}
	h.await(t, 0)
	within(t, "Close", func() { sub.Close() })
	for range 6 {
		<-done
	}
	h.check(t, want)
}
