package sagamill_test

import (
	"context"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/saga"
)

// A Trip is the state of a saga.
type Trip struct{ Traveller, Flight string }

// What the service and its participants say to each other.
type (
	Wanted   struct{ Traveller string }
	Reserved struct{ Number string }
)

// A service that starts and orchestrates sagas, with one step of its own.
func Example() {
	wanted := func(t *Trip) Wanted { return Wanted{t.Traveller} }
	trips := must(saga.Define("trip", 1, saga.Step[Trip]{
		Name: "flight", Deadline: time.Minute,
		Do:   saga.Remote("flight.book", wanted, func(t *Trip, r Reserved) { t.Flight = r.Number }),
		Undo: saga.Tell("flight.cancel", wanted),
	}))
	book := saga.On("flight.book", func(_ context.Context, _ pgx.Tx, in consumer.Message[Wanted]) (Reserved, error) {
		return Reserved{"SG 1"}, nil
	})
	service := must(sagamill.New(sagamill.Config{
		Name: "travel", DatabaseURL: os.Getenv("DATABASE_URL"), BrokerURL: os.Getenv("AMQP_URL"),
		Sagas: []saga.Plan{trips},
		Steps: []consumer.Step{{Name: "flight", Action: book}},
	}))
	starter := must(sagamill.Starter(service, trips))

	mux := http.NewServeMux()
	mux.Handle("/", service.Handler())
	mux.Handle("POST /trips", service.Idempotent(
		func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil }, // from your authentication
		idempg.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
			started, err := starter.Start(r.Context(), tx, saga.ID{}, Trip{Traveller: "Ada"})
			if err != nil {
				return err
			}
			w.Header().Set("Location", "/trips/"+started.ID)
			w.WriteHeader(http.StatusAccepted)
			return nil
		})))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := service.ListenAndServe(ctx, ":8080", mux); err != nil {
		panic(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
