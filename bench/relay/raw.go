package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/outbox"
)

const rawWindow = 1000 // messages that may be unconfirmed

// publishing returns a message with the same properties and headers as ours.
func publishing(topic, id string, body []byte) amqp.Publishing {
	now := time.Now().UTC()
	return amqp.Publishing{
		DeliveryMode: amqp.Persistent, ContentType: "application/json", MessageId: id, CorrelationId: id, Type: topic, Timestamp: now, Body: body,
		Headers: amqp.Table{
			outbox.HeaderKey: "order-1234567:reserve", outbox.HeaderScope: "bench",
			outbox.PropertyTimestamp: now.Format(time.RFC3339Nano), // the property has whole seconds only
		},
	}
}

// dialPeer opens a connection for a slot that uses the client library directly.
func dialPeer(p *place) (*amqp.Connection, error) {
	conn, err := p.queue.Broker.DialConnection()
	if err != nil {
		return nil, fmt.Errorf("slot %s: %w", p.name, err)
	}
	return conn, nil
}

// A raw publishes the same messages without a database, on one channel with a window of unconfirmed messages.
// It shows the limit of the client library and the broker, without reading messages or recording progress.
type raw struct {
	conn   *amqp.Connection
	topic  string
	sender *private.Sender
}

func openRawRelay(_ context.Context, p *place) (relay, error) {
	conn, err := dialPeer(p)
	if err != nil {
		return nil, err
	}
	s, err := private.NewSender(conn, p.queue.Topic)
	return &raw{conn: conn, topic: p.queue.Topic, sender: s}, err
}

// storeMessages and clearPublished have nothing to do.
func (r *raw) storeMessages(context.Context, pgx.Tx, int) error { return nil }
func (r *raw) clearPublished(context.Context) error             { return nil }

func (r *raw) publishAll(ctx context.Context, c *counter) error {
	var unconfirmed [rawWindow]*amqp.DeferredConfirmation
	for i := range int(c.want) + rawWindow {
		slot := i % rawWindow
		if oldest := unconfirmed[slot]; oldest != nil {
			if err := r.sender.AwaitConfirm(ctx, oldest); err != nil {
				return err
			}
			unconfirmed[slot] = nil
			c.addConfirmed(1)
		}
		if i >= int(c.want) {
			continue
		}
		var err error
		if unconfirmed[slot], err = r.sender.Publish(ctx, publishing(r.topic, uuid.NewString(), payload)); err != nil {
			return err
		}
	}
	return nil
}

func (r *raw) closeRelay() error {
	r.sender.Close()
	return private.CloseConnection(r.conn)
}
