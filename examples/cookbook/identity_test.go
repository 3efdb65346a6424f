package cookbook

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
)

// An invoice is booked once although it comes in two messages. Another invoice with the same number is a dead letter.
func TestInvoiceIsBookedOnce(t *testing.T) {
	t.Parallel()
	s := start(t, sagamill.Config{Steps: []consumer.Step{BookInvoice}, Consumer: InvoiceIdentity})
	for _, amount := range []int{4200, 4200, 9900} {
		msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, `{"invoice":{"number":"R-7","amount":%d}}`, amount))
		if err := s.Consumer().Handle(t.Context(), "invoice.issued", msg); err != nil {
			t.Fatal(err)
		}
	}
	if got := readText(t, s, "SELECT string_agg(number || ' ' || amount, ', ') FROM shop.booked"); got != "R-7 4200" {
		t.Errorf("booked: %s, want R-7 4200", got)
	}
	if got := readText(t, s, "SELECT string_agg(state || ' ' || reason, ', ') FROM shop.parked"); got != "dead key-reused" {
		t.Errorf("parked: %s, want dead key-reused", got)
	}
}
