package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// The effects go to a table without a unique key, so that one that happened twice
// is seen.
const createEffects = `CREATE TABLE {schema}.effect (id bigserial PRIMARY KEY, what text NOT NULL)`

type order struct {
	Item string `json:"item"`
}

// A service is one with its database, its broker, a relay and two steps, of which
// the first sets the second off and the second cancels the first.
type service struct {
	pool     *pgxpool.Pool
	schema   string
	writer   *outbox.Writer
	pub      outbox.Publisher
	sub      message.Subscriber
	consumer *consumer.Consumer
}

// onEachBroker runs test with a service on each kind of broker.
func onEachBroker(t *testing.T, test func(t *testing.T, s *service)) {
	t.Helper()
	for name, connect := range map[string]func(t *testing.T) (outbox.Publisher, message.Subscriber){"inproc": inProcess, "rabbitmq": onRabbitMQ} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, schema := pgtest.Schema(t, createEffects)
			s := &service{pool: pool, schema: schema}
			s.pub, s.sub = connect(t)
			s.writer = get(outbox.NewWriter(&outbox.WriterOptions{Schema: schema}))
			test(t, s)
		})
	}
}

func inProcess(t *testing.T) (outbox.Publisher, message.Subscriber) {
	broker := inproc.New(nil)
	t.Cleanup(func() { _ = broker.Close() })
	return broker, broker.Subscriber("shop")
}

func onRabbitMQ(t *testing.T) (outbox.Publisher, message.Subscriber) {
	prefix, topics := rabbittest.Name(), []string{"reserve", "release", "ship"}
	cfg := get(rabbitmq.NewConfig(rabbittest.URL(), "shop", &rabbitmq.ConfigOptions{Prefix: prefix}))
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, topics...); err != nil {
		t.Fatal(err)
	}
	var queues, exchanges []string
	for _, topic := range topics {
		queue := cfg.Queue.GenerateName(topic)
		queues, exchanges = append(queues, queue, queue+".dead"), append(exchanges, prefix+topic)
	}
	rabbittest.Delete(t, queues, exchanges)
	pub, sub := get(rabbitmq.NewPublisher(cfg, nil)), get(rabbitmq.NewSubscriber(cfg, nil))
	t.Cleanup(func() { _, _ = pub.Close(), sub.Close() })
	return pub, sub
}

func (s *service) bind(statement string) string {
	return strings.ReplaceAll(statement, "{schema}", s.schema)
}

// effect returns a handler that leaves what in the effect table and tells next.
func (s *service) effect(what, next, step string) consumer.Handler[order] {
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], emit consumer.Emit) error {
		if next != "" {
			emit(outbox.Message{Topic: next, Step: step, Payload: in.Payload})
		}
		_, err := tx.Exec(ctx, s.bind("INSERT INTO {schema}.effect (what) VALUES ($1)"), what+" "+in.Body.Item)
		return err
	}
}

// run starts relay and consumer, which end with the test.
func (s *service) run(t *testing.T) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	s.consumer = get(consumer.New(s.pool, s.sub, []consumer.Step{
		{
			Name:         "reserve",
			Action:       consumer.On("reserve", s.effect("reserved", "ship", "ship")),
			Compensation: consumer.On("release", s.effect("released", "", "")),
		},
		{Name: "ship", Action: consumer.On("ship", s.effect("not shipped", "release", "reserve"))},
	}, &consumer.Options{Schema: s.schema, Logger: quiet}))
	relay := get(outbox.NewRelay(s.pool, s.pub, &outbox.RelayOptions{Schema: s.schema, Retention: time.Hour, Logger: quiet}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- s.consumer.Run(ctx) }()
	go func() { ended <- relay.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		for range 2 {
			if err := <-ended; err != nil {
				t.Errorf("Run = %v", err)
			}
		}
	})
}

// state returns all that a saga has left: effects, steps, parked messages, and the
// messages in the outbox, each once.
func (s *service) state(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, query := range []string{
		"SELECT what FROM {schema}.effect ORDER BY id",
		"SELECT i::text FROM {schema}.inbox i ORDER BY 1",
		"SELECT p::text FROM {schema}.parked p ORDER BY 1",
		"SELECT DISTINCT message_id || topic || created_at FROM {schema}.outbox ORDER BY 1",
	} {
		rows, _ := s.pool.Query(t.Context(), s.bind(query))
		some, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		all = append(all, some...)
	}
	return all
}

// settled waits until everything is published, and done.
func (s *service) settled(t *testing.T, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(30 * time.Second)
	for {
		stats, err := outbox.ReadStats(t.Context(), s.pool, s.schema)
		if err != nil {
			t.Fatal(err)
		}
		if stats.Stored+stats.Delayed+stats.Waiting+stats.Refused == 0 && done() {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("not settled: %+v\n%s", stats, strings.Join(s.state(t), "\n"))
		}
	}
}

// handled returns how many messages steps have dealt with.
func (s *service) handled() (n int) {
	for _, step := range s.consumer.Counters().Steps {
		for _, arrivals := range step.Outcomes {
			n += int(arrivals)
		}
	}
	return n
}

// over runs so many sagas to their end, with their compensation, and returns what they
// have left.
func (s *service) over(t *testing.T, sagas int) (state []string) {
	t.Helper()
	s.run(t)
	err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		for i := range sagas {
			err := s.writer.Write(t.Context(), tx, outbox.Message{
				Topic: "reserve", Scope: "acme", Key: fmt.Sprint("k", i), Step: "reserve", Payload: fmt.Appendf(nil, `{"item":"book %d"}`, i),
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.settled(t, func() bool {
		if s.handled() >= 3*sagas {
			state = s.state(t)
		}
		return len(state) == (3+2+3)*sagas // effects, steps and messages
	})
	return state
}

// unchanged waits until so many messages more are dealt with, and checks that nothing
// comes of them.
func (s *service) unchanged(t *testing.T, before []string, more int, replay func() error) {
	t.Helper()
	handled := s.handled()
	if err := replay(); err != nil {
		t.Fatal(err)
	}
	s.settled(t, func() bool { return s.handled() >= handled+more })
	if diff := cmp.Diff(before, s.state(t)); diff != "" {
		t.Errorf("the replay has changed something (-before +after):\n%s", diff)
	}
}

// Replaying a saga that has ended, with its compensation, changes nothing.
func TestReplayingASagaChangesNothing(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, s *service) {
		before := s.over(t, 2)
		replayer := get(operator.NewReplayer(s.pool, &operator.Options{Schema: s.schema}))
		for range 3 {
			s.unchanged(t, before, 3, func() error {
				return pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
					kept, err := replayer.Replay(t.Context(), tx, operator.ReplayFilter{Scope: "acme", Key: "k1"})
					if len(kept) != 3 {
						t.Errorf("%d messages are replayed, want 3", len(kept))
					}
					return err
				})
			})
		}
	})
}

// Publishing the whole history again changes nothing: neither effects nor steps, nor is
// anything said that was not said before.
func TestReplayingTheWholeHistoryChangesNothing(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, s *service) {
		const sagas = 40
		before := s.over(t, sagas)
		replayer := get(operator.NewReplayer(s.pool, &operator.Options{Schema: s.schema}))
		for range 2 {
			s.unchanged(t, before, 3*sagas, func() error {
				p, err := replayer.ReplayRange(t.Context(), operator.ReplayFilter{Since: time.Now().Add(-time.Hour)}, nil)
				if p.Replayed != 3*sagas {
					t.Errorf("%d messages are replayed, want %d", p.Replayed, 3*sagas)
				}
				return err
			})
		}
	})
}
