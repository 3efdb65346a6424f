package cookbook

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
)

const patience = time.Minute

// start runs a service until the test ends, on a database that only the test uses. Its messages stay in this process.
func start(t *testing.T, config sagamill.Config) *sagamill.Service {
	t.Helper()
	config.Name, config.DatabaseURL, config.Migrations = "shop", pgtest.DirectDatabase(t), Migrations
	config.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := sagamill.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	await(t, "a service that is ready", func() bool { return s.CheckReady(ctx) == nil })
	return s
}

// beginTx returns a transaction on a database with all tables. It is rolled back when the test ends.
func beginTx(t *testing.T) pgx.Tx {
	t.Helper()
	database := pgtest.DirectDatabase(t)
	if err := migrations.Up(t.Context(), database, "shop"); err != nil {
		t.Fatal(err)
	}
	if err := migrations.UpFrom(t.Context(), database, "shop", "shop_version", Migrations); err != nil {
		t.Fatal(err)
	}
	tx, err := pgtest.Pool(t, database).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// send writes messages in one transaction.
func send(t *testing.T, s *sagamill.Service, msgs ...outbox.Message) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), s.Database(), func(tx pgx.Tx) error { return s.Writer().Write(t.Context(), tx, msgs...) })
	if err != nil {
		t.Fatal(err)
	}
	s.Relay().Wake()
}

// order is a message of a saga of acme.
func order(topic, key string) outbox.Message {
	return outbox.Message{Topic: topic, Scope: "acme", Key: key, Step: "test", CorrelationID: "saga-" + key, Payload: outbox.JSON(Order{"book", 4200})}
}

// ends returns steps that store what a recipe emits to topics.
func ends(topics ...string) (steps []consumer.Step) {
	for _, topic := range topics {
		steps = append(steps, consumer.Step{Name: "end-" + strings.ReplaceAll(topic, ".", "-"), Action: consumer.OnBytes(topic, storeShipment)})
	}
	return steps
}

func storeShipment(ctx context.Context, tx pgx.Tx, in consumer.Message[[]byte], _ consumer.Emit) error {
	_, err := tx.Exec(ctx, "INSERT INTO shop.shipment (saga) VALUES ($1)", in.Topic+" "+in.CorrelationID)
	return err
}

// readText returns the text that query yields.
func readText(t *testing.T, s *sagamill.Service, query string, args ...any) (text string) {
	t.Helper()
	if err := s.Database().QueryRow(t.Context(), query, args...).Scan(&text); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return text
}

// awaitText waits until query yields want.
func awaitText(t *testing.T, s *sagamill.Service, want, query string, args ...any) {
	t.Helper()
	await(t, want+" from "+query, func() bool { return readText(t, s, query, args...) == want })
}

// awaitSteps waits until the inbox has recorded the steps.
func awaitSteps(t *testing.T, s *sagamill.Service, want string) {
	t.Helper()
	awaitText(t, s, want, `SELECT coalesce(string_agg(step || ' ' || n, ', ' ORDER BY step), '')
FROM (SELECT step, count(*) AS n FROM shop.inbox WHERE state = 'done' GROUP BY step) s`)
}

// sqlEnds lists what ends has stored.
const sqlEnds = "SELECT coalesce(string_agg(saga, ', ' ORDER BY saga), '') FROM shop.shipment"

// await asks until done returns true.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(patience); !done(); {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("no %s after %s", what, patience)
		}
	}
}
