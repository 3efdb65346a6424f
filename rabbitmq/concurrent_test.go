package rabbitmq_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// callers is how many lanes a relay has.
const callers = 4

// stalledCallers starts a batch of each caller and returns their results, once
// the broker has every message and the proxy holds back its answers.
func stalledCallers(t *testing.T, ctx context.Context, cfg wamqp.Config, pub *rabbitmq.Publisher, proxy *rabbittest.Proxy) chan []error {
	t.Helper()
	const each = 20
	warm := make(chan error) // a channel for each, all held at the same time
	results := make(chan []error)
	proxy.Stall(false)
	for range callers {
		go func() { warm <- errors.Join(pub.PublishBatch(ctx, batchOf("orders", each))...) }()
	}
	for range callers {
		if err := <-warm; err != nil {
			t.Fatal(err)
		}
	}
	mustPublish(t, pub, "orders", 1)
	proxy.Stall(true)
	for range callers {
		go func() { results <- pub.PublishBatch(ctx, batchOf("orders", each)) }()
	}
	direct, _ := subscribe(t, cfg, "orders", fast())
	for range 1 + 2*callers*each {
		next(t, direct).Ack()
	}
	return results
}

// Every event that ends the wait for confirms ends it for every caller, with the reason, and refuses no
// message.
func TestPublishFourCallersAreEndedBy(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		opts rabbitmq.PublisherOptions
		end  func(cancel func(), pub *rabbitmq.Publisher, proxy *rabbittest.Proxy) error
		want error
	}{
		{
			name: "an alarm", want: rabbitmq.ErrBlocked,
			end: func(_ func(), _ *rabbitmq.Publisher, proxy *rabbittest.Proxy) error {
				return proxy.Inject(blockedFrame)
			},
		},
		{
			name: "the confirm timeout", want: rabbitmq.ErrUnavailable,
			opts: rabbitmq.PublisherOptions{ConfirmTimeout: 2 * time.Second},
			end:  func(func(), *rabbitmq.Publisher, *rabbittest.Proxy) error { return nil },
		},
		{
			name: "their context", want: errGaveUp,
			end: func(cancel func(), _ *rabbitmq.Publisher, _ *rabbittest.Proxy) error { cancel(); return nil },
		},
		{
			name: "a lost connection", want: rabbitmq.ErrUnavailable,
			end: func(_ func(), _ *rabbitmq.Publisher, proxy *rabbittest.Proxy) error { proxy.Cut(); return nil },
		},
		{
			name: "the broker's goodbye", want: rabbitmq.ErrUnavailable,
			end: func(_ func(), _ *rabbitmq.Publisher, proxy *rabbittest.Proxy) error { return proxy.Inject(forcedFrame) },
		},
		{
			name: "Close", want: rabbitmq.ErrUnavailable,
			end: func(_ func(), pub *rabbitmq.Publisher, _ *rabbittest.Proxy) error { return pub.Close() },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			proxy := rabbittest.NewProxy(t, rabbittest.URL())
			cfg := declared(t, "orders")
			tt.opts.Connection = rabbitmq.ConnectionOptions{
				CloseTimeout: 50 * time.Millisecond, // the broker does not answer
				Heartbeat:    time.Hour,             // so that nothing else ends the wait
			}
			pub := newPublisher(t, through(cfg, proxy.URL()), &tt.opts)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			results := stalledCallers(t, ctx, cfg, pub, proxy)
			if err := tt.end(func() { cancel(errGaveUp) }, pub, proxy); err != nil {
				t.Fatal(err)
			}
			within(t, "PublishBatch", func() {
				for range callers {
					for i, err := range <-results {
						if !errors.Is(err, tt.want) || errors.Is(err, outbox.ErrRefused) {
							t.Errorf("message %d = %v, want %v, no ErrRefused", i, err, tt.want)
						}
					}
				}
			})
		})
	}
}

var errGaveUp = errors.New("the caller gave up")

// A deadline that is over before there is a connection, a slot or a channel
// ends the wait as well.
func TestPublishDeadlineOver(t *testing.T) {
	t.Parallel()
	silent, _ := unreachable(t)
	pub := newPublisher(t, newConfig(t, silent), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	within(t, "PublishBatch", func() {
		var calls sync.WaitGroup
		for range 2 * callers { // more than there are slots
			calls.Go(func() {
				for i, err := range pub.PublishBatch(ctx, batchOf("orders", 3)) {
					if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, rabbitmq.ErrUnavailable) {
						t.Errorf("message %d = %v, want ErrUnavailable and DeadlineExceeded", i, err)
					}
				}
			})
		}
		calls.Wait()
	})
}

// A caller whose context ends while it waits for a slot, or for a channel to be
// opened, hears of it as well.
func TestPublishGivenUpBeforeSending(t *testing.T) {
	t.Parallel()
	for name, channels := range map[string]int{"slot": 1, "channel": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := rabbittest.NewProxy(t, rabbittest.URL())
			cfg := declared(t, "orders")
			pub := newPublisher(t, through(cfg, proxy.URL()), &rabbitmq.PublisherOptions{Channels: channels})
			holder := inFlight(t, cfg, pub, proxy)
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(50*time.Millisecond, func() { cancel(errGaveUp) })
			within(t, "PublishBatch", func() {
				for i, err := range pub.PublishBatch(ctx, batchOf("orders", 3)) {
					if !errors.Is(err, errGaveUp) || !errors.Is(err, rabbitmq.ErrUnavailable) {
						t.Errorf("message %d = %v, want ErrUnavailable and the cause", i, err)
					}
				}
			})
			proxy.Stall(false)
			if err := <-holder; err != nil {
				t.Errorf("the other call = %v, want nil", err)
			}
		})
	}
}

// Four callers publish while their connection is cut again and again, and then
// the Publisher is closed under them. Every call returns, nothing is refused,
// and every message that counts as published is in the queue.
func TestPublishStress(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	opts := &rabbitmq.PublisherOptions{Window: 32, Connection: rabbitmq.ConnectionOptions{CloseTimeout: time.Second}}
	pub := newPublisher(t, through(cfg, proxy.URL()), opts)
	const (
		cuts   = 8
		before = 5 // batches with a success before each of them
	)
	var (
		published [callers][]string
		succeeded = make(chan struct{}) // a batch, at least in part
		closing   = make(chan struct{})
		calls     sync.WaitGroup
	)
	for caller := range callers {
		calls.Go(func() {
			for closed := false; !closed; {
				var ids []string
				ids, closed = publishSome(t, pub)
				published[caller] = append(published[caller], ids...)
				if len(ids) > 0 {
					select {
					case succeeded <- struct{}{}:
					case <-closing:
					}
				}
			}
		})
	}
	for cut := range cuts + 1 {
		for range before {
			within(t, "PublishBatch", func() { <-succeeded })
		}
		if cut < cuts {
			proxy.Cut()
		}
	}
	close(closing)
	within(t, "Close", func() { pub.Close() })
	within(t, "PublishBatch", calls.Wait)
	ids := make(map[string]bool)
	for _, some := range published {
		for _, id := range some {
			ids[id] = true
		}
	}
	messages, _ := subscribe(t, cfg, "orders", fast())
	ackAll(t, messages, ids)
}

// publishSome publishes a batch, returns what counts as published of it, and
// whether pub is closed.
func publishSome(t *testing.T, pub *rabbitmq.Publisher) (ids []string, closed bool) {
	batch := batchOf("orders", 64)
	for i, err := range pub.PublishBatch(context.Background(), batch) {
		switch {
		case err == nil:
			ids = append(ids, batch[i].Message.UUID)
		case errors.Is(err, rabbitmq.ErrClosed):
			closed = true
		case errors.Is(err, outbox.ErrRefused) || !errors.Is(err, rabbitmq.ErrUnavailable):
			t.Errorf("message %d = %v, want nil or ErrUnavailable", i, err)
		}
	}
	return ids, closed
}
