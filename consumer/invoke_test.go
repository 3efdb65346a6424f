package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

type invoked struct {
	Amount int `json:"amount"`
}

func delivery(payload string) consumer.Delivery {
	return consumer.Delivery{ID: "id", Topic: "pay", Type: "pay", Scope: "s", Key: "k", Step: "pay", Payload: []byte(payload), Attempt: 1}
}

func TestInvoke(t *testing.T) {
	t.Parallel()
	db, schema := pgtest.Schema(t)
	if _, err := db.Exec(t.Context(), "CREATE TABLE "+schema+".payment (amount int CHECK (amount < 100))"); err != nil {
		t.Fatal(err)
	}
	in := consumer.On("pay", func(_ context.Context, tx pgx.Tx, m consumer.Message[invoked], emit consumer.Emit) error {
		if m.Body.Amount == 0 {
			panic("nothing to pay")
		}
		m.Queue("INSERT INTO "+schema+".payment VALUES ($1)", m.Body.Amount)
		emit(outbox.Message{Topic: "paid", Step: "ship"})
		return nil
	})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	msgs, err := in.Invoke(t.Context(), tx, delivery(`{"amount":7}`))
	if err != nil || len(msgs) != 1 || msgs[0].Key != "k" || msgs[0].Scope != "s" || msgs[0].CausationID != "id" {
		t.Errorf("Invoke = %+v, %v; want one message that follows the delivery", msgs, err)
	}
	var sum int
	if err := tx.QueryRow(t.Context(), "SELECT sum(amount) FROM "+schema+".payment").Scan(&sum); err != nil || sum != 7 {
		t.Errorf("what was queued has come to %d, %v; want 7", sum, err)
	}
	if msgs, err := in.Invoke(t.Context(), nil, delivery(`{"amount":7}`)); err != nil || len(msgs) != 1 {
		t.Errorf("Invoke without a transaction = %v, %v", msgs, err)
	}
	var panicked *consumer.PanicError
	if _, err := in.Invoke(t.Context(), nil, delivery(`{}`)); !errors.As(err, &panicked) {
		t.Errorf("Invoke of a handler that panics: %v", err)
	}
	if _, err := in.Invoke(t.Context(), nil, delivery(`[]`)); !errors.Is(err, consumer.ErrTerminal) {
		t.Errorf("Invoke with another payload: %v", err)
	}
	if _, err := in.Invoke(t.Context(), tx, delivery(`{"amount":700}`)); err == nil {
		t.Error("Invoke with a queued statement that fails: no error")
	}
	if _, err := (consumer.Input{}).Invoke(t.Context(), nil, delivery(`{}`)); err == nil {
		t.Error("Invoke of the zero Input: no error")
	}
}

func TestInvokeEffect(t *testing.T) {
	t.Parallel()
	var said []string
	in := consumer.Effect("pay",
		func(_ context.Context, _ consumer.Message[invoked], _ string) (string, error) {
			said = append(said, "call")
			return "called", nil
		},
		func(_ context.Context, m consumer.Message[invoked], _ string) (string, bool, error) {
			said = append(said, "verify")
			return "found", m.Body.Amount > 5, nil
		},
		func(_ context.Context, _ pgx.Tx, _ consumer.Message[invoked], result string, _ consumer.Emit) error {
			said = append(said, result)
			return nil
		})
	for _, d := range []consumer.Delivery{delivery(`{"amount":7}`), delivery(`{"amount":7}`), delivery(`{"amount":3}`)} {
		d.Attempt += len(said)
		if _, err := in.Invoke(t.Context(), nil, d); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := fmt.Sprint(said), "[call called verify found verify call called]"; got != want {
		t.Errorf("it did %s, want %s", got, want)
	}
}

// A handler is tested alone.
func ExampleInput_Invoke() {
	in := consumer.On("pay", func(_ context.Context, _ pgx.Tx, m consumer.Message[invoked], emit consumer.Emit) error {
		emit(outbox.Message{Topic: "paid", Step: "ship", Payload: fmt.Append(nil, m.Body.Amount)})
		return nil
	})
	msgs, err := in.Invoke(context.Background(), nil, consumer.Delivery{Scope: "shop", Key: "order-1", Payload: []byte(`{"amount":7}`)})
	fmt.Println(msgs[0].Topic, msgs[0].Key, string(msgs[0].Payload), err)
	// Output: paid order-1 7 <nil>
}
