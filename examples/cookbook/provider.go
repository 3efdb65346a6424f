package cookbook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
)

// A Provider takes payments over HTTP. It honours idempotency keys: a repeated request gets the first answer.
type Provider struct {
	URL    string
	Client *http.Client
}

// A Charge is the provider's answer.
type Charge struct {
	ID       string `json:"id"`
	Declined string `json:"declined"` // the reason; empty: the card was charged
}

// Step is the step that charges a card, by at most ten requests: Step.MaxAttempts.
func (p *Provider) Step() consumer.Step {
	return consumer.Step{
		Name:    "charge-card",
		Action:  consumer.Effect("order.created", p.charge, nil, recordCharge),
		Timeout: 10 * time.Second,
	}
}

// charge makes one request. No transaction is open meanwhile, and key is the same for each attempt.
func (p *Provider) charge(ctx context.Context, in consumer.Message[Order], key string) (charge Charge, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL, bytes.NewReader(outbox.JSON(in.Body)))
	if err != nil {
		return charge, consumer.Terminal(consumer.NotDone(err))
	}
	r.GetBody = nil // net/http shall not repeat the request: each attempt is counted
	r.Header.Set("Idempotency-Key", key)
	answer, err := p.Client.Do(r)
	if err != nil {
		return charge, err // the provider may have charged: the next attempt has the same key
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return charge, json.NewDecoder(answer.Body).Decode(&charge)
	case http.StatusTooManyRequests:
		return charge, consumer.NotDone(errors.New("the provider is busy"))
	default:
		return charge, fmt.Errorf("the provider answers %s", answer.Status)
	}
}

// recordCharge stores the answer in the step's transaction. A declined card is an answer and no error.
func recordCharge(ctx context.Context, tx pgx.Tx, in consumer.Message[Order], charge Charge, emit consumer.Emit) error {
	_, err := tx.Exec(ctx, "INSERT INTO shop.payment (saga, charge_id, declined) VALUES ($1, $2, $3)", in.CorrelationID, charge.ID, charge.Declined)
	if err != nil {
		return err
	}
	if charge.Declined != "" {
		emit.JSON("payment.declined", "cancel-order", in.Body)
		return nil
	}
	emit.JSON("payment.taken", "ship", in.Body)
	return nil
}
