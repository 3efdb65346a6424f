package shop_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/cluster/audit"
	"github.com/sagamill/sagamill/chaos/internal/cluster/meter"
	"github.com/sagamill/sagamill/chaos/internal/cluster/shop"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

// patience limits waits, on a machine with other load.
const patience = 2 * time.Minute

// TestShop writes some orders without a fault: each has its effects once, in order, and the
// meter has seen all of them.
func TestShop(t *testing.T) {
	t.Parallel()
	const enough = 200
	opts := options(t)
	s, err := shop.OpenShop(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	rabbittest.Delete(t, s.QueueNames(), exchanges(opts.Prefix))
	rabbittest.Delete(t, deadQueues(s), nil)
	writing, stop := context.WithCancel(t.Context())
	written := make(chan error, 1)
	go func() { written <- s.WriteOrders(writing) }()
	await(t, func() bool { n, _ := opts.Meter.OrderCounts(); return n >= enough/2 })
	s.PauseWriting(true)
	await(t, func() bool { return opts.Meter.PendingOrders() == 0 })
	s.PauseWriting(false)
	await(t, func() bool { n, _ := opts.Meter.OrderCounts(); return n >= enough })
	stop()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return opts.Meter.PendingOrders() == 0 })
	sample, err := s.TakeSample(t.Context())
	if err != nil || sample.Dead > 0 {
		t.Errorf("%d dead letters, %v", sample.Dead, err)
	}
	if err := s.CloseShop(); err != nil {
		t.Fatal(err)
	}
	found, err := audit.CheckSchema(t.Context(), opts.DB, opts.Schema, shop.StepsByService(), shop.ScopeOrder)
	if err != nil {
		t.Fatal(err)
	}
	if found.Lost+found.Doubled+found.Alien+found.Disordered != 0 || found.Money != 0 || found.Sagas < enough {
		t.Errorf("found %+v", found)
	}
}

func options(t *testing.T) shop.Options {
	t.Helper()
	schema := pgtest.Name()
	pgtest.DropSchema(t, schema)
	return shop.Options{
		DB: pgtest.Pool(t, pgtest.URL()), DatabaseURL: pgtest.Direct(), Schema: schema, Brokers: []string{rabbittest.URL()},
		Prefix: rabbittest.Name() + ".", Meter: &meter.Meter{}, Logger: slog.New(slog.DiscardHandler),
		Rate: 200, Colours: 20, Keys: 10, Seed: 1, Instances: 2, SingleActive: true,
	}
}

func exchanges(prefix string) (names []string) {
	for _, topic := range shop.Topics {
		names = append(names, prefix+topic)
	}
	return names
}

func deadQueues(s *shop.Shop) (names []string) {
	for _, topic := range shop.Topics {
		names = append(names, s.DeadQueue(topic))
	}
	return names
}

func await(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v", patience)
		}
		select {
		case <-t.Context().Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}
