// Command sendbefore is a sender on watermill and watermill-amqp, as users of watermill have it: it stores the visitors
// whose names it reads, and sends a greeting for each. If it dies after the INSERT and before Publish, this visitor gets no
// greeting. Command sendafter does the same with an outbox.
package main

import (
	"bufio"
	"context"
	"log"
	"log/slog"
	"os"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
)

func main() {
	ctx := context.Background()
	config := amqp.NewDurableQueueConfig(os.Getenv("AMQP_URL"))
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	publisher, err := amqp.NewPublisher(config, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		log.Fatal(err)
	}
	for names := bufio.NewScanner(os.Stdin); names.Scan(); {
		if _, err := db.Exec(ctx, "INSERT INTO visitor (name) VALUES ($1)", names.Text()); err != nil {
			log.Fatal(err)
		}
		msg := message.NewMessage(watermill.NewUUID(), []byte("hello "+names.Text()))
		if err := publisher.Publish(os.Getenv("TOPIC"), msg); err != nil {
			log.Fatal(err)
		}
	}
}
