package cookbook

import (
	"slices"
	"testing"

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

// A handler is a function: it is called in a transaction that is rolled back.
func TestReserveAlone(t *testing.T) {
	t.Parallel()
	tx := beginTx(t)
	if _, err := tx.Exec(t.Context(), "INSERT INTO shop.stock (item, free) VALUES ('book', 1)"); err != nil {
		t.Fatal(err)
	}
	var emitted []string
	emit := func(msgs ...outbox.Message) { emitted = append(emitted, msgs[0].Topic) }
	for range 2 {
		if err := reserve(t.Context(), tx, consumer.Message[Order]{Body: Order{Item: "book"}}, emit); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"stock.reserved", "stock.missing"}; !slices.Equal(emitted, want) {
		t.Errorf("emitted %q, want %q", emitted, want)
	}
}
