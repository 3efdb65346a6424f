package roletest_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A consumer and an orchestrator do everything that they ever do, and need for it what
// their role is granted. The relay beside them has its own.
func TestAConsumerGetsByWithItsGrants(t *testing.T) {
	t.Parallel()
	newWorld(t).checkLeast("consumer", handleMessages, orchestrate)
}

type request struct {
	Item string `json:"item"`
}

// message returns one for the step of a topic's name.
func newMessage(topic, key, step string) *message.Message {
	id := uuid.Must(uuid.NewV7()).String()
	msg := message.NewMessage(id, []byte(`{"item":"x"}`))
	for name, value := range map[string]string{
		outbox.HeaderKey: key + ":" + step, outbox.HeaderScope: "tenant", outbox.PropertyType: topic,
		outbox.PropertyCorrelation: id, outbox.PropertyTimestamp: time.Now().UTC().Format(time.RFC3339Nano),
	} {
		msg.Metadata.Set(name, value)
	}
	return msg
}

// steps are one that succeeds and is undone, one that fails first, one that must be mended,
// and a call. mended says when it is.
func steps(mended *atomic.Bool) []consumer.Step {
	type in = consumer.Message[request]
	note := func(what string) consumer.Handler[request] {
		return func(ctx context.Context, tx pgx.Tx, in in, emit consumer.Emit) error {
			news := outbox.Message{Topic: "news", Step: "tell", Payload: []byte("{}")}
			late := news
			late.N, late.Delay = "late", time.Hour
			emit(news, late)
			return effect(ctx, tx, in.Key, what)
		}
	}
	var failed atomic.Bool
	step := func(name string, action consumer.Input) consumer.Step {
		return consumer.Step{Name: name, Action: action, RetryBase: 1, RetryCap: 1}
	}
	pay := step("pay", consumer.On("pay", note("pay")))
	pay.Compensation = consumer.On("unpay", note("unpay"))
	return []consumer.Step{
		pay,
		step("flaky", consumer.On("flaky", func(ctx context.Context, tx pgx.Tx, in in, emit consumer.Emit) error {
			if !failed.Swap(true) {
				return errors.New("not yet")
			}
			return note("flaky")(ctx, tx, in, emit)
		})),
		step("broken", consumer.On("broken", func(ctx context.Context, tx pgx.Tx, in in, emit consumer.Emit) error {
			if !mended.Load() {
				return consumer.Terminal(errors.New("broken"))
			}
			return note("broken")(ctx, tx, in, emit)
		})),
		step("call", consumer.Effect("call", func(context.Context, in, string) (string, error) { return "receipt", nil }, nil,
			func(ctx context.Context, tx pgx.Tx, in in, _ string, emit consumer.Emit) error {
				return note("call")(ctx, tx, in, emit)
			})),
	}
}

func handleMessages(ctx context.Context, w *world, key string) error {
	var mended atomic.Bool
	c, err := consumer.New(w.pools["consumer"], nil, steps(&mended), &consumer.Options{
		Schema: w.Schema, Logger: quiet, ParkedPoll: 5 * time.Millisecond, DrainTimeout: time.Second,
	})
	if err != nil {
		return err
	}
	again := newMessage("pay", key, "pay")
	again.Metadata.Set(outbox.PropertyRedelivered, "true")
	for _, msg := range []*message.Message{
		newMessage("pay", key, "pay"), again, newMessage("unpay", key, "pay"),
		newMessage("unpay", key+"-void", "pay"), newMessage("pay", key+"-void", "pay"), // comes too late
		newMessage("flaky", key, "flaky"), newMessage("broken", key, "broken"), newMessage("call", key, "call"),
	} {
		if err := c.Handle(ctx, msg.Metadata.Get(outbox.PropertyType), msg); err != nil {
			return err
		}
	}
	err = beside(ctx, func(ctx context.Context) error {
		if err := w.await(ctx, "SELECT count(*) = 1 FROM {schema}.parked WHERE key = $1 AND state = 'dead'", key); err != nil {
			return err
		}
		if _, err := c.Stats(ctx); err != nil {
			return err
		}
		mended.Store(true)
		letters, err := operator.NewDeadLetters(w.pools["operator"], operator.Inbox, &operator.Options{Schema: w.Schema})
		if err != nil {
			return err
		}
		if _, err := letters.Redrive(ctx, operator.Filter{Key: key}, nil); err != nil {
			return err
		}
		return w.await(ctx, sqlHappened, key, "broken call flaky pay unpay")
	}, c.Run)
	if err != nil {
		return err
	}
	return w.sweep(ctx, key)
}

// sweep removes the rows of a key from the inbox.
func (w *world) sweep(ctx context.Context, key string) error {
	err := w.admin(ctx, "UPDATE {schema}.inbox SET updated_at = updated_at - interval '60 days' WHERE starts_with(key, $1)", key)
	if err != nil {
		return err
	}
	sweeper, err := consumer.NewSweeper(w.pools["consumer"], &consumer.SweeperOptions{Schema: w.Schema, Logger: quiet})
	if err != nil {
		return err
	}
	if n, err := sweeper.Sweep(ctx); err != nil || n == 0 {
		return fmt.Errorf("swept %d: %w", n, err)
	}
	return nil
}

// A trip is a saga in a tour.
type trip struct {
	Item string `json:"item"`
}

type tour struct {
	Item string `json:"item"`
}

func book(name string) saga.Step[trip] {
	ask := func(s *trip) request { return request(*s) }
	return saga.Step[trip]{
		Name: name,
		Do:   saga.Remote(name+".book", ask, func(*trip, request) {}),
		Undo: saga.Tell(name+".cancel", ask),
	}
}

var (
	trips = saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	tours = saga.Must(saga.Define("tour", 1,
		travel("there"), // begun by whoever starts the saga
		saga.Step[tour]{
			Name: "guide", Deadline: 50 * time.Millisecond,
			When: func(s *tour) bool { return s.Item == "guided" },
			Do:   saga.Remote("guide.book", func(s *tour) request { return request(*s) }, func(*tour, request) {}),
		},
		travel("back"), // by an orchestrator
	))
)

func travel(name string) saga.Step[tour] {
	return saga.Step[tour]{Name: name, Do: saga.Nested(trips, func(s *tour) trip { return trip(*s) }, func(*tour, trip) {})}
}

// booking is a participant, which has nothing of items that are "no "+name. Of the guide
// nothing is heard.
func booking(name string) consumer.Step {
	return saga.Participant(consumer.Step{
		Name: name,
		Action: saga.On(name+".book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[request]) (request, error) {
			if in.Body.Item == "no "+name {
				return request{}, saga.Reject("there is none")
			}
			return request{}, effect(ctx, tx, in.Key, name)
		}),
		Compensation: saga.OnUndo(name+".cancel", func(ctx context.Context, tx pgx.Tx, in consumer.Message[request]) error {
			return effect(ctx, tx, in.Key, "no "+name)
		}),
	})
}

func orchestrate(ctx context.Context, w *world, key string) error {
	broker := inproc.New(&inproc.Options{DrainTimeout: time.Second})
	relay, err := outbox.NewRelay(w.pools["relay"], broker, &outbox.RelayOptions{Schema: w.Schema, Logger: quiet, DrainTimeout: time.Second})
	if err != nil {
		return err
	}
	drain := consumer.Options{DrainTimeout: time.Second}
	atHome := broker.Subscriber("orchestrator")
	o, err := saga.NewOrchestrator(w.pools["consumer"], atHome, []saga.Plan{tours}, &saga.Options{
		Schema: w.Schema, Logger: quiet, Wake: relay.Wake, Consumer: drain,
		TimerPoll: 5 * time.Millisecond, HousekeepPoll: 10 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	if _, err := o.Stats(ctx); err != nil {
		return err
	}
	away := broker.Subscriber("participant")
	silent := consumer.Step{Name: "guide", Action: consumer.On("guide.book", func(context.Context, pgx.Tx, consumer.Message[request], consumer.Emit) error { return nil })}
	news := consumer.Step{Name: "news", Action: consumer.On("news", func(context.Context, pgx.Tx, consumer.Message[request], consumer.Emit) error { return nil })}
	drain.Schema, drain.Logger, drain.Wake = w.Schema, quiet, relay.Wake
	p, err := consumer.New(w.pools["consumer"], away, []consumer.Step{booking("flight"), booking("hotel"), silent, news}, &drain)
	if err != nil {
		return err
	}
	for sub, topics := range map[*inproc.Subscriber][]string{atHome: o.Topics(), away: p.Topics()} {
		for _, topic := range topics {
			if err := sub.SubscribeInitialize(topic); err != nil {
				return err
			}
		}
	}
	return beside(ctx, func(ctx context.Context) error { return w.tour(ctx, key) }, relay.Run, o.Run, p.Run)
}

// tour has three sagas end: one is completed, one rejected, one late.
func (w *world) tour(ctx context.Context, key string) error {
	starter, err := saga.NewStarter(tours, &saga.StarterOptions{Schema: w.Schema})
	if err != nil {
		return err
	}
	for item, want := range map[string]string{"x": "completed", "no hotel": "compensated", "guided": "compensated"} {
		own := key + "-" + item[:1]
		err := pgx.BeginFunc(ctx, w.pools["entry"], func(tx pgx.Tx) error {
			_, err := starter.Start(ctx, tx, saga.ID{Scope: "tenant", Key: own}, tour{Item: item})
			return err
		})
		if err != nil {
			return err
		}
		if err := w.await(ctx, "SELECT status = $2 FROM {schema}.saga WHERE key = $1 AND path = ''", own, want); err != nil {
			return fmt.Errorf("%s: %w", item, err)
		}
		if err := w.admin(ctx, "INSERT INTO {schema}.saga_journal (scope, key, path, verb, who, why) VALUES ('tenant', $1, '', 'pause', 'ann', '')", own); err != nil {
			return err
		}
	}
	if err := w.admin(ctx, "UPDATE {schema}.saga SET ended_at = ended_at - interval '60 days' WHERE starts_with(key, $1)", key+"-"); err != nil {
		return err
	}
	return w.await(ctx, `SELECT NOT EXISTS (SELECT FROM {schema}.saga WHERE starts_with(key, $1)) AND NOT EXISTS (SELECT FROM {schema}.saga_journal WHERE starts_with(key, $1))`, key+"-")
}
