package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/outbox"
)

const rawWindow = 1000 // messages that may be unconfirmed

// A sender is a channel in confirm mode. It counts what the broker returns: a
// returned message is confirmed as well, and would pass for delivered.
type sender struct {
	ch       *amqp.Channel
	exchange string
	returned atomic.Int64
	watch    sync.WaitGroup
}

func newSender(conn *amqp.Connection, exchange string) (*sender, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	s := &sender{ch: ch, exchange: exchange}
	returns := ch.NotifyReturn(make(chan amqp.Return, rawWindow))
	s.watch.Go(func() { // ends with the channel
		for range returns {
			s.returned.Add(1)
		}
	})
	return s, nil
}

// publish sends a message with the properties and headers that ours has.
func (s *sender) publish(ctx context.Context, id string, body []byte) (*amqp.DeferredConfirmation, error) {
	now := time.Now().UTC()
	return s.ch.PublishWithDeferredConfirmWithContext(ctx, s.exchange, "", true, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent, ContentType: "application/json", MessageId: id, CorrelationId: id, Type: s.exchange, Timestamp: now, Body: body,
		Headers: amqp.Table{
			outbox.HeaderKey: "order-1234567:reserve", outbox.HeaderScope: "bench",
			outbox.PropertyTimestamp: now.Format(time.RFC3339Nano), // the property has whole seconds only
		},
	})
}

// confirm waits until the broker has taken a message over.
func (s *sender) confirm(ctx context.Context, sent *amqp.DeferredConfirmation) error {
	ok, err := sent.WaitContext(ctx)
	switch {
	case err != nil:
		return err
	case !ok:
		return errors.New("a message was nacked")
	case s.returned.Load() > 0:
		return errors.New("a message was returned")
	}
	return nil
}

func (s *sender) close() {
	_ = s.ch.Close()
	s.watch.Wait()
}

// dialPeer opens a connection for a slot that uses the client library itself.
func dialPeer(p *place) (*amqp.Connection, error) {
	conn, err := amqp.DialConfig(p.queue.broker.url, amqp.Config{Dial: amqp.DefaultDial(dialTimeout)})
	if err != nil {
		return nil, fmt.Errorf("slot %s: %w", p.name, err)
	}
	return conn, nil
}

// A raw publishes the same messages without a database, with a window of unconfirmed messages on
// one channel: what the client library and the broker can do if nobody has to read
// the messages from anywhere or to remember which of them are out.
type raw struct {
	conn   *amqp.Connection
	sender *sender
}

func openRaw(_ context.Context, p *place) (relay, error) {
	conn, err := dialPeer(p)
	if err != nil {
		return nil, err
	}
	s, err := newSender(conn, p.queue.topic)
	return &raw{conn: conn, sender: s}, err
}

// store and clear have nothing to do.
func (r *raw) store(context.Context, pgx.Tx, int) error { return nil }
func (r *raw) clear(context.Context) error              { return nil }

func (r *raw) run(ctx context.Context, c *counter) error {
	var unconfirmed [rawWindow]*amqp.DeferredConfirmation
	for i := range int(c.want) + rawWindow {
		slot := i % rawWindow
		if oldest := unconfirmed[slot]; oldest != nil {
			if err := r.sender.confirm(ctx, oldest); err != nil {
				return err
			}
			unconfirmed[slot] = nil
			c.add(1)
		}
		if i >= int(c.want) {
			continue
		}
		var err error
		if unconfirmed[slot], err = r.sender.publish(ctx, uuid.NewString(), payload); err != nil {
			return err
		}
	}
	return nil
}

func (r *raw) close() error {
	r.sender.close()
	return r.conn.CloseDeadline(time.Now().Add(dialTimeout))
}
