package relaytargets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
)

// A poison message stops nothing and is kept; steps are undone once each, although
// the consumer is replaced by another while messages come and handlers fail.
func TestAStepIsUndoneOnce(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		const orders = 30
		s := newService(t)
		if _, err := s.pool.Exec(t.Context(), "CREATE TABLE "+s.schema+".effect (step text, key text)"); err != nil {
			t.Fatal(err)
		}
		relay := s.relay(t, b.publisher(t), outbox.RelayOptions{})
		topics := []string{b.topic("order.created"), b.topic("order.cancelled")}
		consume := func() running {
			sub := &byTopic{subscriber: func(topic string) message.Subscriber { return b.subscriber(t, "shop", topic) }}
			c, err := consumer.New(s.pool, sub, []consumer.Step{s.undoable(topics)}, &consumer.Options{Schema: s.schema, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			r := run(t, c.Run)
			eventually(t, "subscriptions", c.Ready)
			return r
		}
		first := consume()
		if err := b.publisher(t).Publish(topics[0], message.NewMessage("poison", []byte("{"))); err != nil {
			t.Fatal(err)
		}
		publishing := run(t, relay.Run)
		write := func(topic string, kind int) {
			for i := range orders {
				s.write(t, nil, outbox.Message{Topic: topic, Scope: "tenant", Key: fmt.Sprint(i), Step: "pay", Payload: []byte(`{}`), ID: messageID(i, kind)})
			}
		}
		write(topics[0], 1)
		eventually(t, "some effects", func() bool { return s.count(t, "step = 'pay'") >= orders/3 })
		first.stop()
		second := consume()
		eventually(t, "all actions", func() bool { return s.count(t, "step = 'pay'") >= orders })
		write(topics[1], 2)
		eventually(t, "all compensations", func() bool { return s.count(t, "step = 'unpay'") >= orders })
		second.stop()
		publishing.stop()
		for _, step := range []string{"pay", "unpay"} {
			if got := s.count(t, "step = '"+step+"'"); got != orders {
				t.Errorf("step %s had %d effects, want %d", step, got, orders)
			}
		}
		var dead, others int
		err := s.pool.QueryRow(t.Context(), "SELECT count(*) FILTER (WHERE reason = 'key-missing'), count(*) FILTER (WHERE reason <> 'key-missing') FROM "+s.schema+".parked").Scan(&dead, &others)
		if err != nil || dead == 0 || others != 0 {
			t.Errorf("%d dead letters of the poison and %d others, %v", dead, others, err)
		}
	})
}

// undoable is a step whose handlers fail in every fifth first attempt.
func (s *service) undoable(topics []string) consumer.Step {
	effect := func(step string) consumer.Handler[order] {
		return func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], _ consumer.Emit) error {
			if _, err := tx.Exec(ctx, "INSERT INTO "+s.schema+".effect VALUES ($1, $2)", step, in.Key); err != nil {
				return err
			}
			if in.Attempt == 1 && in.Key[len(in.Key)-1]%5 == 0 {
				return errors.New("the first attempt fails")
			}
			return nil
		}
	}
	return consumer.Step{Name: "pay", RetryBase: time.Millisecond, Action: consumer.On(topics[0], effect("pay")), Compensation: consumer.On(topics[1], effect("unpay"))}
}
