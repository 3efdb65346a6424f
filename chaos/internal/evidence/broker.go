package evidence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A Broker gives access to the examples' exchanges and queues.
type Broker struct {
	URL       string
	Namespace func(saga string) string // the processes' flag -namespace

	// Queues returns the depths of all queues. Default: a passive declaration of each queue, which does not
	// count unacked messages.
	Queues func(ctx context.Context) ([]record.Queue, error)
	// Connections counts the broker's connections. Default: not counted, and [RecordFinal] records none.
	Connections func() (int, error)
}

const dialTimeout = 5 * time.Second

func (b Broker) exchange(saga, topic string) string { return b.Namespace(saga) + "." + topic }

// queueNames returns the names of every service's queues, with the broker's dead-letter queues.
func (b Broker) queueNames() (names []string) {
	for _, l := range Listeners {
		queue := b.exchange(l.Saga, l.Topic) + "." + l.queueName()
		names = append(names, queue, queue+".dead")
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (b Broker) dialBroker() (*amqp.Connection, error) {
	conn, err := amqp.DialConfig(b.URL, amqp.Config{Dial: amqp.DefaultDial(dialTimeout), Heartbeat: dialTimeout})
	if err != nil {
		return nil, fmt.Errorf("evidence: broker: %w", err)
	}
	return conn, nil
}

// queueDepths reads the queues once.
func (b Broker) queueDepths(ctx context.Context) ([]record.Queue, error) {
	g := gauge{broker: b}
	defer g.dropChannel()
	return g.readDepths(ctx)
}

// A gauge reads queues again and again.
type gauge struct {
	broker Broker
	conn   *amqp.Connection
	ch     *amqp.Channel
}

// readDepths reads the queues with Queues, or on a separate connection. A deleted queue holds no messages and
// is Absent.
func (g *gauge) readDepths(ctx context.Context) (all []record.Queue, err error) {
	if g.broker.Queues != nil {
		return g.broker.Queues(ctx)
	}
	defer func() {
		if err != nil {
			g.dropChannel()
		}
	}()
	for _, name := range g.broker.queueNames() {
		if err := g.openChannel(); err != nil {
			return nil, err
		}
		q, err := g.ch.QueueDeclarePassive(name, true, false, false, false, nil)
		var e *amqp.Error
		switch {
		case errors.As(err, &e) && e.Code == amqp.NotFound: // the broker closes the channel too
			all = append(all, record.Queue{Name: name, Absent: true})
		case err != nil:
			return nil, fmt.Errorf("evidence: queue %s: %w", name, err)
		default:
			all = append(all, record.Queue{Name: name, Ready: q.Messages, ConsumersPresent: q.Consumers})
		}
	}
	return all, ctx.Err()
}

func (g *gauge) openChannel() (err error) {
	if g.conn == nil || g.conn.IsClosed() {
		if g.conn, err = g.broker.dialBroker(); err != nil {
			return err
		}
		g.ch = nil
	}
	if g.ch == nil || g.ch.IsClosed() {
		if g.ch, err = g.conn.Channel(); err != nil {
			return fmt.Errorf("evidence: broker: %w", err)
		}
	}
	return nil
}

func (g *gauge) dropChannel() {
	if g.conn != nil {
		_ = g.conn.CloseDeadline(time.Now().Add(time.Second))
	}
	g.conn, g.ch = nil, nil
}

// publishers are configured as the examples' relays, one for each saga.
type publishers map[string]*rabbitmq.Publisher

func (b Broker) publishers() (publishers, error) {
	all := publishers{}
	for _, saga := range []string{record.Order, record.Trip} {
		cfg, err := rabbitmq.NewConfig(b.URL, "relay", &rabbitmq.ConfigOptions{Prefix: b.Namespace(saga) + "."})
		if err != nil {
			return nil, err
		}
		all[saga], err = rabbitmq.NewPublisher(cfg, &rabbitmq.PublisherOptions{
			Connection: rabbitmq.ConnectionOptions{Name: "chaos"}, ConfirmTimeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (p publishers) closePublishers() {
	for _, one := range p {
		_ = one.Close()
	}
}

// publishStored publishes messages of one saga, and returns a result for each, as
// [rabbitmq.Publisher.PublishBatch] does.
func (p publishers) publishStored(ctx context.Context, saga string, messages []stored) []error {
	results := make([]error, len(messages))
	batch := make([]outbox.Publication, 0, len(messages))
	for i := range messages {
		publication, err := messages[i].publication()
		if err != nil { // only a row written by hand
			return slices.Repeat([]error{err}, len(messages))
		}
		batch = append(batch, publication)
	}
	copy(results, p[saga].PublishBatch(ctx, batch))
	return results
}

// A raw publisher publishes messages that no relay would publish.
type raw struct {
	broker  Broker
	mu      sync.Mutex
	conn    *amqp.Connection
	ch      *amqp.Channel
	returns chan amqp.Return
}

const confirmTimeout = 10 * time.Second

var errReturned = errors.New("evidence: the message reached no queue")

// publishRaw returns nil if the broker has confirmed p and a queue has it. After an error a queue may have it
// too.
func (r *raw) publishRaw(ctx context.Context, exchange string, p amqp.Publishing) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.openChannel(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	confirmation, err := r.ch.PublishWithDeferredConfirmWithContext(ctx, exchange, "", true, false, p)
	if err != nil {
		r.dropChannel()
		return fmt.Errorf("evidence: publish: %w", err)
	}
	acked, err := confirmation.WaitContext(ctx)
	if err != nil || !acked {
		r.dropChannel()
		return fmt.Errorf("evidence: not confirmed: %w", errors.Join(err, ctx.Err()))
	}
	select {
	case <-r.returns: // the return comes before the confirmation
		return errReturned
	default:
		return nil
	}
}

func (r *raw) openChannel() (err error) {
	if r.ch != nil && !r.ch.IsClosed() {
		return nil
	}
	r.dropChannel()
	if r.conn, err = r.broker.dialBroker(); err != nil {
		return err
	}
	if r.ch, err = r.conn.Channel(); err == nil {
		err = r.ch.Confirm(false)
	}
	if err != nil {
		r.dropChannel()
		return fmt.Errorf("evidence: broker: %w", err)
	}
	r.returns = r.ch.NotifyReturn(make(chan amqp.Return, 16))
	return nil
}

func (r *raw) dropChannel() {
	if r.conn != nil {
		_ = r.conn.CloseDeadline(time.Now().Add(time.Second))
	}
	r.conn, r.ch = nil, nil
}
