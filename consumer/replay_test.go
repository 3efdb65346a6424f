package consumer_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/pgtest"
	"github.com/sagamill/sagamill/outbox"
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
	pool   *pgxpool.Pool
	schema string
	writer *outbox.Writer
	broker *inproc.Broker
}

func newService(t *testing.T) *service {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	s := &service{pool: pool, schema: schema, broker: inproc.New(nil)}
	t.Cleanup(func() { _ = s.broker.Close() })
	s.exec(t, createEffects)
	s.writer = get(outbox.NewWriter(&outbox.WriterOptions{Schema: schema}))
	return s
}

func (s *service) bind(statement string) string {
	return strings.ReplaceAll(statement, "{schema}", s.schema)
}

func (s *service) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), s.bind(statement), args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
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
	c := get(consumer.New(s.pool, s.broker.Subscriber("shop"), []consumer.Step{
		{
			Name:         "reserve",
			Action:       consumer.On("reserve", s.effect("reserved", "ship", "ship")),
			Compensation: consumer.On("release", s.effect("released", "", "")),
		},
		{Name: "ship", Action: consumer.On("ship", s.effect("not shipped", "release", "reserve"))},
	}, &consumer.Options{Schema: s.schema, Logger: quiet}))
	relay := get(outbox.NewRelay(s.pool, s.broker, &outbox.RelayOptions{Schema: s.schema, Retention: time.Hour, Logger: quiet}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- c.Run(ctx) }()
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

// settled waits until everything is published and, since the broker confirms what
// has been acked, handled.
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

// Replaying a saga that has ended, with its compensation, changes nothing.
func TestReplayingASagaChangesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.run(t)
	err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		return s.writer.Write(t.Context(), tx, outbox.Message{Topic: "reserve", Scope: "acme", Key: "k", Step: "reserve", Payload: []byte(`{"item":"book"}`)})
	})
	if err != nil {
		t.Fatal(err)
	}
	s.settled(t, func() bool {
		return strings.HasPrefix(strings.Join(s.state(t), ", "), "reserved book, not shipped book, released book")
	})
	before := s.state(t)
	if len(before) != 3+2+3 {
		t.Fatalf("the saga has left %q", before)
	}
	replayer := get(outbox.NewReplayer(s.schema))
	for range 3 {
		err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
			kept, err := replayer.Replay(t.Context(), tx, outbox.ReplayFilter{Scope: "acme", Key: "k"})
			if len(kept) != 3 {
				t.Errorf("%d messages are replayed, want 3", len(kept))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		s.settled(t, func() bool { return true })
		if diff := cmp.Diff(before, s.state(t)); diff != "" {
			t.Errorf("the replay has changed something (-before +after):\n%s", diff)
		}
	}
}
