package rabbitmq_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// The order service publishes its outbox. Every listening service has a queue before the first message goes
// out.
func Example_publishing() {
	ctx := context.Background()
	const url = "amqp://guest:guest@127.0.0.1:5672/"
	for _, listener := range []string{"payment", "shipping"} {
		cfg, err := rabbitmq.NewConfig(url, listener, &rabbitmq.ConfigOptions{Prefix: "shop."})
		if err != nil {
			log.Fatal(err)
		}
		if err := rabbitmq.DeclareTopology(ctx, cfg, "orders"); err != nil {
			log.Fatal(err)
		}
	}
	cfg, err := rabbitmq.NewConfig(url, "order", &rabbitmq.ConfigOptions{Prefix: "shop."})
	if err != nil {
		log.Fatal(err)
	}
	pub, err := rabbitmq.NewPublisher(cfg, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer pub.Close()
	db, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	writer, err := outbox.NewWriter(nil)
	if err != nil {
		log.Fatal(err)
	}
	relay, err := outbox.NewRelay(db, pub, nil)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			batch := &pgx.Batch{}
			batch.Queue("INSERT INTO purchase (id, item) VALUES ($1, $2)", "4711", "book")
			err := writer.Queue(ctx, batch, outbox.Message{Topic: "orders", Scope: "acme", Key: "4711", Step: "pay", Payload: []byte(`{"item":"book"}`)})
			if err != nil {
				return err
			}
			return tx.SendBatch(ctx, batch).Close()
		})
		if err != nil {
			log.Print(err)
		}
		relay.Wake() // or it looks by itself, within a quarter of a second
	}()
	if err := relay.Run(ctx); err != nil {
		log.Print(err)
	}
}

// The payment service listens. Messages of one saga come one at a time.
func Example_listening() {
	ctx := context.Background()
	cfg, err := rabbitmq.NewConfig("amqp://guest:guest@127.0.0.1:5672/", "payment", &rabbitmq.ConfigOptions{Prefix: "shop."})
	if err != nil {
		log.Fatal(err)
	}
	sub, err := rabbitmq.NewSubscriber(cfg, &rabbitmq.SubscriberOptions{Key: outbox.SagaKey})
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

// A process that cannot work now lets another consumer of the queue go on, as a consumer.Consumer does while its database
// is lost.
func ExampleSubscriber_Pause() {
	cfg, err := rabbitmq.NewConfig("amqp://guest:guest@127.0.0.1:5672/", "payment", &rabbitmq.ConfigOptions{SingleActiveConsumer: true})
	if err != nil {
		log.Fatal(err)
	}
	sub, err := rabbitmq.NewSubscriber(cfg, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	sub.Pause("orders") // what was not acked goes to the other consumer
	// … when it can work again:
	sub.Resume("orders")
	// Output:
}

// The permissions of the users of an installation: a service writes to the topics that it publishes, and
// reads its queues.
func ExampleTopology_Permissions() {
	shop := rabbitmq.Topology{Prefix: "shop.", Services: []rabbitmq.Service{
		{Name: "order", Publishes: []string{"order.created"}},
		{Name: "payment", Listens: []string{"order.created"}},
	}}
	all, err := shop.Permissions()
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range all[1:] { // the first is the user that declares
		fmt.Printf("rabbitmqctl set_permissions %s '%s' '%s' '%s'\n", p.User, p.Configure, p.Write, p.Read)
	}
	// Output:
	// rabbitmqctl set_permissions shop.order '^$' '^(shop\.order\.created)$' '^$'
	// rabbitmqctl set_permissions shop.payment '^$' '^$' '^(shop\.order\.created\.payment|shop\.order\.created\.payment\.dead)$'
}
