package saga_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
	"github.com/sagamill/sagamill/saga"
)

// The services of the tests on a real broker.
const (
	orchestrators = "orchestrator"
	participants  = "participant"
)

// siteConns bounds the pool of an orchestrator of a site: its lanes wait for each other, as they do in production.
const siteConns = 5

// sites bounds how many there are at once: each has up to 25 connections of the 100 that the
// server has for all packages.
var sites = make(chan struct{}, 2)

// A site is a place with a real broker, so that orchestrators can be processes of
// their own.
type site struct {
	*place
	prefix  string
	broker  *rabbittest.Proxy // between the broker and child processes
	control *amqp.Channel     // to look at queues
	patient bool              // see saga.Patient
}

func newSite(t testing.TB) *site {
	t.Helper()
	sites <- struct{}{}
	t.Cleanup(func() { <-sites })
	db, schema := pgtest.Schema(t)
	p := &place{t: t, db: db, schema: schema}
	p.ctx, p.stop = context.WithCancel(context.Background())
	if _, err := db.Exec(t.Context(), "CREATE TABLE "+schema+".effect (at bigint GENERATED ALWAYS AS IDENTITY, key text, what text)"); err != nil {
		t.Fatal(err)
	}
	s := &site{place: p, prefix: rabbittest.Name(), broker: rabbittest.NewProxy(t, rabbittest.URL()), control: rabbittest.Channel(t, rabbittest.URL())}
	s.declare(orchestrators, saga.Topic("trip"), saga.Topic("tour"), saga.Topic("patient"), saga.Topic("fan"), saga.Topic("fair"), saga.Topic("close"))
	s.declare(participants, bookings.topics()...)
	publisher, err := rabbitmq.NewPublisher(s.topology(participants), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { publisher.Close() })
	t.Cleanup(func() { // before the publisher is closed
		p.stop()
		p.wg.Wait()
	})
	p.relay, err = outbox.NewRelay(db, publisher, &outbox.RelayOptions{Schema: schema, Logger: quiet, PollMax: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	p.run(p.relay.Run)
	return s
}

func (s *site) topology(service string) wamqp.Config {
	s.t.Helper()
	return topologyOf(rabbittest.URL(), s.prefix, service)
}

func topologyOf(url, prefix, service string) wamqp.Config {
	config, err := rabbitmq.NewConfig(url, service, &rabbitmq.ConfigOptions{Prefix: prefix})
	if err != nil {
		panic(err)
	}
	return config
}

// declare makes the queues of a service, until the test ends.
func (s *site) declare(service string, topics ...string) {
	s.t.Helper()
	config := s.topology(service)
	var queues, exchanges []string
	for _, topic := range topics {
		queue := config.Queue.GenerateName(topic)
		queues, exchanges = append(queues, queue, queue+".dead"), append(exchanges, config.Exchange.GenerateName(topic))
	}
	rabbittest.Delete(s.t, queues, exchanges)
	if err := rabbitmq.DeclareTopology(s.t.Context(), config, topics...); err != nil {
		s.t.Fatal(err)
	}
}

// subscriber returns one that gives nacked messages back soon.
func subscriber(config wamqp.Config) *rabbitmq.Subscriber {
	sub, err := rabbitmq.NewSubscriber(config, &rabbitmq.SubscriberOptions{NackDelay: 20 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	return sub
}

// orchestrate runs an orchestrator of d in this process, with a pool of its own.
func (s *site) orchestrate(opts saga.Options) *saga.Orchestrator {
	s.t.Helper()
	o, run, err := newOrchestrator(s.ctx, pgtest.URL(), s.topology(orchestrators), s.schema, opts)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.patient {
		saga.Patient(o)
	}
	s.run(run)
	return o
}

// newOrchestrator returns one of the tests' definitions, and what runs it.
func newOrchestrator(ctx context.Context, database string, broker wamqp.Config, schema string, opts saga.Options) (*saga.Orchestrator, func(context.Context) error, error) {
	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = siteConns
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	opts.Schema = schema
	if opts.Logger == nil {
		opts.Logger = quiet
	}
	if opts.TimerPoll == 0 {
		opts.TimerPoll = 10 * time.Millisecond
	}
	opts.Consumer.ParkedPoll = 20 * time.Millisecond
	sub := subscriber(broker)
	o, err := saga.NewOrchestrator(db, sub, definitions(schema), &opts)
	if err != nil {
		return nil, nil, err
	}
	return o, func(ctx context.Context) error {
		defer db.Close()
		err := o.Run(ctx)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = nil // it had not begun
		}
		return errors.Join(err, sub.Close())
	}, nil
}

// participate runs bookings in this process: by default all.
func (s *site) participate(some ...string) {
	s.t.Helper()
	if len(some) == 0 {
		some = bookings
	}
	var steps []consumer.Step
	for _, name := range some {
		step := s.booking(name)
		if name == "hotel" || name == "car" {
			step.Action, step.Single = s.closing(name), true
		}
		step.RetryBase, step.CancelParked = soon, true
		steps = append(steps, saga.Participant(step))
	}
	sub := subscriber(s.topology(participants))
	c, err := consumer.New(s.db, sub, steps, &consumer.Options{Schema: s.schema, Logger: quiet, Wake: s.relay.Wake, Lanes: 4, ParkedPoll: 20 * time.Millisecond})
	if err != nil {
		s.t.Fatal(err)
	}
	s.run(func(ctx context.Context) error { return errors.Join(c.Run(ctx), sub.Close()) })
}

// closing is the action of a booking that takes its time for closeItem.
func (s *site) closing(name string) consumer.Input {
	return saga.On(name+".book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[request]) (answer, error) {
		if in.Body.Item == "no "+name {
			return answer{}, saga.Reject("there is none")
		}
		if in.Body.Item == closeItem {
			if _, err := tx.Exec(ctx, "SELECT pg_sleep(random() * $1)", closeTime.Seconds()); err != nil {
				return answer{}, err
			}
		}
		_, err := tx.Exec(ctx, "INSERT INTO "+s.schema+".effect (key, what) VALUES ($1, $2)", in.Key, name)
		return answer{Number: name + " for " + in.Key}, err
	})
}

// names are of steps.
type names []string

var bookings = names{"visa", "flight", "hotel", "car", "guide"}

func (n names) topics() (all []string) {
	for _, name := range n {
		all = append(all, name+".book", name+".cancel")
	}
	return all
}

// definitions are those of all orchestrators of a site: a trip with a local step, and a
// tour around it.
func definitions(schema string) []saga.Plan {
	return []saga.Plan{crashTour(schema), crashTrip(schema), patientTrip(schema), fan(), fair(), closeTrip()}
}

func crashTrip(schema string) *saga.Definition[trip] {
	d := saga.Must(saga.Define("trip", 1, book("flight"), note(schema), book("hotel"), book("car")))
	return d.OnEnd(func(ctx context.Context, tx pgx.Tx, turn saga.Turn, s *trip, status saga.Status, _ string) error {
		if _, err := tx.Exec(ctx, "INSERT INTO "+schema+".effect (key, what) VALUES ($1, $2)", turn.Key, status); err != nil {
			return err
		}
		if s.Item == lateNote && turn.Attempt == 1 {
			return errors.New("not yet") // so that a timer ends the trip
		}
		return nil
	})
}

// fan does four steps at once, and then one more.
func fan() *saga.Definition[trip] {
	return saga.Must(saga.Define("fan", 1,
		saga.Step[trip]{Name: "all", All: []saga.Step[trip]{book("visa"), book("flight"), book("hotel"), book("car")}},
		book("guide")))
}

// closeTrip has deadlines that pass at about the time of the replies.
func closeTrip() *saga.Definition[trip] {
	hotel, car := book("hotel"), book("car")
	hotel.Deadline, car.Deadline = closeTime, closeTime
	return saga.Must(saga.Define("close", 1, book("flight"), saga.Step[trip]{Name: "both", All: []saga.Step[trip]{hotel, car}}, book("guide")))
}

const (
	closeTime = 200 * time.Millisecond
	closeItem = "close" // is done at any time until shortly after closeTime
)

// patientTrip waits an hour for an answer.
func patientTrip(schema string) *saga.Definition[trip] {
	hotel := book("hotel")
	hotel.Deadline = time.Hour
	return saga.Must(saga.Define("patient", 1, book("flight"), note(schema), hotel))
}

// The items of trips whose note is not as easy as others'.
const (
	lateNote   = "late note"   // fails the first time, so that a timer runs it
	deadlyNote = "deadly note" // does, and then kills its process
	deadlyTurn = "deadly turn" // kills the process that takes the reply before it
)

// note is a local step with a local compensation.
func note(schema string) saga.Step[trip] {
	write := func(ctx context.Context, tx pgx.Tx, key, what string) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+schema+".effect (key, what) VALUES ($1, $2)", key, what)
		return err
	}
	return saga.Step[trip]{
		Name: "note",
		Do: saga.Local(func(ctx context.Context, tx pgx.Tx, turn saga.Turn, s *trip) error {
			deadly, late := s.Item == deadlyNote || s.Item == deadlyTurn, s.Item == lateNote || s.Item == deadlyNote
			switch {
			case late && turn.Attempt == 1:
				return errors.New("not yet")
			case deadly:
				_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
				select {}
			}
			return write(ctx, tx, turn.Key, "note")
		}),
		Undo: saga.Local(func(ctx context.Context, tx pgx.Tx, turn saga.Turn, _ *trip) error {
			return write(ctx, tx, turn.Key, "no note")
		}),
		Retry: saga.Retry{Base: soon},
	}
}

// crashTour is visa, trip, guide.
func crashTour(schema string) *saga.Definition[tour] {
	return saga.Must(saga.Define("tour", 1, leg("visa"), tripWithin(schema), leg("guide")))
}

// fair does two fans and two bookings at once, and then one more.
func fair() *saga.Definition[tour] {
	return saga.Must(saga.Define("fair", 1,
		saga.Step[tour]{Name: "all", All: []saga.Step[tour]{leg("visa"), fanWithin("one"), fanWithin("other"), leg("hotel")}},
		leg("guide")))
}

func leg(name string) saga.Step[tour] {
	body := func(s *tour) request { return request{Item: s.Item} }
	return saga.Step[tour]{Name: name, Do: saga.Remote[tour, request, any](name+".book", body, nil), Undo: saga.Remote[tour, request, any](name+".cancel", body, nil)}
}

func tripWithin(schema string) saga.Step[tour] { return within("trip", crashTrip(schema)) }

func fanWithin(name string) saga.Step[tour] { return within(name, fan()) }

func within(name string, d *saga.Definition[trip]) saga.Step[tour] {
	return saga.Step[tour]{Name: name, Do: saga.Nested(d,
		func(s *tour) trip { return trip{Item: s.Item} },
		func(s *tour, c trip) { s.Numbers += len(c.Numbers) })}
}

// one returns what a query says; "{schema}." is the test's.
func (s *site) one(query string, args ...any) (text string) {
	s.t.Helper()
	if err := s.db.QueryRow(s.t.Context(), query, args...).Scan(&text); err != nil {
		s.t.Fatal(err)
	}
	return text
}
