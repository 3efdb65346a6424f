package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/brokerurls"
	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A Broker transports the services' messages.
type Broker interface {
	outbox.Publisher
	// Declare makes a queue of service for each topic. A message that is published after it has
	// returned waits for service.
	Declare(ctx context.Context, service string, topics []string) error
	// Subscriber returns a subscriber to the queues of service.
	Subscriber(service string) (message.Subscriber, error)
	Close() error
}

// OpenBroker returns the broker at url. It does no I/O.
func OpenBroker(url, namespace string, restricted bool, logger *slog.Logger) (Broker, error) {
	if url == devservices.InProcess {
		return inProcess{inproc.New(nil)}, nil
	}
	b := &rabbit{url: url, namespace: namespace, restricted: restricted, logger: logger}
	cfg, err := b.newConfig("relay")
	if err != nil {
		return nil, err
	}
	opts := &rabbitmq.PublisherOptions{Connection: rabbitmq.ConnectionOptions{Name: namespace + " relay"}, Logger: logger}
	if restricted {
		at, err := amqp091.ParseURI(brokerurls.Split(url)[0]) // the user is the same at each node
		if err != nil {
			return nil, errors.New("it is not an AMQP URL") // the error of ParseURI quotes the URL
		}
		opts.UserID = at.Username
	}
	b.Publisher, err = rabbitmq.NewPublisher(cfg, opts)
	return b, err
}

type rabbit struct {
	*rabbitmq.Publisher
	url, namespace string
	restricted     bool // see Settings
	logger         *slog.Logger
}

func (b *rabbit) newConfig(service string) (amqp.Config, error) {
	return rabbitmq.NewConfig(b.url, service, &rabbitmq.ConfigOptions{Prefix: b.namespace + ".", Passive: b.restricted})
}

func (b *rabbit) Declare(ctx context.Context, service string, topics []string) error {
	cfg, err := b.newConfig(service)
	if err != nil {
		return err
	}
	return rabbitmq.DeclareTopology(ctx, cfg, topics...)
}

func (b *rabbit) Subscriber(service string) (message.Subscriber, error) {
	cfg, err := b.newConfig(service)
	if err != nil {
		return nil, err
	}
	return rabbitmq.NewSubscriber(cfg, &rabbitmq.SubscriberOptions{
		Connection: rabbitmq.ConnectionOptions{Name: b.namespace + " " + service}, Logger: b.logger,
	})
}

type inProcess struct{ *inproc.Broker }

func (b inProcess) Declare(_ context.Context, service string, topics []string) error {
	for _, topic := range topics {
		if err := b.Broker.Subscriber(service).SubscribeInitialize(topic); err != nil {
			return fmt.Errorf("declare %s for %s: %w", topic, service, err)
		}
	}
	return nil
}

func (b inProcess) Subscriber(service string) (message.Subscriber, error) {
	return b.Broker.Subscriber(service), nil
}

// removeTimeout limits how long a broker may take to delete a demo's queues.
const removeTimeout = 10 * time.Second

// RemoveQueues deletes the exchanges and queues of the namespace from a shared broker.
func (s *Settings) RemoveQueues(stderr io.Writer) {
	if s.AMQPURL == devservices.InProcess {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	if _, err := s.Program.Topology(s.Namespace).Delete(ctx, s.AMQPURL, &rabbitmq.DeleteOptions{Force: true}); err != nil {
		fmt.Fprintln(stderr, "the demo's queues could not be removed:", err)
	}
}
