package consumer_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A service that is wired by hand: its tables, its queues, its relay, and one step that can be undone. sagamill.New
// does all of it from one Config.
func Example_service() {
	type Order struct{ Amount int64 }
	charge := func(ctx context.Context, tx pgx.Tx, in consumer.Message[Order], emit consumer.Emit) error {
		_, err := tx.Exec(ctx, "INSERT INTO payment.charge (saga, amount) VALUES ($1, $2)", in.CorrelationID, in.Body.Amount)
		emit(outbox.Message{Topic: "payment.processed", Step: "arrange-shipping", Payload: in.Payload})
		return err
	}
	refund := func(ctx context.Context, tx pgx.Tx, in consumer.Message[Order], emit consumer.Emit) error {
		_, err := tx.Exec(ctx, "UPDATE payment.charge SET refunded = true WHERE saga = $1", in.CorrelationID)
		emit(outbox.Message{Topic: "payment.refunded", Step: "cancel-order", Payload: in.Payload})
		return err
	}
	steps := []consumer.Step{{
		Name:         "process-payment",
		Action:       consumer.On("order.created", charge),
		Compensation: consumer.On("shipment.rejected", refund),
	}}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	url := os.Getenv("DATABASE_URL")
	must(migrations.Up(ctx, url, "payment"))
	db := get(pgxpool.New(ctx, url))
	broker := get(rabbitmq.NewConfig(os.Getenv("AMQP_URL"), "payment", nil))
	publisher, subscriber := get(rabbitmq.NewPublisher(broker, nil)), get(rabbitmq.NewSubscriber(broker, nil))
	relay := get(outbox.NewRelay(db, publisher, &outbox.RelayOptions{Schema: "payment"}))
	service := get(consumer.New(db, subscriber, steps, &consumer.Options{Schema: "payment", Wake: relay.Wake}))
	must(rabbitmq.DeclareTopology(ctx, broker, service.Topics()...))

	var running sync.WaitGroup
	running.Go(func() { must(relay.Run(ctx)) })
	running.Go(func() { must(service.Run(ctx)) })
	running.Wait() // until it is told to stop: what has begun is finished and acked
}

// A health check of a process that has no consumer.
func ExampleReadStats() {
	_ = func(ctx context.Context, db *pgxpool.Pool) error {
		stats, err := consumer.ReadStats(ctx, db, "payment_service")
		if err != nil {
			return err
		}
		for _, p := range stats.Parked {
			fmt.Println(p.Messages, p.State(), p.Step, p.Reason, p.Oldest)
		}
		return nil
	}
}
