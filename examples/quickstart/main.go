// Command quickstart is the service in the README: it takes an order over HTTP, and a step charges for it once.
package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/outbox"
)

//go:embed migrations
var tables embed.FS

type order struct {
	Item   string `json:"item"`
	Amount int64  `json:"amount"` // in cents
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	shop, err := sagamill.New(sagamill.Config{
		Name:        "shop",
		DatabaseURL: os.Getenv("DATABASE_URL"),
		BrokerURL:   os.Getenv("AMQP_URL"), // without it, messages stay in this process
		Migrations:  tables,
		Steps:       []consumer.Step{{Name: "charge", Action: consumer.On("order.created", charge)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", shop.Idempotent(tenant, idempg.HandleTx(createOrder(shop.Writer()))))
	mux.Handle("GET /", shop.Handler()) // /healthz, /readyz, /metrics, /topology
	if err := shop.ListenAndServe(ctx, os.Getenv("LISTEN"), mux); err != nil {
		log.Fatal(err)
	}
}

// createOrder writes the order's first message in the transaction that also records the Idempotency-Key.
func createOrder(messages *outbox.Writer) func(http.ResponseWriter, *http.Request, pgx.Tx) error {
	return func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		var o order
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			http.Error(w, "an order is JSON", http.StatusBadRequest)
			return nil
		}
		w.WriteHeader(http.StatusAccepted)
		return messages.Write(r.Context(), tx, outbox.Message{Topic: "order.created", Step: "charge", Payload: outbox.JSON(o)})
	}
}

// charge runs once for each order, however often its message is delivered.
func charge(ctx context.Context, tx pgx.Tx, in consumer.Message[order], _ consumer.Emit) error {
	_, err := tx.Exec(ctx, "INSERT INTO shop.payment (tenant, item, amount) VALUES ($1, $2, $3)", in.Scope, in.Body.Item, in.Body.Amount)
	return err
}

// tenant says whose Idempotency-Key it is. Take it from your authentication: every client can set this header.
func tenant(r *http.Request) (string, error) {
	if t := r.Header.Get("X-Tenant"); t != "" {
		return t, nil
	}
	return "", errors.New("no tenant")
}
