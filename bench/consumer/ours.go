package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const sqlTallyOurs = `
SELECT (SELECT count(*) FROM reservation), (SELECT count(DISTINCT order_id) FROM reservation),
	(SELECT count(*) FROM outbox), (SELECT count(DISTINCT (scope, key)) FROM outbox),
	(SELECT count(*) FROM inbox i JOIN reservation r ON (i.scope, i.key, i.step, i.n) = ('` + scope + `', r.order_id, '` + step + `', '') WHERE i.state = 'done'),
	(SELECT count(*) FROM parked)`

// A setup configures package consumer and its subscriber. Zero values mean their defaults.
type setup struct {
	prefetch int
	options  consumer.Options
	handler  func(*progress) consumer.Handler[order]
}

// An ours is package consumer, as a service uses it.
type ours struct {
	*place
	setup
	keepInbox bool       // clearEffects keeps the inbox
	clock     *stopwatch // nil: times are not measured
}

func openOurWay(s setup) func(context.Context, *place) (way, error) {
	return func(ctx context.Context, p *place) (way, error) { return buildOurWay(ctx, p, s) }
}

func buildOurWay(ctx context.Context, p *place, s setup) (*ours, error) {
	s.options.Schema = p.schema
	return &ours{place: p, setup: s}, migrations.Up(ctx, p.server.URL, p.schema)
}

func (o *ours) clearEffects(ctx context.Context) error {
	tables := "reservation, outbox, parked"
	if !o.keepInbox {
		tables += ", inbox"
	}
	_, err := o.pool.Exec(ctx, "TRUNCATE "+tables)
	return err
}

func (o *ours) checkEffects(ctx context.Context, n int) error {
	return o.place.checkTally(ctx, sqlTallyOurs, n)
}

func (o *ours) timeMessages(clock *stopwatch) { o.clock = clock }

// startConsuming runs a consumer.
func (o *ours) startConsuming(ctx context.Context, seen *progress) (*running, error) {
	sub, err := rabbitmq.NewSubscriber(o.queue.Config, &rabbitmq.SubscriberOptions{Prefetch: o.prefetch})
	if err != nil {
		return nil, err
	}
	var from message.Subscriber = sub
	if o.clock != nil {
		from = &watched{sub, o.clock}
	}
	reserve := consumer.Step{Name: step, Action: consumer.On(o.queue.Topic, o.handler(seen))}
	c, err := consumer.New(o.pool, from, []consumer.Step{reserve}, &o.options)
	if err != nil {
		return nil, errors.Join(err, sub.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &running{failed: make(chan error, 1)}
	ended := make(chan error, 1)
	go func() {
		err := c.Run(ctx)
		if ctx.Err() == nil {
			r.reportFailure(err)
		}
		ended <- err
	}()
	r.stop = func() error {
		cancel()
		return errors.Join(<-ended, sub.Close())
	}
	return r, nil
}

// insertAndEmit returns the simplest handler: it executes one statement and emits one message.
func insertAndEmit(seen *progress) consumer.Handler[order] {
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], emit consumer.Emit) error {
		seen.enterHandler()
		if _, err := tx.Exec(ctx, sqlReserve, in.Body.columnValues()...); err != nil {
			return err
		}
		emit(followUpMessage(in.Payload))
		return nil
	}
}

// queueAndEmit returns a handler whose statement is sent together with COMMIT.
func queueAndEmit(seen *progress) consumer.Handler[order] {
	return func(_ context.Context, _ pgx.Tx, in consumer.Message[order], emit consumer.Emit) error {
		seen.enterHandler()
		in.Queue(sqlReserve, in.Body.columnValues()...)
		emit(followUpMessage(in.Payload))
		return nil
	}
}

func followUpMessage(payload []byte) outbox.Message {
	return outbox.Message{Topic: followTopic, Step: followStep, Payload: payload}
}

func (o *ours) String() string {
	prefetch := "default"
	if o.prefetch > 0 {
		prefetch = fmt.Sprint(o.prefetch)
	}
	return fmt.Sprintf("package consumer, prefetch %s%s, all else at its default", prefetch, o.changedOptions())
}

// changedOptions lists the options that are not at their defaults.
func (o *ours) changedOptions() (list string) {
	if o.options.Lanes > 0 {
		list += fmt.Sprintf(", lanes %d", o.options.Lanes)
	}
	if o.options.BatchSize > 0 {
		list += fmt.Sprintf(", batch size %d", o.options.BatchSize)
	}
	return list
}
