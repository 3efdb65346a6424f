package saga_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
	"github.com/sagamill/sagamill/saga"
)

// A Journey is the state of an instance.
type Journey struct {
	Traveller, Flight, Room string
}

// What the services say to each other.
type (
	Wanted   struct{ Traveller string }
	Reserved struct{ Number string }
)

func wanted(j *Journey) Wanted { return Wanted{j.Traveller} }

// The plan: flight and hotel side by side, then the ticket, which cannot be undone.
var journey = saga.Must(saga.Define("journey", 1,
	saga.Step[Journey]{Name: "book", All: []saga.Step[Journey]{
		{
			Name:     "flight",
			Do:       saga.Remote("flight.book", wanted, func(j *Journey, r Reserved) { j.Flight = r.Number }),
			Undo:     saga.Tell("flight.cancel", wanted),
			Deadline: time.Minute,
		},
		{
			Name:     "hotel",
			Do:       saga.Remote("hotel.book", wanted, func(j *Journey, r Reserved) { j.Room = r.Number }),
			Undo:     saga.Tell("hotel.cancel", wanted),
			Deadline: time.Minute,
		},
	}},
	saga.Step[Journey]{Name: "ticket", Do: saga.Tell("ticket.issue", wanted), Pivot: true},
))

// The service that starts and orchestrates journeys.
func Example_orchestrator() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	const schema = "journeys" // of this service alone
	must(migrations.Up(ctx, os.Getenv("DATABASE_URL"), schema))
	db := get(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	defer db.Close()
	broker := get(rabbitmq.NewConfig(os.Getenv("AMQP_URL"), "journeys", nil))
	publisher := get(rabbitmq.NewPublisher(broker, nil))
	defer publisher.Close()
	subscriber := get(rabbitmq.NewSubscriber(broker, nil))
	defer subscriber.Close()
	relay := get(outbox.NewRelay(db, publisher, &outbox.RelayOptions{Schema: schema}))
	orchestrator := get(saga.NewOrchestrator(db, subscriber, []saga.Plan{journey}, &saga.Options{Schema: schema, Wake: relay.Wake}))
	must(rabbitmq.DeclareTopology(ctx, broker, orchestrator.Topics()...)) // before the first reply; those of the participants before the first command

	var running sync.WaitGroup
	running.Go(func() { must(relay.Run(ctx)) })
	running.Go(func() { must(orchestrator.Run(ctx)) })

	// In the transaction of a request, with its idempotency key and whatever else belongs to it.
	starter := get(saga.NewStarter(journey, &saga.StarterOptions{Schema: schema}))
	must(pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := starter.Start(ctx, tx, saga.ID{Scope: "acme", Key: "the-requests-key"}, Journey{Traveller: "Ada"})
		return err
	}))
	relay.Wake()
	running.Wait()
}

// The service that books flights, in a process and a schema of its own. Its relay and its
// queues are made as the orchestrator's.
func Example_participant() {
	var (
		db         *pgxpool.Pool
		subscriber *rabbitmq.Subscriber
		relay      *outbox.Relay
	)
	flights := saga.Participant(consumer.Step{
		Name:         "book-flight",
		CancelParked: true, // the handlers do nothing outside of their transaction
		Action: saga.On("flight.book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[Wanted]) (Reserved, error) {
			tag, err := tx.Exec(ctx, "UPDATE flights.seat SET traveller = $1, journey = $2 WHERE number = (SELECT number FROM flights.seat WHERE traveller IS NULL LIMIT 1 FOR UPDATE SKIP LOCKED)", in.Body.Traveller, in.CorrelationID)
			if err == nil && tag.RowsAffected() == 0 {
				err = saga.Reject("no seat is left") // a business answer: the saga compensates
			}
			return Reserved{Number: "LH 1"}, err
		}),
		Compensation: saga.OnUndo("flight.cancel", func(ctx context.Context, tx pgx.Tx, in consumer.Message[Wanted]) error {
			_, err := tx.Exec(ctx, "UPDATE flights.seat SET traveller = NULL, journey = NULL WHERE journey = $1", in.CorrelationID)
			return err
		}),
	})
	steps := get(consumer.New(db, subscriber, []consumer.Step{flights}, &consumer.Options{Schema: "flights", Wake: relay.Wake}))
	must(steps.Run(context.Background()))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func get[T any](v T, err error) T {
	must(err)
	return v
}

// A health check of a process that has no orchestrator.
func ExampleReadStats() {
	_ = func(ctx context.Context, db *pgxpool.Pool) error {
		stats, err := saga.ReadStats(ctx, db, "trips")
		if err != nil || stats.Stuck == 0 {
			return err
		}
		fmt.Println(stats.Stuck, "sagas are stuck, the first for", stats.OldestStuck)
		return nil
	}
}
