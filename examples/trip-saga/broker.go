package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/brokerurls"
	"github.com/sagamill/sagamill/internal/tools/devservices"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A broker is what the services' messages go through.
type broker interface {
	outbox.Publisher
	// declare makes sure that what is published to topics from now on is kept
	// for service.
	declare(ctx context.Context, service string, topics []string) error
	subscriber(service string) (message.Subscriber, error)
	Close() error
}

// openBroker does no I/O.
func openBroker(url, namespace string, restricted bool, logger *slog.Logger) (broker, error) {
	if url == devservices.InProcess {
		return inProcess{inproc.New(nil)}, nil
	}
	b := &rabbit{url: url, namespace: namespace, restricted: restricted, logger: logger}
	cfg, err := b.config("relay")
	if err != nil {
		return nil, err
	}
	opts := &rabbitmq.PublisherOptions{Connection: rabbitmq.ConnectionOptions{Name: namespace + " relay"}, Logger: logger}
	if restricted {
		at, err := amqp091.ParseURI(brokerurls.Split(url)[0]) // the user is the same at each node
		if err != nil {
			return nil, errors.New("it is not an AMQP URL") // ParseURI's own error has the URL in it
		}
		opts.UserID = at.Username
	}
	b.Publisher, err = rabbitmq.NewPublisher(cfg, opts)
	return b, err
}

type rabbit struct {
	*rabbitmq.Publisher
	url, namespace string
	restricted     bool // see settings
	logger         *slog.Logger
}

func (b *rabbit) config(service string) (amqp.Config, error) {
	return rabbitmq.NewConfig(b.url, service, &rabbitmq.ConfigOptions{Prefix: b.namespace + ".", Passive: b.restricted})
}

func (b *rabbit) declare(ctx context.Context, service string, topics []string) error {
	cfg, err := b.config(service)
	if err != nil {
		return err
	}
	return rabbitmq.DeclareTopology(ctx, cfg, topics...)
}

func (b *rabbit) subscriber(service string) (message.Subscriber, error) {
	cfg, err := b.config(service)
	if err != nil {
		return nil, err
	}
	return rabbitmq.NewSubscriber(cfg, &rabbitmq.SubscriberOptions{
		Connection: rabbitmq.ConnectionOptions{Name: b.namespace + " " + service}, Logger: b.logger,
	})
}

type inProcess struct{ *inproc.Broker }

func (b inProcess) declare(_ context.Context, service string, topics []string) error {
	for _, topic := range topics {
		if err := b.Subscriber(service).SubscribeInitialize(topic); err != nil {
			return fmt.Errorf("declare %s for %s: %w", topic, service, err)
		}
	}
	return nil
}

func (b inProcess) subscriber(service string) (message.Subscriber, error) {
	return b.Subscriber(service), nil
}

// topology is what the services publish and listen to.
func topology(namespace string) rabbitmq.Topology {
	t := rabbitmq.Topology{Prefix: namespace + "."}
	for _, service := range slices.Sorted(maps.Keys(listens)) {
		t.Services = append(t.Services, rabbitmq.Service{Name: service, Publishes: publishes[service], Listens: listens[service]})
	}
	return t
}

// removeTimeout is how long a broker may take to delete a demo's queues.
const removeTimeout = 10 * time.Second

// removeQueues deletes what a demo declared on a broker that it shares.
func removeQueues(s *settings, stderr io.Writer) {
	if s.amqpURL == devservices.InProcess {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	if _, err := topology(s.namespace).Delete(ctx, s.amqpURL, &rabbitmq.DeleteOptions{Force: true}); err != nil {
		fmt.Fprintln(stderr, "the demo's queues could not be removed:", err)
	}
}
