package byhand

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Metadata that carry the message properties of these names.
const (
	metaID          = "message_id"
	metaCorrelation = "correlation_id"
)

// SubscriberConfig returns cfg with watermill-amqp's own marshaler. That marshaler drops properties that are
// not headers, so they are converted to headers and back.
func SubscriberConfig(cfg wamqp.Config, prefetch int) wamqp.Config {
	cfg.Consume.Qos.PrefetchCount = prefetch
	cfg.Marshaler = wamqp.DefaultMarshaler{
		PreprocessDelivery: func(d amqp.Delivery) amqp.Delivery {
			d.Headers[metaID], d.Headers[metaCorrelation] = d.MessageId, d.CorrelationId
			return d
		},
		PostprocessPublishing: func(p amqp.Publishing) amqp.Publishing {
			p.MessageId, _ = p.Headers[metaID].(string)
			p.CorrelationId, _ = p.Headers[metaCorrelation].(string)
			return p
		},
	}
	return cfg
}

// Subscribe opens subscriptions to topic until stop is called. Each has a separate connection and handles one
// message at a time. If handle returns an error, the message is requeued and fail is called. Subscriptions end
// with their context, because Close may requeue a message that was just acked.
func Subscribe(
	ctx context.Context, cfg wamqp.Config, topic string, subscriptions int,
	handle func(context.Context, *message.Message) error, fail func(error),
) (stop func() error, err error) {
	var (
		wg             sync.WaitGroup
		subs           []*wamqp.Subscriber
		intake, cancel = context.WithCancel(ctx)
	)
	stop = func() error {
		cancel()
		wg.Wait()
		var faults []error
		for _, sub := range subs {
			faults = append(faults, sub.Close())
		}
		return errors.Join(faults...)
	}
	for range subscriptions {
		sub, err := wamqp.NewSubscriber(cfg, watermill.NopLogger{})
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		subs = append(subs, sub)
		messages, err := sub.Subscribe(intake, topic)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		wg.Go(func() {
			for msg := range messages {
				if err := handle(ctx, msg); err != nil {
					msg.Nack()
					fail(err)
					continue
				}
				msg.Ack()
			}
		})
	}
	return stop, nil
}
