package outbox_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"

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
			Topic: "order.created", Scope: "acme", Key: "order-7", Step: "process-payment", Payload: []byte(`{"item":"book"}`),
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
