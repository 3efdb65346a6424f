// Package inproc is a message broker within the process: for examples, for tests, and for services that all
// live in one process and need no separate broker.
//
// It stores nothing, so it acks through: a message is published once a handler of every service subscribed to
// its topic has acked it. If the process dies, its messages in hand were not acknowledged to the publisher,
// and the outbox publishes them again.
//
// Each service has its copy of every message of the topics that it subscribed to, and its subscriptions share
// them. The ordering identity of a message is its scope and its key without the step. Messages with the same
// identity are handled one after the other, in the order of publication. All others are handled concurrently.
//
// Watermill's gochannel does not fit: it has no services that share a queue, and it redelivers a nacked
// message at once, for ever. It also reports success to the publisher when a topic has no subscriber or the
// channel is closed.
package inproc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

var (
	_ outbox.Publisher  = (*Broker)(nil)
	_ message.Publisher = (*Broker)(nil)
)

var (
	// ErrUnroutable reports a message to a topic that no service subscribed
	// to. It is an [outbox.ErrRefused].
	ErrUnroutable = fmt.Errorf("inproc: no service is subscribed: %w", outbox.ErrRefused)
	// ErrUnacked reports that a message was not acked within AckTimeout. A handler may have run, or may still
	// run.
	ErrUnacked = errors.New("inproc: message not acked in time")
	// ErrClosed reports a use after Close.
	ErrClosed = errors.New("inproc: closed")
)

// Options are the limits of a [Broker]. The zero value means the defaults.
type Options struct {
	// Prefetch is the largest number of messages that a subscription has handed over to its caller, and that are not
	// yet acked. Default: 64.
	Prefetch int
	// NackDelay is how long the Broker holds a nacked message before it delivers the message
	// again. Default: 100 ms.
	NackDelay time.Duration
	// DrainTimeout is how long, after the end of a subscription, its caller can still ack the messages that the
	// subscription has handed over. Default: 30 s.
	DrainTimeout time.Duration
	// AckTimeout limits how long PublishBatch waits for the acks of a batch. Default: 1 min.
	AckTimeout time.Duration
}

func (o Options) withDefaults() Options {
	o.Prefetch = cmp.Or(o.Prefetch, 64)
	o.NackDelay = cmp.Or(o.NackDelay, 100*time.Millisecond)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)
	o.AckTimeout = cmp.Or(o.AckTimeout, time.Minute)
	return o
}

// A Broker passes messages from publishers to the subscribers it hands out. It
// is itself the publisher. Its methods may be called concurrently.
type Broker struct {
	opts Options

	mu          sync.Mutex
	topics      map[string]map[string]*queue // by topic and service
	subscribers []*Subscriber
	closing     bool

	closed chan struct{} // closed at the end of Close
}

// New returns a Broker. It starts nothing. A nil opts means the defaults.
func New(opts *Options) *Broker {
	if opts == nil {
		opts = &Options{}
	}
	return &Broker{opts: opts.withDefaults(), topics: make(map[string]map[string]*queue), closed: make(chan struct{})}
}

// A parcel is a published message and the services that have not acked it.
type parcel struct {
	left      atomic.Int32
	acked     chan struct{} // closed when left is 0
	withdrawn atomic.Bool   // the publisher has stopped waiting
}

func (p *parcel) confirmParcel() {
	if p.left.Add(-1) == 0 {
		close(p.acked)
	}
}

// PublishBatch hands batch to every service subscribed to its topics. It returns nil results when all
// services have acked all messages. It returns earlier if ctx ends, AckTimeout is over or the Broker is
// closed. Then each message that a service has not acked has an error, and is withdrawn from services that
// have not got it. A message without a service is an [ErrUnroutable].
func (b *Broker) PublishBatch(ctx context.Context, batch []outbox.Publication) []error {
	results := make([]error, len(batch))
	parcels := make([]*parcel, len(batch))
	for i, publication := range batch {
		parcels[i], results[i] = b.postPublication(publication)
	}
	timeout := time.NewTimer(b.opts.AckTimeout)
	defer timeout.Stop()
	var late error
	for i, p := range parcels {
		if p == nil {
			continue
		}
		if late == nil {
			late = b.awaitConfirmed(ctx, p, timeout.C)
		}
		select {
		case <-p.acked:
		default:
			p.withdrawn.Store(true)
			results[i] = late
		}
	}
	return results
}

// awaitConfirmed returns an error if there will be no ack.
func (b *Broker) awaitConfirmed(ctx context.Context, p *parcel, timeout <-chan time.Time) error {
	select {
	case <-p.acked:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("inproc: %w", context.Cause(ctx))
	case <-b.closed:
		return ErrClosed
	case <-timeout:
		return ErrUnacked
	}
}

// postPublication puts the message into the queue of every service.
func (b *Broker) postPublication(publication outbox.Publication) (*parcel, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return nil, ErrClosed
	}
	queues := b.topics[publication.Topic]
	if len(queues) == 0 {
		return nil, fmt.Errorf("%w: topic %s", ErrUnroutable, publication.Topic)
	}
	p := &parcel{acked: make(chan struct{})}
	p.left.Store(int32(len(queues)))
	for _, q := range queues {
		q.putDelivery(delivery{message: publication.Message.Copy(), parcel: p})
	}
	return p, nil
}

// Publish publishes messages like [Broker.PublishBatch] under the context of
// the first, and returns their errors joined, each with the message's UUID.
func (b *Broker) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	batch := make([]outbox.Publication, len(messages))
	for i, msg := range messages {
		batch[i] = outbox.Publication{Topic: topic, Message: msg}
	}
	results := b.PublishBatch(messages[0].Context(), batch)
	for i, err := range results {
		if err != nil {
			results[i] = fmt.Errorf("inproc: publish %q to %q: %w", messages[i].UUID, topic, err)
		}
	}
	return errors.Join(results...)
}

// Subscriber returns a new Subscriber of service. If the Broker is closed, the Subscriber is closed too.
func (b *Broker) Subscriber(service string) *Subscriber {
	s := &Subscriber{broker: b, service: service, done: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		s.closed = true
		close(s.done)
	}
	b.subscribers = append(b.subscribers, s)
	return s
}

// queueFor returns the queue of service for topic, and creates it if it is missing.
func (b *Broker) queueFor(topic, service string) *queue {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.topics[topic] == nil {
		b.topics[topic] = make(map[string]*queue)
	}
	if b.topics[topic][service] == nil {
		b.topics[topic][service] = createQueue()
	}
	return b.topics[topic][service]
}

// Close takes no more messages, closes every Subscriber and then ends the calls that still wait for acks. It
// returns nil when no goroutine is left. A second or concurrent call waits for the same end.
func (b *Broker) Close() error {
	b.mu.Lock()
	first := !b.closing
	b.closing = true
	subscribers := b.subscribers
	b.mu.Unlock()
	if first {
		var closing sync.WaitGroup
		for _, s := range subscribers {
			closing.Go(func() { s.Close() })
		}
		closing.Wait()
		close(b.closed)
	}
	<-b.closed
	return nil
}
