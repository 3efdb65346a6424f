package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
)

type Deposit struct {
	Room   string `json:"room"`
	Amount int64  `json:"amount"`
}

type Receipt struct {
	Number   string `json:"number"`
	Declined string `json:"declined"` // a business outcome: no error
}

// ask sends one request to a bank that takes no idempotency keys, but keeps the
// reference that it is given.
func ask(ctx context.Context, method, reference string) (receipt Receipt, known bool, err error) {
	r, err := http.NewRequestWithContext(ctx, method, "https://bank.example/deposits/"+reference, nil)
	if err != nil {
		return receipt, false, consumer.Terminal(consumer.NotDone(err))
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return receipt, false, err // nobody knows: the effect is in doubt
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return receipt, true, json.NewDecoder(answer.Body).Decode(&receipt)
	case http.StatusNotFound:
		return receipt, false, nil
	case http.StatusTooManyRequests:
		return receipt, false, consumer.NotDone(errors.New("the bank is busy"))
	default:
		return receipt, false, fmt.Errorf("the bank answers %s", answer.Status)
	}
}

// A step that has a bank take a deposit, once, whatever is lost on the way.
func ExampleEffect() {
	type deposit = consumer.Message[Deposit]
	take := func(ctx context.Context, in deposit, key string) (Receipt, error) {
		receipt, known, err := ask(ctx, http.MethodPost, key)
		if err == nil && !known {
			err = consumer.NotDone(errors.New("the bank takes no deposits now"))
		}
		return receipt, err
	}
	verify := func(ctx context.Context, in deposit, key string) (Receipt, bool, error) {
		return ask(ctx, http.MethodGet, key)
	}
	record := func(ctx context.Context, tx pgx.Tx, in deposit, receipt Receipt, emit consumer.Emit) error {
		_, err := tx.Exec(ctx, "INSERT INTO deposit (booking, receipt, declined) VALUES ($1, $2, $3)", in.Key, receipt.Number, receipt.Declined)
		return err
	}
	_ = consumer.Step{
		Name:    "take-deposit",
		Action:  consumer.Effect("booking.made", take, verify, record),
		Timeout: 10 * time.Second,
		Settle:  30 * time.Second, // the bank gives up on a request by then
	}
}
