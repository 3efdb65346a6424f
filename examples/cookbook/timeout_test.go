package cookbook

import (
	"testing"
	"time"

	"github.com/sagamill/sagamill"
)

// An order without a payment is cancelled, and a payment that comes later is given back.
func TestPaymentTimeoutCancels(t *testing.T) {
	t.Parallel()
	s := start(t, sagamill.Config{Steps: append(ends("order.cancelled", "payment.refused"), PaymentTimeout(10*time.Millisecond)...)})
	send(t, s, order("order.created", "1"))
	awaitText(t, s, "order.cancelled saga-1", sqlEnds)
	send(t, s, order("payment.received", "1"))
	awaitText(t, s, "order.cancelled saga-1, payment.refused saga-1", sqlEnds)
}

// A payment in time stays, also one that overtakes its order: the timeout changes nothing.
func TestPaymentTimeoutLeavesAPaidOrder(t *testing.T) {
	t.Parallel()
	for _, topics := range [][2]string{{"order.created", "payment.received"}, {"payment.received", "order.created"}} {
		t.Run(topics[0]+" first", func(t *testing.T) {
			t.Parallel()
			testPaidOrder(t, topics)
		})
	}
}

func testPaidOrder(t *testing.T, topics [2]string) {
	s := start(t, sagamill.Config{Steps: append(ends("order.cancelled", "payment.refused"), PaymentTimeout(time.Hour)...)})
	send(t, s, order(topics[0], "1"))
	await(t, "first step", func() bool {
		return readText(t, s, "SELECT count(*)::text FROM shop.inbox WHERE state = 'done'") == "1"
	})
	send(t, s, order(topics[1], "1"))
	awaitSteps(t, s, "await-payment 1, take-payment 1")
	send(t, s, order("payment.timeout", "1")) // as if the hour were over
	awaitSteps(t, s, "await-payment 1, end-waiting 1, take-payment 1")
	if got := readText(t, s, "SELECT state FROM shop.invoice"); got != "paid" {
		t.Errorf("the invoice is %s, want paid", got)
	}
	if got := readText(t, s, "SELECT count(*)::text FROM shop.outbox WHERE topic IN ('order.cancelled', 'payment.refused')"); got != "0" {
		t.Errorf("%s messages cancel or refund a paid order", got)
	}
	if got := readText(t, s, "SELECT topic FROM shop.outbox_held"); got != "payment.timeout" {
		t.Errorf("%s waits for its time, want payment.timeout", got)
	}
}
