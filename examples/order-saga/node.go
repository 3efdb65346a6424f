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
	"github.com/sagamill/sagamill/examples/order-saga/internal/event"
	"github.com/sagamill/sagamill/examples/order-saga/internal/gateway"
	"github.com/sagamill/sagamill/examples/order-saga/internal/order"
	"github.com/sagamill/sagamill/examples/order-saga/internal/payment"
	"github.com/sagamill/sagamill/examples/order-saga/internal/shipping"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
)

var serviceNames = []string{"order", "payment", "shipping", "gateway"}

// listens says which service keeps a queue for which topics, publishes which one
// publishes to them. A process declares the queues of what its services publish before
// its relays do, and its consumers their own, so that it does not matter which service is
// started first.
var listens = map[string][]string{
	"order":    {event.PaymentDeclined, event.PaymentProcessed, event.PaymentRefunded, event.ShipmentArranged, event.ShipmentRejected},
	"payment":  {event.OrderCreated, event.ShipmentRejected},
	"shipping": {event.PaymentProcessed},
}

var publishes = map[string][]string{
	"order":    {event.OrderCreated},
	"payment":  {event.PaymentDeclined, event.PaymentProcessed, event.PaymentRefunded},
	"shipping": {event.ShipmentArranged, event.ShipmentRejected},
}

// schemas and migrations of the services' own tables.
var (
	schemas = map[string]string{"order": "order_service", "payment": "payment_service", "shipping": "shipping_service", "gateway": "payment_gateway"}
	tables  = map[string]fs.FS{"order": order.Migrations, "payment": payment.Migrations, "shipping": shipping.Migrations, "gateway": gateway.Migrations}
)

// maxConns is the size of each service's pool, unless its URL has pool_max_conns. All of them in one process, and
// a second copy of that, fit into PostgreSQL's default of 100 connections.
const maxConns = 8

// lanes are how many messages the service works on at a time. Those of payment wait for
// the gateway most of the time, without a connection.
func (n *node) lanes() int {
	conns := int(n.db.Config().MaxConns)
	if n.name == "payment" {
		return 2 * conns
	}
	return max(conns/2, 1)
}

// lease is how long a relay may be silent before another copy of its service
// publishes instead: short, for a demo that kills processes.
const lease = 2 * time.Second

// A node is one service with what it runs on: its pool, and, unless it is the
// gateway, its relay and its consumer.
type node struct {
	name     string
	db       *pgxpool.Pool
	relay    *outbox.Relay
	consumer *consumer.Consumer
	sub      message.Subscriber
	steps    []consumer.Step
	routes   func(*http.ServeMux)
	sweepers []sweeper // of idempotency records and of the inbox, as far as it has them
}

// A sweeper removes what is old while it runs.
type sweeper interface{ Run(context.Context) error }

// openNode migrates the service's schema and connects the service to the
// broker. It starts nothing.
func openNode(ctx context.Context, name string, s *settings, gatewayURL string, b broker, w watchers, logger *slog.Logger) (*node, error) {
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
	config.ConnConfig.RuntimeParams["application_name"] = "order-saga " + name
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	n := &node{name: name, db: db}
	processor := payment.Gateway{URL: gatewayURL, Client: w.client(), Plain: s.gatewayPlain}
	if err := n.build(s, processor, b, w, logger); err != nil {
		n.close()
		return nil, fmt.Errorf("service %s: %w", name, err)
	}
	return n, nil
}

// migrate applies sagamill's tables and the service's own. A database that is
// not there yet, because it starts at the same time, is waited for.
func migrate(ctx context.Context, name, databaseURL string) error {
	for {
		err := migrations.Up(ctx, databaseURL, schemas[name])
		if err == nil {
			return migrations.UpFrom(ctx, databaseURL, schemas[name], name+"_version", tables[name])
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

func (n *node) build(s *settings, processor payment.Gateway, b broker, w watchers, logger *slog.Logger) error {
	schema := schemas[n.name]
	logger = logger.With("service", n.name)
	n.routes = func(*http.ServeMux) {}
	if n.name == "gateway" {
		g, err := gateway.New(n.db, schema, processor.Plain, logger)
		if err != nil {
			return err
		}
		n.routes, n.sweepers = g.Routes, []sweeper{g.Sweeper}
		return nil
	}
	var err error
	n.relay, err = outbox.NewRelay(n.db, b, &outbox.RelayOptions{Schema: schema, Lease: lease, Retention: s.keep, Observer: w.relay, Logger: logger})
	if err != nil {
		return err
	}
	switch n.name {
	case "order":
		o, err := order.New(n.db, schema, n.relay.Wake, w.order, logger)
		if err != nil {
			return err
		}
		n.routes, n.steps, n.sweepers = o.Routes, o.Steps(), []sweeper{o.Sweeper}
	case "payment":
		n.steps = payment.New(n.db, schema, processor).Steps()
	case "shipping":
		n.steps = shipping.New(schema).Steps()
	}
	if n.sub, err = b.subscriber(n.name); err != nil {
		return err
	}
	n.consumer, err = consumer.New(n.db, n.sub, n.steps, &consumer.Options{
		Schema: schema, Lanes: n.lanes(), Observer: w.consumer, Wake: n.relay.Wake, Logger: logger,
	})
	if err != nil {
		return err
	}
	// A step is remembered for the default of 30 days: longer than an order with its
	// compensation takes, and than a message waits out an outage.
	inbox, err := consumer.NewSweeper(n.db, &consumer.SweeperOptions{Schema: schema, Logger: logger})
	if err != nil {
		return err
	}
	n.sweepers = append(n.sweepers, inbox)
	if got, want := n.consumer.Topics(), listens[n.name]; !slices.Equal(got, want) {
		return fmt.Errorf("its steps listen to %v, but queues are declared for %v", got, want)
	}
	return nil
}

// ready returns nil once the service is connected and consuming.
func (n *node) ready(ctx context.Context) error {
	if err := n.db.Ping(ctx); err != nil {
		return fmt.Errorf("%s: the database does not answer", n.name)
	}
	if n.consumer != nil && !n.consumer.Ready() {
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
