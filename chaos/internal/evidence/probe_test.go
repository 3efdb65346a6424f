package evidence

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/operator"
)

// A probe gets a copy of every published message.
type probe struct {
	mu     sync.Mutex
	copies map[string][]amqp.Delivery // by message id
}

func (s *site) probe(t *testing.T) *probe {
	t.Helper()
	p := &probe{copies: map[string][]amqp.Delivery{}}
	conn, err := amqp.Dial(s.broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	q, err := ch.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range Listeners {
		if err := ch.QueueBind(q.Name, "", s.broker.exchange(l.Saga, l.Topic), false, nil); err != nil {
			t.Fatal(err)
		}
	}
	deliveries, err := ch.Consume(q.Name, "", true, true, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for d := range deliveries {
			p.mu.Lock()
			p.copies[d.MessageId] = append(p.copies[d.MessageId], d)
			p.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return p
}

// check compares the messages of relays with those of Injector and ReplayHistory. Every message of the run came
// from its relay and from two replays at least, and was always the same.
func (p *probe) check(t *testing.T, dir string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	transport := cmpopts.IgnoreFields(amqp.Delivery{}, "Acknowledger", "ConsumerTag", "DeliveryTag")
	bad := 0
	for m, err := range record.ReadFile[record.Message](dir, record.OutboxFile) {
		if err != nil {
			t.Fatal(err)
		}
		copies := p.copies[m.MessageID]
		if len(copies) < 3 || record.DigestOf(copies[0].Body) != m.Payload {
			t.Fatalf("message %+v came %d times", m, len(copies))
		}
		for _, c := range copies[1:] {
			if diff := cmp.Diff(copies[0], c, transport); diff != "" && bad < 5 {
				bad++
				t.Errorf("message %+v is not published as the relay does (-relay +copy):\n%s", m, diff)
			}
		}
	}
}

// keepHistory prevents the relays, which have no Retention, from emptying their logs.
func (s *site) keepHistory(t *testing.T) {
	t.Helper()
	conn, err := s.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Conn().Close(context.Background()); conn.Release() })
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range speaking() {
		l, err := operator.NewLocator(&operator.Options{Schema: name})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Pin(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
	}
}
