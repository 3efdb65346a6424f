package private

import (
	"context"
	"fmt"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	dialTimeout  = 10 * time.Second
	depthTimeout = 10 * time.Second // until a queue shows its confirmed messages
	depthPause   = 20 * time.Millisecond
	fillWindow   = 1000 // unconfirmed messages while a queue is filled
)

// QueueService is the owner of the queues.
const QueueService = "bench"

// A Broker is the private RabbitMQ, with a channel for managing queues.
type Broker struct {
	URL  string
	conn *amqp.Connection
	ch   *amqp.Channel
}

func dialBroker(url string) (*Broker, error) {
	conn, err := dialConnection(url)
	if err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	ch, err := conn.Channel()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("broker: %w", err)
	}
	return &Broker{URL: url, conn: conn, ch: ch}, nil
}

func dialConnection(url string) (*amqp.Connection, error) {
	return amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(dialTimeout)})
}

// DialConnection opens another connection, which the caller ends with [CloseConnection].
func (b *Broker) DialConnection() (*amqp.Connection, error) { return dialConnection(b.URL) }

// CloseConnection closes conn. If the broker is gone it stops waiting after dialTimeout.
func CloseConnection(conn *amqp.Connection) error {
	return conn.CloseDeadline(time.Now().Add(dialTimeout))
}

func (b *Broker) closeBroker() error { return CloseConnection(b.conn) }

// A Queue is the quorum queue of one topic, behind a durable fanout exchange of the topic's name. Each subject
// has its own queue; all are alike.
type Queue struct {
	Broker *Broker
	Topic  string
	Config wamqp.Config
}

// DeclareQueue creates the queue of topic. An existing queue stays unchanged.
func (b *Broker) DeclareQueue(ctx context.Context, topic string) (*Queue, error) {
	cfg, err := rabbitmq.NewConfig(b.URL, QueueService, nil)
	if err != nil {
		return nil, err
	}
	return &Queue{Broker: b, Topic: topic, Config: cfg}, rabbitmq.DeclareTopology(ctx, cfg, topic)
}

// QueueName returns the queue's name on the broker.
func (q *Queue) QueueName() string { return q.Config.Queue.GenerateName(q.Topic) }

// PurgeQueue empties the queue, so that the broker's memory stays bounded.
func (q *Queue) PurgeQueue() error {
	_, err := q.Broker.ch.QueuePurge(q.QueueName(), false)
	return err
}

// FillQueue publishes n messages to the queue, each made by next, and waits until its depth shows all of them.
func (q *Queue) FillQueue(ctx context.Context, n int, next func() (amqp.Publishing, error)) error {
	conn, err := q.Broker.DialConnection()
	if err != nil {
		return err
	}
	defer func() { _ = CloseConnection(conn) }()
	s, err := NewSender(conn, q.Topic)
	if err != nil {
		return err
	}
	defer s.Close()
	var unconfirmed [fillWindow]*amqp.DeferredConfirmation
	for i := range n + fillWindow {
		slot := i % fillWindow
		if oldest := unconfirmed[slot]; oldest != nil {
			if err := s.AwaitConfirm(ctx, oldest); err != nil {
				return fmt.Errorf("fill: %w", err)
			}
			unconfirmed[slot] = nil
		}
		if i >= n {
			continue
		}
		p, err := next()
		if err == nil {
			unconfirmed[slot], err = s.Publish(ctx, p)
		}
		if err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	return q.CheckDepth(ctx, n)
}

// CheckDepth waits until the queue holds n messages. It detects a relay that has counted more messages than the
// broker has.
func (q *Queue) CheckDepth(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, depthTimeout)
	defer cancel()
	for {
		depth, err := q.QueueDepth()
		if err != nil {
			return err
		}
		switch {
		case depth > n:
			fmt.Printf("queue %s holds %d messages more than were stored\n", q.QueueName(), depth-n)
			return nil
		case depth == n:
			return nil
		}
		if backoff.Sleep(ctx, depthPause) != nil {
			return fmt.Errorf("queue %s holds %d messages, want %d", q.QueueName(), depth, n)
		}
	}
}

// QueueDepth returns how many messages are ready in the queue, without unacked ones.
func (q *Queue) QueueDepth() (int, error) {
	state, err := q.Broker.ch.QueueDeclarePassive(q.QueueName(), true, false, false, false, nil)
	return state.Messages, err
}
