package relaytargets

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

const (
	patience = 60 * time.Second // for what has to happen
	lookAt   = 5 * time.Millisecond
)

// eventually waits until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("%s: not within %s", what, patience)
		case <-time.After(lookAt):
		}
	}
}

// A service has a private outbox.
type service struct {
	pool   *pgxpool.Pool
	schema string
	writer *outbox.Writer
}

func newService(t testing.TB) *service {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	w, err := outbox.NewWriter(&outbox.WriterOptions{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	return &service{pool, schema, w}
}

var errRollBack = errors.New("roll back")

// write stores msgs in a transaction that ends with outcome.
func (s *service) write(t testing.TB, outcome error, msgs ...outbox.Message) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		if err := s.writer.Write(t.Context(), tx, msgs...); err != nil {
			return err
		}
		return outcome
	})
	if !errors.Is(err, outcome) {
		t.Errorf("Write: %v", err)
	}
}

func (s *service) relay(t testing.TB, pub message.Publisher, opts outbox.RelayOptions) *outbox.Relay {
	t.Helper()
	opts.Schema, opts.Lease, opts.Logger = s.schema, time.Second, slog.New(slog.DiscardHandler)
	r, err := outbox.NewRelay(s.pool, outbox.FromWatermill(pub, nil), &opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A running is a Run under way.
type running struct {
	cancel context.CancelFunc
	wait   func()
}

// stop ends it and waits for its end.
func (r running) stop() { r.cancel(); r.wait() }

// run runs something until the end of the test at the latest.
func run(t testing.TB, f func(context.Context) error) running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	r := running{cancel, sync.OnceFunc(func() {
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})}
	t.Cleanup(r.stop)
	return r
}

func stats(t testing.TB, r *outbox.Relay) outbox.Stats {
	t.Helper()
	s, err := r.Stats(t.Context())
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	return s
}

// arrivals are the messages of one topic, in the order in which they came.
type arrivals struct {
	mu  sync.Mutex
	all []*message.Message
}

// collect acks and keeps what comes to topic.
func collect(t testing.TB, sub message.Subscriber, topic string) *arrivals {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	in, err := sub.Subscribe(ctx, topic)
	if err != nil {
		t.Fatalf("Subscribe: %v", err)
	}
	a := &arrivals{}
	var work sync.WaitGroup
	work.Go(func() {
		for msg := range in {
			a.mu.Lock()
			a.all = append(a.all, msg)
			a.mu.Unlock()
			msg.Ack()
		}
	})
	t.Cleanup(func() {
		cancel()
		work.Wait()
	})
	return a
}

// firsts returns them without repetitions.
func (a *arrivals) firsts() []*message.Message {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(a.all), func(m *message.Message) bool {
		before := seen[m.UUID]
		seen[m.UUID] = true
		return before
	})
}

// forget starts anew.
func (a *arrivals) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = nil
}
