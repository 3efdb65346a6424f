package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

type Booking struct {
	Room string `json:"room"`
}

// A whole service: an endpoint that books a room, the relay, and the step that
// holds the room, which a cancellation undoes.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	const schema = "hotel" // of this service alone
	must(migrations.Up(ctx, os.Getenv("DATABASE_URL"), schema))
	db := get(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	defer db.Close()

	// Queues first: the relay must not publish what nobody keeps.
	broker := get(rabbitmq.NewConfig(os.Getenv("AMQP_URL"), "hotel", nil))
	must(rabbitmq.DeclareTopology(ctx, broker, "booking.made", "booking.cancelled"))
	publisher := get(rabbitmq.NewPublisher(broker, nil))
	defer publisher.Close()
	subscriber := get(rabbitmq.NewSubscriber(broker, nil))
	defer subscriber.Close()

	messages := get(outbox.NewWriter(&outbox.WriterOptions{Schema: schema}))
	relay := get(outbox.NewRelay(db, publisher, &outbox.RelayOptions{Schema: schema}))
	steps := get(consumer.New(db, subscriber, []consumer.Step{{
		Name: "hold-room",
		Action: consumer.On("booking.made", func(ctx context.Context, tx pgx.Tx, in consumer.Message[Booking], emit consumer.Emit) error {
			_, err := tx.Exec(ctx, "INSERT INTO hold (room, booking) VALUES ($1, $2)", in.Body.Room, in.Key)
			return err
		}),
		Compensation: consumer.On("booking.cancelled", func(ctx context.Context, tx pgx.Tx, in consumer.Message[Booking], emit consumer.Emit) error {
			_, err := tx.Exec(ctx, "DELETE FROM hold WHERE booking = $1", in.Key)
			return err
		}),
	}}, &consumer.Options{Schema: schema, Wake: relay.Wake}))

	// The key's record, the business rows and the message are one transaction.
	book := idempg.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		var b Booking
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			return &idemkey.Problem{Status: http.StatusBadRequest, Code: "body-invalid", Title: "The booking is not JSON"}
		}
		request, _ := idemkey.Info(r.Context())
		payload := get(json.Marshal(b))
		err := messages.Write(r.Context(), tx, outbox.Message{
			Topic: "booking.made", Scope: request.Scope, Key: request.Key, Step: "hold-room", Payload: payload,
		})
		if err != nil {
			return err
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	})
	keys := get(idemkey.New(get(idempg.New(db, &idempg.Options{Schema: schema})), &idemkey.Options{
		Scope: func(r *http.Request) (string, error) {
			if tenant := r.Header.Get("X-Tenant"); tenant != "" { // stands for real authentication
				return tenant, nil
			}
			return "", errors.New("no tenant")
		},
	}))
	handler := keys.Handler(book)
	server := &http.Server{Addr: "127.0.0.1:8080", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r)
		relay.Wake() // it has committed, so there may be something to publish
	})}

	var running sync.WaitGroup
	running.Go(func() { must(relay.Run(ctx)) })
	running.Go(func() { must(steps.Run(ctx)) })
	running.Go(func() { log.Print(server.ListenAndServe()) })
	<-ctx.Done()
	must(server.Shutdown(context.Background()))
	running.Wait()
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func get[T any](v T, err error) T {
	must(err)
	return v
}
