package main

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

const unlimited = math.MaxInt // want of a counter that only counts

// A counter counts messages that the broker has confirmed.
type counter struct {
	want  int64
	count atomic.Int64
	done  chan struct{} // closed when the count has reached want
}

func newCounter(want int) *counter {
	return &counter{want: int64(want), done: make(chan struct{})}
}

func (c *counter) addConfirmed(n int) {
	if now := c.count.Add(int64(n)); now >= c.want && now-int64(n) < c.want {
		close(c.done)
	}
}

// waitUntilAll waits until the count has reached want. If ctx ends first, the error contains the count.
func (c *counter) waitUntilAll(ctx context.Context) error {
	select {
	case <-c.done:
	case <-ctx.Done():
	}
	if n := c.count.Load(); n < c.want {
		return fmt.Errorf("%d of %d messages are confirmed: %w", n, c.want, ctx.Err())
	}
	return nil
}

// counted counts the messages that our publisher has got confirmed.
type counted struct {
	outbox.Publisher
	counter *counter
}

func (p counted) PublishBatch(ctx context.Context, batch []outbox.Publication) []error {
	results := p.Publisher.PublishBatch(ctx, batch)
	n := 0
	for _, err := range results {
		if err == nil {
			n++
		}
	}
	p.counter.addConfirmed(n)
	return results
}

// countedWatermill counts the messages that watermill's publisher has got confirmed.
type countedWatermill struct {
	message.Publisher
	counter *counter
}

func (p countedWatermill) Publish(topic string, messages ...*message.Message) error {
	err := p.Publisher.Publish(topic, messages...)
	if err == nil {
		p.counter.addConfirmed(len(messages))
	}
	return err
}
