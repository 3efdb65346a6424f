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

// A raw takes messages and acks them, without a database. It shows the limit of the broker and the client
// library.
type raw struct {
	*place
	clock *stopwatch // nil: times are not measured
}

func openRawWay(_ context.Context, p *place) (way, error) { return &raw{place: p}, nil }

// clearEffects and checkEffects have nothing to do.
func (*raw) clearEffects(context.Context) error      { return nil }
func (*raw) checkEffects(context.Context, int) error { return nil }

func (r *raw) timeMessages(clock *stopwatch) { r.clock = clock }

func (r *raw) startConsuming(ctx context.Context, seen *progress) (*running, error) {
	conn, err := r.queue.Broker.DialConnection()
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Qos(rawPrefetch, 0, false)
	}
	if err != nil {
		return nil, errors.Join(err, private.CloseConnection(conn))
	}
	deliveries, err := ch.ConsumeWithContext(ctx, r.queue.QueueName(), "", false, false, false, false, nil)
	if err != nil {
		return nil, errors.Join(err, private.CloseConnection(conn))
	}
	run := &running{failed: make(chan error, 1)}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.ackDeliveries(deliveries, seen); err != nil {
			run.reportFailure(err)
		}
	})
	run.stop = func() error {
		err := private.CloseConnection(conn) // closing it ends the deliveries
		wg.Wait()
		return err
	}
	return run, nil
}

// ackDeliveries acks the messages that are wanted, many at once.
func (r *raw) ackDeliveries(deliveries <-chan amqp.Delivery, seen *progress) error {
	n := int64(0)
	for d := range deliveries {
		if r.clock != nil {
			r.clock.noteElapsed(&r.clock.delivered, d.MessageId)
		}
		if n++; n%rawAcks == 0 || n == seen.want {
			if err := d.Ack(true); err != nil {
				return err
			}
		}
		seen.enterHandler()
	}
	return nil
}

func (*raw) String() string {
	return fmt.Sprintf("amqp091-go, prefetch %d, one ack for %d messages, no database", rawPrefetch, rawAcks)
}
