package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/outbox"
)

var (
	_ outbox.Publisher  = (*Publisher)(nil)
	_ message.Publisher = (*Publisher)(nil)
)

// PublisherOptions are the limits of a [Publisher]. The zero value means the
// defaults.
type PublisherOptions struct {
	Connection ConnectionOptions
	// Window is how many messages may be unconfirmed on one channel. More than
	// a thousand gains nothing. Default: 512.
	Window int
	// Channels is how many batches may be on their way at once; further ones
	// wait their turn. Default: 4.
	Channels int
	// ConfirmTimeout bounds the wait for the next confirm. After it what is
	// unconfirmed is unknown, and its channel abandoned. Default: 30 s.
	ConfirmTimeout time.Duration
	// MaxPayload is the broker's max_message_size, in bytes; over it the broker
	// would close the channel. Default: 16 MiB, RabbitMQ 4's own.
	MaxPayload int
	// Logger hears of reconnections. Default: [slog.Default].
	Logger *slog.Logger
}

func (o PublisherOptions) withDefaults() PublisherOptions {
	o.Window = cmp.Or(o.Window, 512)
	o.Channels = cmp.Or(o.Channels, 4)
	o.ConfirmTimeout = cmp.Or(o.ConfirmTimeout, 30*time.Second)
	o.MaxPayload = cmp.Or(o.MaxPayload, 16<<20)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return o
}

// A Publisher publishes to RabbitMQ, on a connection of its own, and answers
// for each message whether the broker has it durably and routed it. Use one
// Publisher for a process. Its methods may be called concurrently.
type Publisher struct {
	cfg   wamqp.Config
	opts  PublisherOptions
	link  *link
	slots chan struct{}        // one for each batch that may be on its way
	idle  chan *confirmChannel // open channels that no batch uses
	once  sync.Once            // Close
}

// NewPublisher returns a Publisher that publishes to the exchanges cfg names.
// It connects with the first message. A nil opts means the defaults. An error
// is an [ErrConfig].
func NewPublisher(cfg wamqp.Config, opts *PublisherOptions) (*Publisher, error) {
	if opts == nil {
		opts = &PublisherOptions{}
	}
	cfg, err := normalize(cfg)
	if err != nil {
		return nil, err
	}
	if opts.Window < 0 || opts.Channels < 0 || opts.MaxPayload < 0 {
		return nil, fmt.Errorf("%w: a negative limit in PublisherOptions", ErrConfig)
	}
	p := &Publisher{cfg: cfg, opts: opts.withDefaults()}
	p.link = newLink(cfg.Connection, p.opts.Connection, p.opts.Logger)
	p.slots = make(chan struct{}, p.opts.Channels)
	p.idle = make(chan *confirmChannel, p.opts.Channels)
	return p, nil
}

// PublishBatch publishes batch in order, up to a window of messages ahead of
// their confirms, and returns one result for each message:
//
//   - nil: confirmed and routed to a queue; the message survives a crash of
//     the broker if the queue does.
//   - an [outbox.ErrRefused], more closely [ErrUnroutable], [ErrNacked],
//     [ErrTooLarge] or [ErrRejected]: the broker does not have it.
//   - [ErrBlocked] or [ErrUnavailable], or ctx's error: unknown. Publish it
//     again, under the same id; the consumer sees two of them at worst.
//
// A deleted exchange is declared again and the batch goes on; a message for
// which the broker closes the channel is found out by sending the rest one by
// one. Both can publish a message twice that was under way at the time.
//
// It returns when every result is known, when ctx ends or after the timeouts of
// the options; a write under way is waited for, at most WriteTimeout.
func (p *Publisher) PublishBatch(ctx context.Context, batch []outbox.Publication) []error {
	b := p.pack(batch)
	if b.next() < 0 {
		return b.results
	}
	ch, err := p.acquire(ctx)
	if err != nil {
		return b.fail(err)
	}
	defer func() { p.release(ch) }()
	window, declaredAgain := p.opts.Window, false
	for b.next() >= 0 {
		if ch, err = p.open(ctx, ch); err != nil {
			return b.fail(err)
		}
		if err = ch.publish(ctx, b, window); err == nil {
			continue
		}
		ch.abandon()
		switch e := exception(err); {
		case errors.Is(err, errExchangeRefused): // so are its messages; the others go on
		case e == nil:
			return b.fail(err)
		case e.Code == amqp.NotFound && !declaredAgain:
			declaredAgain = true // the next channel declares every exchange again
		case window > 1:
			window = 1 // one of the window is the culprit: go on one by one
		default:
			b.resolve(b.next(), fmt.Errorf("%w: %w", ErrRejected, e))
		}
	}
	return b.results
}

// Publish publishes messages like [Publisher.PublishBatch], and returns their
// errors joined, each with the message's UUID. Messages that are not named in
// the error are published. The context is that of the first message.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	batch := make([]outbox.Publication, len(messages))
	for i, msg := range messages {
		batch[i] = outbox.Publication{Topic: topic, Message: msg}
	}
	results := p.PublishBatch(messages[0].Context(), batch)
	for i, err := range results {
		if err != nil {
			results[i] = fmt.Errorf("rabbitmq: publish %q to %q: %w", messages[i].UUID, topic, err)
		}
	}
	return errors.Join(results...)
}

// Close waits for calls under way, at most CloseTimeout, and then closes the
// connection, within another CloseTimeout. What was unconfirmed by then is
// unknown. It returns nil, also if the broker is away, and no goroutine is
// left. Calling it again, or concurrently, waits for the same end.
func (p *Publisher) Close() error {
	p.once.Do(func() {
		p.link.end(ErrClosed) // no dial from here on
		late := time.AfterFunc(p.link.opts.CloseTimeout, p.link.cut)
		for range p.opts.Channels {
			p.slots <- struct{}{}
		}
		late.Stop()
		p.link.close()
	})
	return nil
}

// acquire takes a slot, to be released with the channel then in use. Its own
// is nil if none is idle.
func (p *Publisher) acquire(ctx context.Context) (*confirmChannel, error) {
	ctx, cancel := p.link.bound(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return nil, unavailable(ctx)
	}
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, unavailable(ctx)
	}
	select {
	case ch := <-p.idle:
		return ch, nil
	default:
		return nil, nil
	}
}

func (p *Publisher) release(ch *confirmChannel) {
	if ch != nil {
		p.idle <- ch // has room for every slot
	}
	<-p.slots
}

// open returns ch if it is fit for use, or a new channel.
func (p *Publisher) open(ctx context.Context, ch *confirmChannel) (*confirmChannel, error) {
	if ch != nil && !ch.abandoned && !ch.amqp.IsClosed() {
		return ch, ch.conn.unblocked()
	}
	c, err := p.link.get(ctx)
	if err == nil {
		err = c.unblocked() // a blocked broker does not even open a channel
	}
	if err != nil {
		return nil, err
	}
	return openConfirmChannel(ctx, c, p)
}
