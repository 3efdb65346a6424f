package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/testsignal"
	"github.com/sagamill/sagamill/outbox"
)

var (
	_ outbox.Publisher  = (*Publisher)(nil)
	_ message.Publisher = (*Publisher)(nil)
)

// PublisherOptions are the limits of a [Publisher]. The zero value means the
// defaults.
type PublisherOptions struct {
	// Connection has the options of the publisher's only connection; this connection goes to one of the brokers of the
	// Config.
	Connection ConnectionOptions
	// Window is how many messages may be unconfirmed on one channel. Keep it below 400: at
	// about 400 messages of one channel for a queue that takes none, RabbitMQ stops reading
	// from the whole connection. Default: 256.
	Window int
	// Channels is how many batches may be published at once; further batches wait. A relay uses RelayOptions.Lanes of
	// them for each topic. For N batches at once, the broker's channel_max must be at least 2N + 2. If it is less,
	// fewer batches are published at once, and the log says so. It must be at least 3. Default: 32.
	Channels int
	// ConfirmTimeout limits the wait for the next confirm of the broker. The wait adapts to how long
	// confirms take: it is between 1 s and ConfirmTimeout, and doubles after a timeout at
	// each broker of the Config. It is up to four times as long while the broker confirms
	// other messages on the connection. After it the outcome of unconfirmed messages is unknown,
	// and its channel is abandoned. If nothing was confirmed on the connection meanwhile,
	// the Publisher goes to another broker of the Config: to each once, and then after each
	// such round. Each topic has a separate timeout. Default: 30 s.
	ConfirmTimeout time.Duration
	// MaxPayload is the broker's max_message_size, in bytes; the Publisher refuses a larger message, because the broker
	// would close the channel. Default: 16 MiB, the default of RabbitMQ 4.
	MaxPayload int
	// UserID is the property user-id of each message. The broker refuses
	// a message, as [ErrRejected], unless this is the user who is logged in on the
	// connection: a consumer who finds it, as [MetadataUserID], knows who has sent the
	// message. Default: no property user-id.
	UserID string
	// Logger gets a message for each reconnection. Default: [slog.Default].
	Logger *slog.Logger
}

func (o PublisherOptions) withDefaults() PublisherOptions {
	o.Window = cmp.Or(o.Window, 256)
	o.Channels = cmp.Or(o.Channels, 32)
	o.ConfirmTimeout = cmp.Or(o.ConfirmTimeout, 30*time.Second)
	o.MaxPayload = cmp.Or(o.MaxPayload, 16<<20)
	o.Logger = guard.Logger(cmp.Or(o.Logger, slog.Default()))
	return o
}

// A Publisher publishes to RabbitMQ on its own connection. For each message it answers whether the
// broker has it durably and routed it. Use one Publisher for a process.
//
// Its methods may be called concurrently. Up to Channels calls run at once, each on its own
// channel; further ones wait for one of them. The messages of one call do not hold up another
// call, unless they cost the connection that all share. The order of messages in two calls is
// open, with one exception: a call that begins after another one has returned publishes after it.
type Publisher struct {
	cfg          wamqp.Config
	opts         PublisherOptions
	link         *link
	slots        chan struct{}        // one for each batch that may be on its way
	idle         chan *confirmChannel // open channels that no batch uses
	isolating    chan struct{}        // held by the batch that is isolated on a separate connection
	patiences    patiences
	destinations destinations
	once         sync.Once // Close

	signals struct {
		opened testsignal.Signal[bool] // a channel for messages
	}
}

// NewPublisher returns a Publisher that publishes to the exchanges cfg names.
// It connects with the first message. A nil opts means the defaults. An error
// is an [ErrConfig].
func NewPublisher(cfg wamqp.Config, opts *PublisherOptions) (*Publisher, error) {
	if opts == nil {
		opts = &PublisherOptions{}
	}
	cfg, err := normalizeConfig(cfg)
	if err != nil {
		return nil, err
	}
	if opts.Window < 0 || opts.Channels < 0 || opts.MaxPayload < 0 {
		return nil, fmt.Errorf("%w: a negative limit in PublisherOptions", ErrConfig)
	}
	p := &Publisher{cfg: cfg, opts: opts.withDefaults()}
	p.link = newLink(cfg, p.opts.Connection, p.opts.Logger)
	p.link.channels = p.opts.Channels
	p.patiences = patiences{most: p.opts.ConfirmTimeout, brokers: len(p.link.urls)}
	p.slots = make(chan struct{}, p.opts.Channels)
	p.idle = make(chan *confirmChannel, p.opts.Channels)
	p.isolating = make(chan struct{}, 1)
	return p, nil
}

// PublishBatch publishes batch, up to a window of messages ahead of their
// confirms, and returns one result for each message:
//
//   - nil: confirmed and routed to a queue; the message survives a crash of
//     the broker if the queue does.
//   - an [outbox.ErrRefused], more closely [ErrUnroutable], [ErrTooLarge] or
//     [ErrRejected]: the broker does not have it.
//   - an [outbox.ErrDeferred], more closely [ErrNacked] or [ErrUnconfirmed]: a queue of
//     the topic takes no messages at present. Publish it again later, under the same id.
//   - [ErrBlocked] or [ErrUnavailable], with ctx's error if that is why:
//     unknown. Publish it again, under the same id; the consumer sees two of
//     them at worst.
//
// The messages of a topic are sent in the order of batch, and reach a queue in
// it. One that is refused, or whose outcome is unknown, does not hold back those
// behind it: two messages of which the second must not come without the first
// do not belong in one batch. Between topics there is no order.
//
// A message is refused for its own fault or its destination's, never for
// another one's and never because the broker went away. To find out whose it
// was, messages that were under way at the time are sent again, one by one, so
// that a queue can get them twice:
//
//   - The broker closes the channel over a message: the others go on without it.
//   - It closes the connection over a message, twice while that is alone on one:
//     likewise, on a connection of the batch's own. Other calls, which have lost
//     theirs as well, go on in the same way.
//   - It does not know an exchange: the exchange is declared again. Its bindings
//     are a subscriber's to mend; until then its messages are [ErrUnroutable].
//   - It does not let an exchange be declared or written to: messages to it are
//     refused, for a second unsent, and after that tried apart from the others.
//
// It returns when every result is known, when ctx ends or after the timeouts of
// the options; a write under way is waited for, at most WriteTimeout.
func (p *Publisher) PublishBatch(ctx context.Context, batch []outbox.Publication) []error {
	b := p.packBatch(batch)
	if b.nextUnresolved() < 0 {
		return b.results
	}
	ch, err := p.acquireChannel(ctx)
	if err != nil {
		return b.failUnresolved(err)
	}
	defer func() { p.releaseChannel(ch) }()
	ch, err = p.deliverBatch(ctx, p.link, ch, b)
	if e := serverException(err); e != nil && !e.Recover {
		err = p.isolateCulprit(ctx, b, e)
	}
	return b.failUnresolved(err)
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
// connection, within another CloseTimeout. The outcome of messages unconfirmed by
// then is unknown. It returns nil, also if the broker is away, and no goroutine is
// left. Calling it again, or concurrently, waits for the same end.
func (p *Publisher) Close() error {
	p.once.Do(func() {
		p.link.end(ErrClosed) // no dial from here on
		late := time.AfterFunc(p.link.opts.CloseTimeout, p.link.cutConnection)
		for range p.opts.Channels {
			p.slots <- struct{}{}
		}
		late.Stop()
		p.link.closeLink()
	})
	return nil
}

// acquireChannel takes a slot, to be released with the channel then in use. Its own
// is nil if none is idle.
func (p *Publisher) acquireChannel(ctx context.Context) (*confirmChannel, error) {
	ctx, cancel := p.link.boundDial(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return nil, unavailableError(ctx)
	}
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, unavailableError(ctx)
	}
	select {
	case ch := <-p.idle:
		return ch, nil
	default:
		return nil, nil
	}
}

func (p *Publisher) releaseChannel(ch *confirmChannel) {
	if ch != nil {
		p.idle <- ch // has room for every slot
	}
	<-p.slots
}

// prepareChannel returns ch, or a new channel on a connection of l if ch is not fit for
// use, with the exchanges of b declared. Nothing is under way by then, so if the
// connection goes meanwhile the next one will do.
func (p *Publisher) prepareChannel(ctx context.Context, l *link, ch *confirmChannel, b *batch) (*confirmChannel, error) {
	for again := true; ; again = false {
		c, ready, err := p.openChannel(ctx, l, ch)
		if ch = ready; err == nil {
			err = p.declareExchanges(ctx, c, b, l != p.link)
		}
		if err == nil || !again || c == nil || !isConnLost(ctx, c, err) {
			return ch, err
		}
	}
}

// isConnLost reports whether err says that c is lost, and not because of anything that
// was asked of it. It waits until c is known to be, lest it be used again.
func isConnLost(ctx context.Context, c *conn, err error) bool {
	var broken net.Error
	if !errors.Is(err, amqp.ErrClosed) && !errors.As(err, &broken) || serverException(err) != nil || errors.Is(err, errTimeout) {
		return false
	}
	select {
	case <-c.dead:
		return true
	case <-ctx.Done():
	case <-time.After(c.limits.RequestTimeout):
	}
	return false
}

// openChannel returns ch if it is fit for use, or a new channel, and the connection
// that it is on. Without a connection there is none.
func (p *Publisher) openChannel(ctx context.Context, l *link, ch *confirmChannel) (*conn, *confirmChannel, error) {
	if ch != nil && !ch.abandoned && !ch.amqp.IsClosed() {
		return ch.conn, ch, ch.conn.blockedError()
	}
	c, err := l.getConnection(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := c.blockedError(); err != nil { // a blocked broker does not even open a channel
		return c, nil, err
	}
	idle := p.idle
	if l != p.link {
		idle = nil
	}
	select {
	case c.places <- struct{}{}:
		ch, err = openConfirmChannel(ctx, c, p)
		return c, ch, err
	case ch := <-idle: // idle channels keep their places, so there may never be a free one
		return p.openChannel(ctx, l, ch)
	case <-c.dead:
		return c, nil, fmt.Errorf("%w: %w", ErrUnavailable, amqp.ErrClosed)
	case <-ctx.Done():
		return c, nil, unavailableError(ctx)
	}
}

// A batch is what one call publishes, and what became of it so far.
type batch struct {
	letters  []letter
	results  []error
	resolved []bool
	nacked   []bool // once; nil: none was
	first    int    // all before it are resolved
	routes   []*route
}

// A route is where a topic of the batch goes.
type route struct {
	destination
	topic   string
	refused error // the broker's answer of a moment ago
	suspect bool  // was refused before that, and not tried since
}

// packBatch makes a batch. Messages that cannot be sent are refused in it, and so
// are those to where the broker has only just refused others.
func (p *Publisher) packBatch(publications []outbox.Publication) *batch {
	n := len(publications)
	b := &batch{letters: make([]letter, n), results: make([]error, n), resolved: make([]bool, n)}
	byTopic := make(map[string]*route, 1)
	var last *route
	for i := range publications {
		topic := publications[i].Topic
		if last == nil || last.topic != topic {
			if last = byTopic[topic]; last == nil {
				last = p.routeOf(topic)
				byTopic[topic] = last
				b.routes = append(b.routes, last)
			}
		}
		b.letters[i].route = last
		if err := p.writeLetter(&b.letters[i], publications[i].Message); err != nil {
			b.resolveMessage(i, err)
		}
	}
	return b
}

func (p *Publisher) routeOf(topic string) *route {
	r := &route{topic: topic}
	err := guard.Call(func() error {
		r.exchange = p.cfg.Exchange.GenerateName(topic)
		if p.cfg.Publish.GenerateRoutingKey != nil {
			r.key = p.cfg.Publish.GenerateRoutingKey(topic)
		}
		return nil
	})
	if err != nil {
		r.refused = fmt.Errorf("%w: names of topic %s: %w", ErrRejected, topic, err)
		return r
	}
	r.refused, r.suspect = p.destinations.standingOf(r.destination)
	return r
}

// nextUnresolved returns the index of the first unresolved message, or -1.
func (b *batch) nextUnresolved() int {
	for b.first < len(b.resolved) && b.resolved[b.first] {
		b.first++
	}
	return b.nextAfter(b.first - 1)
}

// nextAfter returns the index of the first unresolved message after i, or -1.
func (b *batch) nextAfter(i int) int {
	for i++; i < len(b.resolved); i++ {
		if !b.resolved[i] {
			return i
		}
	}
	return -1
}

func (b *batch) resolveMessage(i int, err error) { b.results[i], b.resolved[i] = err, true }

// nackMessage notes that message i was nacked. The first time it stays open, to be sent once more
// on another channel: the broker may have nacked the channel and not the message.
func (b *batch) nackMessage(i int) {
	if b.nacked == nil {
		b.nacked = make([]bool, len(b.letters))
	}
	if b.nacked[i] {
		b.resolveMessage(i, fmt.Errorf("%w: exchange %s", ErrNacked, b.letters[i].route.exchange))
	}
	b.nacked[i] = true
}

// refuseDestination resolves every open message to d.
func (b *batch) refuseDestination(d destination, err error) {
	for i := b.nextUnresolved(); i >= 0; i = b.nextAfter(i) {
		if b.letters[i].route.destination == d {
			b.resolveMessage(i, err)
		}
	}
}

// failUnresolved resolves the remaining messages with err and returns the results.
func (b *batch) failUnresolved(err error) []error {
	for i := b.nextUnresolved(); i >= 0; i = b.nextAfter(i) {
		b.resolveMessage(i, err)
	}
	return b.results
}
