package site

import (
	"slices"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// A Service is one service of an example.
type Service struct {
	Name string
	Saga string // record.Order or record.Trip
}

// The services, each in two processes.
var services = []Service{
	{"order", record.Order}, {"payment", record.Order}, {"shipping", record.Order}, {"gateway", record.Order},
	{"trip", record.Trip}, {"flight", record.Trip}, {"hotel", record.Trip}, {"car", record.Trip},
	{"ticketing", record.Trip}, {"mail", record.Trip},
}

// Services returns the names of all services.
func Services() (names []string) {
	for _, s := range services {
		names = append(names, s.Name)
	}
	return names
}

// Processes returns the names of all processes, as "payment-1".
func Processes() (names []string) {
	for _, s := range services {
		names = append(names, s.Name+"-1", s.Name+"-2")
	}
	return names
}

// ServiceOf returns the service of a process.
func ServiceOf(process string) string { return process[:max(0, len(process)-len("-1"))] }

// The backends of a link.
const (
	Postgres = "postgres"
	RabbitMQ = "rabbitmq"
)

// LinkNames returns the names of all links, as "payment-1 postgres".
func LinkNames() (names []string) {
	for _, s := range services {
		names = append(names, linkName(s.Name, Postgres), linkName(s.Name, RabbitMQ))
	}
	return names
}

func linkName(service, backend string) string { return service + "-1 " + backend }

// A Topic is an exchange of the broker, and the services that have a queue bound to
// it.
type Topic struct {
	Saga     string   // record.Order or record.Trip
	Name     string   // the exchange is called <namespace>.<name>
	From     string   // a service that publishes to it
	Services []string // each has a queue, <namespace>.<name>.<service>

	// Steps are the steps of the Services for a message of this topic. Their inboxes record the message under
	// these names. If Steps is empty, no inbox shows whether a message arrived, and the queues must not be
	// deleted.
	Steps []string
}

// topics repeats the examples' own declarations: the examples are programs, so no package can import them.
// StartProcesses compares topics with the broker.
var topics = []Topic{
	{record.Order, "order.created", "order", []string{"payment"}, []string{"process-payment"}},
	{record.Order, "payment.declined", "payment", []string{"order"}, nil},
	{record.Order, "payment.processed", "payment", []string{"order", "shipping"}, []string{"record-payment", "arrange-shipping"}},
	{record.Order, "payment.refunded", "payment", []string{"order"}, nil},
	{record.Order, "shipment.arranged", "shipping", []string{"order"}, nil},
	{record.Order, "shipment.rejected", "shipping", []string{"order", "payment"}, nil},
	{record.Trip, "saga.trip", "flight", []string{"trip"}, nil},
	{record.Trip, "flight.book", "trip", []string{"flight"}, []string{"flight"}},
	{record.Trip, "flight.cancel", "trip", []string{"flight"}, nil},
	{record.Trip, "hotel.book", "trip", []string{"hotel"}, []string{"hotel"}},
	{record.Trip, "hotel.cancel", "trip", []string{"hotel"}, nil},
	{record.Trip, "car.book", "trip", []string{"car"}, []string{"car"}},
	{record.Trip, "car.cancel", "trip", []string{"car"}, nil},
	{record.Trip, "ticket.issue", "trip", []string{"ticketing"}, nil},
	{record.Trip, "mail.send", "trip", []string{"mail"}, nil},
}

// AllTopics returns all topics of the examples.
func AllTopics() []Topic { return slices.Clone(topics) }

// SchemaOf returns the schema of a service's tables.
func SchemaOf(service string) string {
	if service == "gateway" {
		return "payment_gateway"
	}
	return service + "_service"
}
