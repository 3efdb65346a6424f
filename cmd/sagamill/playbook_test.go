package main

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
	"github.com/sagamill/sagamill/saga"
)

// A resort is an orchestrator of trips and the participants flights and hotels, each with a schema of its own, on
// RabbitMQ.
type resort struct {
	t          *testing.T
	db         *pgxpool.Pool
	schemas    map[string]string // by service
	prefix     string
	definition *saga.Definition[trip]
	log        *slog.Logger
}

func newResort(t *testing.T) *resort {
	t.Helper()
	r := &resort{t: t, schemas: map[string]string{}, prefix: rabbittest.Name(), log: slog.New(slog.DiscardHandler)}
	ask := func(s *trip) trip { return *s }
	step := func(name string) saga.Step[trip] {
		return saga.Step[trip]{Name: name, Do: saga.Remote(name+".book", ask, func(s *trip, _ trip) {}), Undo: saga.Tell(name+".cancel", ask)}
	}
	r.definition = saga.Must(saga.Define("trip", 1, step("flight"), step("hotel")))
	for _, service := range []string{"trips", "flights", "hotels"} {
		r.db, r.schemas[service] = pgtest.Schema(t, "CREATE TABLE {schema}.effect (what text)")
	}
	var queues, exchanges []string
	for service, topics := range map[string][]string{"trips": {"saga.trip"}, "flights": {"flight.book", "flight.cancel"}, "hotels": {"hotel.book", "hotel.cancel"}} {
		for _, topic := range topics {
			queue := r.broker(service).Queue.GenerateName(topic)
			queues, exchanges = append(queues, queue, queue+".dead"), append(exchanges, r.prefix+topic)
		}
	}
	rabbittest.Delete(t, queues, exchanges)
	return r
}

func (r *resort) broker(service string) amqp.Config {
	r.t.Helper()
	cfg, err := rabbitmq.NewConfig(rabbittest.URL(), service, &rabbitmq.ConfigOptions{Prefix: r.prefix})
	if err != nil {
		r.t.Fatal(err)
	}
	return cfg
}

// must ends the test at an error.
func must[T any](t *testing.T, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// run runs parts of a service until stop is called, or the test ends.
func (r *resort) run(parts ...func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, part := range parts {
		wg.Go(func() {
			if err := part(ctx); err != nil {
				r.t.Errorf("Run: %v", err)
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	r.t.Cleanup(stop)
	return stop
}

// relay returns the relay of a service.
func (r *resort) relay(service string) *outbox.Relay {
	r.t.Helper()
	publisher, err := rabbitmq.NewPublisher(r.broker(service), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = publisher.Close() })
	relay, err := outbox.NewRelay(r.db, publisher, &outbox.RelayOptions{Schema: r.schemas[service], Logger: r.log})
	return must(r.t, relay, err)
}

func (r *resort) subscriber(service string, topics ...string) *rabbitmq.Subscriber {
	r.t.Helper()
	if err := rabbitmq.DeclareTopology(r.t.Context(), r.broker(service), topics...); err != nil {
		r.t.Fatal(err)
	}
	sub, err := rabbitmq.NewSubscriber(r.broker(service), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = sub.Close() })
	return sub
}

// participant returns the consumer of a service, which notes what it does.
func (r *resort) participant(service, step string) *consumer.Consumer {
	r.t.Helper()
	note := func(ctx context.Context, tx pgx.Tx, what string) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+r.schemas[service]+".effect (what) VALUES ($1)", what)
		return err
	}
	steps := []consumer.Step{saga.Participant(consumer.Step{
		Name: "book-" + step,
		Action: saga.On(step+".book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[trip]) (trip, error) {
			return in.Body, note(ctx, tx, in.Key)
		}),
		Compensation: saga.OnUndo(step+".cancel", func(ctx context.Context, tx pgx.Tx, in consumer.Message[trip]) error {
			return note(ctx, tx, "no "+in.Key)
		}),
	})}
	c, err := consumer.New(r.db, r.subscriber(service, step+".book", step+".cancel"), steps, &consumer.Options{Schema: r.schemas[service], Logger: r.log})
	return must(r.t, c, err)
}

// orchestrator returns that of trips.
func (r *resort) orchestrator() *saga.Orchestrator {
	r.t.Helper()
	o, err := saga.NewOrchestrator(r.db, r.subscriber("trips", "saga.trip"), []saga.Plan{r.definition}, &saga.Options{Schema: r.schemas["trips"], Logger: r.log, TimerPoll: 20 * time.Millisecond})
	return must(r.t, o, err)
}

func (r *resort) start(keys ...string) {
	r.t.Helper()
	s, err := saga.NewStarter(r.definition, &saga.StarterOptions{Schema: r.schemas["trips"]})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, key := range keys {
		err := pgx.BeginFunc(r.t.Context(), r.db, func(tx pgx.Tx) error {
			_, err := s.Start(r.t.Context(), tx, saga.ID{Scope: "acme", Key: key}, trip{key})
			return err
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// eventually waits until is returns true.
func (r *resort) eventually(what string, is func() bool) {
	r.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(time.Minute); !is(); {
		select {
		case <-tick.C:
		case <-timeout:
			r.t.Fatalf("not so: %s", what)
		}
	}
}

// text returns the only value of a query on the schema of a service.
func (r *resort) text(service, query string) (text string) {
	r.t.Helper()
	if err := r.db.QueryRow(r.t.Context(), strings.ReplaceAll(query, "{schema}", r.schemas[service])).Scan(&text); err != nil {
		r.t.Fatal(err)
	}
	return text
}

// command runs sagamill on the schema of the trips.
func (r *resort) command(code int, line string) string {
	r.t.Helper()
	out, errs := sagamill(r.t, code, append(strings.Fields(line), "-schema", r.schemas["trips"], "-database", pgtest.URL())...)
	return out + errs
}

// The section SagamillQueueDeleted of docs/runbook.md, for an orchestrated saga: its commands are sent again and each
// trip ends. A command that was handled before runs no second time.
func TestPlaybookOfADeletedQueue(t *testing.T) {
	t.Parallel()
	r := newResort(t)
	orchestrator, flights := r.orchestrator(), r.participant("flights", "flight")
	r.run(orchestrator.Run, r.relay("trips").Run, flights.Run, r.relay("flights").Run)
	stop := r.run(r.participant("hotels", "hotel").Run) // without a relay: its replies stay in its outbox
	r.start("handled")
	const effects = "SELECT coalesce(string_agg(what, ' ' ORDER BY what), '') FROM {schema}.effect"
	r.eventually("the hotel is booked for the first trip", func() bool { return r.text("hotels", effects) == "handled" })
	stop()

	lost := []string{"k1", "k2", "k3"}
	r.start(lost...)
	queue := r.broker("hotels").Queue.GenerateName("hotel.book")
	channel := rabbittest.Channel(t, rabbittest.URL())
	r.eventually("the commands of the other trips lie in the queue", func() bool {
		q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err == nil && q.Messages == len(lost)
	})
	if n, err := channel.QueueDelete(queue, false, false, false); err != nil || n != len(lost) {
		t.Fatalf("the queue is deleted with %d messages, %v; want %d", n, err, len(lost))
	}

	r.run(r.participant("hotels", "hotel").Run) // declares it anew; the reply to the first trip is still not out
	contains(t, r.command(0, "saga list"), "hotel  reply")
	const retry = "saga retry -all -step hotel -silent 0s -why deleted"
	contains(t, r.command(1, retry), "k1", "would retry 4 instances\n", "the same with -yes does it")
	if got := r.text("trips", "SELECT count(*)::text FROM {schema}.saga_journal"); got != "0" {
		t.Fatalf("a preview has decided %s times", got)
	}
	contains(t, r.command(0, retry+" -yes"), "retried 4 instances\n")
	r.run(r.relay("hotels").Run)
	r.eventually("all trips have ended", func() bool {
		return r.text("trips", "SELECT string_agg(DISTINCT status, ' ') FROM {schema}.saga") == "completed"
	})
	for _, service := range []string{"flights", "hotels"} {
		if diff := cmp.Diff("handled k1 k2 k3", r.text(service, effects)); diff != "" {
			t.Errorf("done by %s (-want +got):\n%s", service, diff)
		}
	}
	if got := r.text("trips", "SELECT string_agg(concat_ws(' ', key, verb, step, why), ', ' ORDER BY key) FROM {schema}.saga_journal"); got != "handled retry hotel deleted, k1 retry hotel deleted, k2 retry hotel deleted, k3 retry hotel deleted" {
		t.Errorf("the journal has %s", got)
	}
	contains(t, r.command(1, retry+" -yes"), "retried 0 instances\n", "nothing was done")
}
