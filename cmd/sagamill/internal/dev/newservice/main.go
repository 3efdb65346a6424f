// Command newservice takes orders over HTTP. Its saga charges for each order once and sends the parcel. An order that
// cannot be sent is refunded.
package main

import (
	"cmp"
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
	"github.com/sagamill/sagamill/saga"
)

//go:embed migrations
var tables embed.FS

// An order is the state of the saga, and the body of its commands.
type order struct {
	Item   string `json:"item"`
	Amount int64  `json:"amount"` // in cents
}

func (o *order) command() order { return *o }

// orders is the saga. A new version gets another number: orders that have begun end by the version they began with.
var orders = saga.Must(saga.Define("order", 1,
	saga.Step[order]{
		Name: "charge",
		Do:   saga.Tell("payment.charge", (*order).command),
		Undo: saga.Tell("payment.refund", (*order).command),
	},
	saga.Step[order]{
		Name: "send",
		Do:   saga.Tell("parcel.send", (*order).command),
	},
))

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	service, mux, err := newService(os.Getenv("DATABASE_URL"), os.Getenv("AMQP_URL"))
	if err == nil {
		err = service.ListenAndServe(ctx, cmp.Or(os.Getenv("LISTEN"), "127.0.0.1:8080"), mux)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// newService connects to nothing. Without a brokerURL, messages stay in this process.
func newService(databaseURL, brokerURL string) (*sagamill.Service, *http.ServeMux, error) {
	service, err := sagamill.New(sagamill.Config{
		Name:        "newservice",
		DatabaseURL: databaseURL,
		BrokerURL:   brokerURL,
		Migrations:  tables,
		Sagas:       []saga.Plan{orders},
		Steps: []consumer.Step{
			saga.Participant(consumer.Step{Name: "charge", Action: saga.On("payment.charge", charge), Compensation: saga.OnUndo("payment.refund", refund)}),
			saga.Participant(consumer.Step{Name: "send", Action: saga.On("parcel.send", send)}),
		},
	})
	if err != nil {
		return nil, nil, err
	}
	starter, err := sagamill.Starter(service, orders)
	if err != nil {
		return nil, nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", service.Idempotent(tenant, idempg.HandleTx(createOrder(starter))))
	mux.Handle("GET /", service.Handler()) // /healthz, /readyz, /metrics, /topology
	return service, mux, nil
}

// createOrder starts the saga in the transaction that also records the Idempotency-Key of the request.
func createOrder(starter *saga.Starter[order]) func(http.ResponseWriter, *http.Request, pgx.Tx) error {
	return func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		var o order
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Item == "" || o.Amount <= 0 {
			http.Error(w, `an order is {"item": "book", "amount": 4200}`, http.StatusBadRequest)
			return nil
		}
		if _, err := starter.Start(r.Context(), tx, saga.ID{}, o); err != nil {
			return err
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
}

// charge runs once for each order, however often its command is delivered.
func charge(ctx context.Context, tx pgx.Tx, in consumer.Message[order]) (struct{}, error) {
	_, err := tx.Exec(ctx, "INSERT INTO newservice.payment (tenant, key, item, amount) VALUES ($1, $2, $3, $4)", in.Scope, in.Key, in.Body.Item, in.Body.Amount)
	return struct{}{}, err
}

// refund undoes charge. It does not run if charge did nothing.
func refund(ctx context.Context, tx pgx.Tx, in consumer.Message[order]) error {
	_, err := tx.Exec(ctx, "UPDATE newservice.payment SET amount = 0 WHERE tenant = $1 AND key = $2", in.Scope, in.Key)
	return err
}

// send refuses what no parcel can hold. The saga then undoes the steps before it.
func send(ctx context.Context, tx pgx.Tx, in consumer.Message[order]) (struct{}, error) {
	if in.Body.Item == "house" {
		return struct{}{}, saga.Reject("a house fits into no parcel")
	}
	_, err := tx.Exec(ctx, "INSERT INTO newservice.parcel (tenant, key, item) VALUES ($1, $2, $3)", in.Scope, in.Key, in.Body.Item)
	return struct{}{}, err
}

// tenant says whose Idempotency-Key it is. Take it from your authentication: every client can set this header.
func tenant(r *http.Request) (string, error) {
	if t := r.Header.Get("X-Tenant"); t != "" {
		return t, nil
	}
	return "", errors.New("no tenant")
}
