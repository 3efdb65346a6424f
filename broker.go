package sagamill

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// openBroker makes publisher and subscriber, which connect later.
func (s *Service) openBroker() error {
	switch {
	case s.config.BrokerURL != "":
		return s.openRabbitMQ()
	case s.config.Publisher != nil:
		s.useWatermill()
		return nil
	}
	broker := inproc.New(&inproc.Options{DrainTimeout: s.config.Consumer.DrainTimeout})
	s.publisher, s.subscriber = broker, broker.Subscriber(s.config.Name)
	s.declare = declareBySubscriber(s.subscriber)
	s.intake = append(s.intake, broker) // so that the relay does not wait for acks of messages that nobody takes any more
	return nil
}

func (s *Service) openRabbitMQ() error {
	queues := s.config.Queues
	queues.Prefix = s.config.Prefix
	config, err := rabbitmq.NewConfig(s.config.BrokerURL, s.config.Name, &queues)
	if err != nil {
		return fmt.Errorf("Config.BrokerURL, Prefix or Queues: %w", err)
	}
	publishing, subscription := s.config.Publishing, s.config.Subscription
	publishing.Logger, subscription.Logger = s.config.Logger, s.config.Logger
	publisher, err := rabbitmq.NewPublisher(config, &publishing)
	if err != nil {
		return fmt.Errorf("Config.Publishing: %w", err)
	}
	s.closers = append(s.closers, publisher)
	subscriber, err := rabbitmq.NewSubscriber(config, &subscription)
	if err != nil {
		return fmt.Errorf("Config.Subscription: %w", err)
	}
	s.intake = append(s.intake, subscriber)
	s.publisher, s.subscriber = publisher, subscriber
	s.declare = func(ctx context.Context, topics []string) error {
		return rabbitmq.DeclareTopology(ctx, config, topics...)
	}
	return nil
}

// useWatermill takes the caller's publisher and subscriber.
func (s *Service) useWatermill() {
	s.subscriber = s.config.Subscriber
	if confirming, ok := s.config.Publisher.(outbox.Publisher); ok {
		s.publisher = confirming
	} else {
		s.publisher = outbox.FromWatermill(s.config.Publisher, nil)
	}
	s.declare = declareBySubscriber(s.subscriber)
}

// declareBySubscriber returns a function that makes the queues of topics, nil if the subscriber cannot do so.
func declareBySubscriber(subscriber message.Subscriber) func(context.Context, []string) error {
	initializer, ok := subscriber.(message.SubscribeInitializer)
	if !ok {
		return nil
	}
	return func(_ context.Context, topics []string) error {
		for _, topic := range topics {
			if err := initializer.SubscribeInitialize(topic); err != nil {
				return fmt.Errorf("make the queue of %s: %w", topic, err)
			}
		}
		return nil
	}
}
