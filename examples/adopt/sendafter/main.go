// Command sendafter does the work of command sendbefore with an outbox: it stores a visitor and the greeting in one
// transaction. It needs the tables of the outbox: sagamill migrate up -schema greeter -only outbox.
package main

import (
	"bufio"
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process while it waits for names
	config := amqp.NewDurableQueueConfig(os.Getenv("AMQP_URL"))
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	publisher, err := rabbitmq.NewPublisher(config, nil)
	if err != nil {
		log.Fatal(err)
	}
	relay, err := outbox.NewRelay(db, publisher, &outbox.RelayOptions{Schema: "greeter"})
	if err != nil {
		log.Fatal(err)
	}
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: "greeter"})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	for names := bufio.NewScanner(os.Stdin); names.Scan(); {
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO visitor (name) VALUES ($1)", names.Text()); err != nil {
				return err
			}
			return writer.Write(ctx, tx, outbox.Message{
				Topic: os.Getenv("TOPIC"), Scope: "greeter", Key: uuid.NewString(), Step: "greet", Payload: []byte("hello " + names.Text()), ContentType: "text/plain",
			})
		})
		if err != nil {
			log.Fatal(err)
		}
		relay.Wake()
	}
	if err := <-ended; err != nil { // the relay publishes until a signal comes
		log.Fatal(err)
	}
}
