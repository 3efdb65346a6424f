// Package event has the messages of the order saga. The services share nothing else but the form
// of HTTP answers.
package event

// The message types. Each is also the topic that it is published to.
const (
	OrderCreated     = "order.created"
	PaymentProcessed = "payment.processed"
	PaymentDeclined  = "payment.declined"
	PaymentRefunded  = "payment.refunded"
	ShipmentArranged = "shipment.arranged"
	ShipmentRejected = "shipment.rejected"
)

// The steps of the saga.
const (
	ProcessPayment  = "process-payment"
	ArrangeShipping = "arrange-shipping"
)

// Steps are those that a customer is shown, in their order. The saga is choreographed: each
// service acts on the messages of the service before it. A rejected shipment undoes the payment.
var Steps = []string{ProcessPayment, ArrangeShipping}

// Order is the body of OrderCreated and PaymentProcessed. Amount is in the currency's minor unit.
type Order struct {
	OrderID  string `json:"order_id"`
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Card     string `json:"card,omitempty"`
	Attempts int    `json:"attempts,omitempty"` // of the step that publishes it
}

// Outcome is the body of all other messages. It says how a step ended.
type Outcome struct {
	OrderID  string `json:"order_id"`
	Reason   string `json:"reason,omitempty"`
	Attempts int    `json:"attempts"`
}
