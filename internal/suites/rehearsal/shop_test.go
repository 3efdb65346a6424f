package rehearsal

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
)

// deadline is when a test gives up.
const deadline = time.Minute

// placed is the topic of the test, and its step's type.
const placed = "order.placed"

type order struct {
	Amount int `json:"amount"`
}

// A broker keeps what it is handed in a queue for each service, and outlives the database.
type broker struct {
	mu        sync.Mutex
	away      bool
	offered   int      // messages that it was handed while it was away
	published []string // key and id
	queues    map[string][]*message.Message
}

func newBroker(services ...string) *broker {
	b := &broker{queues: map[string][]*message.Message{}}
	for _, service := range services {
		b.queues[service] = nil
	}
	return b
}

func (b *broker) PublishBatch(_ context.Context, batch []outbox.Publication) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	results := make([]error, len(batch))
	for i, p := range batch {
		if b.away {
			b.offered++
			results[i] = errors.New("away")
			continue
		}
		b.published = append(b.published, keyOf(p.Message)+" "+p.Message.UUID)
		for service := range b.queues {
			b.queues[service] = append(b.queues[service], p.Message.Copy())
		}
	}
	return results
}

// keyOf returns the idempotency key of the order that msg is about.
func keyOf(msg *message.Message) string {
	key, _, _ := strings.Cut(msg.Metadata.Get(outbox.HeaderKey), ":")
	return key
}

func (b *broker) setAway(away bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = away
}

// awaitOffered waits until a relay has tried to publish although the broker is away.
func (b *broker) awaitOffered(t *testing.T) {
	t.Helper()
	await(t, "a message is offered", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.offered > 0
	})
}

// await polls until done says so.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	if !within(t, done) {
		t.Fatalf("not within %v: %s", deadline, what)
	}
}

// within polls until done says so, and reports false after the deadline.
func within(t *testing.T, done func() bool) bool {
	t.Helper()
	for end := time.Now().Add(deadline); !done(); {
		if time.Now().After(end) {
			return false
		}
		select {
		case <-t.Context().Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	return true
}

// since returns what was published behind the first n, and how much there is now.
func (b *broker) since(n int) ([]string, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.published[n:]), len(b.published)
}

// A shop is a service's schema: it places orders, or handles them.
type shop struct {
	name, schema string
	pool         *pgxpool.Pool
	bank         *bank         // where the effects of what it handles are; nil: in its database
	lease        time.Duration // of its relay
}

// A bank is an external system that outlives the database. It makes every payment that it is asked for,
// repeated ones too, and answers questions about them.
type bank struct {
	paid []string // keys of orders
	asks bool     // whether who pays here asks first
}

func (b *bank) effect(s *shop) consumer.Input {
	return consumer.Effect(placed,
		func(_ context.Context, in consumer.Message[order], _ string) (string, error) {
			b.paid = append(b.paid, in.Key)
			return in.Key, nil
		},
		func(_ context.Context, in consumer.Message[order], _ string) (string, bool, error) {
			return in.Key, slices.Contains(b.paid, in.Key), nil
		},
		func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], _ string, emit consumer.Emit) error {
			return s.done(ctx, tx, in, emit)
		})
}

// books returns what the bank has paid.
func (b *bank) books() string { return strings.Join(slices.Sorted(slices.Values(b.paid)), " ") }

// own are the tables of a shop's own.
const (
	sqlCreateOrder  = "CREATE TABLE {schema}.customer_order (key text PRIMARY KEY)"
	sqlCreateEffect = "CREATE TABLE {schema}.effect (key text NOT NULL)" // of whatever often
)

// newShop makes the schema called name in the database at url.
func newShop(t *testing.T, url, name string) *shop {
	t.Helper()
	if err := migrations.Up(t.Context(), url, name); err != nil {
		t.Fatal(err)
	}
	s := &shop{name: name, schema: name, pool: pgtest.Pool(t, url), lease: time.Second}
	s.exec(t, sqlCreateOrder)
	s.exec(t, sqlCreateEffect)
	return s
}

func (s *shop) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), strings.ReplaceAll(sql, "{schema}", s.schema)); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// list returns the values of a query's only column, sorted and joined.
func (s *shop) list(t *testing.T, sql string) string {
	t.Helper()
	rows, _ := s.pool.Query(t.Context(), strings.ReplaceAll(sql, "{schema}", s.schema))
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (s *shop) orders(t *testing.T) string {
	t.Helper()
	return s.list(t, "SELECT key FROM {schema}.customer_order")
}
func (s *shop) effects(t *testing.T) string {
	t.Helper()
	return s.list(t, "SELECT key FROM {schema}.effect")
}

// place commits an order with its message.
func (s *shop) place(t *testing.T, key string, amount int, delay time.Duration) {
	t.Helper()
	if err := s.tryPlace(t.Context(), key, amount, delay); err != nil {
		t.Fatalf("place %s: %v", key, err)
	}
}

func (s *shop) tryPlace(ctx context.Context, key string, amount int, delay time.Duration) error {
	w, err := outbox.NewWriter(&outbox.WriterOptions{Schema: s.schema})
	if err != nil {
		return err
	}
	payload, err := json.Marshal(order{amount})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO "+s.schema+".customer_order (key) VALUES ($1)", key); err != nil {
			return err
		}
		return w.Write(ctx, tx, outbox.Message{Topic: placed, Scope: "tenant", Key: key, Step: "handle", Payload: payload, Delay: delay})
	})
}

// done notes that an order was handled.
func (s *shop) done(ctx context.Context, tx pgx.Tx, in consumer.Message[order], _ consumer.Emit) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+s.schema+".effect (key) VALUES ($1)", in.Key)
	return err
}

// handle takes the messages of keys, all without any, from the queue and has a consumer
// made for the occasion handle them, as a process that was started anew.
func (s *shop) handle(t *testing.T, b *broker, keys ...string) {
	t.Helper()
	for _, msg := range b.take(t, s.name, keys...) {
		if err := s.tryHandle(t, t.Context(), msg); err != nil {
			t.Fatalf("%s handles %s: %v", s.name, keyOf(msg), err)
		}
	}
}

// take takes the messages of keys, all without any, from a service's queue.
func (b *broker) take(t *testing.T, service string, keys ...string) (taken []*message.Message) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var left []*message.Message
	for _, msg := range b.queues[service] {
		if len(keys) == 0 || slices.Contains(keys, keyOf(msg)) {
			taken = append(taken, msg)
		} else {
			left = append(left, msg)
		}
	}
	b.queues[service] = left
	if len(taken) < len(keys) {
		t.Fatalf("%s has no messages of all of %q", service, keys)
	}
	return taken
}

// marking is where deliveries come from as far as their redeliveries are marked.
type marking struct{ message.Subscriber }

func (marking) MarksRedelivered() bool { return true }

// tryHandle returns nil if msg may be acked.
func (s *shop) tryHandle(t *testing.T, ctx context.Context, msg *message.Message) error {
	t.Helper()
	step := consumer.Step{Name: "handle", Action: consumer.On(placed, s.done)}
	if s.bank != nil {
		step.Action, step.AskFirst = s.bank.effect(s), s.bank.asks
	}
	steps, err := consumer.New(s.pool, marking{}, []consumer.Step{step}, &consumer.Options{Schema: s.schema, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return steps.Handle(ctx, placed, msg)
}

// A relaying shop has a relay that runs.
type relaying struct {
	*outbox.Relay
	warnings *warnings
	stop     func()
}

// relay starts one, as a process that was started anew.
func (s *shop) relay(t *testing.T, b outbox.Publisher) *relaying {
	t.Helper()
	r := &relaying{warnings: &warnings{}}
	var err error
	r.Relay, err = outbox.NewRelay(s.pool, b, &outbox.RelayOptions{
		Schema: s.schema, Retention: time.Hour, Lease: s.lease, DrainTimeout: time.Second, Logger: slog.New(r.warnings),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	r.stop = func() { cancel(); running.Wait() }
	t.Cleanup(r.stop)
	return r
}

// settled waits until nothing is to be published, and the relay has noted that.
func (r *relaying) settled(t *testing.T) (s outbox.Stats) {
	t.Helper()
	await(t, "all is published", func() bool {
		var err error
		s, err = r.Stats(t.Context())
		return err == nil && s.Stored == 0 && s.Holder != ""
	})
	return s
}

// replay publishes all that the outbox still has, once more.
func (s *shop) replay(t *testing.T) {
	t.Helper()
	r, err := operator.NewReplayer(s.pool, &operator.Options{Schema: s.schema})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReplayRange(t.Context(), operator.ReplayFilter{Since: time.Now().Add(-time.Hour)}, nil); err != nil {
		t.Fatal(err)
	}
}

// warnings are what was logged at that level.
type warnings struct {
	mu   sync.Mutex
	said []string
}

func (w *warnings) Enabled(_ context.Context, level slog.Level) bool { return level == slog.LevelWarn }
func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, r.Message)
	return nil
}
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler { return w }
func (w *warnings) WithGroup(string) slog.Handler      { return w }

func (w *warnings) heard(part string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.said, func(s string) bool { return strings.Contains(s, part) })
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
