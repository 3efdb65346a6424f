package rabbitmq_test

import (
	"context"
	"log"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A service declares what it listens to, publishes its outbox and consumes.
func Example() {
	ctx := context.Background()
	cfg, err := rabbitmq.NewConfig("amqp://guest:guest@127.0.0.1:5672/", "payment", &rabbitmq.ConfigOptions{Prefix: "shop."})
	if err != nil {
		log.Fatal(err)
	}
	if err := rabbitmq.DeclareTopology(ctx, cfg, "orders"); err != nil {
		log.Fatal(err)
	}

	pub, err := rabbitmq.NewPublisher(cfg, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer pub.Close()
	var _ outbox.Publisher = pub // what a relay takes

	sub, err := rabbitmq.NewSubscriber(cfg, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	orders, err := sub.Subscribe(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	for msg := range orders {
		msg.Ack() // once the effect has committed
	}
}
