package evidence

import (
	"strings"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// A schema is one service's part of the database.
type schema struct {
	name  string
	saga  string // the kind of saga that it is part of
	quiet bool   // it sends and receives no messages
}

// schemas are the schemas of both examples, each with tables of sagamill and of its service.
var schemas = []schema{
	{"order_service", record.Order, false}, {"payment_service", record.Order, false}, {"shipping_service", record.Order, false},
	{"payment_gateway", record.Order, true},
	{"trip_service", record.Trip, false}, {"flight_service", record.Trip, false}, {"hotel_service", record.Trip, false},
	{"car_service", record.Trip, false}, {"ticketing_service", record.Trip, false}, {"mail_service", record.Trip, false},
}

// speaking returns the schemas with messages.
func speaking() (names []string) {
	for _, s := range schemas {
		if !s.quiet {
			names = append(names, s.name)
		}
	}
	return names
}

// A Listener is a step that receives messages of a topic.
type Listener struct {
	Topic, Type string
	Saga        string // the kind of saga in whose namespace the topic is
	Schema      string // of its inbox
	Step        string // in its inbox
	Undo        bool   // the message is a compensation

	from []string // schemas of the outboxes that publish to the topic
}

// queueName returns the name of the service that has the queue; the schema is named after it.
func (l Listener) queueName() string { return strings.TrimSuffix(l.Schema, "_service") }

// digestColumn returns the inbox column that distinguishes l's message from the step's other one.
func (l Listener) digestColumn() string {
	if l.Undo {
		return "undo_digest"
	}
	return "digest"
}

// endedStates returns the condition under which the inbox row has settled l's message. A compensation that came
// while its action was done waits for its parked copy: only that copy undoes.
func (l Listener) endedStates() string {
	if l.Undo {
		return "state IN ('void', 'compensated', 'undo-dead')"
	}
	return "state NOT IN ('open', 'retrying', 'undoing')"
}

// Listeners are all listeners of both examples. A test compares them with the examples.
var Listeners = listeners()

func listeners() (all []Listener) {
	add := func(saga, from, topic, schema, step string, undo bool) {
		all = append(all, Listener{Topic: topic, Type: topic, Saga: saga, Schema: schema, Step: step, Undo: undo, from: []string{from}})
	}
	add(record.Order, "order_service", "order.created", "payment_service", "process-payment", false)
	add(record.Order, "payment_service", "payment.processed", "order_service", "record-payment", false)
	add(record.Order, "payment_service", "payment.processed", "shipping_service", "arrange-shipping", false)
	add(record.Order, "payment_service", "payment.declined", "order_service", "record-decline", false)
	add(record.Order, "payment_service", "payment.refunded", "order_service", "record-refund", false)
	add(record.Order, "shipping_service", "shipment.arranged", "order_service", "record-shipment", false)
	add(record.Order, "shipping_service", "shipment.rejected", "order_service", "record-rejection", false)
	add(record.Order, "shipping_service", "shipment.rejected", "payment_service", "process-payment", true)
	replies := Listener{Topic: "saga.trip", Type: "saga.reply", Saga: record.Trip, Schema: "trip_service", Step: "saga-trip"}
	for _, service := range []string{"flight", "hotel", "car"} {
		own := service + "_service"
		add(record.Trip, "trip_service", service+".book", own, service, false)
		add(record.Trip, "trip_service", service+".cancel", own, service, true)
		replies.from = append(replies.from, own)
	}
	add(record.Trip, "trip_service", "ticket.issue", "ticketing_service", "ticket", false)
	add(record.Trip, "trip_service", "mail.send", "mail_service", "mail", false)
	replies.from = append(replies.from, "ticketing_service", "mail_service")
	return append(all, replies)
}

// listening returns the listeners to messages of that type on topic.
func listening(topic, typ string) (of []Listener) {
	for _, l := range Listeners {
		if l.Topic == topic && l.Type == typ {
			of = append(of, l)
		}
	}
	return of
}

// A table is a watched table; all of its rows are dumped.
type table struct {
	schema, name string

	// SQL expressions over its columns, for the fields of a Change.
	saga, key, state, what string
}

// business are the services' own tables.
var business = []table{
	{"order_service", "orders", "id::text", "tenant", "status", "amount::text"},
	{"order_service", "order_step", "order_id::text", "step", "state", "attempts::text"},
	{"payment_service", "payment", "order_id::text", "''", "state", "amount::text"},
	{"shipping_service", "shipment", "order_id::text", "''", "state", "item"},
	{"payment_gateway", "ledger", "order_id", "key", "kind", "amount::text"},
	{"trip_service", "trip", "id::text", "tenant || '|' || key", "'placed'", "traveller"},
	{"trip_service", "itinerary", "trip_id::text", "''", "'written'", "''"},
	{"trip_service", "saga", "id::text", "scope || '|' || key || '|' || path", "status", "'revision ' || revision || ' tries ' || tries"},
	{"flight_service", "booking", "trip_id::text", "n", "state", "id || ' ' || item"},
	{"hotel_service", "booking", "trip_id::text", "n", "state", "id || ' ' || item"},
	{"car_service", "booking", "trip_id::text", "n", "state", "id || ' ' || item"},
	{"ticketing_service", "ticket", "trip_id::text", "id::text", "'issued'", "number"},
	{"mail_service", "mail", "trip_id::text", "id::text", "state", "ticket"},
}

// watchedTables returns the business tables, and every service's inbox and parked.
func watchedTables() []table {
	all := business
	for _, name := range speaking() {
		all = append(all,
			table{name, "inbox", "n", "scope || '|' || key || '|' || step || '|' || n", "state", "'attempts ' || attempts || ' undo ' || undo_attempts"},
			table{name, "parked", "coalesce(n, '')", "coalesce(scope, '') || '|' || coalesce(key, '') || '|' || coalesce(step, '') || '|' || coalesce(n, '') || '|' || kind",
				"state", "'id ' || id || ' ' || reason || ' attempts ' || attempts"})
	}
	return all
}
