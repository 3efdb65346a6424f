package main

import (
	"context"
	"io/fs"
	"log/slog"
	"net/http"
	"time"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/api"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/booking"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/mail"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/ticketing"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/trip"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// program is this example. The orchestrator, trip, publishes commands; every other service
// publishes its replies.
var program = &demo.Program{
	Name: string(api.Program), Noun: "trip",
	Services: []string{"trip", command.Flight, command.Hotel, command.Car, "ticketing", "mail"},
	Listens: map[string][]string{
		"trip":         {saga.Topic(trip.Name)},
		command.Flight: {command.BookTopic(command.Flight), command.CancelTopic(command.Flight)},
		command.Hotel:  {command.BookTopic(command.Hotel), command.CancelTopic(command.Hotel)},
		command.Car:    {command.BookTopic(command.Car), command.CancelTopic(command.Car)},
		"ticketing":    {command.Ticket},
		"mail":         {command.Mail},
	},
	Publishes: map[string][]string{
		"trip": {
			command.BookTopic(command.Flight), command.CancelTopic(command.Flight), command.BookTopic(command.Hotel), command.CancelTopic(command.Hotel),
			command.BookTopic(command.Car), command.CancelTopic(command.Car), command.Ticket, command.Mail,
		},
		command.Flight: {saga.Topic(trip.Name)},
		command.Hotel:  {saga.Topic(trip.Name)},
		command.Car:    {saga.Topic(trip.Name)},
		"ticketing":    {saga.Topic(trip.Name)},
		"mail":         {saga.Topic(trip.Name)},
	},
	Schemas: map[string]string{
		"trip": "trip_service", command.Flight: "flight_service", command.Hotel: "hotel_service", command.Car: "car_service",
		"ticketing": "ticketing_service", "mail": "mail_service",
	},
	Tables: map[string]fs.FS{
		"trip": trip.Migrations, command.Flight: booking.Migrations, command.Hotel: booking.Migrations, command.Car: booking.Migrations,
		"ticketing": ticketing.Migrations, "mail": mail.Migrations,
	},
	// Each relay listens on one more connection. All of them, and a second copy, fit into
	// PostgreSQL's default of 100 connections.
	MaxConns: 5,
}

// newApp returns a process that runs the services of s.
func newApp(s *settings, logger *slog.Logger) *demo.App {
	return &demo.App{
		Settings: &s.Settings, Logger: logger, Metrics: metrics, Wrap: api.Program.CompleteMux,
		Build: func(ctx context.Context, n *demo.Service, _ string, b demo.Broker, logger *slog.Logger) error {
			return buildService(ctx, n, s, b, logger)
		},
	}
}

// buildService makes the parts of service n: a relay, an orchestrator or a consumer of steps, and
// sweepers.
func buildService(ctx context.Context, n *demo.Service, s *settings, b demo.Broker, logger *slog.Logger) (err error) {
	if n.Relay, err = outbox.NewRelay(n.DB, b, &outbox.RelayOptions{Schema: n.Schema, Lease: demo.Lease, Retention: s.Keep, Logger: logger}); err != nil {
		return err
	}
	if n.Subscriber, err = b.Subscriber(n.Name); err != nil {
		return err
	}
	switch n.Name {
	case "trip":
		err = buildOrchestrator(n, s.patience, logger)
	case "ticketing":
		t := ticketing.NewService(n.DB, n.Schema)
		err = buildParticipant(n, t.BuildSteps(), t.AddRoutes, logger)
	case "mail":
		m := mail.NewService(n.DB, n.Schema)
		err = buildParticipant(n, m.BuildSteps(), m.AddRoutes, logger)
	default:
		hold := booking.NewService(n.DB, n.Name, n.Schema)
		if err = hold.FillStock(ctx); err == nil {
			err = buildParticipant(n, hold.BuildSteps(), hold.AddRoutes, logger)
		}
	}
	if err != nil {
		return err
	}
	// The inbox remembers a step for the default of 30 days. A trip with its compensation is
	// shorter, and so are the longest outage and the longest pause of a saga by a person.
	inbox, err := consumer.NewSweeper(n.DB, &consumer.SweeperOptions{Schema: n.Schema, Logger: logger})
	if err != nil {
		return err
	}
	n.Sweepers = append(n.Sweepers, inbox)
	return nil
}

// buildOrchestrator makes n the service that accepts trips and runs their sagas.
func buildOrchestrator(n *demo.Service, patience time.Duration, logger *slog.Logger) error {
	d, err := trip.DefineSaga(n.Schema, patience)
	if err != nil {
		return err
	}
	service, err := trip.NewService(n.DB, n.Schema, d, n.Relay.Wake, logger)
	if err != nil {
		return err
	}
	n.Routes, n.Sweepers = service.AddRoutes, []demo.Sweeper{service.Sweeper}
	n.Orchestrator, err = saga.NewOrchestrator(n.DB, n.Subscriber, []saga.Plan{d}, &saga.Options{
		Schema: n.Schema, TimerWorkers: 2, Consumer: consumer.Options{Lanes: countLanes(n)}, Wake: n.Relay.Wake, Logger: logger,
	})
	if err == nil {
		n.Consumer = n.Orchestrator.Consumer()
	}
	return err
}

// buildParticipant makes n a service that does steps.
func buildParticipant(n *demo.Service, steps []consumer.Step, routes func(*http.ServeMux), logger *slog.Logger) (err error) {
	n.Routes = routes
	n.Consumer, err = consumer.New(n.DB, n.Subscriber, steps, &consumer.Options{
		Schema: n.Schema, Lanes: countLanes(n), Wake: n.Relay.Wake, Logger: logger,
	})
	return err
}

// countLanes returns how many messages the service handles at a time.
func countLanes(n *demo.Service) int { return max(int(n.DB.Config().MaxConns)/2, 1) }
