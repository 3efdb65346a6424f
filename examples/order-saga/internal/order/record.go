package order

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/order-saga/internal/event"
)

// BuildSteps returns the service's steps, which record what the other services did. The messages
// come from different services, so they arrive in any order.
func (s *Service) BuildSteps() []consumer.Step {
	return []consumer.Step{
		{Name: "record-payment", Action: consumer.On(event.PaymentProcessed,
			func(ctx context.Context, tx pgx.Tx, in consumer.Message[event.Order], _ consumer.Emit) error {
				return s.recordProgress(ctx, tx, in.Body.OrderID, "paid", "", stepReport{event.ProcessPayment, "done", in.Body.Attempts})
			})},
		{Name: "record-decline", Action: consumer.On(event.PaymentDeclined,
			func(ctx context.Context, tx pgx.Tx, in consumer.Message[event.Outcome], _ consumer.Emit) error {
				return s.recordProgress(ctx, tx, in.Body.OrderID, "cancelled", in.Body.Reason,
					stepReport{event.ProcessPayment, "rejected", in.Body.Attempts}, stepReport{event.ArrangeShipping, "skipped", 0})
			})},
		{Name: "record-shipment", Action: consumer.On(event.ShipmentArranged,
			func(ctx context.Context, tx pgx.Tx, in consumer.Message[event.Outcome], _ consumer.Emit) error {
				return s.recordProgress(ctx, tx, in.Body.OrderID, "completed", "", stepReport{event.ArrangeShipping, "done", in.Body.Attempts})
			})},
		{Name: "record-rejection", Action: consumer.On(event.ShipmentRejected,
			func(ctx context.Context, tx pgx.Tx, in consumer.Message[event.Outcome], _ consumer.Emit) error {
				return s.recordProgress(ctx, tx, in.Body.OrderID, "paid", "", stepReport{event.ArrangeShipping, "rejected", in.Body.Attempts})
			})},
		{Name: "record-refund", Action: consumer.On(event.PaymentRefunded,
			func(ctx context.Context, tx pgx.Tx, in consumer.Message[event.Outcome], _ consumer.Emit) error {
				return s.recordProgress(ctx, tx, in.Body.OrderID, "cancelled", in.Body.Reason, stepReport{event.ProcessPayment, "compensated", in.Body.Attempts})
			})},
	}
}

// A stepReport is the state of a step that a message reports.
type stepReport struct {
	step, state string
	attempts    int
}

// recordProgress stores a new status of an order and of its steps. Completed and cancelled are final
// for an order, and compensated is final for a step: a late message changes neither. The lock on the
// order's row serializes the order's messages.
func (s *Service) recordProgress(ctx context.Context, tx pgx.Tx, orderID, status, reason string, steps ...stepReport) error {
	batch, known := &pgx.Batch{}, false
	batch.Queue("SELECT true FROM "+s.schema+".orders WHERE id = $1 FOR UPDATE", orderID).QueryRow(func(row pgx.Row) error {
		if err := row.Scan(&known); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return nil
	})
	batch.Queue("UPDATE "+s.schema+".orders SET status = $2, reason = $3 WHERE id = $1 AND status IN ('pending', 'paid')", orderID, status, reason)
	for _, h := range steps {
		batch.Queue("UPDATE "+s.schema+".order_step SET state = $3, attempts = $4, at = clock_timestamp()"+
			" WHERE order_id = $1 AND step = $2 AND (state = 'pending' OR state = 'done' AND $3 = 'compensated')",
			orderID, h.step, h.state, h.attempts)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("order: record: %w", err)
	}
	if !known {
		return consumer.Terminal(fmt.Errorf("order: there is no order %.40q", orderID))
	}
	return nil
}
