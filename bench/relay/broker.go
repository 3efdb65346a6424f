package main

import (
	"context"
	"fmt"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	dialTimeout  = 10 * time.Second
	depthTimeout = 10 * time.Second // until a queue shows what it has confirmed
	depthPause   = 20 * time.Millisecond
	service      = "bench" // whose queues they are
)

// A broker is the private RabbitMQ, with a channel for looking after queues.
type broker struct {
	url  string
	conn *amqp.Connection
	ch   *amqp.Channel
}

func dialBroker(url string) (*broker, error) {
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(dialTimeout)})
	if err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	ch, err := conn.Channel()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("broker: %w", err)
	}
	return &broker{url: url, conn: conn, ch: ch}, nil
}

func (b *broker) close() error { return b.conn.CloseDeadline(time.Now().Add(dialTimeout)) }

// A queue is the quorum queue of one topic, behind a durable fanout exchange of
// the topic's name. Every slot has its own; they are all alike.
type queue struct {
	broker *broker
	topic  string
	cfg    wamqp.Config
}

func (b *broker) declare(ctx context.Context, topic string) (*queue, error) {
	cfg, err := rabbitmq.NewConfig(b.url, service, nil)
	if err != nil {
		return nil, err
	}
	return &queue{broker: b, topic: topic, cfg: cfg}, rabbitmq.DeclareTopology(ctx, cfg, topic)
}

func (q *queue) name() string { return q.cfg.Queue.GenerateName(q.topic) }

// purge empties the queue, so that the broker's memory stays bounded.
func (q *queue) purge() error {
	_, err := q.broker.ch.QueuePurge(q.name(), false)
	return err
}

// check waits until the queue holds n messages. A relay that has counted more
// than the broker has would be fast for no good reason.
func (q *queue) check(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, depthTimeout)
	defer cancel()
	for {
		state, err := q.broker.ch.QueueDeclarePassive(q.name(), true, false, false, false, nil)
		if err != nil {
			return err
		}
		switch {
		case state.Messages > n:
			fmt.Printf("queue %s holds %d messages more than were stored\n", q.name(), state.Messages-n)
			return nil
		case state.Messages == n:
			return nil
		}
		if sleep(ctx, depthPause) != nil {
			return fmt.Errorf("queue %s holds %d messages, want %d", q.name(), state.Messages, n)
		}
	}
}
