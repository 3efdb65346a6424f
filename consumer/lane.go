package consumer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// distribute puts deliveries on the board until their subscription ends, which it
// does when ctx ends.
func (c *Consumer) distribute(ctx context.Context, topic string, deliveries <-chan *message.Message, b *board) {
	for msg := range deliveries {
		if msg == nil {
			continue // a subscriber that hands over nothing has nothing to ack
		}
		if !b.put(ctx, c.arrival(topic, msg)) {
			msg.Nack()
		}
	}
}

// arrival looks at what tells how msg is to be handled, before it is read.
func (c *Consumer) arrival(topic string, msg *message.Message) arrived {
	to, known := c.routes[routeKey{topic, msg.Metadata.Get(outbox.PropertyType)}]
	if !known {
		return arrived{topic: topic, msg: msg, alone: true}
	}
	alone := !c.joins(to.step, msg.Metadata.Get(outbox.PropertyRedelivered) == "true", 0)
	return arrived{topic: topic, msg: msg, step: to.traffic, alone: alone}
}

// keepLane runs a lane. A handler that ends its goroutine (runtime.Goexit, as
// testing's FailNow does) takes the lane with it: another one goes on.
func (c *Consumer) keepLane(lanes *sync.WaitGroup, ctx, work context.Context, b *board) {
	lanes.Go(func() {
		finished := false
		defer func() {
			if !finished {
				c.keepLane(lanes, ctx, work, b)
			}
		}()
		for c.runLane(ctx, work, b) {
		}
		finished = true
	})
}

// runLane takes deliveries from b and settles them. It reports false when there
// will be no more. Once ctx has ended, those that have not begun go back.
func (c *Consumer) runLane(ctx, work context.Context, b *board) bool {
	l := b.take(c.opts.BatchSize, c.opts.BatchTime)
	if len(l.all) == 0 {
		return false
	}
	var left []arrived
	defer func() { b.free(l, left) }()
	defer nackRest(l.all, &left)
	jobs, unsure := c.begin(ctx, work, l.all)
	for try := 1; ; try++ {
		for _, j := range c.settleSome(ctx, work, jobs) {
			left = append(left, j.arrived)
		}
		unsure = slices.DeleteFunc(unsure, func(a arrived) bool { return try >= a.tries(ErrVerifyLater) })
		if len(left) > 0 {
			left = append(left, unsure...) // they are behind what is left of their sagas
			return true
		}
		if len(unsure) == 0 || ctx.Err() != nil {
			return true
		}
		pause(ctx, failurePolicy.Wait(try), nil, false)
		jobs, unsure = c.begin(ctx, work, unsure)
	}
}

// begin returns the jobs that deliveries are, and those of which nobody can say yet whether
// they are one, with what comes behind them of their saga. What cannot be a job is a dead
// letter then, and acked. Once ctx has ended, the rest goes back.
func (c *Consumer) begin(ctx, work context.Context, all []arrived) (jobs []*job, unsure []arrived) {
	var why error
	for _, a := range all {
		if ctx.Err() != nil {
			break
		}
		if slices.ContainsFunc(unsure, func(u arrived) bool { return sagaOf(u.msg) == sagaOf(a.msg) }) {
			unsure = append(unsure, a)
			continue
		}
		j, rejected, err := c.accept(a.topic, a.msg)
		switch {
		case err != nil:
			unsure, why = append(unsure, a), err
		case rejected == nil:
			j.arrived = a
			jobs = append(jobs, j)
		case c.insist(ctx, a, func() error { return c.bury(work, a.topic, a.msg, rejected) }):
			c.ack(&job{Delivery: Delivery{ID: a.msg.UUID}, arrived: a})
		}
	}
	if why != nil {
		c.opts.Logger.ErrorContext(ctx, "consumer: deliveries cannot be verified", "topic", unsure[0].topic, "message_id", unsure[0].msg.UUID, "deliveries", len(unsure), "error", sqlschema.Explain(why))
	}
	return jobs, unsure
}

// nackRest nacks what was neither acked nor left, also if a handler has ended the
// goroutine. A nack has no effect on what was acked.
func nackRest(all []arrived, left *[]arrived) {
	keep := map[*message.Message]bool{}
	for _, a := range *left {
		keep[a.msg] = true
	}
	for _, a := range all {
		if !keep[a.msg] {
			a.msg.Nack()
		}
	}
}

// settleDelivery acks j once it is dealt with, and in every other case gives it
// back.
func (c *Consumer) settleDelivery(ctx, work context.Context, j *job) {
	if c.insist(ctx, j.arrived, func() error { return c.handle(work, j) }) {
		c.ack(j)
	} else {
		j.arrived.msg.Nack()
	}
}

// ack acks jobs that are dealt with, and wakes the relay if one of them has
// emitted something.
func (c *Consumer) ack(jobs ...*job) {
	if failpoint.Hit("consumer/before-ack") != nil {
		return
	}
	wakes := false
	for _, j := range jobs {
		j.arrived.msg.Ack()
		wakes = wakes || j.wakes
		c.signals.settled.Send(j.ID)
	}
	if failpoint.Hit("consumer/after-ack") != nil {
		return
	}
	c.wakeRelay(wakes)
}

// tries is how often a is tried before it goes back to the broker. Another process may get
// at what this one cannot; what it has given back too is tried for half a minute while the
// database is away, or an outage would use up the broker's limit of deliveries.
func (a arrived) tries(err error) int {
	if a.msg.Metadata.Get(outbox.PropertyRedelivered) == "true" && (isUnavailable(err) || isNoLogin(err) || errors.Is(err, ErrVerifyLater)) {
		return redeliveredTries
	}
	return maxTries
}

// insist reports whether do, which deals with a, has succeeded. While the database
// is away it tries again here, where that costs the broker nothing; in the end
// it gives up, so that one message cannot hold its lane for ever.
func (c *Consumer) insist(ctx context.Context, a arrived, do func() error) bool {
	for try := 1; ; try++ {
		err := guard.Call(do) // of the pool's hooks: a step's functions are guarded each by itself
		if err == nil {
			return true
		}
		c.opts.Logger.ErrorContext(ctx, "consumer: delivery is not decided", "topic", a.topic, "message_id", a.msg.UUID, "try", try, "error", sqlschema.Explain(err))
		if try >= a.tries(err) || ctx.Err() != nil {
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
