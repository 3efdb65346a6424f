package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/bench/internal/private"
)

const (
	rawPrefetch = 1000
	rawAcks     = 100 // messages that one ack is for
)

// A raw takes messages and acks them, without a database: what the broker and the
// client library can do.
type raw struct {
	*place
	clock *stopwatch // nil: nobody wants to know
}

func openRaw(_ context.Context, p *place) (way, error) { return &raw{place: p}, nil }

// clear and check have nothing to do.
func (*raw) clear(context.Context) error      { return nil }
func (*raw) check(context.Context, int) error { return nil }

func (r *raw) timed(clock *stopwatch) { r.clock = clock }

func (r *raw) start(ctx context.Context, seen *progress) (*running, error) {
	conn, err := r.queue.Broker.Dial()
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Qos(rawPrefetch, 0, false)
	}
	if err != nil {
		return nil, errors.Join(err, private.Hangup(conn))
	}
	deliveries, err := ch.ConsumeWithContext(ctx, r.queue.Name(), "", false, false, false, false, nil)
	if err != nil {
		return nil, errors.Join(err, private.Hangup(conn))
	}
	run := &running{failed: make(chan error, 1)}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.ackAll(deliveries, seen); err != nil {
			run.fail(err)
		}
	})
	run.stop = func() error {
		err := private.Hangup(conn) // which ends the deliveries
		wg.Wait()
		return err
	}
	return run, nil
}

// ackAll acks the messages that are wanted, many at once.
func (r *raw) ackAll(deliveries <-chan amqp.Delivery, seen *progress) error {
	n := int64(0)
	for d := range deliveries {
		if r.clock != nil {
			r.clock.note(&r.clock.delivered, d.MessageId)
		}
		if n++; n%rawAcks == 0 || n == seen.want {
			if err := d.Ack(true); err != nil {
				return err
			}
		}
		seen.enter()
	}
	return nil
}

func (*raw) String() string {
	return fmt.Sprintf("amqp091-go, prefetch %d, one ack for %d messages, no database", rawPrefetch, rawAcks)
}
