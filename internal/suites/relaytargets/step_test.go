package relaytargets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
)

// twice publishes everything twice.
type twice struct{ message.Publisher }

func (p twice) Publish(topic string, messages ...*message.Message) error {
	for range 2 {
		for _, msg := range messages {
			if err := p.Publisher.Publish(topic, msg.Copy()); err != nil {
				return err
			}
		}
	}
	return nil
}

// byTopic subscribes to each topic with a separate subscriber, and counts the acked messages.
type byTopic struct {
	subscriber func(topic string) message.Subscriber
	acked      atomic.Int64
	work       sync.WaitGroup
}

func (s *byTopic) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.subscriber(topic).Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	s.work.Go(func() {
		defer close(out)
		for msg := range in {
			select {
			case out <- msg:
			case <-ctx.Done():
				continue
			}
			s.work.Go(func() {
				select {
				case <-msg.Acked():
					s.acked.Add(1)
				case <-msg.Nacked():
				case <-ctx.Done():
				}
			})
		}
	})
	return out, nil
}

func (s *byTopic) Close() error { s.work.Wait(); return nil }

type order struct {
	Number int `json:"number"`
}

// A step's effect, and the message that it emits to the next step by the same
// broker, happen once, although everything is delivered twice at least and every
// fifth first attempt fails.
func TestAStepRunsOnce(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		const orders = 40
		s := newService(t)
		if _, err := s.pool.Exec(t.Context(), "CREATE TABLE "+s.schema+".effect (step text, key text, id text, cause text)"); err != nil {
			t.Fatal(err)
		}
		relay := s.relay(t, twice{b.publisher(t)}, outbox.RelayOptions{})
		sub := &byTopic{subscriber: func(topic string) message.Subscriber { return b.subscriber(t, "shop", topic) }}
		steps, err := consumer.New(s.pool, sub, s.steps(b), &consumer.Options{Schema: s.schema, Wake: relay.Wake, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		consuming := run(t, steps.Run)
		eventually(t, "subscriptions", steps.Ready)
		publishing := run(t, relay.Run)
		for i := range orders {
			s.write(t, nil, outbox.Message{
				Topic: b.topic("order.created"), Type: "order.created", Scope: "tenant", Key: fmt.Sprint(i), Step: "pay",
				Payload: fmt.Appendf(nil, `{"number":%d}`, i), ID: messageID(i, 0),
			})
		}
		eventually(t, "all deliveries acked", func() bool { return sub.acked.Load() >= 2*2*orders })
		eventually(t, "all effects", func() bool { return s.count(t, "true") >= 2*orders })
		publishing.stop()
		consuming.stop()
		for _, step := range []string{"pay", "ship"} {
			if got := s.count(t, "step = '"+step+"'"); got != orders {
				t.Errorf("step %s had %d effects, want %d", step, got, orders)
			}
		}
		if got := s.count(t, "step = 'ship' AND (key, cause) IN (SELECT key, id FROM "+s.schema+".effect WHERE step = 'pay')"); got != orders {
			t.Errorf("%d shipments name the message that led to them, want %d", got, orders)
		}
		left, err := steps.Stats(t.Context())
		if err != nil || left.Retrying+left.Calling+left.Dead != 0 {
			t.Errorf("parked: %+v, %v", left, err)
		}
	})
}

// steps are a payment and the shipment that it leads to.
func (s *service) steps(b broker) []consumer.Step {
	effect := func(ctx context.Context, tx pgx.Tx, step string, in consumer.Message[order]) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+s.schema+".effect VALUES ($1, $2, $3, $4)", step, in.Key, in.ID, in.Metadata[outbox.HeaderCausation])
		return err
	}
	pay := consumer.On(b.topic("order.created"), func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], emit consumer.Emit) error {
		if err := effect(ctx, tx, "pay", in); err != nil {
			return err
		}
		if in.Attempt == 1 && in.Body.Number%5 == 0 {
			return errors.New("the first attempt fails")
		}
		emit(outbox.Message{Topic: b.topic("payment.taken"), Type: "payment.taken", Step: "ship", Payload: []byte(`{}`)})
		return nil
	})
	pay.Type = "order.created"
	ship := consumer.On(b.topic("payment.taken"), func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], _ consumer.Emit) error {
		return effect(ctx, tx, "ship", in)
	})
	ship.Type = "payment.taken"
	return []consumer.Step{{Name: "pay", Action: pay, RetryBase: time.Millisecond}, {Name: "ship", Action: ship}}
}

func (s *service) count(t testing.TB, where string) (n int) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+s.schema+".effect WHERE "+where).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
