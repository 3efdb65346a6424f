// Command before is a service on watermill and watermill-amqp, as its users have it: it takes greetings from a queue and
// stores them. Command after is the same service on sagamill.
package main

import (
	"context"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger := watermill.NewSlogLogger(slog.Default())
	config := amqp.NewDurableQueueConfig(os.Getenv("AMQP_URL"))
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	subscriber, err := amqp.NewSubscriber(config, logger)
	if err != nil {
		log.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router.AddConsumerHandler("greet", os.Getenv("TOPIC"), subscriber, func(msg *message.Message) error {
		_, err := db.Exec(msg.Context(), "INSERT INTO greeting (id, text, fleet) VALUES ($1, $2, 'old')", msg.UUID, string(msg.Payload))
		return err
	})
	if err := router.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
