package main

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	consumerConns = 12 // lanes, and the retrier of parked messages
	relayConns    = 4
	serviceConns  = 16 // of each service of a process, consumer and relay
	service       = "bench"
)

// A gate holds deliveries back until work begins, so that connecting is not part of a slice. Up to a prefetch
// of messages wait behind it.
type gate struct {
	*rabbitmq.Subscriber
	open       <-chan struct{}
	subscribed chan struct{}
}

// Subscribe subscribes; only one subscription may be made.
func (g *gate) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := g.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	close(g.subscribed)
	out := make(chan *message.Message)
	go func() { // ends with the subscription
		defer close(out)
		select {
		case <-g.open:
		case <-ctx.Done():
		}
		for msg := range in {
			select {
			case out <- msg:
			case <-ctx.Done():
				msg.Nack()
			}
		}
	}()
	return out, nil
}

// A finish counts the messages whose transaction has committed.
type finish struct{ done *atomic.Int64 }

func (finish) Enter(context.Context, *consumer.Delivery) consumer.Entry { return nil }
func (finish) Ended(context.Context, consumer.Transaction)              {}

func (f finish) Observe(_ context.Context, e consumer.Event) {
	if e.Outcome == consumer.OutcomeDone {
		f.done.Add(1)
	}
}

// newConsumer returns a consumer of step i. The step handles messages of topic i and sends one to the next
// topic, if there is one.
func (d *desk) newConsumer(pool *pgxpool.Pool, i int, opts *consumer.Options) (*consumer.Consumer, *gate, error) {
	config, err := rabbitmq.NewConfig(d.Broker, service, nil)
	if err != nil {
		return nil, nil, err
	}
	sub, err := rabbitmq.NewSubscriber(config, nil)
	if err != nil {
		return nil, nil, err
	}
	g := &gate{Subscriber: sub, open: d.start, subscribed: make(chan struct{})}
	opts.Schema = d.Schemas[i]
	handler := func(_ context.Context, _ pgx.Tx, in consumer.Message[order], emit consumer.Emit) error {
		in.Queue(sqlAddEffect, in.Body.columnValues()...)
		if next := i + 1; next < len(d.Topics) {
			emit(outbox.Message{Topic: d.Topics[next], Step: stepNames[next], Payload: in.Payload})
		}
		return nil
	}
	c, err := consumer.New(pool, g, []consumer.Step{{Name: stepNames[i], Action: consumer.On(d.Topics[i], handler)}}, opts)
	return c, g, err
}

// runConsumer handles messages of the first topic.
func (d *desk) runConsumer(ctx context.Context) error {
	pool, err := d.connectPool(ctx, d.Schemas[0], consumerConns)
	if err != nil {
		return err
	}
	defer pool.Close()
	c, g, err := d.newConsumer(pool, 0, &consumer.Options{Lanes: d.Lanes, Observer: finish{&d.done}})
	if err != nil {
		return err
	}
	go func() { // ends with ctx
		if awaitDone(ctx, g.subscribed) {
			_ = d.reportReady(ctx)
		}
	}()
	return errors.Join(c.Run(ctx), g.Close())
}

// awaitDone waits for done, and reports whether it came before the end of ctx.
func awaitDone(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// A tally counts the messages that a publisher has got confirmed.
type tally struct {
	outbox.Publisher
	done *atomic.Int64
}

func (t tally) PublishBatch(ctx context.Context, batch []outbox.Publication) []error {
	results := t.Publisher.PublishBatch(ctx, batch)
	n := 0
	for _, err := range results {
		if err == nil {
			n++
		}
	}
	t.done.Add(int64(n))
	return results
}

// runRelay publishes the messages in the first schema's outbox. The message of the second topic connects the
// publisher.
func (d *desk) runRelay(ctx context.Context) error {
	pool, err := d.connectPool(ctx, d.Schemas[0], relayConns)
	if err != nil {
		return err
	}
	defer pool.Close()
	publisher, err := d.newPublisher()
	if err != nil {
		return err
	}
	r, err := outbox.NewRelay(pool, tally{publisher, &d.done}, &outbox.RelayOptions{Schema: d.Schemas[0], Lanes: d.Lanes})
	if err == nil {
		first := outbox.Publication{Topic: d.Topics[1], Message: message.NewMessage(uuid.NewString(), randomOrder().payload())}
		err = errors.Join(publisher.PublishBatch(ctx, []outbox.Publication{first})...)
	}
	if err == nil {
		err = d.reportReady(ctx)
	}
	if err == nil {
		err = r.Run(ctx)
	}
	return errors.Join(err, publisher.Close())
}

func (d *desk) newPublisher() (*rabbitmq.Publisher, error) {
	config, err := rabbitmq.NewConfig(d.Broker, service, nil)
	if err != nil {
		return nil, err
	}
	return rabbitmq.NewPublisher(config, nil)
}
