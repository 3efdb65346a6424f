package main

import (
	"cmp"
	"context"
	"io/fs"
	"log/slog"
	"net/http"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/examples/order-saga/internal/api"
	"github.com/sagamill/sagamill/examples/order-saga/internal/event"
	"github.com/sagamill/sagamill/examples/order-saga/internal/gateway"
	"github.com/sagamill/sagamill/examples/order-saga/internal/order"
	"github.com/sagamill/sagamill/examples/order-saga/internal/payment"
	"github.com/sagamill/sagamill/examples/order-saga/internal/shipping"
	"github.com/sagamill/sagamill/outbox"
)

// program is this example. The gateway has no messages.
var program = &demo.Program{
	Name: string(api.Program), Noun: "order",
	Services: []string{"order", "payment", "shipping", "gateway"},
	Listens: map[string][]string{
		"order":    {event.PaymentDeclined, event.PaymentProcessed, event.PaymentRefunded, event.ShipmentArranged, event.ShipmentRejected},
		"payment":  {event.OrderCreated, event.ShipmentRejected},
		"shipping": {event.PaymentProcessed},
	},
	Publishes: map[string][]string{
		"order":    {event.OrderCreated},
		"payment":  {event.PaymentDeclined, event.PaymentProcessed, event.PaymentRefunded},
		"shipping": {event.ShipmentArranged, event.ShipmentRejected},
	},
	Schemas: map[string]string{"order": "order_service", "payment": "payment_service", "shipping": "shipping_service", "gateway": "payment_gateway"},
	Tables:  map[string]fs.FS{"order": order.Migrations, "payment": payment.Migrations, "shipping": shipping.Migrations, "gateway": gateway.Migrations},
	// All services in one process, and a second copy of that, fit into PostgreSQL's default of
	// 100 connections.
	MaxConns: 8,
}

// newApp returns a process that runs the services of s. traces may be nil.
func newApp(s *settings, traces *tracing, logger *slog.Logger) *demo.App {
	return &demo.App{
		Settings: &s.Settings, Logger: logger, Metrics: metrics,
		Build: func(_ context.Context, service *demo.Service, own string, b demo.Broker, logger *slog.Logger) error {
			w, err := traces.newWatchers(service.Name)
			if err != nil {
				return err
			}
			return buildService(service, s, own, b, w, logger)
		},
		Wrap: func(mux *http.ServeMux) http.Handler {
			return traces.traceRequests(s.Services, api.Program.CompleteMux(mux))
		},
	}
}

// buildService makes the parts of service n: for the gateway its HTTP interface, and for all others a
// relay, steps, a consumer of them, and sweepers. own is the URL of this process.
func buildService(n *demo.Service, s *settings, own string, b demo.Broker, w watchers, logger *slog.Logger) (err error) {
	if n.Name == "gateway" {
		g, err := gateway.NewService(n.DB, n.Schema, s.gatewayPlain, logger)
		if err != nil {
			return err
		}
		n.Routes, n.Sweepers = g.AddRoutes, []demo.Sweeper{g.Sweeper}
		return nil
	}
	n.Relay, err = outbox.NewRelay(n.DB, b, &outbox.RelayOptions{Schema: n.Schema, Lease: demo.Lease, Retention: s.Keep, Observer: w.relay, Logger: logger})
	if err != nil {
		return err
	}
	var steps []consumer.Step
	switch n.Name {
	case "order":
		o, err := order.NewService(n.DB, n.Schema, n.Relay.Wake, w.order, logger)
		if err != nil {
			return err
		}
		n.Routes, n.Sweepers, steps = o.AddRoutes, []demo.Sweeper{o.Sweeper}, o.BuildSteps()
	case "payment":
		processor := payment.Gateway{URL: cmp.Or(s.gatewayURL, own), Client: w.newTracedClient(), Plain: s.gatewayPlain}
		steps = payment.NewService(n.DB, n.Schema, processor).BuildSteps()
	case "shipping":
		steps = shipping.NewService(n.Schema).BuildSteps()
	}
	if n.Subscriber, err = b.Subscriber(n.Name); err != nil {
		return err
	}
	n.Consumer, err = consumer.New(n.DB, n.Subscriber, steps, &consumer.Options{
		Schema: n.Schema, Lanes: countLanes(n), Observer: w.consumer, Wake: n.Relay.Wake, Logger: logger,
	})
	if err != nil {
		return err
	}
	// The inbox remembers a step for the default of 30 days. An order with its compensation is
	// shorter, and so is the longest outage that a message waits out.
	inbox, err := consumer.NewSweeper(n.DB, &consumer.SweeperOptions{Schema: n.Schema, Logger: logger})
	if err != nil {
		return err
	}
	n.Sweepers = append(n.Sweepers, inbox)
	return nil
}

// countLanes returns how many messages the service handles at a time. Handlers of payment wait
// for the gateway most of the time, without a connection.
func countLanes(n *demo.Service) int {
	conns := int(n.DB.Config().MaxConns)
	if n.Name == "payment" {
		return 2 * conns
	}
	return max(conns/2, 1)
}
