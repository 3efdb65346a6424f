package consumer

import (
	"context"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/outbox"
)

// An arrived is a delivery on its way to a lane.
type arrived struct {
	topic string
	msg   *message.Message
}

var laneSeed = maphash.MakeSeed()

// lane returns which of n lanes msg belongs to: messages of one saga share a
// lane, so that they neither overtake each other nor wait for one lock on many
// connections.
func lane(msg *message.Message, n int) int {
	key := msg.Metadata.Get(outbox.HeaderKey)
	if colon := strings.LastIndexByte(key, ':'); colon >= 0 {
		key = key[:colon]
	}
	var h maphash.Hash
	h.SetSeed(laneSeed)
	h.WriteString(msg.Metadata.Get(outbox.HeaderScope))
	h.WriteByte(0)
	h.WriteString(key)
	return int(h.Sum64() % uint64(n))
}

// distribute hands deliveries to lanes until their subscription ends, which it
// does when ctx ends.
func (c *Consumer) distribute(ctx context.Context, topic string, deliveries <-chan *message.Message, queues []chan arrived) {
	for msg := range deliveries {
		if msg == nil {
			continue // a subscriber that hands over nothing has nothing to ack
		}
		select {
		case queues[lane(msg, len(queues))] <- arrived{topic, msg}:
		case <-ctx.Done():
			msg.Nack()
		}
	}
}

// keepLane runs a lane. A handler that ends its goroutine (runtime.Goexit, as
// testing's FailNow does) takes the lane with it: another one goes on.
func (c *Consumer) keepLane(lanes *sync.WaitGroup, ctx, work context.Context, queue <-chan arrived) {
	lanes.Go(func() {
		finished := false
		defer func() {
			if !finished {
				c.keepLane(lanes, ctx, work, queue)
			}
		}()
		c.runLane(ctx, work, queue)
		finished = true
	})
}

// runLane handles deliveries one after the other. Once ctx has ended, those
// that have not begun go back.
func (c *Consumer) runLane(ctx, work context.Context, queue <-chan arrived) {
	for a := range queue {
		c.settleDelivery(ctx, work, a)
	}
}

// settleDelivery acks a once it is dealt with, and in every other case gives it
// back.
func (c *Consumer) settleDelivery(ctx, work context.Context, a arrived) {
	dealtWith := false
	defer func() {
		if !dealtWith {
			a.msg.Nack()
		}
	}()
	if ctx.Err() != nil || !c.deliver(ctx, work, a) || failpoint.Hit("consumer/before-ack") != nil {
		return
	}
	dealtWith = true
	a.msg.Ack()
	c.signals.settled.Send(a.msg.UUID)
}

// deliver reports whether a is dealt with and may be acked. While the database
// is away it tries again here, where that costs the broker nothing; after
// [maxTries] the delivery goes back, so that one message cannot hold its lane
// for ever.
func (c *Consumer) deliver(ctx, work context.Context, a arrived) bool {
	j, rejected := c.read(a.topic, a.msg)
	for try := 1; ; try++ {
		var err error
		if rejected != nil {
			err = c.bury(work, a.topic, a.msg, rejected)
		} else {
			err = c.handle(work, j)
		}
		if err == nil {
			if j != nil {
				c.committed(j)
			}
			return true
		}
		c.opts.Logger.ErrorContext(ctx, "consumer: delivery", "topic", a.topic, "message_id", a.msg.UUID, "try", try, "error", err)
		if try == maxTries || ctx.Err() != nil {
			return false
		}
		timer := time.NewTimer(failurePolicy.Wait(try))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}
