package shop

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/chaos/internal/cluster/meter"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// service is the name of all services on the broker, and the suffix of their queues' names.
const service = "shop"

// Options configure a shop.
type Options struct {
	DB          *pgxpool.Pool
	DatabaseURL string   // of the same database, for migrations
	Schema      string   // of the shop's tables, which OpenShop creates
	Brokers     []string // URLs of all nodes
	Prefix      string   // of exchanges and queues
	TLS         *tls.Config
	Meter       *meter.Meter
	Logger      *slog.Logger

	Rate    int    // orders a second
	Colours int    // messages a second for red, and for blue
	Keys    int    // ordering keys
	Seed    uint64 // of keys and amounts

	// Instances is the number of consumers, each with a separate connection.
	Instances int
	// SingleActive makes the broker deliver to one consumer of a queue, and the subscribers pass on the messages
	// of an ordering key in order.
	SingleActive bool
	// Classic makes the queues classic ones, on the node of the first URL.
	Classic bool
}

// A Shop is services at work.
type Shop struct {
	opts      Options
	config    wamqp.Config
	publisher *rabbitmq.Publisher
	relay     *outbox.Relay
	consumers []*consumer.Consumer
	subs      []*rabbitmq.Subscriber

	paused  atomic.Bool // the load
	stop    context.CancelFunc
	running sync.WaitGroup
	mu      sync.Mutex
	failed  error
}

// OpenShop creates the tables and the queues, and starts the relay and the consumers. After an error nothing
// runs.
func OpenShop(ctx context.Context, opts Options) (*Shop, error) {
	s := &Shop{opts: opts}
	if err := s.openParts(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("shop: %w", err), s.CloseShop())
	}
	return s, nil
}

func (s *Shop) openParts(ctx context.Context) (err error) {
	if err := migrations.Up(ctx, s.opts.DatabaseURL, s.opts.Schema); err != nil {
		return err
	}
	if err := CreateTables(ctx, s.opts.DB, s.opts.Schema); err != nil {
		return err
	}
	if err := s.declareQueues(ctx); err != nil {
		return err
	}
	if s.publisher, err = rabbitmq.NewPublisher(s.config, &rabbitmq.PublisherOptions{Logger: s.opts.Logger}); err != nil {
		return err
	}
	if s.relay, err = outbox.NewRelay(s.opts.DB, s.publisher, &outbox.RelayOptions{Schema: s.opts.Schema, Logger: s.opts.Logger}); err != nil {
		return err
	}
	for range s.opts.Instances {
		if err := s.addConsumer(); err != nil {
			return err
		}
	}
	s.startServices()
	return nil
}

// declareQueues creates the queues. Classic ones live on the node that declares them.
func (s *Shop) declareQueues(ctx context.Context) (err error) {
	if s.config, err = s.newConfig(s.opts.Brokers); err != nil {
		return err
	}
	declaring, err := s.newConfig(s.opts.Brokers[:1])
	if err != nil {
		return err
	}
	return rabbitmq.DeclareTopology(ctx, declaring, Topics...)
}

func (s *Shop) newConfig(urls []string) (wamqp.Config, error) {
	config, err := rabbitmq.NewConfig(strings.Join(urls, ","), service, &rabbitmq.ConfigOptions{
		Prefix: s.opts.Prefix, SingleActiveConsumer: s.opts.SingleActive,
	})
	config.Connection.TLSConfig = s.opts.TLS
	if s.opts.Classic {
		config.TopologyBuilder = &classicTopology{}
	}
	return config, err
}

func (s *Shop) addConsumer() error {
	opts := &rabbitmq.SubscriberOptions{Logger: s.opts.Logger}
	if s.opts.SingleActive {
		opts.Key = orderingKey
	}
	sub, err := rabbitmq.NewSubscriber(s.config, opts)
	if err != nil {
		return err
	}
	s.subs = append(s.subs, sub)
	c, err := consumer.New(s.opts.DB, sub, consumerSteps(s.opts.Schema), &consumer.Options{
		Schema: s.opts.Schema, Wake: s.relay.Wake, Observer: observer{s}, Logger: s.opts.Logger,
	})
	s.consumers = append(s.consumers, c)
	return err
}

// startServices runs the relay and the consumers.
func (s *Shop) startServices() {
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	runs := []func(context.Context) error{s.relay.Run}
	for _, c := range s.consumers {
		runs = append(runs, c.Run)
	}
	for _, run := range runs {
		s.running.Go(func() {
			if err := run(ctx); err != nil {
				s.recordFailure(err)
			}
		})
	}
}

func (s *Shop) recordFailure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = errors.Join(s.failed, err)
}

// FirstFailure returns why the relay or a consumer has ended; nil: they run.
func (s *Shop) FirstFailure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// QueueNames returns the names of the queues of all topics.
func (s *Shop) QueueNames() (names []string) {
	for _, topic := range Topics {
		names = append(names, s.QueueName(topic))
	}
	return names
}

// QueueName returns the name of a topic's queue.
func (s *Shop) QueueName(topic string) string { return s.config.Queue.GenerateName(topic) }

// DeadQueue returns the name of the broker's dead-letter queue for a topic.
func (s *Shop) DeadQueue(topic string) string { return s.QueueName(topic) + ".dead" }

// TakeSample counts the messages of the outbox and the parked messages.
func (s *Shop) TakeSample(ctx context.Context) (sample meter.Sample, err error) {
	stats, err := s.relay.Stats(ctx)
	if err != nil {
		return sample, fmt.Errorf("shop: read the outbox: %w", err)
	}
	parked, err := s.consumers[0].Stats(ctx)
	if err != nil {
		return sample, fmt.Errorf("shop: read the inbox: %w", err)
	}
	return meter.Sample{
		Stored: stats.Stored, Held: stats.Waiting + stats.Refused, Dead: stats.Dead + parked.Dead,
		Relay: s.relay.Counters(),
	}, nil
}

// CloseShop stops the services. It returns the error of a service that ended before.
func (s *Shop) CloseShop() error {
	if s.stop != nil {
		s.stop()
	}
	s.running.Wait()
	errs := []error{s.FirstFailure()}
	for _, sub := range s.subs {
		errs = append(errs, sub.Close())
	}
	if s.publisher != nil {
		errs = append(errs, s.publisher.Close())
	}
	return errors.Join(errs...)
}
