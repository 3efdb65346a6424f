package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/booking"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/mail"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/ticketing"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/trip"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

var serviceNames = []string{"trip", command.Flight, command.Hotel, command.Car, "ticketing", "mail"}

// listens says which service keeps a queue for which topics, publishes which one
// publishes to them: the orchestrator its commands, and every other service its replies. A
// process declares the queues of what its services publish before its relays do, and its
// consumers their own, so that it does not matter which service is started first.
var listens = map[string][]string{
	"trip":         {saga.Topic(trip.Name)},
	command.Flight: {command.Book(command.Flight), command.Cancel(command.Flight)},
	command.Hotel:  {command.Book(command.Hotel), command.Cancel(command.Hotel)},
	command.Car:    {command.Book(command.Car), command.Cancel(command.Car)},
	"ticketing":    {command.Ticket},
	"mail":         {command.Mail},
}

var publishes = map[string][]string{
	"trip": {
		command.Book(command.Flight), command.Cancel(command.Flight), command.Book(command.Hotel), command.Cancel(command.Hotel),
		command.Book(command.Car), command.Cancel(command.Car), command.Ticket, command.Mail,
	},
	command.Flight: {saga.Topic(trip.Name)},
	command.Hotel:  {saga.Topic(trip.Name)},
	command.Car:    {saga.Topic(trip.Name)},
	"ticketing":    {saga.Topic(trip.Name)},
	"mail":         {saga.Topic(trip.Name)},
}

// tables are the migrations of the services' own tables.
var tables = map[string]fs.FS{
	"trip": trip.Migrations, command.Flight: booking.Migrations, command.Hotel: booking.Migrations, command.Car: booking.Migrations,
	"ticketing": ticketing.Migrations, "mail": mail.Migrations,
}

func schemaOf(service string) string { return service + "_service" }

const (
	// maxConns is the size of each service's pool, unless its URL has pool_max_conns; its relay listens on one more connection.
	// All of them, and a second copy, fit into PostgreSQL's default of 100 connections.
	maxConns = 5

	// lease is how soon another process of a service takes the outbox over when the one
	// that had it was killed.
	lease = 2 * time.Second
)

// A node is one service with what it runs on. Exactly one of its orchestrator and its
// consumer is there.
type node struct {
	name         string
	db           *pgxpool.Pool
	relay        *outbox.Relay
	orchestrator *saga.Orchestrator
	consumer     *consumer.Consumer // the orchestrator's, where there is one
	sub          message.Subscriber
	routes       func(*http.ServeMux)
	sweepers     []sweeper // of idempotency records and of the inbox, as far as it has them
}

// A sweeper removes what is old while it runs.
type sweeper interface{ Run(context.Context) error }

// openNode migrates the service's schema and connects the service to the
// broker. It starts nothing.
func openNode(ctx context.Context, name string, s *settings, b broker, logger *slog.Logger) (*node, error) {
	variable, databaseURL := s.databaseOf(name)
	if err := migrate(ctx, name, databaseURL); err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, badSetting(variable, "it is not a PostgreSQL URL or connection string")
	}
	if !strings.Contains(databaseURL, "pool_max_conns=") {
		config.MaxConns = maxConns
	}
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	n := &node{name: name, db: db}
	if err := n.build(ctx, s, b, logger.With("service", name)); err != nil {
		n.close()
		return nil, fmt.Errorf("service %s: %w", name, err)
	}
	return n, nil
}

// migrate applies sagamill's tables and the service's own. A database that is
// not there yet, because it starts at the same time, is waited for.
func migrate(ctx context.Context, name, databaseURL string) error {
	for {
		err := migrations.Up(ctx, databaseURL, schemaOf(name))
		if err == nil {
			return migrations.UpFrom(ctx, databaseURL, schemaOf(name), name+"_version", tables[name])
		}
		var refused *pgconn.ConnectError
		var answered *pgconn.PgError
		if !errors.As(err, &refused) || errors.As(err, &answered) && !starting(answered) {
			return err
		}
		slog.WarnContext(ctx, "the database does not answer yet", "service", name)
		if pause(ctx, 250*time.Millisecond); ctx.Err() != nil {
			return err
		}
	}
}

// starting reports whether the server says that it will answer later. Whatever else it
// says is a wrong setting, such as a database that does not exist.
func starting(answer *pgconn.PgError) bool {
	return strings.HasPrefix(answer.Code, "57P") || answer.Code == "53300"
}

func (n *node) build(ctx context.Context, s *settings, b broker, logger *slog.Logger) (err error) {
	schema := schemaOf(n.name)
	if n.relay, err = outbox.NewRelay(n.db, b, &outbox.RelayOptions{Schema: schema, Lease: lease, Retention: s.keep, Logger: logger}); err != nil {
		return err
	}
	if n.sub, err = b.subscriber(n.name); err != nil {
		return err
	}
	switch n.name {
	case "trip":
		err = n.orchestrate(schema, s.patience, logger)
	case "ticketing":
		t := ticketing.New(n.db, schema)
		err = n.participate(schema, t.Steps(), t.Routes, logger)
	case "mail":
		m := mail.New(n.db, schema)
		err = n.participate(schema, m.Steps(), m.Routes, logger)
	default:
		hold := booking.New(n.db, n.name, schema)
		if err = hold.Fill(ctx); err == nil {
			err = n.participate(schema, hold.Steps(), hold.Routes, logger)
		}
	}
	if err != nil {
		return err
	}
	// A step is remembered for the default of 30 days: longer than a trip with its
	// compensation takes, than a message waits out an outage, and than people pause a saga.
	inbox, err := consumer.NewSweeper(n.db, &consumer.SweeperOptions{Schema: schema, Logger: logger})
	if err != nil {
		return err
	}
	n.sweepers = append(n.sweepers, inbox)
	if got, want := n.consumer.Topics(), listens[n.name]; !slices.Equal(got, want) {
		return fmt.Errorf("it listens to %v, but queues are declared for %v", got, want)
	}
	return nil
}

// orchestrate makes n the service that takes trips and runs their sagas.
func (n *node) orchestrate(schema string, patience time.Duration, logger *slog.Logger) error {
	d, err := trip.Define(schema, patience)
	if err != nil {
		return err
	}
	service, err := trip.New(n.db, schema, d, n.relay.Wake, logger)
	if err != nil {
		return err
	}
	n.routes, n.sweepers = service.Routes, []sweeper{service.Sweeper}
	n.orchestrator, err = saga.NewOrchestrator(n.db, n.sub, []saga.Plan{d}, &saga.Options{
		Schema: schema, TimerWorkers: 2, Consumer: consumer.Options{Lanes: n.lanes()}, Wake: n.relay.Wake, Logger: logger,
	})
	if err == nil {
		n.consumer = n.orchestrator.Consumer()
	}
	return err
}

// participate makes n a service that does steps.
func (n *node) participate(schema string, steps []consumer.Step, routes func(*http.ServeMux), logger *slog.Logger) (err error) {
	n.routes = routes
	n.consumer, err = consumer.New(n.db, n.sub, steps, &consumer.Options{
		Schema: schema, Lanes: n.lanes(), Wake: n.relay.Wake, Logger: logger,
	})
	return err
}

// lanes are how many messages the service works on at a time.
func (n *node) lanes() int { return max(int(n.db.Config().MaxConns)/2, 1) }

// run runs what takes messages until ctx ends.
func (n *node) run(ctx context.Context) error {
	if n.orchestrator != nil {
		return n.orchestrator.Run(ctx)
	}
	return n.consumer.Run(ctx)
}

// ready returns nil once the service is connected and consuming.
func (n *node) ready(ctx context.Context) error {
	if err := n.db.Ping(ctx); err != nil {
		return fmt.Errorf("%s: the database does not answer", n.name)
	}
	if !n.consumer.Ready() {
		return fmt.Errorf("%s: not consuming", n.name)
	}
	return nil
}

// close lets go of what openNode took. The relay and the consumer have ended.
func (n *node) close() {
	if n.sub != nil {
		_ = n.sub.Close()
	}
	n.db.Close()
}
