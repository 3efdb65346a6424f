package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/outbox"
)

var sqlCreatePlain = []string{`
CREATE TABLE processed_message (
	key          text        PRIMARY KEY,
	processed_at timestamptz NOT NULL DEFAULT now())`, `
CREATE TABLE outbox (
	id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	message_id     uuid        NOT NULL,
	topic          text        NOT NULL,
	type           text        NOT NULL,
	key            text        NOT NULL,
	correlation_id text        NOT NULL,
	headers        jsonb       NOT NULL,
	payload        bytea       NOT NULL,
	created_at     timestamptz NOT NULL DEFAULT now(),
	published_at   timestamptz)`,
}

const (
	sqlFindKey = `SELECT processed_at FROM processed_message WHERE key = $1 FOR UPDATE`
	sqlFollow  = `INSERT INTO outbox (message_id, topic, type, key, correlation_id, headers, payload) VALUES ($1, $2, $3, $4, $5, $6, $7)`
	sqlAddKey  = `INSERT INTO processed_message (key) VALUES ($1)`

	sqlTallyPlain = `
SELECT (SELECT count(*) FROM reservation), (SELECT count(DISTINCT order_id) FROM reservation),
	(SELECT count(*) FROM outbox), (SELECT count(DISTINCT key) FROM outbox),
	(SELECT count(*) FROM processed_message p JOIN reservation r ON p.key = r.order_id || ':` + step + `'), 0`
)

// A plain is the consumer as people write it by hand. It checks what is needed for
// an effect that happens once, and nothing more.
type plain struct {
	*place
	subscriptions int
	prefetch      int // of each
}

func openPlain(subscriptions, prefetch int) func(context.Context, *place) (way, error) {
	return func(ctx context.Context, p *place) (way, error) {
		for _, statement := range sqlCreatePlain {
			if _, err := p.pool.Exec(ctx, statement); err != nil {
				return nil, err
			}
		}
		return &plain{place: p, subscriptions: subscriptions, prefetch: prefetch}, nil
	}
}

func (p *plain) clear(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, "TRUNCATE reservation, outbox, processed_message")
	return err
}

func (p *plain) check(ctx context.Context, n int) error { return p.place.check(ctx, sqlTallyPlain, n) }

// config is that of the queue, with watermill-amqp's own marshaler. It drops what
// is no header, so the follow-up's correlation id has to be made one.
func (p *plain) config() wamqp.Config {
	cfg := p.queue.Config
	cfg.Consume.Qos.PrefetchCount = p.prefetch
	cfg.Marshaler = wamqp.DefaultMarshaler{PreprocessDelivery: func(d amqp.Delivery) amqp.Delivery {
		d.Headers["message_id"], d.Headers["correlation_id"] = d.MessageId, d.CorrelationId
		return d
	}}
	return cfg
}

// start opens the subscriptions, each with a connection of its own. They end by
// their context: Close may give back what has just been acked.
func (p *plain) start(ctx context.Context, seen *progress) (*running, error) {
	var (
		wg             sync.WaitGroup
		subs           []*wamqp.Subscriber
		r              = &running{failed: make(chan error, 1)}
		intake, cancel = context.WithCancel(ctx)
	)
	r.stop = func() error {
		cancel()
		wg.Wait()
		var faults []error
		for _, sub := range subs {
			faults = append(faults, sub.Close())
		}
		return errors.Join(faults...)
	}
	for range p.subscriptions {
		sub, err := wamqp.NewSubscriber(p.config(), watermill.NopLogger{})
		if err != nil {
			return nil, errors.Join(err, r.stop())
		}
		subs = append(subs, sub)
		messages, err := sub.Subscribe(intake, p.queue.Topic)
		if err != nil {
			return nil, errors.Join(err, r.stop())
		}
		wg.Go(func() {
			for msg := range messages {
				seen.enter()
				if err := p.handle(ctx, msg); err != nil {
					msg.Nack()
					r.fail(err)
					continue
				}
				msg.Ack()
			}
		})
	}
	return r, nil
}

func (p *plain) handle(ctx context.Context, msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return err
	}
	key := msg.Metadata.Get(outbox.HeaderKey)
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	switch err := tx.QueryRow(ctx, sqlFindKey, key).Scan(nil); {
	case err == nil:
		return nil // handled before
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	if _, err := tx.Exec(ctx, sqlReserve, o.values()...); err != nil {
		return err
	}
	headers, err := json.Marshal(map[string]string{
		outbox.HeaderScope: msg.Metadata.Get(outbox.HeaderScope), outbox.HeaderCausation: msg.Metadata.Get("message_id"),
	})
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, sqlFollow, uuid.New(), followTopic, followTopic, o.OrderID+":"+followStep, msg.Metadata.Get("correlation_id"), headers, []byte(msg.Payload))
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, sqlAddKey, key); err != nil {
		return fmt.Errorf("add key: %w", err)
	}
	return tx.Commit(ctx)
}

func (p *plain) String() string {
	return fmt.Sprintf("watermill-amqp, subscriptions %d, prefetch %d each", p.subscriptions, p.prefetch)
}
