package cookbook

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
)

// PaymentTimeout are the steps of a service that cancels an order without a payment after limit.
func PaymentTimeout(limit time.Duration) []consumer.Step {
	return []consumer.Step{
		{Name: "await-payment", Action: consumer.On("order.created", awaitPayment(limit))},
		{Name: "take-payment", Action: consumer.On("payment.received", takePayment)},
		{Name: "end-waiting", Action: consumer.On("payment.timeout", endWaiting)},
	}
}

// awaitPayment opens the invoice, unless the payment was faster. Its transaction also stores the message that ends the
// waiting.
func awaitPayment(limit time.Duration) consumer.Handler[Order] {
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[Order], emit consumer.Emit) error {
		emit(outbox.Message{Topic: "payment.timeout", Step: "end-waiting", Payload: in.Payload, Delay: limit})
		_, err := tx.Exec(ctx, "INSERT INTO shop.invoice (saga, state) VALUES ($1, 'open') ON CONFLICT DO NOTHING", in.CorrelationID)
		return err
	}
}

// takePayment closes the invoice. A payment after the timeout is given back.
func takePayment(ctx context.Context, tx pgx.Tx, in consumer.Message[Order], emit consumer.Emit) error {
	closed, err := closeInvoice(ctx, tx, in.CorrelationID, "paid")
	if err == nil && !closed {
		emit.JSON("payment.refused", "refund", in.Body)
	}
	return err
}

// endWaiting cancels the order if its invoice is still open.
func endWaiting(ctx context.Context, tx pgx.Tx, in consumer.Message[Order], emit consumer.Emit) error {
	closed, err := closeInvoice(ctx, tx, in.CorrelationID, "cancelled")
	if err == nil && closed {
		emit.JSON("order.cancelled", "give-back", in.Body)
	}
	return err
}

// closeInvoice reports whether the invoice was not closed before. The lock of its row decides between a payment and the
// timeout.
func closeInvoice(ctx context.Context, tx pgx.Tx, saga, state string) (closed bool, err error) {
	tag, err := tx.Exec(ctx, `
INSERT INTO shop.invoice AS i (saga, state) VALUES ($1, $2)
ON CONFLICT (saga) DO UPDATE SET state = excluded.state WHERE i.state = 'open'`, saga, state)
	return tag.RowsAffected() == 1, err
}
