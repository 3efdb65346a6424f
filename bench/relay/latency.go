package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/bench/internal/target"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	latencyWarmUp  = 20 // samples that do not count
	latencySamples = 300
	latencyLimit   = 10 * time.Second // for one message
	latencyMinGap  = 2 * time.Millisecond
	latencyMaxGap  = 8 * time.Millisecond

	p50Goal, p99Goal = 3, 10 // milliseconds
)

// latencies measures the time from a commit to the arrival of its message, one message at a time. The goals
// apply to the native disk: on the slow one the relay may still be busy with the previous message.
func (b *bench) latencies(ctx context.Context) ([]target.Target, error) {
	var targets []target.Target
	for _, s := range b.servers {
		const name = "ours-log"
		sub, o, err := b.openOwnSubject(ctx, s, name, "latency")
		if err != nil {
			return nil, err
		}
		if sub == nil {
			continue
		}
		took, err := measureArrivals(ctx, o)
		if err := errors.Join(err, sub.closeSubject()); err != nil {
			return nil, fmt.Errorf("slot %s: %w", name, err)
		}
		p50, p99 := target.Percentile(took, 0.5), target.Percentile(took, 0.99)
		fmt.Printf("latency %-6s %-10s p50 %.2f ms, p99 %.2f ms, worst %.2f ms\n",
			s.Name, name, target.Milliseconds(p50), target.Milliseconds(p99), target.Milliseconds(target.Percentile(took, 1)))
		if s == b.servers[0] {
			targets = append(targets,
				target.Target{Name: "latency-p50-ms-" + name, Value: target.Milliseconds(p50), Goal: p50Goal, AtMost: true},
				target.Target{Name: "latency-p99-ms-" + name, Value: target.Milliseconds(p99), Goal: p99Goal, AtMost: true})
		}
	}
	return targets, nil
}

// measureArrivals returns the time of each sampled message.
func measureArrivals(ctx context.Context, o *ours) (took []time.Duration, err error) {
	sub, err := rabbitmq.NewSubscriber(o.queue.Config, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sub.Close()) }()
	arriving, err := sub.Subscribe(ctx, o.queue.Topic)
	if err != nil {
		return nil, err
	}
	r, stop, err := o.startRelay(ctx, o.publisher)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for i := range latencyWarmUp + latencySamples {
		d, err := o.sampleLatency(ctx, r, arriving)
		if err != nil {
			return nil, err
		}
		if i >= latencyWarmUp {
			took = append(took, d)
		}
		if err := backoff.Sleep(ctx, latencyMinGap+rand.N(latencyMaxGap-latencyMinGap)); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// sampleLatency commits one message and waits for it.
func (o *ours) sampleLatency(ctx context.Context, r *outbox.Relay, arriving <-chan *message.Message) (time.Duration, error) {
	key := fmt.Sprintf("order-%d", order.Add(1))
	err := pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error { return o.writer.Write(ctx, tx, o.outboxMessage(key)) })
	if err != nil {
		return 0, err
	}
	committed := time.Now()
	r.Wake()
	late := time.After(latencyLimit)
	for {
		select {
		case msg, ok := <-arriving:
			if !ok {
				return 0, errors.New("the subscription has ended")
			}
			took := time.Since(committed)
			msg.Ack()
			if strings.HasPrefix(msg.Metadata.Get(outbox.HeaderKey), key+":") {
				return took, nil
			}
		case <-late:
			return 0, fmt.Errorf("message %s has not arrived within %v", key, latencyLimit)
		}
	}
}
