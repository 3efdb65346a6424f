package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
)

// A relay onto a watermill Pub/Sub, here the one within the process. What it
// holds is gone with the process, so that it fits tests and demonstrations:
// package inproc acks through.
func ExampleFromWatermill() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	must(migrations.Up(ctx, os.Getenv("DATABASE_URL"), "shop"))
	db := get(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	defer db.Close()

	// Subscribed first: gochannel drops what nobody listens to. Without waiting
	// for the ack, it would deliver in any order.
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
	orders := get(broker.Subscribe(context.Background(), "order.created"))

	relay := get(outbox.NewRelay(db, outbox.FromWatermill(broker, nil), &outbox.RelayOptions{Schema: "shop"}))
	var relaying, handling sync.WaitGroup
	relaying.Go(func() { must(relay.Run(ctx)) })
	handling.Go(func() {
		for msg := range orders {
			fmt.Printf("%s: %s\n", msg.Metadata[outbox.HeaderKey], msg.Payload)
			msg.Ack()
		}
	})

	messages := get(outbox.NewWriter(&outbox.WriterOptions{Schema: "shop"}))
	must(pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		// The business rows go here.
		return messages.Write(ctx, tx, outbox.Message{
			Topic: "order.created", Scope: "acme", Key: "order-7", Step: "process-payment", Payload: outbox.JSON(map[string]string{"item": "book"}),
		})
	}))
	relay.Wake()

	<-ctx.Done()
	relaying.Wait() // a closing gochannel calls published what nobody has acked
	must(broker.Close())
	handling.Wait()
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

// A process that handles requests and has no relay, such as one of many behind a load
// balancer, tells that of another process when it has committed something.
func ExampleNewNotifier() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	db := get(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	defer db.Close()
	messages := get(outbox.NewWriter(&outbox.WriterOptions{Schema: "shop"}))
	notifier := get(outbox.NewNotifier(db, "shop"))
	var notifying sync.WaitGroup
	notifying.Go(func() { must(notifier.Run(ctx)) })

	order := outbox.Message{Topic: "order.created", Scope: "acme", Key: "order-7", Step: "process-payment", Payload: []byte(`{}`)}
	must(pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return messages.Write(ctx, tx, order) }))
	notifier.Wake()
	notifying.Wait()
}

// A message that Write would refuse is found before there is a transaction.
func ExampleValidate() {
	err := outbox.Validate(outbox.Message{Topic: "order.created", Key: "order-7", Payload: []byte(`{}`)})
	fmt.Println(errors.Is(err, outbox.ErrInvalid), err)
	// Output: true outbox: invalid message: Scope must be 1 to 255 printable bytes (message 1 of 1)
}

// Metadata of a received message that its successor may have.
func ExampleReservedHeader() {
	received := message.Metadata{"tenant": "acme", outbox.HeaderKey: "order-7:process-payment"}
	passed := map[string]string{}
	for name, value := range received {
		if !outbox.ReservedHeader(name) {
			passed[name] = value
		}
	}
	fmt.Println(passed)
	// Output: map[tenant:acme]
}

// What keeps the messages of a saga in their order, where a consumer is of one's own.
func ExampleSagaKey() {
	received := message.NewMessage("id", nil)
	received.Metadata.Set(outbox.HeaderScope, "acme")
	received.Metadata.Set(outbox.HeaderKey, "order-7:process-payment")
	other := received.Copy()
	other.Metadata.Set(outbox.HeaderKey, "order-7:arrange-shipping")
	fmt.Println(outbox.SagaKey(received) == outbox.SagaKey(other))
	// Output: true
}

// A health check of a process that has no relay.
func ExampleReadStats() {
	stuck := func(ctx context.Context, db *pgxpool.Pool) error {
		stats, err := outbox.ReadStats(ctx, db, "shop")
		if err != nil || stats.Oldest < time.Minute && stats.Dead == 0 {
			return err
		}
		fmt.Println(stats.Stored, "messages wait; the active relay is", stats.Holder)
		return nil
	}
	_ = stuck
}
