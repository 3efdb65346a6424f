// Package payment is the service that charges cards, through a payment gateway
// that belongs to somebody else and can be slow, down, or silent after it has
// charged.
package payment

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/order-saga/internal/event"
	"github.com/sagamill/sagamill/outbox"
)

//go:embed migrations
var files embed.FS

// Migrations are the service's own tables.
var Migrations, _ = fs.Sub(files, "migrations") // the folder is embedded: there is no error

// The gateway may be down for a while, and an order must not be given up
// because of that: with these limits it is tried for about eight hours.
const (
	maxAttempts = 1000
	retryCap    = time.Minute
)

// A Service takes payments.
type Service struct {
	schema  string
	gateway Gateway
}

// New returns a Service whose tables are in schema.
func New(schema string, gateway Gateway) *Service { return &Service{schema: schema, gateway: gateway} }

// Steps are the service's part in the saga.
func (s *Service) Steps() []consumer.Step {
	return []consumer.Step{{
		Name:         event.ProcessPayment,
		Action:       consumer.On(event.OrderCreated, s.charge),
		Compensation: consumer.On(event.ShipmentRejected, s.refund),
		MaxAttempts:  maxAttempts,
		RetryBase:    200 * time.Millisecond,
		RetryCap:     retryCap,
	}}
}

// charge asks the gateway for the money. The key it gives is the same for each
// attempt, so the gateway charges once, also when an earlier answer was lost.
func (s *Service) charge(ctx context.Context, tx pgx.Tx, in consumer.Message[event.Order], emit consumer.Emit) error {
	o := in.Body
	err := s.gateway.Charge(ctx, in.EffectKey(), Charge{OrderID: o.OrderID, Amount: o.Amount, Currency: o.Currency, Card: o.Card})
	var declined *DeclinedError
	state := "charged"
	switch {
	case errors.As(err, &declined): // a business outcome, not a failure
		state = "declined"
	case err != nil:
		return err
	}
	_, err = tx.Exec(ctx, "INSERT INTO "+s.schema+".payment (order_id, state, amount, currency) VALUES ($1, $2, $3, $4)",
		o.OrderID, state, o.Amount, o.Currency)
	if err != nil {
		return fmt.Errorf("payment: insert: %w", err)
	}
	if declined != nil {
		return send(emit, in.N, event.PaymentDeclined, "record-decline", event.Outcome{OrderID: o.OrderID, Reason: declined.Reason, Attempts: in.Attempt})
	}
	o.Card, o.Attempts = "", in.Attempt
	return send(emit, in.N, event.PaymentProcessed, event.ArrangeShipping, o)
}

// refund gives the money back, if there was any.
func (s *Service) refund(ctx context.Context, tx pgx.Tx, in consumer.Message[event.Outcome], emit consumer.Emit) error {
	var amount int64
	err := tx.QueryRow(ctx, "UPDATE "+s.schema+".payment SET state = 'refunded' WHERE order_id = $1 AND state = 'charged' RETURNING amount",
		in.Body.OrderID).Scan(&amount)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // declined: nothing was charged
	}
	if err != nil {
		return fmt.Errorf("payment: update: %w", err)
	}
	if err := s.gateway.Refund(ctx, in.EffectKey(), Refund{OrderID: in.Body.OrderID, Amount: amount}); err != nil {
		return err
	}
	return send(emit, in.N, event.PaymentRefunded, "record-refund", event.Outcome{OrderID: in.Body.OrderID, Reason: in.Body.Reason, Attempts: in.Attempt})
}

func send(emit consumer.Emit, n, topic, step string, body any) error {
	payload, err := json.Marshal(body)
	if err != nil {
		return consumer.Terminal(err)
	}
	emit(outbox.Message{Topic: topic, Step: step, N: n, Payload: payload})
	return nil
}
