// Command after is the service of command before on sagamill. A greeting that is delivered twice is stored once, and it
// works on the same queue beside old processes.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/rabbitmq"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config := amqp.NewDurableQueueConfig(os.Getenv("AMQP_URL"))
	publisher, err := rabbitmq.NewPublisher(config, nil)
	if err != nil {
		log.Fatal(err)
	}
	subscriber, err := rabbitmq.NewSubscriber(config, nil)
	if err != nil {
		log.Fatal(err)
	}
	greet := consumer.FromWatermill("greet", os.Getenv("TOPIC"), func(msg *message.Message) error {
		db, _ := consumer.TxFrom(msg.Context())
		_, err := db.Exec(msg.Context(), "INSERT INTO greeting (id, text, fleet) VALUES ($1, $2, 'new')", msg.UUID, string(msg.Payload))
		return err
	})
	service, err := sagamill.New(sagamill.Config{
		Name: "greeter", DatabaseURL: os.Getenv("DATABASE_URL"), Publisher: publisher, Subscriber: subscriber,
		Steps: []consumer.Step{greet}, Consumer: consumer.Options{Identity: consumer.IdentityFromUUID("greeter")},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := service.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
