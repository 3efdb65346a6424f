package cookbook

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/cookbook/shopdb"
	"github.com/sagamill/sagamill/outbox"
)

// The last book goes to one order, and the other order hears that there is none.
func TestReserveTakesFromStock(t *testing.T) {
	t.Parallel()
	s := start(t, sagamill.Config{Steps: append(ends("stock.reserved", "stock.missing"), Reserve)})
	if _, err := s.Database().Exec(t.Context(), "INSERT INTO shop.stock (item, free) VALUES ('book', 1)"); err != nil {
		t.Fatal(err)
	}
	send(t, s, order("order.created", "1"), order("order.created", "1"))
	awaitText(t, s, "stock.reserved saga-1", sqlEnds)
	send(t, s, order("order.created", "2"))
	awaitText(t, s, "stock.missing saga-2, stock.reserved saga-1", sqlEnds)
	if free, err := shopdb.New(s.Database()).CountFree(t.Context(), "book"); free != 0 || err != nil {
		t.Errorf("%d books are free (%v), want 0", free, err)
	}
}

// What the queries write is rolled back with the step.
func TestReserveIsRolledBackWithItsStep(t *testing.T) {
	t.Parallel()
	s := start(t, sagamill.Config{Steps: []consumer.Step{Reserve}})
	if _, err := s.Database().Exec(t.Context(), "INSERT INTO shop.stock (item, free) VALUES ('book', 1)"); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("a later statement fails")
	err := pgx.BeginFunc(t.Context(), s.Database(), func(tx pgx.Tx) error {
		in := consumer.Message[Order]{Body: Order{Item: "book"}}
		return errors.Join(reserve(t.Context(), tx, in, func(...outbox.Message) {}), failed)
	})
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
	if free, err := shopdb.New(s.Database()).CountFree(t.Context(), "book"); free != 1 || err != nil {
		t.Errorf("%d books are free (%v), want 1", free, err)
	}
}
