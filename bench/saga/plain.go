package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/bench/internal/byhand"
)

const (
	plainConns = 16 // of each service
	plainBatch = 100
	plainPause = 100 * time.Millisecond

	plainSubscriptions, plainPrefetch = 8, 16 // of each step
)

// A plain is the saga as people write it by hand: services with an outbox, a polling relay and a table of
// handled messages.
type plain struct {
	*place
	pools         map[string]*pgxpool.Pool
	publishers    map[string]*wamqp.Publisher
	subscriptions int
	prefetch      int // of each subscription
}

func openPlain(subscriptions, prefetch int) func(context.Context, *place) (way, error) {
	return func(ctx context.Context, p *place) (way, error) {
		w := &plain{
			place: p, pools: map[string]*pgxpool.Pool{}, publishers: map[string]*wamqp.Publisher{},
			subscriptions: subscriptions, prefetch: prefetch,
		}
		for _, service := range services {
			if err := w.openService(ctx, service); err != nil {
				return nil, errors.Join(err, w.closeWay())
			}
		}
		return w, nil
	}
}

func (p *plain) openService(ctx context.Context, service string) error {
	pool, err := p.connectPool(ctx, plainConns, p.schemaName(service))
	if err != nil {
		return err
	}
	p.pools[service] = pool
	for _, statement := range append(byhand.Tables, byhand.SQLIndexUnpublished) {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	cfg := byhand.SubscriberConfig(p.config, p.prefetch)
	cfg.Publish.ConfirmDelivery, cfg.Publish.ChannelPoolSize = true, 1
	p.publishers[service], err = wamqp.NewPublisher(cfg, watermill.NopLogger{})
	return err
}

func (p *plain) closeWay() error {
	var faults []error
	for _, publisher := range p.publishers {
		faults = append(faults, publisher.Close())
	}
	for _, pool := range p.pools {
		pool.Close()
	}
	return errors.Join(faults...)
}

func (p *plain) clearSagas(ctx context.Context) error {
	return p.truncateTables(ctx, "outbox", "processed_message")
}

func (p *plain) checkEffects(ctx context.Context, n int) error {
	counts := append(p.countsEach("processed_message", n), p.countsHandled("processed_message", "h.key = e.order_id || ':%s'", n)...)
	counts = append(counts, p.countsEach("outbox WHERE published_at IS NULL", 0)...)
	return p.place.checkCounts(ctx, n, counts...)
}

func (p *plain) runServices(ctx context.Context, done func(string), fail func(error)) (func() error, error) {
	var (
		relays sync.WaitGroup
		stops  []func() error
	)
	ctx, cancel := context.WithCancel(ctx)
	stop := func() error {
		var faults []error
		for _, f := range stops {
			faults = append(faults, f())
		}
		cancel()
		relays.Wait()
		return errors.Join(faults...)
	}
	for _, service := range services {
		relay := &byhand.Relay{Pool: p.pools[service], Publisher: p.publishers[service], Batch: plainBatch, Pause: plainPause}
		relays.Go(func() {
			if err := relay.Run(ctx); err != nil {
				fail(err)
			}
		})
	}
	for _, st := range steps {
		end, err := byhand.Subscribe(ctx, byhand.SubscriberConfig(p.config, p.prefetch), p.topicName(st.topic), p.subscriptions, p.stepHandler(st, done), fail)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		stops = append(stops, end)
	}
	return stop, nil
}

func (p *plain) stepHandler(st step, done func(string)) func(context.Context, *message.Message) error {
	follows := st.follows
	if follows != "" {
		follows = p.topicName(follows)
	}
	return func(ctx context.Context, msg *message.Message) error {
		var o order
		if err := json.Unmarshal(msg.Payload, &o); err != nil {
			return err
		}
		effect := func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, st.effect.sql, st.effect.values(&o)...)
			return err
		}
		err := byhand.HandleOnce(ctx, p.pools[st.service], msg, effect, follows, o.OrderID+":"+st.after)
		if err == nil && follows == "" {
			done(o.OrderID)
		}
		return err
	}
}

func (p *plain) startSaga(ctx context.Context, o *order) error {
	return pgx.BeginFunc(ctx, p.pools[serviceOrder], func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, placement.sql, placement.values(o)...); err != nil {
			return err
		}
		return byhand.WriteMessage(ctx, tx, byhand.Message{
			Topic: p.topicName(orderCreated), Scope: scope, Key: o.OrderID + ":" + stepPay, Correlation: o.OrderID, Payload: o.payload(),
		})
	})
}

func (p *plain) String() string {
	return fmt.Sprintf("watermill-amqp, subscriptions of each step %d, prefetch %d each; relays with batches of %d, pause %v", p.subscriptions, p.prefetch, plainBatch, plainPause)
}
