package signing_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/signing"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// A service has a private schema, broker and key. Its relay signs with the key.
type service struct {
	*testing.T
	db     *pgxpool.Pool
	schema string
	name   string
	broker *inproc.Broker
	relay  *outbox.Relay
}

func newService(t *testing.T, broker *inproc.Broker, k signing.Key) *service {
	t.Helper()
	s := &service{T: t, name: k.Producer, broker: broker}
	s.db, s.schema = pgtest.Schema(t)
	var err error
	s.relay, err = outbox.NewRelay(s.db, signer(t, k).Publisher(broker), &outbox.RelayOptions{Schema: s.schema, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	s.run(s.relay.Run)
	return s
}

// run runs do until the test ends.
func (s *service) run(do func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	s.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.Errorf("%s: Run = %v", s.name, err)
		}
	})
}

// subscribe declares the queues of topics before anything is published to them.
func (s *service) subscribe(sub *inproc.Subscriber, topics []string) {
	s.Helper()
	for _, topic := range topics {
		if err := sub.SubscribeInitialize(topic); err != nil {
			s.Fatal(err)
		}
	}
}

// participate runs a step of that name, which is handled once begin is closed.
func (s *service) participate(v *signing.Verifier, name string, begin <-chan struct{}) {
	s.Helper()
	step := saga.Participant(consumer.Step{Name: "my-" + name, Action: saga.On(name, func(ctx context.Context, _ pgx.Tx, _ consumer.Message[any]) (any, error) {
		select {
		case <-begin:
			return name, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})})
	sub := s.broker.Subscriber(s.name)
	c, err := consumer.New(s.db, sub, []consumer.Step{step}, &consumer.Options{Schema: s.schema, Logger: quiet, Wake: s.relay.Wake, Verify: v.Verify})
	if err != nil {
		s.Fatal(err)
	}
	s.subscribe(sub, c.Topics())
	s.run(c.Run)
}

// orchestrate runs an orchestrator of d.
func (s *service) orchestrate(v *signing.Verifier, d saga.Plan) {
	s.Helper()
	sub := s.broker.Subscriber(s.name)
	o, err := saga.NewOrchestrator(s.db, sub, []saga.Plan{d}, &saga.Options{
		Schema: s.schema, Logger: quiet, Wake: s.relay.Wake, NamedReplies: true, Consumer: consumer.Options{Verify: v.Verify},
	})
	if err != nil {
		s.Fatal(err)
	}
	s.subscribe(sub, o.Topics())
	s.run(o.Run)
}

// start starts an instance of d under the key k, and returns the mark of its messages.
func start(s *service, d *saga.Definition[int]) (mark string) {
	s.Helper()
	starter, err := saga.NewStarter(d, &saga.StarterOptions{Schema: s.schema})
	if err == nil {
		err = pgx.BeginFunc(s.Context(), s.db, func(tx pgx.Tx) error {
			_, err := starter.Start(s.Context(), tx, saga.ID{Scope: "tenant", Key: "k"}, 0)
			return err
		})
	}
	if err != nil {
		s.Fatal(err)
	}
	s.relay.Wake()
	root := s.await("SELECT root::text FROM {schema}.saga", 1)[0]
	return root[len(root)-8:]
}

// texts are those that a query returns.
func (s *service) texts(query string) []string {
	s.Helper()
	rows, _ := s.db.Query(s.Context(), strings.ReplaceAll(query, "{schema}", s.schema))
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.Fatal(err)
	}
	return all
}

// await waits until the query returns as many texts.
func (s *service) await(query string, want int) []string {
	s.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(60 * time.Second); ; {
		if all := s.texts(query); len(all) == want {
			return all
		}
		select {
		case <-tick.C:
		case <-timeout:
			s.Fatalf("not within a minute: %d rows of %s, there are %q", want, query, s.texts(query))
		}
	}
}

// One participant, with its own genuine key, answers for the other: under the other's step, under its own
// with what the other's command is known by, and with an order to compensate. The orchestrator
// believes none of it, and the saga completes by what the right ones say, whichever key they have.
func TestAParticipantAnswersForItself(t *testing.T) {
	t.Parallel()
	orders, payment, shipping := key("orders-1", "orders"), key("payment-2", "payment"), key("shipping-1", "shipping")
	d := saga.Must(saga.Define("order", 1,
		saga.Step[int]{Name: "payment", Do: saga.Tell("pay", func(*int) any { return nil })},
		saga.Step[int]{Name: "ship", Do: saga.Tell("ship", func(*int) any { return nil })}))
	topic := saga.Topic("order")
	v, err := signing.NewVerifier([]signing.Key{orders, key("payment-1", "payment"), payment, shipping}, map[string][]signing.Sender{
		"pay": {{Producer: "orders"}}, "ship": {{Producer: "orders"}},
		topic: {
			{Producer: "payment", Types: []string{saga.TypeReply}, Steps: []string{"payment"}},
			{Producer: "shipping", Types: []string{saga.TypeReply}, Steps: []string{"ship"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	broker := inproc.New(nil)
	center := newService(t, broker, orders)
	center.orchestrate(v, d)
	paid := make(chan struct{})
	newService(t, broker, payment).participate(v, "pay", paid)
	newService(t, broker, shipping).participate(v, "ship", paid)

	mark := start(center, d)
	forge := func(typ, step, n string) {
		msg := message.NewMessage(fmt.Sprint(typ, step, n), []byte(`{"outcome":"rejected","reason":"forged"}`))
		msg.Metadata = message.Metadata{outbox.HeaderKey: "k:" + step + "#" + mark + "-" + n, outbox.HeaderScope: "tenant", outbox.PropertyType: typ}
		if err := signer(t, shipping).Sign(topic, msg); err != nil {
			t.Fatal(err)
		}
		if err := broker.Publish(topic, msg); err != nil {
			t.Fatal(err)
		}
	}
	forge(saga.TypeReply, "payment", "1.1.d")
	forge(saga.TypeReply, "ship", "1.1.d")
	forge(saga.TypeRevoke, "ship", "2.1")
	const letters = "SELECT reason || ': ' || error FROM {schema}.parked WHERE state = 'dead' AND kind = 'unknown'"
	got := center.await(letters, 3)
	slices.Sort(got)
	want := []string{
		`unverified: saga: the reply names another step than it is about: "ship", and it is about "payment"`,
		`unverified: signing: the producer is not allowed to send that: key shipping-1 of shipping, to topic saga.order: type "saga.reply", step "payment"`,
		`unverified: signing: the producer is not allowed to send that: key shipping-1 of shipping, to topic saga.order: type "saga.revoke", step "ship"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("dead letters\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	close(paid)
	center.await("SELECT key FROM {schema}.saga WHERE status = 'completed'", 1)
	if more := center.texts("SELECT error FROM {schema}.parked"); len(more) != len(want) {
		t.Errorf("parked %q, want nothing but the forged ones", more)
	}
}
