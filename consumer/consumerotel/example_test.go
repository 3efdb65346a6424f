package consumerotel_test

import (
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/consumer/consumerotel"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/outbox/outboxotel"
)

// A service puts OpenTelemetry's providers in place first, and then observes its
// writer, its relay and its consumer. What its handlers emit needs no writer of
// their own.
func Example() {
	observe := func(db *pgxpool.Pool, broker *inproc.Broker, steps []consumer.Step) (*outbox.Relay, *consumer.Consumer, error) {
		tracer := outboxotel.NewTracer(&outboxotel.TracerOptions{System: "rabbitmq"})
		relay, err := outbox.NewRelay(db, broker, &outbox.RelayOptions{Observer: tracer})
		if err != nil {
			return nil, nil, err
		}
		observer, err := consumerotel.New(&consumerotel.Options{System: "rabbitmq"})
		if err != nil {
			return nil, nil, err
		}
		c, err := consumer.New(db, broker.Subscriber("payment"), steps, &consumer.Options{Observer: observer, Wake: relay.Wake})
		if err != nil {
			return nil, nil, err
		}
		if _, err := outboxotel.Register(relay, nil); err != nil {
			return nil, nil, err
		}
		_, err = consumerotel.Register(c, nil)
		return relay, c, err
	}
	_ = observe

	// Where requests are handled:
	if _, err := outbox.NewWriter(&outbox.WriterOptions{Tracer: outboxotel.NewTracer(nil)}); err != nil {
		log.Fatal(err)
	}
}
