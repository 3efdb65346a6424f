package consumer_test

import (
	"encoding/json"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
)

// A handler of a watermill Router becomes a step. It may write in the step's transaction, and goes on working in the
// Router, where there is none.
func ExampleFromWatermill() {
	var pool *pgxpool.Pool
	book := func(msg *message.Message) error {
		var b Booking
		if err := json.Unmarshal(msg.Payload, &b); err != nil {
			return consumer.Terminal(err)
		}
		const insert = "INSERT INTO booking (room) VALUES ($1)"
		if tx, ok := consumer.TxFrom(msg.Context()); ok {
			_, err := tx.Exec(msg.Context(), insert, b.Room)
			return err
		}
		_, err := pool.Exec(msg.Context(), insert, b.Room)
		return err
	}
	_ = consumer.FromWatermill("book", "booking.made", book)
}

// What a handler produces goes through the outbox: it is published if and only if the transaction commits.
func ExampleFromWatermillHandler() {
	confirm := func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage(msg.UUID, []byte(`{"confirmed":true}`))}, nil
	}
	_ = consumer.FromWatermillHandler("confirm", "booking.made", "booking.confirmed", confirm)
}

// The transaction of the step is in the context of the message.
func ExampleTxFrom() {
	_ = func(msg *message.Message) error {
		if tx, ok := consumer.TxFrom(msg.Context()); ok {
			_, err := tx.Exec(msg.Context(), "UPDATE room SET bookings = bookings + 1")
			return err
		}
		return nil
	}
}

// Every publisher of the old service sends a message again under its UUID.
func ExampleIdentityFromUUID() {
	_ = consumer.Options{Identity: consumer.IdentityFromUUID("legacy")}
}

// The old service sends the number of the booking in a header. One booking leads to one message.
func ExampleIdentityFromMetadata() {
	_ = consumer.Options{Identity: consumer.IdentityFromMetadata("legacy", "booking-number")}
}

// The old service sends the number of the booking in the body.
func ExampleIdentityFromPayload() {
	_ = consumer.Options{Identity: consumer.IdentityFromPayload("legacy", "booking.number")}
}

// An identity of one's own: the tenant is in a header, and a booking is changed several times.
func ExampleIdentity() {
	var identity consumer.Identity = func(msg *message.Message) (scope, key, n string, err error) {
		var change struct {
			Booking string      `json:"booking"`
			Version json.Number `json:"version"`
		}
		err = consumer.DecodeJSON(msg.Payload, &change)
		return msg.Metadata.Get("tenant"), change.Booking, change.Version.String(), err
	}
	_ = consumer.Options{Identity: identity}
}
