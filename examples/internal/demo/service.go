package demo

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// Lease is how long a relay may be silent before another process of its service publishes. It
// is short, because demos kill processes.
const Lease = 2 * time.Second

// A Service is one service of a program. The program's build function sets all fields below DB;
// a service without messages leaves those of messages nil.
type Service struct {
	Name   string
	Schema string
	DB     *pgxpool.Pool

	Relay        *outbox.Relay
	Orchestrator *saga.Orchestrator // nil unless it runs sagas
	Consumer     *consumer.Consumer // the orchestrator's, if there is one
	Subscriber   message.Subscriber
	Routes       func(*http.ServeMux)
	Sweepers     []Sweeper
}

// A Sweeper removes old rows until its context ends.
type Sweeper interface{ Run(context.Context) error }

// OpenService migrates the schema of the service name, connects to its database, and calls
// build. It starts nothing.
func (s *Settings) OpenService(ctx context.Context, name string, build func(*Service) error) (*Service, error) {
	variable, databaseURL := s.findDatabase(name)
	if err := s.Program.MigrateService(ctx, name, databaseURL); err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, BadSetting(variable, "it is not a PostgreSQL URL or connection string")
	}
	if !strings.Contains(databaseURL, "pool_max_conns=") {
		config.MaxConns = s.Program.MaxConns
	}
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.ConnConfig.RuntimeParams["application_name"] = s.Program.Name + " " + name
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	service := &Service{Name: name, Schema: s.Program.Schemas[name], DB: db, Routes: func(*http.ServeMux) {}}
	err = build(service)
	if err == nil {
		err = service.checkTopics(s.Program.Listens[name])
	}
	if err != nil {
		service.Close()
		return nil, fmt.Errorf("service %s: %w", name, err)
	}
	return service, nil
}

// checkTopics returns an error unless the steps of s listen to exactly the declared topics.
func (s *Service) checkTopics(declared []string) error {
	if s.Consumer == nil || slices.Equal(s.Consumer.Topics(), declared) {
		return nil
	}
	return fmt.Errorf("its steps listen to %v, but queues are declared for %v", s.Consumer.Topics(), declared)
}

// MigrateService applies sagamill's tables and the service's own. While the server refuses connections or is starting,
// it tries again until ctx ends, and logs why.
func (p *Program) MigrateService(ctx context.Context, service, databaseURL string) error {
	return pg.RetryUntilReachable(ctx, func(err error) {
		slog.WarnContext(ctx, "the database cannot be reached; trying again", "service", service, "error", err)
	}, func(ctx context.Context) error {
		if err := migrations.Up(ctx, databaseURL, p.Schemas[service]); err != nil {
			return err
		}
		return migrations.UpFrom(ctx, databaseURL, p.Schemas[service], service+"_version", p.Tables[service])
	})
}

// runConsumer takes messages until ctx ends.
func (s *Service) runConsumer(ctx context.Context) error {
	if s.Orchestrator != nil {
		return s.Orchestrator.Run(ctx)
	}
	return s.Consumer.Run(ctx)
}

// checkReady returns nil once the service is connected and consuming.
func (s *Service) checkReady(ctx context.Context) error {
	if err := s.DB.Ping(ctx); err != nil {
		return fmt.Errorf("%s: the database does not answer", s.Name)
	}
	if s.Consumer != nil && !s.Consumer.Ready() {
		return fmt.Errorf("%s: not consuming", s.Name)
	}
	return nil
}

// Close closes the subscriber and the pool. The service's loops must have ended.
func (s *Service) Close() {
	if s.Subscriber != nil {
		_ = s.Subscriber.Close()
	}
	s.DB.Close()
}
