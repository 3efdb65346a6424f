package goodhand

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Headers of a message.
const (
	headerKey       = "key"
	headerCausation = "causation_id"
)

// A Handler handles one delivery, whose key is that of its message.
type Handler func(ctx context.Context, key string, d *amqp.Delivery) error

// Consume handles the messages of queue on so many channels of conn until stop is called. Each channel has that
// prefetch, and handles one message at a time. If handle returns an error, the message is requeued and fail is called.
func Consume(
	ctx context.Context, conn *amqp.Connection, queue string, channels, prefetch int, handle Handler, fail func(error),
) (stop func() error, err error) {
	var (
		wg   sync.WaitGroup
		open []*amqp.Channel
	)
	stop = func() error {
		var faults []error
		for i, ch := range open {
			faults = append(faults, ch.Cancel(consumerTag(queue, i), false))
		}
		wg.Wait()
		for _, ch := range open {
			faults = append(faults, ch.Close())
		}
		return errors.Join(faults...)
	}
	for i := range channels {
		ch, err := conn.Channel()
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		open = append(open, ch)
		if err := ch.Qos(prefetch, 0, false); err != nil {
			return nil, errors.Join(err, stop())
		}
		deliveries, err := ch.ConsumeWithContext(context.WithoutCancel(ctx), queue, consumerTag(queue, i), false, false, false, false, nil)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		wg.Go(func() { handleDeliveries(ctx, deliveries, handle, fail) })
	}
	return stop, nil
}

func consumerTag(queue string, i int) string { return fmt.Sprintf("%s-%d", queue, i) }

// handleDeliveries handles deliveries until their channel closes.
func handleDeliveries(ctx context.Context, deliveries <-chan amqp.Delivery, handle Handler, fail func(error)) {
	for d := range deliveries {
		key, _ := d.Headers[headerKey].(string)
		err := handle(ctx, key, &d)
		if err != nil {
			err = errors.Join(err, d.Nack(false, true))
		} else {
			err = d.Ack(false)
		}
		if err != nil {
			fail(err)
		}
	}
}
