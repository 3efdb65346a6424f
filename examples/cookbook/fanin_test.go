package cookbook

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
)

// Each order is sent on, in whatever order its parts arrive, and although each part arrives twice.
func TestFanInSendsEachOrderOn(t *testing.T) {
	t.Parallel()
	const orders = 20
	s := start(t, sagamill.Config{Steps: append(ends("order.ready"), FanIn...)})
	var msgs []outbox.Message
	for i := range orders {
		for _, topic := range []string{"order.paid", "order.packed", "order.paid", "order.packed"} {
			msgs = append(msgs, order(topic, fmt.Sprint(i)))
		}
	}
	rand.Shuffle(len(msgs), func(i, j int) { msgs[i], msgs[j] = msgs[j], msgs[i] })
	for _, msg := range msgs {
		send(t, s, msg)
	}
	awaitSteps(t, s, "end-order-ready 20, note-packed 20, note-paid 20")
	if got := readText(t, s, "SELECT string_agg(DISTINCT cardinality(parts)::text, ', ') FROM shop.arrival"); got != "2" {
		t.Errorf("the orders have %s parts, want 2", got)
	}
}

// Of two parts at the same time, the second waits for the first one's COMMIT, sees it, and sends the order on.
func TestFanInSeesAPartThatArrivesAtTheSameTime(t *testing.T) {
	t.Parallel()
	s := start(t, sagamill.Config{Steps: FanIn})
	arrive := func(tx pgx.Tx, part string) (emitted int, err error) {
		in := consumer.Message[Order]{Delivery: consumer.Delivery{CorrelationID: "saga-1"}}
		err = noteArrival(part)(context.Background(), tx, in, func(msgs ...outbox.Message) { emitted += len(msgs) })
		return emitted, err
	}
	first, err := s.Database().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Rollback(context.Background()) }()
	if emitted, err := arrive(first, "paid"); emitted != 0 || err != nil {
		t.Fatalf("the first part has emitted %d messages (%v)", emitted, err)
	}
	second := make(chan int, 1)
	go func() {
		emitted := -1
		err := pgx.BeginFunc(context.Background(), s.Database(), func(tx pgx.Tx) (err error) {
			emitted, err = arrive(tx, "packed")
			return err
		})
		if err != nil {
			t.Error(err)
		}
		second <- emitted
	}()
	await(t, "second part that waits", func() bool {
		return len(second) > 0 || readText(t, s, "SELECT count(*)::text FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'") != "0"
	})
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if emitted := <-second; emitted != 1 {
		t.Errorf("the second part has emitted %d messages, want 1", emitted)
	}
}
