package rabbitmq

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"strings"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/guard"
)

// connect opens the next epoch.
func (s *subscription) connect(ctx context.Context) (*epoch, error) {
	var e *epoch
	prefetch := s.prefetch()
	err := s.subscriber.persist(ctx, s.link, s.topic, func(c *conn) (err error) {
		e, err = s.consume(ctx, c, prefetch)
		return err
	})
	s.subscriber.signals.consumes.Send(prefetch)
	return e, err
}

// consume opens a channel that receives the messages of the topic, prefetch of them ahead of
// their acks.
func (s *subscription) consume(ctx context.Context, c *conn, prefetch int) (*epoch, error) {
	open := func() (*epoch, error) {
		ch, err := c.amqp.Channel()
		if err != nil {
			return nil, err
		}
		closes := ch.NotifyClose(make(chan *amqp.Error, 1)) // first, or the cause could be missed
		cancels := ch.NotifyCancel(make(chan string, 1))
		tag := "sagamill-" + rand.Text()
		var deliveries <-chan amqp.Delivery
		err = guard.Apart(func() (err error) {
			deliveries, err = s.startConsumer(ch, tag, prefetch)
			return err
		})
		if err != nil {
			ch.Close()
			return nil, err
		}
		acks := newAcks(ch, s.subscriber.ackLimit(prefetch), s.subscriber.ackDelay)
		e := &epoch{conn: c, amqp: ch, tag: tag, prefetch: prefetch, deliveries: deliveries, acks: acks, cancels: cancels, gone: make(chan struct{})}
		e.start(closes)
		return e, nil
	}
	return call(ctx, c, open, func(e *epoch) { c.closeChannel(e.amqp) })
}

func (s *subscription) startConsumer(ch *amqp.Channel, tag string, prefetch int) (<-chan amqp.Delivery, error) {
	cfg := s.subscriber.cfg
	if err := buildTopology(ch, cfg, s.topic); err != nil {
		return nil, explainStream(err)
	}
	s.declared.Do(func() { close(s.isDeclared) })
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return nil, fmt.Errorf("set prefetch: %w", err)
	}
	queue := cfg.Queue.GenerateName(s.topic)
	deliveries, err := ch.Consume(queue, tag, false, cfg.Consume.Exclusive, cfg.Consume.NoLocal, false, consumeArguments(cfg))
	if err != nil {
		return nil, explainStream(fmt.Errorf("consume from %s: %w", queue, err))
	}
	return deliveries, nil
}

// priorityArgument is a consumer argument that the broker refuses for streams.
const priorityArgument = "x-priority"

// consumeArguments are those of cfg, and the default priority by name. Without that the broker
// would let a stream be consumed like a queue: from its end, and nothing that is given back
// or left comes again.
func consumeArguments(cfg wamqp.Config) amqp.Table {
	arguments := amqp.Table{priorityArgument: int32(0)}
	maps.Copy(arguments, cfg.Consume.Arguments)
	return arguments
}

// streamType is the value of x-queue-type for streams.
const streamType = "stream"

// declaresStream reports whether cfg would declare its queues as streams.
func declaresStream(cfg wamqp.Config) bool {
	return cfg.Queue.Arguments[amqp.QueueTypeArg] == streamType
}

// explainStream returns err as an [ErrConfig] if it is the broker's refusal to treat a stream
// as a queue. The texts are those with which it refuses to declare it as a queue, and to
// consume from it with a priority.
func explainStream(err error) error {
	if !isCode(err, amqp.PreconditionFailed) {
		return err
	}
	for _, words := range []string{"current is 'stream'", "current is the value 'stream'", "queue type rabbit_stream_queue"} {
		if strings.Contains(err.Error(), words) {
			return fmt.Errorf("%w: the queue is a stream, which gives nothing back that was not acked; delete it, or use another name, so that a quorum or classic queue is declared: %w", ErrConfig, err)
		}
	}
	return err
}
