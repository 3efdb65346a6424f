package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/bench/internal/byhand"
)

const sqlTallyPlain = `
SELECT (SELECT count(*) FROM reservation), (SELECT count(DISTINCT order_id) FROM reservation),
	(SELECT count(*) FROM outbox), (SELECT count(DISTINCT key) FROM outbox),
	(SELECT count(*) FROM processed_message p JOIN reservation r ON p.key = r.order_id || ':` + step + `'), 0`

// A plain is a consumer as people write it by hand. It checks only what is needed for an effect that happens
// once.
type plain struct {
	*place
	subscriptions int
	prefetch      int // of each
}

func openPlain(subscriptions, prefetch int) func(context.Context, *place) (way, error) {
	return func(ctx context.Context, p *place) (way, error) {
		for _, statement := range byhand.Tables {
			if _, err := p.pool.Exec(ctx, statement); err != nil {
				return nil, err
			}
		}
		return &plain{place: p, subscriptions: subscriptions, prefetch: prefetch}, nil
	}
}

func (p *plain) clearEffects(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, "TRUNCATE reservation, outbox, processed_message")
	return err
}

func (p *plain) checkEffects(ctx context.Context, n int) error {
	return p.place.checkTally(ctx, sqlTallyPlain, n)
}

func (p *plain) startConsuming(ctx context.Context, seen *progress) (*running, error) {
	r := &running{failed: make(chan error, 1)}
	handle := func(ctx context.Context, msg *message.Message) error {
		seen.enterHandler()
		return p.handleMessage(ctx, msg)
	}
	var err error
	r.stop, err = byhand.Subscribe(ctx, byhand.SubscriberConfig(p.queue.Config, p.prefetch), p.queue.Topic, p.subscriptions, handle, r.reportFailure)
	return r, err
}

func (p *plain) handleMessage(ctx context.Context, msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return err
	}
	reserve := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlReserve, o.columnValues()...)
		return err
	}
	return byhand.HandleOnce(ctx, p.pool, msg, reserve, followTopic, o.OrderID+":"+followStep)
}

func (p *plain) String() string {
	return fmt.Sprintf("watermill-amqp, subscriptions %d, prefetch %d each", p.subscriptions, p.prefetch)
}
