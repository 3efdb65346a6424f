package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// An ours is the outbox, as a service uses it.
type ours struct {
	*place
	options   outbox.RelayOptions
	writer    *outbox.Writer
	publisher *rabbitmq.Publisher
}

// openOurRelay returns the opener of a relay with these options.
func openOurRelay(options outbox.RelayOptions) func(context.Context, *place) (relay, error) {
	return func(ctx context.Context, p *place) (relay, error) { return buildOurRelay(ctx, p, options) }
}

func buildOurRelay(ctx context.Context, p *place, options outbox.RelayOptions) (*ours, error) {
	if err := migrations.Up(ctx, p.server.URL, p.schema); err != nil {
		return nil, err
	}
	options.Schema = p.schema
	o := &ours{place: p, options: options}
	var err error
	if o.writer, err = outbox.NewWriter(&outbox.WriterOptions{Schema: p.schema}); err != nil {
		return nil, err
	}
	o.publisher, err = rabbitmq.NewPublisher(p.queue.Config, nil)
	return o, err
}

// order numbers the sagas: each message belongs to another saga, as most do.
var order atomic.Int64

func (o *ours) outboxMessage(key string) outbox.Message {
	return outbox.Message{Topic: o.queue.Topic, Scope: "bench", Key: key, Step: "reserve", Payload: payload}
}

func (o *ours) storeMessages(ctx context.Context, tx pgx.Tx, n int) error {
	messages := make([]outbox.Message, n)
	for i := range messages {
		messages[i] = o.outboxMessage(fmt.Sprintf("order-%d", order.Add(1)))
	}
	return o.writer.Write(ctx, tx, messages...)
}

// clearPublished has nothing to do: the relay empties its log.
func (o *ours) clearPublished(context.Context) error { return nil }

func (o *ours) publishAll(ctx context.Context, c *counter) error {
	r, err := o.buildRelay(counted{o.publisher, c})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func (o *ours) buildRelay(pub outbox.Publisher) (*outbox.Relay, error) {
	return outbox.NewRelay(o.relays, pub, &o.options)
}

// startRelay runs a relay to pub until stop is called.
func (o *ours) startRelay(ctx context.Context, pub outbox.Publisher) (r *outbox.Relay, stop func() error, err error) {
	if r, err = o.buildRelay(pub); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var (
		wg    sync.WaitGroup
		fault error
	)
	wg.Go(func() { fault = r.Run(ctx) })
	return r, func() error {
		cancel()
		wg.Wait()
		return fault
	}, nil
}

// accepting is a broker that confirms at once and stores nothing, so that only the database is measured.
type accepting struct{}

func (accepting) PublishBatch(_ context.Context, batch []outbox.Publication) []error {
	return make([]error, len(batch))
}

// openOwnSubject opens our slot called name.
func (b *bench) openOwnSubject(ctx context.Context, s *private.Server, name, use string) (*subject, *ours, error) {
	i := slices.IndexFunc(slots, func(sl slot) bool { return sl.name == name })
	if slots[i].open == nil {
		return nil, nil, nil
	}
	sub, err := b.newSubject(ctx, s, slots[i], use)
	if err != nil {
		return nil, nil, fmt.Errorf("slot %s: %w", name, err)
	}
	return sub, sub.relay.(*ours), nil
}

func (o *ours) closeRelay() error { return o.publisher.Close() }
