package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
)

// forwarderTopic is the table from which messages are forwarded.
const forwarderTopic = "outbox"

// A forwarding is watermill's own outbox: its forwarder from its SQL subscriber,
// with the default schema and offsets, to its AMQP publisher with confirms.
type forwarding struct {
	*place
	publisher *wamqp.Publisher
}

// openForwarder returns the opener of a forwarding whose publisher has a pool of channels. 0 is the default: a
// new channel for each message.
func openForwarder(channels int) func(context.Context, *place) (relay, error) {
	return func(_ context.Context, p *place) (relay, error) {
		f := &forwarding{place: p}
		sub, err := f.subscriber()
		if err == nil {
			err = errors.Join(sub.SubscribeInitialize(forwarderTopic), sub.Close())
		}
		if err != nil {
			return nil, err
		}
		cfg := wamqp.NewDurablePubSubConfig(p.queue.Broker.URL, nil)
		cfg.Publish.ConfirmDelivery, cfg.Publish.ChannelPoolSize = true, channels
		f.publisher, err = wamqp.NewPublisher(cfg, watermill.NopLogger{})
		return f, err
	}
}

func (f *forwarding) subscriber() (*wsql.Subscriber, error) {
	return wsql.NewSubscriber(wsql.BeginnerFromPgx(f.relays), wsql.SubscriberConfig{
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
	}, watermill.NopLogger{})
}

func (f *forwarding) storeMessages(_ context.Context, tx pgx.Tx, n int) error {
	pub, err := wsql.NewPublisher(wsql.TxFromPgx(tx), wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = message.NewMessage(watermill.NewUUID(), payload)
	}
	return forwarder.NewPublisher(pub, forwarder.PublisherConfig{ForwarderTopic: forwarderTopic}).Publish(f.queue.Topic, messages...)
}

func (f *forwarding) clearPublished(ctx context.Context) error {
	_, err := f.pool.Exec(ctx, "TRUNCATE "+wsql.DefaultPostgreSQLSchema{}.MessagesTable(forwarderTopic)+", "+
		wsql.DefaultPostgreSQLOffsetsAdapter{}.MessagesOffsetsTable(forwarderTopic))
	return err
}

func (f *forwarding) publishAll(ctx context.Context, c *counter) error {
	sub, err := f.subscriber()
	if err != nil {
		return err
	}
	fwd, err := forwarder.NewForwarder(sub, countedWatermill{f.publisher, c}, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: forwarderTopic})
	if err != nil {
		return errors.Join(err, sub.Close())
	}
	return errors.Join(fwd.Run(ctx), sub.Close()) // Run closes the forwarder when ctx ends
}

func (f *forwarding) closeRelay() error { return f.publisher.Close() }
