// Package payment is the service that charges cards, through the payment gateway of a third party.
// The gateway can be slow, down, or silent after it has charged.
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
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/order-saga/internal/event"
	"github.com/sagamill/sagamill/outbox"
)

//go:embed migrations
var files embed.FS

// Migrations are the service's own tables.
var Migrations, _ = fs.Sub(files, "migrations") // the folder is embedded: there is no error

// An order must not fail because the gateway is down for a while. With these limits a payment is
// retried for about eight hours.
const (
	maxAttempts = 1000
	retryCap    = time.Minute
)

// The gateway answers within two seconds, or not at all.
const (
	gatewayTimeout = 8 * time.Second
	gatewaySettles = 3 * time.Second
)

// A Service takes payments.
type Service struct {
	db      *pgxpool.Pool
	schema  string
	gateway Gateway
}

// NewService returns a Service whose tables are in schema.
func NewService(db *pgxpool.Pool, schema string, gateway Gateway) *Service {
	return &Service{db: db, schema: schema, gateway: gateway}
}

// BuildSteps returns the service's steps. After a call with an unknown outcome, a gateway that
// honours keys is called again. A plain gateway is first asked for the movement, even before the
// first call: a restored database may have forgotten an earlier call, and the gateway would charge
// again.
func (s *Service) BuildSteps() []consumer.Step {
	charged, refunded := s.lookUpCharge, s.lookUpRefund
	if !s.gateway.Plain {
		charged, refunded = nil, nil
	}
	return []consumer.Step{{
		Name:         event.ProcessPayment,
		Action:       consumer.Effect(event.OrderCreated, s.chargeCard, charged, s.recordCharge),
		Compensation: consumer.Effect(event.ShipmentRejected, s.refundCharge, refunded, s.recordRefund),
		MaxAttempts:  maxAttempts,
		RetryBase:    200 * time.Millisecond,
		RetryCap:     retryCap,
		Timeout:      gatewayTimeout,
		Settle:       gatewaySettles,
		AskFirst:     s.gateway.Plain,
		Emits: []outbox.Output{
			outbox.OutputOf[event.Order](event.PaymentProcessed),
			outbox.OutputOf[event.Outcome](event.PaymentDeclined), outbox.OutputOf[event.Outcome](event.PaymentRefunded),
		},
	}}
}

// A verdict is the gateway's answer to a charge.
type verdict struct{ declined string } // the reason of a decline; empty: charged

// chargeCard has the gateway charge the card. A decline is a verdict and no error.
func (s *Service) chargeCard(ctx context.Context, in consumer.Message[event.Order], key string) (verdict, error) {
	o := in.Body
	err := s.gateway.Charge(ctx, key, Charge{OrderID: o.OrderID, Amount: o.Amount, Currency: o.Currency, Card: o.Card})
	var declined *DeclinedError
	if errors.As(err, &declined) { // a business outcome, not a failure
		return verdict{declined: declined.Reason}, nil
	}
	return verdict{}, err
}

// lookUpCharge asks the gateway whether it has charged the card. A declined charge moved nothing and is
// not found, so the charge is requested again.
func (s *Service) lookUpCharge(ctx context.Context, _ consumer.Message[event.Order], key string) (verdict, bool, error) {
	_, found, err := s.gateway.FindCharge(ctx, key)
	return verdict{}, found, err
}

func (s *Service) recordCharge(ctx context.Context, tx pgx.Tx, in consumer.Message[event.Order], v verdict, emit consumer.Emit) error {
	o, state := in.Body, "charged"
	if v.declined != "" {
		state = "declined"
	}
	_, err := tx.Exec(ctx, "INSERT INTO "+s.schema+".payment (order_id, state, amount, currency) VALUES ($1, $2, $3, $4)",
		o.OrderID, state, o.Amount, o.Currency)
	if err != nil {
		return fmt.Errorf("payment: insert: %w", err)
	}
	if v.declined != "" {
		return sendEvent(emit, event.PaymentDeclined, "record-decline", event.Outcome{OrderID: o.OrderID, Reason: v.declined, Attempts: in.Attempt})
	}
	o.Card, o.Attempts = "", in.Attempt
	return sendEvent(emit, event.PaymentProcessed, event.ArrangeShipping, o)
}

// refundCharge pays the charge back and returns its amount, which is 0 if the card was declined. The
// row that it reads is final: the action has committed it, and only the compensation changes it.
func (s *Service) refundCharge(ctx context.Context, in consumer.Message[event.Outcome], key string) (amount int64, err error) {
	err = s.db.QueryRow(ctx, "SELECT amount FROM "+s.schema+".payment WHERE order_id = $1 AND state = 'charged'", in.Body.OrderID).Scan(&amount)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil // declined: nothing was charged
	}
	if err != nil {
		return 0, consumer.NotDone(fmt.Errorf("payment: look up charge: %w", err))
	}
	return amount, s.gateway.Refund(ctx, key, Refund{OrderID: in.Body.OrderID, Amount: amount})
}

// lookUpRefund asks the gateway whether it has paid the money back.
func (s *Service) lookUpRefund(ctx context.Context, _ consumer.Message[event.Outcome], key string) (amount int64, found bool, err error) {
	return s.gateway.FindRefund(ctx, key)
}

func (s *Service) recordRefund(ctx context.Context, tx pgx.Tx, in consumer.Message[event.Outcome], amount int64, emit consumer.Emit) error {
	if amount == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, "UPDATE "+s.schema+".payment SET state = 'refunded' WHERE order_id = $1", in.Body.OrderID); err != nil {
		return fmt.Errorf("payment: update: %w", err)
	}
	return sendEvent(emit, event.PaymentRefunded, "record-refund", event.Outcome{OrderID: in.Body.OrderID, Reason: in.Body.Reason, Attempts: in.Attempt})
}

func sendEvent(emit consumer.Emit, topic, step string, body any) error {
	payload, err := json.Marshal(body)
	if err != nil {
		return consumer.Terminal(err)
	}
	emit(outbox.Message{Topic: topic, Step: step, Payload: payload})
	return nil
}
