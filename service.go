package sagamill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/cloudevents"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/telemetry"
	"github.com/sagamill/sagamill/telemetry/promexport"
	"github.com/sagamill/sagamill/topology"
)

// A Service is one process of a service. Make it with [New]. Its parts are there from then on, for whoever wants to
// use them directly.
type Service struct {
	config Config
	db     *pgxpool.Pool

	publisher  outbox.Publisher
	subscriber message.Subscriber
	declare    func(ctx context.Context, topics []string) error // nil: the broker needs no queues

	relay        *outbox.Relay
	writer       *outbox.Writer
	consumer     *consumer.Consumer // nil without Steps
	orchestrator *saga.Orchestrator // nil without Sagas
	keys         *idemkey.Middleware
	sweepers     []runner
	describe     func() (*topology.Service, error)
	telemetry    *telemetry.Options
	exporter     *promexport.Exporter // nil with Config.Telemetry

	started   atomic.Bool
	prepared  atomic.Bool
	stopping  atomic.Bool
	closeOnce sync.Once
	intake    []io.Closer // closed once the consumers have ended
	closers   []io.Closer // closed last, in this order
}

// A runner runs until its context ends.
type runner interface {
	Run(ctx context.Context) error
}

// closerFunc is a function that closes something.
type closerFunc func() error

func (f closerFunc) Close() error { return f() }

// New returns a Service. It checks config and connects to nothing: call [Service.Run] or [Service.ListenAndServe],
// which also close the Service. A Service that never runs must be closed with [Service.Close]. The error names each
// field that cannot be used.
func New(config Config) (*Service, error) {
	s := &Service{config: config}
	if err := s.config.complete(); err != nil {
		return nil, fmt.Errorf("sagamill: %w", err)
	}
	if err := s.buildParts(); err != nil {
		return nil, errors.Join(fmt.Errorf("sagamill: %w", err), s.Close())
	}
	s.describe = sync.OnceValues(s.describeTopology)
	return s, nil
}

func (s *Service) hasSteps() bool { return len(s.config.Steps) > 0 }
func (s *Service) hasSagas() bool { return len(s.config.Sagas) > 0 }

// buildParts makes the parts, those that others need first.
func (s *Service) buildParts() error {
	for _, build := range []func() error{
		s.openPool, s.openBroker, s.buildTelemetry, s.buildRelay, s.buildConsumer, s.buildOrchestrator, s.checkTopics, s.buildKeys, s.registerMetrics,
	} {
		if err := build(); err != nil {
			return err
		}
	}
	return nil
}

// openPool makes the pool, which connects later. Its default size is what the parts use.
func (s *Service) openPool() error {
	if s.db = s.config.Database; s.db != nil {
		return s.checkPool(s.db.Config().MaxConns)
	}
	config, err := pgxpool.ParseConfig(s.config.DatabaseURL)
	if err != nil { // the error would repeat a part of the URL
		return errors.New("Config.DatabaseURL: it is not a URL or connection string of PostgreSQL")
	}
	if !strings.Contains(s.config.DatabaseURL, "pool_max_conns=") {
		_, total := s.poolUses()
		config.MaxConns = int32(total)
	}
	if err := s.checkPool(config.MaxConns); err != nil {
		return err
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = s.config.Name
	}
	if s.db, err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
		return errors.New("Config.DatabaseURL: its pool settings cannot be used")
	}
	s.closers = append(s.closers, closerFunc(s.closePool))
	return nil
}

// closeGrace is how long Close waits for connections that are still in use.
const closeGrace = 3 * time.Second

// closePool closes the pool and waits until its connections are returned, for closeGrace at most. A handler that ignores
// the end of its context may keep a connection for ever: closePool returns an error and leaves it open.
func (s *Service) closePool() error {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.db.Close()
	}()
	timer := time.NewTimer(closeGrace)
	defer timer.Stop()
	select {
	case <-closed:
		return nil
	case <-timer.C:
		return fmt.Errorf("sagamill: service %s: %d connections are still in use: a handler ignores the end of its context", s.config.Name, s.db.Stat().AcquiredConns())
	}
}

// buildTelemetry decides where metrics go.
func (s *Service) buildTelemetry() (err error) {
	base := s.config.Telemetry
	if base == nil {
		if s.exporter, err = promexport.New(); err != nil {
			return err
		}
		s.closers = append(s.closers, s.exporter)
		base = s.exporter.Options()
	}
	s.telemetry = base.WithAttribute("service", s.config.Name)
	return nil
}

func (s *Service) buildRelay() (err error) {
	tracer := telemetry.NewOutboxTracer(s.telemetry)
	if s.writer, err = outbox.NewWriter(&outbox.WriterOptions{Schema: s.config.Schema, Tracer: tracer}); err != nil {
		return err
	}
	o := s.config.Relay
	o.Schema, o.Observer, o.Logger = s.config.Schema, tracer, s.config.Logger
	if s.config.CloudEvents != nil {
		if s.publisher, err = cloudevents.NewPublisher(s.publisher, s.config.CloudEvents); err != nil {
			return fmt.Errorf("Config.CloudEvents: %w", err)
		}
	}
	if s.relay, err = outbox.NewRelay(s.db, s.publisher, &o); err != nil {
		return fmt.Errorf("Config.Relay: %w", err)
	}
	return nil
}

// buildConsumer makes the consumer of the steps.
func (s *Service) buildConsumer() error {
	sweeper, err := consumer.NewSweeper(s.db, &consumer.SweeperOptions{Schema: s.config.Schema, Logger: s.config.Logger})
	if err != nil {
		return err
	}
	s.sweepers = append(s.sweepers, sweeper)
	if !s.hasSteps() {
		return nil
	}
	o := s.config.Consumer
	if s.config.CloudEvents != nil {
		o.Open = cloudevents.Open
	}
	o.Schema, o.Wake, o.Logger = s.config.Schema, s.relay.Wake, s.config.Logger
	if o.Observer, err = telemetry.NewConsumerObserver(s.telemetry); err != nil {
		return err
	}
	if s.consumer, err = consumer.New(s.db, s.subscriber, s.config.Steps, &o); err != nil {
		return fmt.Errorf("Config.Steps or Consumer: %w", err)
	}
	return nil
}

func (s *Service) buildOrchestrator() (err error) {
	if !s.hasSagas() {
		return nil
	}
	o := s.config.Orchestrator
	if s.config.CloudEvents != nil {
		o.Consumer.Open = cloudevents.Open
	}
	o.Schema, o.Wake, o.Logger = s.config.Schema, s.relay.Wake, s.config.Logger
	if o.Consumer.Observer, err = telemetry.NewConsumerObserver(s.telemetry); err != nil {
		return err
	}
	if s.orchestrator, err = saga.NewOrchestrator(s.db, s.subscriber, s.config.Sagas, &o); err != nil {
		return fmt.Errorf("Config.Sagas or Orchestrator: %w", err)
	}
	return nil
}

// checkTopics returns an error if a step listens to a topic of replies: two consumers would share its queue.
func (s *Service) checkTopics() error {
	if s.consumer == nil || s.orchestrator == nil {
		return nil
	}
	for _, topic := range s.orchestrator.Topics() {
		if slices.Contains(s.consumer.Topics(), topic) {
			return fmt.Errorf("Config.Steps: a step listens to %s, the topic of replies to a saga", topic)
		}
	}
	return nil
}

// buildKeys makes the idempotency middleware, whose scope is set by Idempotent.
func (s *Service) buildKeys() error {
	stored := s.config.Keys
	stored.Schema, stored.MaxInFlight = s.config.Schema, s.config.Requests
	store, err := idempg.New(s.db, &stored)
	if err != nil {
		return fmt.Errorf("Config.Keys: %w", err)
	}
	observer, err := telemetry.NewIdempotencyObserver(s.telemetry)
	if err != nil {
		return err
	}
	o := s.config.Idempotency
	o.Observer, o.Logger = observer, s.config.Logger
	if o.Scope == nil && !o.SingleTenant {
		o.SingleTenant = true // until Idempotent says whose keys they are
	}
	if s.keys, err = idemkey.New(store, &o); err != nil {
		return fmt.Errorf("Config.Idempotency: %w", err)
	}
	sweeper, err := idemkey.NewSweeper(store, &idemkey.SweeperOptions{Observer: observer, Logger: s.config.Logger})
	if err != nil {
		return err
	}
	s.sweepers = append(s.sweepers, sweeper)
	return nil
}

// registerMetrics registers what is read at each collection.
func (s *Service) registerMetrics() error {
	relay, err := telemetry.RegisterRelay(s.relay, s.telemetry)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, closerFunc(relay.Unregister))
	if s.consumer != nil {
		steps, err := telemetry.RegisterConsumer(s.consumer, s.telemetry)
		if err != nil {
			return err
		}
		s.closers = append(s.closers, closerFunc(steps.Unregister))
	}
	if s.orchestrator != nil {
		sagas, err := telemetry.RegisterOrchestrator(s.orchestrator, s.telemetry)
		if err != nil {
			return err
		}
		replies, err := telemetry.RegisterConsumer(s.orchestrator.Consumer(), s.telemetry.WithAttribute("consumer", "replies"))
		if err != nil {
			return errors.Join(err, sagas.Unregister())
		}
		s.closers = append(s.closers, closerFunc(sagas.Unregister), closerFunc(replies.Unregister))
	}
	return nil
}

// Database returns the pool of the service.
func (s *Service) Database() *pgxpool.Pool { return s.db }

// Schema returns the PostgreSQL schema of the service's tables.
func (s *Service) Schema() string { return s.config.Schema }

// Writer returns a writer of messages. After its transaction has committed, wake the relay: Relay().Wake().
func (s *Service) Writer() *outbox.Writer { return s.writer }

// Relay returns the relay, for its counters and its Wake.
func (s *Service) Relay() *outbox.Relay { return s.relay }

// Consumer returns the consumer of the steps, nil if there are none.
func (s *Service) Consumer() *consumer.Consumer { return s.consumer }

// Orchestrator returns the orchestrator of the sagas, nil if there are none.
func (s *Service) Orchestrator() *saga.Orchestrator { return s.orchestrator }

// Topology returns a description of the messages that the service receives and sends, for sagamill topology asyncapi.
// It has the hosts of the broker and no secrets. Its version is that of the program's module. The service need not run.
// An error is one of [topology.Describe]. The caller must not change the description.
func (s *Service) Topology() (*topology.Service, error) { return s.describe() }

func (s *Service) describeTopology() (*topology.Service, error) {
	version := ""
	if build, ok := debug.ReadBuildInfo(); ok && build.Main.Version != "(devel)" {
		version = build.Main.Version
	}
	return topology.Describe(s.config.Name, s.config.Steps, s.config.Sagas, &topology.Options{
		Version: version, Prefix: s.config.Prefix, BrokerURL: s.config.BrokerURL, CloudEvents: s.config.CloudEvents, Emits: s.config.Emits,
	})
}

// Starter returns a starter of instances of d in service s. d has to be one of Config.Sagas, of s or of another
// service on its schema.
func Starter[S any](s *Service, d *saga.Definition[S]) (*saga.Starter[S], error) {
	return saga.NewStarter(d, &saga.StarterOptions{Schema: s.config.Schema, Tracer: telemetry.NewOutboxTracer(s.telemetry)})
}

// Close frees what New has made, so that the Service cannot run any more. Run and ListenAndServe do it in the end;
// further calls do nothing.
func (s *Service) Close() (err error) {
	s.started.Store(true)
	s.closeOnce.Do(func() {
		for _, closer := range slices.Backward(append(slices.Clone(s.closers), s.intake...)) {
			err = errors.Join(err, closer.Close())
		}
	})
	return err
}
