package main

import (
	"context"
	"errors"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A serviced is the consumer that package sagamill makes of a Config: with its metrics and its traces, and without a
// running relay, which the other kinds do not have either.
type serviced struct {
	*ours
}

func openService(s setup) func(context.Context, *place) (way, error) {
	return func(ctx context.Context, p *place) (way, error) {
		o, err := buildOurWay(ctx, p, s)
		return &serviced{o}, err
	}
}

// startConsuming runs the consumer of a new Service.
func (s *serviced) startConsuming(ctx context.Context, seen *progress) (*running, error) {
	reserve := consumer.Step{Name: step, Action: consumer.On(s.queue.Topic, s.handler(seen))}
	service, err := sagamill.New(sagamill.Config{
		Name: private.QueueService, Schema: s.schema, Database: s.pool, BrokerURL: s.queue.Broker.URL, Steps: []consumer.Step{reserve},
		Requests: 1, Subscription: rabbitmq.SubscriberOptions{Prefetch: s.prefetch},
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &running{failed: make(chan error, 1)}
	ended := make(chan error, 1)
	go func() {
		err := service.Consumer().Run(ctx)
		if ctx.Err() == nil {
			r.reportFailure(err)
		}
		ended <- err
	}()
	r.stop = func() error {
		cancel()
		return errors.Join(<-ended, service.Close())
	}
	return r, nil
}

func (s *serviced) String() string {
	return "the consumer of a sagamill.Service; else " + s.ours.String()
}
