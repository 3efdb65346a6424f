package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A variant is a way in which the outbox keeps its messages.
type variant struct {
	writer outbox.WriterOptions
	relay  outbox.RelayOptions
}

// logTable deletes what is published.
var logTable = variant{}

// An ours is the outbox, as a service uses it.
type ours struct {
	*place
	variant   variant
	writer    *outbox.Writer
	publisher *rabbitmq.Publisher
}

func openOurs(v variant) func(context.Context, *place) (relay, error) {
	return func(ctx context.Context, p *place) (relay, error) { return newOurs(ctx, p, v) }
}

func newOurs(ctx context.Context, p *place, v variant) (*ours, error) {
	if err := migrations.Up(ctx, p.server.url, p.schema); err != nil {
		return nil, err
	}
	v.writer.Schema, v.relay.Schema = p.schema, p.schema
	o := &ours{place: p, variant: v}
	var err error
	if o.writer, err = outbox.NewWriter(&v.writer); err != nil {
		return nil, err
	}
	o.publisher, err = rabbitmq.NewPublisher(p.queue.cfg, nil)
	return o, err
}

// order counts the sagas: each message is of another one, as most are.
var order atomic.Int64

func (o *ours) message(key string) outbox.Message {
	return outbox.Message{Topic: o.queue.topic, Scope: "bench", Key: key, Step: "reserve", Payload: payload}
}

func (o *ours) store(ctx context.Context, tx pgx.Tx, n int) error {
	messages := make([]outbox.Message, n)
	for i := range messages {
		messages[i] = o.message(fmt.Sprintf("order-%d", order.Add(1)))
	}
	return o.writer.Write(ctx, tx, messages...)
}

// clear has nothing to do: what is published is gone.
func (o *ours) clear(context.Context) error { return nil }

func (o *ours) run(ctx context.Context, c *counter) error {
	r, err := o.newRelay(counted{o.publisher, c})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func (o *ours) newRelay(pub outbox.Publisher) (*outbox.Relay, error) {
	return outbox.NewRelay(o.relays, pub, &o.variant.relay)
}

func (o *ours) close() error { return o.publisher.Close() }
