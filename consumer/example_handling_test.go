package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
)

// What a handler says of its failure decides what becomes of the message.
func ExamplePark() {
	take := func(ctx context.Context, tx pgx.Tx, in consumer.Message[Deposit], emit consumer.Emit) error {
		switch now := time.Now(); {
		case in.Body.Amount <= 0: // no attempt can mend that: a dead letter
			return consumer.Terminal(errors.New("there is nothing to take"))
		case in.Body.Amount > 1_000_000: // somebody must look: a dead letter that has lost no attempt
			return consumer.Park(errors.New("the deposit is over the limit"))
		case now.Hour() < 6: // the ledger is closed until then
			return consumer.RetryAfter(errors.New("the ledger is closed"), time.Duration(6-now.Hour())*time.Hour)
		}
		_, err := tx.Exec(ctx, "INSERT INTO deposit (booking, amount) VALUES ($1, $2)", in.Key, in.Body.Amount)
		return err // all else is tried again, after ever longer waits
	}
	_ = consumer.On("booking.made", take)
}

// A dashboard can have a line for each reason that there is.
func ExampleReasons() {
	fmt.Println(slices.Contains(consumer.Reasons(), consumer.ReasonFormatUnknown))
	// Output: true
}

// A message's payload is never ambiguous: what two readers could understand in two ways
// is refused.
func ExampleDecodeJSON() {
	var b Booking
	fmt.Println(consumer.DecodeJSON([]byte(`{"room":"12","floor":1}`), &b), b.Room)
	fmt.Println(consumer.DecodeJSON([]byte(`{"room":"12","Room":"13"}`), &b) != nil, b.Room)
	// Output:
	// <nil> 12
	// true 12
}

// prices is the key of what a Preparer leaves for the handlers of its batch.
type prices struct{}

// The prices of all rooms of a batch are read in one round trip. A message that is alone
// is not prepared, so that the handler can do without.
func ExampleNewPreparer() {
	read := func(ctx context.Context, tx pgx.Tx, rooms ...string) (map[string]int64, error) {
		found := map[string]int64{}
		rows, err := tx.Query(ctx, "SELECT room, price FROM room WHERE room = ANY($1)", rooms)
		if err != nil {
			return nil, err
		}
		var room string
		var price int64
		_, err = pgx.ForEachRow(rows, []any{&room, &price}, func() error { found[room] = price; return nil })
		return found, err
	}
	prepare := consumer.NewPreparer(func(ctx context.Context, tx pgx.Tx, messages []*consumer.Delivery) (context.Context, error) {
		var rooms []string
		for _, m := range messages {
			var b Booking
			if consumer.DecodeJSON(m.Payload, &b) == nil {
				rooms = append(rooms, b.Room)
			}
		}
		found, err := read(ctx, tx, rooms...)
		return context.WithValue(ctx, prices{}, found), err
	})
	hold := func(ctx context.Context, tx pgx.Tx, in consumer.Message[Booking], emit consumer.Emit) (err error) {
		found, ok := ctx.Value(prices{}).(map[string]int64)
		if !ok {
			if found, err = read(ctx, tx, in.Body.Room); err != nil {
				return err
			}
		}
		in.Queue("INSERT INTO hold (room, booking, price) VALUES ($1, $2, $3)", in.Body.Room, in.Key, found[in.Body.Room])
		return nil
	}
	_ = consumer.Step{Name: "hold-room", Action: consumer.On("booking.made", hold), Prepare: prepare}
}

// Every process of a service may run a sweeper: one pass at a time is enough.
func ExampleNewSweeper() {
	run := func(ctx context.Context, db *pgxpool.Pool) error {
		sweeper, err := consumer.NewSweeper(db, &consumer.SweeperOptions{
			Schema:    "hotel",
			Retention: 7 * 24 * time.Hour, // longer than any saga, delay and outage
		})
		if err != nil {
			return err
		}
		return sweeper.Run(ctx) // until ctx ends
	}
	_ = run
}
