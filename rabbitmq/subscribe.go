package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/testsignal"
)

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// defaultPrefetchBytes is the default of [SubscriberOptions].PrefetchBytes.
const defaultPrefetchBytes = 64 << 20

// initializeTimeout bounds SubscribeInitialize, which has no context.
const initializeTimeout = 30 * time.Second

// SubscriberOptions are the limits of a [Subscriber]. The zero value means the
// defaults.
type SubscriberOptions struct {
	// Connection has the options of each connection of the Subscriber to a broker of the Config.
	Connection ConnectionOptions
	// Prefetch is how many unacked messages the broker sends to a subscription; the subscription may hand over all
	// these messages to its caller at the same time. The Config's Qos is not used: its usual value of 1 means one
	// message at a time. Batches of a consumer are filled from these. Default: 256.
	Prefetch int
	// PrefetchBytes limits the sum of the payload bytes of the messages that one subscription holds in this process; the
	// last of these messages may exceed the limit. Prefetch counts messages: 256 of 8 MiB are 2 GiB.
	//
	// The broker has no such limit. At the bound, messages that are not in hand go back to the
	// broker, and the subscription is renewed with a smaller Prefetch: PrefetchBytes divided by
	// the largest payload seen lately, at least 1. A burst of large messages thus costs one
	// renewal, for each time that they get larger again, and up to Prefetch redeliveries. During
	// the renewal the AMQP client receives the messages that the broker has sent already, and
	// drops them. With a Key the renewal waits until nothing is in hand. When the messages are
	// small again, after some hundreds of them, the subscription is renewed with a larger
	// Prefetch. Default: 64 MiB.
	PrefetchBytes int
	// Key returns the ordering key of a message; messages with the same key are
	// handed over one at a time and in order: see [Subscriber.Subscribe]. It is
	// called once for each delivery, before the handler sees the message, by one
	// goroutine for each subscription; it must not wait for anything. A message
	// with the key "" is in no order with any other; a panic, which is logged, counts as
	// that key. [outbox.SagaKey] is the one
	// for messages that an outbox orders by saga, as it does by default.
	// Default: no message has a key.
	Key func(*message.Message) string
	// NackDelay is the average time for which the subscription holds a nacked message before the message can be
	// delivered again; each time is between 0.5 and 1.5 times NackDelay. Without a delay, the broker redelivers at
	// once, thousands of times a second. Default: 1 s.
	NackDelay time.Duration
	// DrainTimeout is how long, after the end of a subscription, its caller can still ack the messages that the
	// subscription has handed over. Default: 30 s.
	DrainTimeout time.Duration
	// TopologyInterval is how often a subscription declares its exchange, queue and binding again,
	// in case somebody has deleted them. A subscription
	// that was idle for so long is renewed. Default: 30 s.
	TopologyInterval time.Duration
	// Logger gets a message for each lost and each regained subscription. Default: [slog.Default].
	Logger *slog.Logger
}

func (o SubscriberOptions) withDefaults() SubscriberOptions {
	o.Prefetch = cmp.Or(o.Prefetch, 256)
	o.PrefetchBytes = cmp.Or(o.PrefetchBytes, defaultPrefetchBytes)
	o.NackDelay = cmp.Or(o.NackDelay, time.Second)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)
	o.TopologyInterval = cmp.Or(o.TopologyInterval, 30*time.Second)
	o.Logger = guard.Logger(cmp.Or(o.Logger, slog.Default()))
	return o
}

// A Subscriber consumes from RabbitMQ, on a connection for each subscription, and one for
// [Subscriber.SubscribeInitialize] where that is called. A queue that does not answer, or a
// message that closes the connection, thereby costs its own topic only. Its methods may be
// called concurrently.
type Subscriber struct {
	cfg  wamqp.Config
	opts SubscriberOptions
	link *link // for what no subscription does

	ackLimit func(prefetch int) int
	ackDelay time.Duration

	mu     sync.Mutex
	closed bool
	topics map[string]*topicState // that there are subscriptions to, or were
	calls  sync.WaitGroup         // subscriptions and initializations
	done   chan struct{}          // closed when Close is through

	signals struct {
		full     testsignal.Signal[string] // topic with Prefetch messages in hand
		held     testsignal.Signal[string] // UUID of a message whose nack is held
		isolated testsignal.Signal[string] // topic that goes on with one message at a time
		consumes testsignal.Signal[int]    // prefetch with which a topic is consumed
		received testsignal.Signal[int]    // bytes of payload that are here after a delivery
	}
}

// NewSubscriber returns a Subscriber of the queues cfg names. It connects with
// the first subscription. A nil opts means the defaults. An error is an
// [ErrConfig].
func NewSubscriber(cfg wamqp.Config, opts *SubscriberOptions) (*Subscriber, error) {
	if opts == nil {
		opts = &SubscriberOptions{}
	}
	cfg, err := normalizeConfig(cfg)
	switch {
	case err != nil:
		return nil, err
	case cfg.Queue.GenerateName == nil:
		return nil, fmt.Errorf("%w: Queue.GenerateName is missing", ErrConfig)
	case opts.Prefetch < 0 || opts.Prefetch > 65535:
		return nil, fmt.Errorf("%w: SubscriberOptions.Prefetch must be at most 65535", ErrConfig)
	case opts.PrefetchBytes < 0:
		return nil, fmt.Errorf("%w: SubscriberOptions.PrefetchBytes must not be negative", ErrConfig)
	}
	s := &Subscriber{cfg: cfg, opts: opts.withDefaults(), ackLimit: ackLimit, ackDelay: ackDelay, topics: map[string]*topicState{}, done: make(chan struct{})}
	s.link = newLink(cfg, s.opts.Connection, s.opts.Logger)
	return s, nil
}

// Subscribe declares the topology of topic, and returns the channel on which its messages arrive.
// It waits for a broker that is away until ctx ends. It returns an error at once if the broker
// refuses; a wrong password takes as long as in [DeclareTopology]. A queue that is a stream is
// refused with an [ErrConfig].
//
// If the queue is declared and cannot be consumed within 3 s, as a quorum queue without a
// majority, Subscribe returns without an error. The subscription begins as soon as the queue
// answers; until then [Subscriber.Subscription] reports it as not served, and refusals are
// logged. RabbitMQ closes the connection of each try after 9 s or more, with INTERNAL_ERROR.
//
// Up to Prefetch messages are handed over without waiting for the ack of any.
// Each is acked or nacked for itself, in any order. A nacked message comes
// again after NackDelay. A message may arrive more than once, and then has the
// metadata redelivered, also on its first arrival here if another consumer had
// it before.
//
// When ctx ends, or Close is called, no further messages are taken. Those that were not handed
// over go back to the broker, and the returned channel is closed. Messages in hand can still be
// acked: the subscription ends when all are, or after DrainTimeout; then the rest goes back. If
// the process dies, the broker gives back everything not acked.
//
// Acks are collected for 20 ms at most and sent together, at once where they are a quarter of the
// Prefetch or 64. If the process dies, or the connection is lost, meanwhile, those messages are
// delivered again, like the messages in hand. No more than Prefetch messages are in
// hand or waiting. After a lost channel the AMQP client may hold as many besides,
// while their old copies are in hand.
//
// With a [SubscriberOptions].Key, messages with the same key are handed over in the order of the broker, each
// after the one before it was acked. Other keys do not wait, unless Prefetch messages with one key come in a
// row.
//
// The Subscriber itself hands a nacked message over again, after NackDelay and before the others of its key.
// No other consumer gets it, and the broker does not count it as a delivery: the handler has to limit the
// attempts. With the Config's Consume.NoRequeueOnNack the message is dead-lettered and the next one handed
// over.
//
// When the channel is lost, waiting messages are dropped. They are redelivered, like those in hand; an old
// copy in hand holds its key until it is settled. At the end of the subscription, waiting messages go back to
// the broker when all messages in hand are settled. So each key's messages are acked for the first time in
// their order, also after nacks and lost channels.
//
// That holds for one consumer. Where there are several, subscriptions that follow
// each other at once included, set [ConfigOptions].SingleActiveConsumer, with
// which it holds over all of them. Without it the
// broker delivers to one what another has not given back yet, as it may after a
// connection that died without a word.
//
// A message's context has the values of ctx but not its end: it ends when the
// message is settled or DrainTimeout is over. It does not end when the
// connection is lost, although the message will then be delivered again while
// this copy may still be at work, and its ack has no effect.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if !s.beginUse() {
		return nil, ErrClosed
	}
	intake, cancel := s.link.boundDial(ctx)
	sub := s.newSubscription(topic)
	began, left := make(chan error), make(chan struct{})
	go func() {
		defer s.calls.Done()
		defer cancel()
		sub.startFirstChannel(intake, context.WithoutCancel(ctx), began, left)
	}()
	if err := sub.awaitStart(ctx, began, left); err != nil {
		return nil, fmt.Errorf("rabbitmq: subscribe to %s: %w", topic, err)
	}
	return sub.out, nil
}

// SubscribeInitialize declares what topic needs, so that messages published
// from now on are kept for this service. It waits up to 30 s for a broker that
// is away.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	ctx, cancel := context.WithTimeout(context.Background(), initializeTimeout)
	defer cancel()
	return s.declareQueue(ctx, topic)
}

func (s *Subscriber) declareQueue(ctx context.Context, topic string) error {
	if !s.beginUse() {
		return ErrClosed
	}
	defer s.calls.Done()
	ctx, cancel := s.link.boundDial(ctx)
	defer cancel()
	err := s.retryUntilDone(ctx, s.link, topic, func(c *conn) error {
		dead, err := s.declareTopic(ctx, c, topic)
		s.reportDead(ctx, topic, dead)
		return err
	})
	if err != nil {
		return fmt.Errorf("rabbitmq: initialize %s: %w", topic, err)
	}
	return nil
}

// beginUse registers a use of the connection, to be ended with calls.Done. It
// reports whether the Subscriber is open.
func (s *Subscriber) beginUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.calls.Add(1)
	}
	return !s.closed
}

// retryUntilDone runs f on a connection until it succeeds, ctx ends, or the error is
// one that no retry can mend. If ctx ends, the error says what went wrong before:
// that an attempt was cut short says nothing.
func (s *Subscriber) retryUntilDone(ctx context.Context, l *link, topic string, f func(*conn) error) error {
	var last error
	for n, cut := 1, 0; ; n++ {
		c, err := l.getConnection(ctx)
		if err == nil {
			err = f(c)
		}
		if cut++; !isCutAtLogin(err) {
			cut = 0
		}
		if err == nil || isPermanent(err) && (cut == 0 || cut == loginTries) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), cmp.Or(last, err))
		}
		last = err
		s.opts.Logger.WarnContext(ctx, "rabbitmq: cannot reach topic, trying again", "topic", topic, "attempt", n, "error", err)
		if backoff.Sleep(ctx, retryPause(n)) != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// declareTopic declares the topology of topic on a new channel, which a refusal closes. It returns how many messages are
// in the topic's dead-letter queue.
func (s *Subscriber) declareTopic(ctx context.Context, c *conn, topic string) (dead int, err error) {
	return requestOnChannel(ctx, c, func(ch *amqp.Channel) (int, error) {
		err := buildTopology(ch, s.cfg, topic)
		if errors.Is(err, errDeadHidden) {
			s.warnHidden(ctx, err)
			return 0, nil
		}
		if err != nil {
			return 0, explainStream(err)
		}
		return s.countDead(ch, topic), nil
	})
}

// warnHidden says that the user has the permissions that were enough before RabbitMQ 4.2.6.
func (s *Subscriber) warnHidden(ctx context.Context, err error) {
	s.opts.Logger.WarnContext(ctx, "rabbitmq: the user may not look for dead-letter queues, so the log does not show messages in them: set the permissions that sagamill broker permissions prints, and start the service again", "error", err)
}

// countDead returns how many messages are in the topic's dead-letter queue, 0 if that cannot be seen.
func (s *Subscriber) countDead(ch *amqp.Channel, topic string) int {
	if builder, ours := s.cfg.TopologyBuilder.(*quorumTopology); !ours || builder.hidden.Load() {
		return 0
	}
	q, _ := ch.QueueDeclarePassive(s.cfg.Queue.GenerateName(topic)+deadSuffix, true, false, false, false, nil)
	return q.Messages
}

// reportDead logs an error if something is in the topic's dead-letter queue: nothing consumes that, and a person has to
// look.
func (s *Subscriber) reportDead(ctx context.Context, topic string, dead int) {
	if dead > 0 {
		s.opts.Logger.ErrorContext(ctx, "rabbitmq: messages that no consumer could settle are in the dead-letter queue", "queue", s.cfg.Queue.GenerateName(topic)+deadSuffix, "messages", dead)
	}
}

// Close ends every subscription as the end of its context would, waits for
// them, at most DrainTimeout and the connection's timeouts, and closes the
// connection. It returns nil, also if the broker is away, and no goroutine is
// left. Calling it again, or concurrently, waits for the same end.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		s.link.end(ErrClosed)
		s.calls.Wait()
		s.link.closeLink()
		close(s.done)
	}
	<-s.done
	return nil
}

// A topicState is how the broker serves the subscriptions to a topic.
type topicState struct {
	pause     *pause
	consumers atomic.Int64
	cancelled atomic.Uint64
	channel   atomic.Pointer[consumerChannel] // the last one, for tests
}

func (s *Subscriber) stateOf(topic string) *topicState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics[topic] == nil {
		s.topics[topic] = &topicState{pause: newPause()}
	}
	return s.topics[topic]
}

// Subscription reports whether a subscription to topic is served, and how often the broker
// has cancelled one whose queue was then not found: it was deleted, with what it held. A
// subscription is not served while the broker is away, while its queue is missing, with
// [ConfigOptions].Passive, while the topic is paused, and for a moment when it is renewed. One whose quorum queue loses its
// majority counts as served until it has been idle for TopologyInterval. For a topic
// that never had a subscription it returns false and 0.
//
// A queue that is deleted and declared again at once cancels nothing in some versions of
// RabbitMQ: the subscription is renewed when it has been idle for TopologyInterval, and
// nothing tells of it.
func (s *Subscriber) Subscription(topic string) (served bool, cancelled uint64) {
	s.mu.Lock()
	of := s.topics[topic]
	s.mu.Unlock()
	if of == nil {
		return false, 0
	}
	return of.consumers.Load() > 0, of.cancelled.Load()
}

// MarksRedelivered reports that redeliveries carry the metadata redelivered.
func (s *Subscriber) MarksRedelivered() bool { return true }
