// Package shipping is the service that arranges shipments, or rejects them.
package shipping

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/order-saga/internal/event"
	"github.com/sagamill/sagamill/outbox"
)

//go:embed migrations
var files embed.FS

// Migrations are the service's own tables.
var Migrations, _ = fs.Sub(files, "migrations") // the folder is embedded: there is no error

// unshippable is the item whose shipment is rejected.
const unshippable = "unshippable"

// A Service arranges shipments.
type Service struct{ schema string }

// NewService returns a Service whose tables are in schema.
func NewService(schema string) *Service { return &Service{schema: schema} }

// BuildSteps returns the service's step.
func (s *Service) BuildSteps() []consumer.Step {
	return []consumer.Step{{
		Name: event.ArrangeShipping, Action: consumer.On(event.PaymentProcessed, s.arrangeShipment),
		Emits: []outbox.Output{outbox.OutputOf[event.Outcome](event.ShipmentArranged), outbox.OutputOf[event.Outcome](event.ShipmentRejected)},
	}}
}

func (s *Service) arrangeShipment(ctx context.Context, tx pgx.Tx, in consumer.Message[event.Order], emit consumer.Emit) error {
	o, out := in.Body, event.Outcome{OrderID: in.Body.OrderID, Attempts: in.Attempt}
	state, topic, next := "arranged", event.ShipmentArranged, "record-shipment"
	if o.Item == unshippable {
		out.Reason = "item cannot be shipped"
		state, topic, next = "rejected", event.ShipmentRejected, event.ProcessPayment
	}
	_, err := tx.Exec(ctx, "INSERT INTO "+s.schema+".shipment (order_id, state, item, quantity) VALUES ($1, $2, $3, $4)",
		o.OrderID, state, o.Item, o.Quantity)
	if err != nil {
		return fmt.Errorf("shipping: insert: %w", err)
	}
	payload, err := json.Marshal(out)
	if err != nil {
		return consumer.Terminal(err)
	}
	emit(outbox.Message{Topic: topic, Step: next, Payload: payload})
	return nil
}
