package rabbitmq

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/guard"
)

// openConsumerChannel opens the next consumer channel.
func (s *subscription) openConsumerChannel(ctx context.Context) (*consumerChannel, error) {
	var cc *consumerChannel
	prefetch := s.prefetchCount()
	err := s.subscriber.retryUntilDone(ctx, s.link, s.topic, func(c *conn) (err error) {
		cc, err = s.consumeOn(ctx, c, prefetch)
		return err
	})
	s.subscriber.signals.consumes.Send(prefetch)
	return cc, err
}

// consumeOn opens a channel that receives the messages of the topic, prefetch of them ahead of
// their acks.
func (s *subscription) consumeOn(ctx context.Context, c *conn, prefetch int) (*consumerChannel, error) {
	open := func() (*consumerChannel, error) {
		ch, err := c.amqp.Channel()
		if err != nil {
			return nil, err
		}
		closes := ch.NotifyClose(make(chan *amqp.Error, 1)) // first, or the cause could be missed
		cancels := ch.NotifyCancel(make(chan string, 1))
		tag := "sagamill-" + rand.Text()
		var deliveries <-chan amqp.Delivery
		err = guard.Apart(func() (err error) {
			deliveries, err = s.startConsumer(ctx, ch, tag, prefetch)
			return err
		})
		if err != nil {
			ch.Close()
			return nil, err
		}
		acks := newAcks(ch, s.subscriber.ackLimit(prefetch), s.subscriber.ackDelay)
		cc := &consumerChannel{conn: c, amqp: ch, tag: tag, prefetch: prefetch, deliveries: deliveries, acks: acks, cancels: cancels, gone: make(chan struct{})}
		cc.watchChannel(closes)
		return cc, nil
	}
	undo := func(cc *consumerChannel) { c.closeChannel(cc.amqp) }
	cc, err := requestOnConn(ctx, c, open, undo)
	if errors.Is(err, errDeadHidden) {
		s.subscriber.warnHidden(ctx, err)
		return requestOnConn(ctx, c, open, undo)
	}
	return cc, err
}

// startConsumer consumes from the topic's queue. After a lost connection it declares the queue only if it is missing:
// while a node stands still or is cut off, the others may deliver messages, but answer no declaration.
func (s *subscription) startConsumer(ctx context.Context, ch *amqp.Channel, tag string, prefetch int) (<-chan amqp.Delivery, error) {
	cfg := s.subscriber.cfg
	if !s.resumes {
		if err := buildTopology(ch, cfg, s.topic); err != nil {
			return nil, explainStream(err)
		}
		s.declared.Do(func() { close(s.isDeclared) })
		s.subscriber.reportDead(ctx, s.topic, s.subscriber.countDead(ch, s.topic))
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return nil, fmt.Errorf("set prefetch: %w", err)
	}
	queue := cfg.Queue.GenerateName(s.topic)
	deliveries, err := ch.Consume(queue, tag, false, cfg.Consume.Exclusive, cfg.Consume.NoLocal, false, consumeArguments(cfg))
	if err != nil {
		s.resumes = s.resumes && !hasCode(err, amqp.NotFound)
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
	if !hasCode(err, amqp.PreconditionFailed) {
		return err
	}
	for _, words := range []string{"current is 'stream'", "current is the value 'stream'", "queue type rabbit_stream_queue"} {
		if strings.Contains(err.Error(), words) {
			return fmt.Errorf("%w: the queue is a stream, which gives nothing back that was not acked; delete it, or use another name, so that a quorum or classic queue is declared: %w", ErrConfig, err)
		}
	}
	return err
}

// A consumerChannel is one AMQP channel with one consumer. Its deliveries are settled on it
// or not at all.
type consumerChannel struct {
	conn       *conn
	amqp       *amqp.Channel
	tag        string
	prefetch   int
	deliveries <-chan amqp.Delivery
	acks       *acks
	gone       chan struct{}   // closed once the channel is
	cause      *amqp.Error     // why, if the broker said so; valid once gone is closed
	paused     <-chan struct{} // closed once the topic is paused; set before anything is received
	cancels    <-chan string   // has an element once the broker has cancelled the consumer, before deliveries ends
	inHand     sync.WaitGroup
}

// watchChannel starts the goroutines of cc, which end with the channel.
func (cc *consumerChannel) watchChannel(closes <-chan *amqp.Error) {
	cc.conn.work.Go(func() {
		cc.cause = <-closes
		close(cc.gone)
	})
	cc.conn.work.Go(func() { cc.acks.sendAcksUntil(cc.gone) })
}

// noteEnd is called once deliveries is closed. If that is so because the channel is, it
// waits for the cause: the client has told it before, but to a goroutine that may not
// have run yet.
func (cc *consumerChannel) noteEnd() {
	if cc.amqp.IsClosed() {
		<-cc.gone
	}
}

// isOver reports whether the channel of cc is gone.
func (cc *consumerChannel) isOver() bool {
	select {
	case <-cc.gone:
		return true
	default:
		return false
	}
}

// isPaused reports whether the topic was paused while cc was consumed from.
func (cc *consumerChannel) isPaused() bool {
	select {
	case <-cc.paused:
		return true
	default:
		return false
	}
}

// endedUnreadable reports whether the client itself ended cc because it could not
// read what the broker sent.
func (cc *consumerChannel) endedUnreadable() bool {
	select {
	case <-cc.gone:
		return cc.cause != nil && !cc.cause.Server &&
			(strings.Contains(cc.cause.Reason, amqp.ErrSyntax.Reason) || strings.Contains(cc.cause.Reason, amqp.ErrFrame.Reason))
	default:
		return false
	}
}

// wasCancelled reports, once, whether the broker has ended the consumer and not the channel,
// as it does when the queue is deleted.
func (cc *consumerChannel) wasCancelled() bool {
	select {
	case _, told := <-cc.cancels:
		return told
	default:
		return false
	}
}

func (cc *consumerChannel) endReason() string {
	select {
	case <-cc.gone:
		if cc.cause != nil {
			return cc.cause.Error()
		}
		return "channel closed"
	default:
		return "consumer cancelled"
	}
}

// holdBefore waits for about delay, but not on a channel that is gone or when it is
// time to stop.
func (cc *consumerChannel) holdBefore(intake context.Context, delay time.Duration) {
	timer := time.NewTimer(delay/2 + mathrand.N(delay))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-intake.Done():
	case <-cc.gone:
	}
}

// cancelAndDrain stops the consumer and returns the tags of what was sent before and not
// taken. It takes the deliveries while it waits, or the client would keep the payloads of all.
// It reports false if the broker did not answer.
func (cc *consumerChannel) cancelAndDrain() (sent []uint64, ok bool) {
	cancelled := make(chan bool, 1)
	cc.conn.work.Go(func() { cancelled <- cc.cancelConsumer() })
	for deliveries := cc.deliveries; ; {
		select {
		case d, more := <-deliveries:
			if !more {
				return sent, <-cancelled
			}
			sent = append(sent, d.DeliveryTag)
		case ok = <-cancelled:
			if !ok {
				return nil, false
			}
			for d := range deliveries {
				sent = append(sent, d.DeliveryTag)
			}
			return sent, true
		}
	}
}

// cancelConsumer stops the consumer. It reports whether the broker said so, and then
// deliveries ends after what was sent before.
func (cc *consumerChannel) cancelConsumer() bool {
	_, err := requestOnConn(context.Background(), cc.conn, func() (any, error) { return nil, cc.amqp.Cancel(cc.tag, false) }, nil)
	return err == nil
}

// closeChannel tells the broker what became of the deliveries and closes the channel,
// which gives back the others, in the order in which they came. If the broker does not
// answer in time, the connection is dropped, which does the same.
func (cc *consumerChannel) closeChannel() {
	defer time.AfterFunc(cc.conn.limits.RequestTimeout, cc.conn.dropConnection).Stop()
	cc.acks.flushAcks()
	cc.conn.closeChannel(cc.amqp)
	<-cc.gone
}
