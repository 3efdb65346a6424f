package judge

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// tables are the rows at the end of the run.
type tables struct {
	orders    []orderRow
	steps     []stepRow
	payments  []paymentRow
	shipments []shipmentRow
	ledger    []ledgerRow

	trips       []tripRow
	sagas       []sagaRow
	bookings    map[string][]bookingRow // by service
	stocks      map[string][]stockRow
	tickets     []tripIDRow
	mails       []mailRow
	itineraries []tripIDRow

	inboxes map[string][]inboxRow // by schema
	parked  map[string][]parkedRow
	held    map[string][]heldRow
}

type (
	orderRow struct {
		ID, Tenant, Item, Status, Reason string
		Amount                           int64
	}
	stepRow struct {
		OrderID  string `json:"order_id"`
		Step     string
		State    string
		Position int
	}
	paymentRow struct {
		OrderID string `json:"order_id"`
		State   string
		Amount  int64
	}
	shipmentRow struct {
		OrderID string `json:"order_id"`
		State   string
	}
	ledgerRow struct {
		ID      int64
		Kind    string
		Key     string
		OrderID string `json:"order_id"`
		Amount  int64
	}
	tripRow struct{ ID, Tenant, Key string }
	sagaRow struct {
		Scope, Key, Path, ID, Root, Status, Reason, Progress string
		Revision                                             int
	}
	bookingRow struct {
		TripID string `json:"trip_id"`
		N      string
		Item   string
		State  string
	}
	stockRow struct {
		Item           string
		Capacity, Free int64
	}
	tripIDRow struct {
		TripID string `json:"trip_id"`
	}
	mailRow struct {
		TripID string `json:"trip_id"`
		State  string
	}
	inboxRow struct {
		Scope, Key, Step, N, State string
		Attempts                   int
		UndoAttempts               int `json:"undo_attempts"`
	}
	parkedRow struct {
		State, Kind          string
		Scope, Key, Step, N  *string
		Topic, Reason, Error string
		MessageID            string `json:"message_id"` // bytes, in hexadecimal
		Payload              string // its digest
		Attempts             int
	}
	heldRow struct {
		ID        int64
		MessageID string `json:"message_id"`
		Topic     string
		State     string
		Reason    string
	}
)

// readTables reads the tables in dir. A missing table is an error: without its rows every invariant would hold.
func (t *tables) readTables(dir string) error {
	t.bookings, t.stocks = map[string][]bookingRow{}, map[string][]stockRow{}
	t.inboxes, t.parked, t.held = map[string][]inboxRow{}, map[string][]parkedRow{}, map[string][]heldRow{}
	err := errors.Join(
		readTable(dir, "order_service.orders", &t.orders), readTable(dir, "order_service.order_step", &t.steps),
		readTable(dir, "payment_service.payment", &t.payments), readTable(dir, "shipping_service.shipment", &t.shipments),
		readTable(dir, "payment_gateway.ledger", &t.ledger),
		readTable(dir, "trip_service.trip", &t.trips), readTable(dir, "trip_service.saga", &t.sagas), readTable(dir, "trip_service.itinerary", &t.itineraries),
		readTable(dir, "ticketing_service.ticket", &t.tickets), readTable(dir, "mail_service.mail", &t.mails),
	)
	for _, service := range holders {
		var bookings []bookingRow
		var stock []stockRow
		err = errors.Join(err, readTable(dir, service+"_service.booking", &bookings), readTable(dir, service+"_service.stock", &stock))
		t.bookings[service], t.stocks[service] = bookings, stock
	}
	for _, schema := range consumers() {
		var inbox []inboxRow
		var parked []parkedRow
		var held []heldRow
		err = errors.Join(err, readTable(dir, schema+".inbox", &inbox), readTable(dir, schema+".parked", &parked), readTable(dir, schema+".outbox_held", &held))
		t.inboxes[schema], t.parked[schema], t.held[schema] = inbox, parked, held
	}
	return err
}

func readTable[T any](dir, name string, into *[]T) error {
	err := readRecords(dir, filepath.Join(record.TablesDir, name+".jsonl.gz"), into)
	if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(name, ".outbox_held") {
		return nil
	}
	return err
}

// holders are the services that hold units.
var holders = []string{"flight", "hotel", "car"}

// A listener is a step that takes the messages of a topic.
type listener struct {
	schema, topic, step string
	undo                bool // they are compensations
}

// listeners are all listeners of both examples.
var listeners = []listener{
	{"order_service", "payment.declined", "record-decline", false},
	{"order_service", "payment.processed", "record-payment", false},
	{"order_service", "payment.refunded", "record-refund", false},
	{"order_service", "shipment.arranged", "record-shipment", false},
	{"order_service", "shipment.rejected", "record-rejection", false},
	{"payment_service", "order.created", "process-payment", false},
	{"payment_service", "shipment.rejected", "process-payment", true},
	{"shipping_service", "payment.processed", "arrange-shipping", false},
	{"trip_service", "saga.trip", "saga-trip", false},
	{"flight_service", "flight.book", "flight", false},
	{"flight_service", "flight.cancel", "flight", true},
	{"hotel_service", "hotel.book", "hotel", false},
	{"hotel_service", "hotel.cancel", "hotel", true},
	{"car_service", "car.book", "car", false},
	{"car_service", "car.cancel", "car", true},
	{"ticketing_service", "ticket.issue", "ticket", false},
	{"mail_service", "mail.send", "mail", false},
}

// consumers returns the schemas of all services that listen to a topic.
func consumers() (schemas []string) {
	for _, l := range listeners {
		if !slices.Contains(schemas, l.schema) {
			schemas = append(schemas, l.schema)
		}
	}
	return schemas
}

// listening returns the listeners of a topic.
func listening(topic string) (of []listener) {
	for _, l := range listeners {
		if l.topic == topic {
			of = append(of, l)
		}
	}
	return of
}

// identityText returns the message's id as text.
func (r *parkedRow) identityText() string {
	text, err := hex.DecodeString(strings.TrimPrefix(r.MessageID, `\x`))
	if err != nil {
		return r.MessageID
	}
	return string(text)
}
