package main

import (
	"encoding/json"
	"strings"

	"github.com/google/uuid"
)

const (
	payloadSize = 512
	scope       = "bench"
)

// The steps of the saga, after its start.
const (
	stepPay      = "process-payment"
	stepShip     = "arrange-shipping"
	stepComplete = "complete-order"
)

// The services. Each has a schema with its business tables.
const (
	serviceOrder    = "order"
	servicePayment  = "payment"
	serviceShipping = "shipping"
)

// The message types, which are topics as well.
const (
	orderCreated     = "order.created"
	paymentProcessed = "payment.processed"
	shipmentArranged = "shipment.arranged"
)

var (
	services = []string{serviceOrder, servicePayment, serviceShipping}
	topics   = []string{orderCreated, paymentProcessed, shipmentArranged}
)

// business holds the statements that create each service's tables. Their keys make a doubled effect of a saga
// an error.
var business = map[string][]string{
	serviceOrder: {`
CREATE TABLE orders (
	order_id  uuid        PRIMARY KEY,
	item      text        NOT NULL,
	quantity  integer     NOT NULL,
	amount    bigint      NOT NULL,
	currency  text        NOT NULL,
	placed_at timestamptz NOT NULL DEFAULT now())`, `
CREATE TABLE completion (
	order_id     uuid        PRIMARY KEY,
	completed_at timestamptz NOT NULL DEFAULT now())`},
	servicePayment: {`
CREATE TABLE payment (
	order_id uuid        PRIMARY KEY,
	amount   bigint      NOT NULL,
	currency text        NOT NULL,
	paid_at  timestamptz NOT NULL DEFAULT now())`},
	serviceShipping: {`
CREATE TABLE shipment (
	order_id    uuid        PRIMARY KEY,
	item        text        NOT NULL,
	quantity    integer     NOT NULL,
	arranged_at timestamptz NOT NULL DEFAULT now())`},
}

const businessTables = "orders, payment, shipment, completion"

// An order is the subject of a saga and the body of each of its messages. Its id is random, so that keys hit
// random places of an index: the worst case, and the usual one.
type order struct {
	OrderID  string `json:"order_id"`
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Note     string `json:"note"`
}

func randomOrder() *order {
	o := &order{OrderID: uuid.NewString(), Item: "sku-4711", Quantity: 2, Amount: 4200, Currency: "EUR"}
	o.Note = strings.Repeat("x", payloadSize-len(o.payload()))
	return o
}

func (o *order) payload() []byte {
	text, _ := json.Marshal(o) // cannot fail
	return text
}

// A statement inserts the business row of a step, or of the start.
type statement struct {
	table  string
	sql    string
	values func(*order) []any
}

var (
	placement = statement{
		"orders", `INSERT INTO orders (order_id, item, quantity, amount, currency) VALUES ($1, $2, $3, $4, $5)`,
		func(o *order) []any { return []any{o.OrderID, o.Item, o.Quantity, o.Amount, o.Currency} },
	}
	payment = statement{
		"payment", `INSERT INTO payment (order_id, amount, currency) VALUES ($1, $2, $3)`,
		func(o *order) []any { return []any{o.OrderID, o.Amount, o.Currency} },
	}
	shipment = statement{
		"shipment", `INSERT INTO shipment (order_id, item, quantity) VALUES ($1, $2, $3)`,
		func(o *order) []any { return []any{o.OrderID, o.Item, o.Quantity} },
	}
	completion = statement{
		"completion", `INSERT INTO completion (order_id) VALUES ($1)`,
		func(o *order) []any { return []any{o.OrderID} },
	}
)

// A step is one of the three that follow the start.
type step struct {
	service, name  string
	topic          string // its input
	effect         statement
	follows, after string // the topic that it sends to, and the next step; "": none
}

var steps = []step{
	{servicePayment, stepPay, orderCreated, payment, paymentProcessed, stepShip},
	{serviceShipping, stepShip, paymentProcessed, shipment, shipmentArranged, stepComplete},
	{serviceOrder, stepComplete, shipmentArranged, completion, "", ""},
}
