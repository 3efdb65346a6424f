package cookbook

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
)

// A PlacedOrder names its customer by an id. Name and address are in shop.customer, and in no message.
type PlacedOrder struct {
	CustomerID string `json:"customer_id"` // a random UUID
	Item       string `json:"item"`
}

// An Erasure asks each service to forget a customer.
type Erasure struct {
	CustomerID string `json:"customer_id"`
}

// PlaceOrder takes the order of a new customer. Message and response have the id alone: the outbox keeps the one, and the
// record of the Idempotency-Key keeps the other.
func PlaceOrder(messages *outbox.Writer) func(http.ResponseWriter, *http.Request, pgx.Tx) error {
	return func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		var order struct{ Name, Address, Item string }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
			http.Error(w, "an order has a name, an address and an item", http.StatusBadRequest)
			return nil
		}
		placed := PlacedOrder{Item: order.Item}
		err := tx.QueryRow(r.Context(), "INSERT INTO shop.customer (id, name, address) VALUES (gen_random_uuid(), $1, $2) RETURNING id",
			order.Name, order.Address).Scan(&placed.CustomerID)
		if err != nil {
			return err
		}
		w.WriteHeader(http.StatusAccepted)
		if err := json.NewEncoder(w).Encode(placed); err != nil {
			return err
		}
		return messages.Write(r.Context(), tx, outbox.Message{Topic: "order.placed", Step: "send-parcel", Payload: outbox.JSON(placed)})
	}
}

// Erasable are the steps of a service with personal data.
var Erasable = []consumer.Step{
	{Name: "send-parcel", Action: consumer.On("order.placed", sendParcel)},
	{Name: "erase-customer", Action: consumer.On("customer.erased", eraseCustomer)},
}

// sendParcel reads name and address when it needs them. An erased customer gets no parcel.
func sendParcel(ctx context.Context, tx pgx.Tx, in consumer.Message[PlacedOrder], emit consumer.Emit) error {
	var name, address string
	err := tx.QueryRow(ctx, "SELECT name, address FROM shop.customer WHERE id = $1 FOR KEY SHARE", in.Body.CustomerID).Scan(&name, &address)
	if errors.Is(err, pgx.ErrNoRows) {
		emit.JSON("parcel.refused", "cancel-order", in.Body)
		return nil
	}
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "INSERT INTO shop.parcel (saga, customer_id, state) VALUES ($1, $2, 'labelled')", in.CorrelationID, in.Body.CustomerID)
	return err
}

// eraseCustomer deletes the only row with personal data. It also succeeds if there is no such row.
func eraseCustomer(ctx context.Context, tx pgx.Tx, in consumer.Message[Erasure], _ consumer.Emit) error {
	_, err := tx.Exec(ctx, "DELETE FROM shop.customer WHERE id = $1", in.Body.CustomerID)
	return err
}
