package order_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/order-saga/internal/event"
	"github.com/sagamill/sagamill/examples/order-saga/internal/order"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
)

type noSubscriber struct{}

func (noSubscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return nil, nil
}
func (noSubscriber) Close() error { return nil }

// newConsumer returns a consumer of the service's steps.
func newConsumer(t *testing.T) (*consumer.Consumer, *pgxpool.Pool, string) {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	if err := migrations.UpFrom(t.Context(), pgtest.Direct(), schema, "order_version", order.Migrations); err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	s, err := order.NewService(pool, schema, func() {}, order.Watchers{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(pool, noSubscriber{}, s.BuildSteps(), &consumer.Options{Schema: schema, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return c, pool, schema
}

// permutations calls do with every order of items.
func permutations(items []string, do func([]string)) {
	var place func(chosen, left []string)
	place = func(chosen, left []string) {
		if len(left) == 0 {
			do(chosen)
		}
		for i := range left {
			rest := append(append([]string{}, left[:i]...), left[i+1:]...)
			place(append(append([]string{}, chosen...), left[i]), rest)
		}
	}
	place(nil, items)
}

// The messages come from two services, so they may arrive in any order, and
// more than once.
func TestAnyOrderOfMessagesLeadsToTheSameEnd(t *testing.T) {
	t.Parallel()
	c, pool, schema := newConsumer(t)
	for want, sent := range map[string][]string{
		"completed  process-payment done, arrange-shipping done":               {event.PaymentProcessed, event.ShipmentArranged, event.PaymentProcessed},
		"cancelled why process-payment rejected, arrange-shipping skipped":     {event.PaymentDeclined, event.PaymentDeclined},
		"cancelled why process-payment compensated, arrange-shipping rejected": {event.PaymentProcessed, event.ShipmentRejected, event.PaymentRefunded, event.ShipmentRejected},
		"paid  process-payment done, arrange-shipping pending":                 {event.PaymentProcessed},
	} {
		permutations(sent, func(topics []string) {
			id := uuid.NewString()
			insert(t, pool, schema, id)
			for _, topic := range topics {
				if err := c.Handle(t.Context(), topic, told(topic, id)); err != nil {
					t.Fatalf("%s: %v", topic, err)
				}
			}
			var got string
			err := pool.QueryRow(t.Context(), `SELECT concat_ws(' ', o.status, o.reason, string_agg(s.step || ' ' || s.state, ', ' ORDER BY s.position))
				FROM `+schema+`.orders o JOIN `+schema+`.order_step s ON s.order_id = o.id WHERE o.id = $1 GROUP BY o.id`, id).Scan(&got)
			if err != nil || got != want {
				t.Errorf("after %v: %q, %v; want %q", topics, got, err, want)
			}
		})
	}
}

func insert(t *testing.T, pool *pgxpool.Pool, schema, id string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), "INSERT INTO "+schema+".orders (id, tenant, item, quantity, amount, currency) VALUES ($1, 'a', 'b', 1, 1, 'EUR')", id)
	for i, step := range event.Steps {
		if err == nil {
			_, err = pool.Exec(t.Context(), "INSERT INTO "+schema+".order_step (order_id, position, step) VALUES ($1, $2, $3)", id, i, step)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func told(topic, id string) *message.Message {
	var body any = event.Outcome{OrderID: id, Reason: "why", Attempts: 1}
	if topic == event.PaymentProcessed {
		body = event.Order{OrderID: id, Attempts: 1}
	}
	payload, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	msg := message.NewMessage(uuid.NewString(), payload)
	msg.Metadata.Set(outbox.HeaderKey, fmt.Sprintf("%s:any", id))
	msg.Metadata.Set(outbox.HeaderScope, "a")
	msg.Metadata.Set(outbox.PropertyType, topic)
	return msg
}

func TestAnUnknownOrderIsADeadLetter(t *testing.T) {
	t.Parallel()
	c, _, _ := newConsumer(t)
	if err := c.Handle(t.Context(), event.PaymentDeclined, told(event.PaymentDeclined, uuid.NewString())); err != nil {
		t.Fatal(err)
	}
	if stats, err := c.Stats(t.Context()); err != nil || stats.Dead != 1 {
		t.Errorf("Stats = %+v, %v; want one dead letter", stats, err)
	}
}
