package inproc_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/inproc"
)

// A broker for one process. A relay publishes to it in place of a rabbitmq.Publisher, and each service has a
// Subscriber of it in place of a rabbitmq.Subscriber.
func Example() {
	broker := inproc.New(nil)
	defer broker.Close()
	orders, err := broker.Subscriber("payment").Subscribe(context.Background(), "order.created")
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		for m := range orders {
			fmt.Printf("%s has %s\n", m.UUID, m.Payload)
			m.Ack()
		}
	}()

	// It returns when every service that listens has acked.
	if err := broker.Publish("order.created", message.NewMessage("1", []byte(`{"amount":4200}`))); err != nil {
		fmt.Println(err)
	}
	fmt.Println(broker.Publish("order.cancelled", message.NewMessage("2", nil)))
	// Output:
	// 1 has {"amount":4200}
	// inproc: publish "2" to "order.cancelled": inproc: no service is subscribed: outbox: message refused by the broker: topic order.cancelled
}
