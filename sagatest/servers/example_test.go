package servers_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/sagatest/servers"
)

// The test of a service on real servers. The machine needs nothing but Go.
func Example() {
	_ = func(t *testing.T) {
		service, err := sagamill.New(sagamill.Config{
			Name: "shop", Prefix: servers.Prefix(), DatabaseURL: servers.Postgres(t), BrokerURL: servers.RabbitMQ(t),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = service.Run(ctx) }()
	}
}

// A test of SQL has a database that no other test sees.
func ExamplePostgres() {
	_ = func(t *testing.T) {
		pool, err := pgxpool.New(t.Context(), servers.Postgres(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
	}
}

// Two tests share the broker, and not its queues.
func ExampleRabbitMQ() {
	_ = func(t *testing.T) sagamill.Config {
		return sagamill.Config{Name: "shop", BrokerURL: servers.RabbitMQ(t), Prefix: servers.Prefix()}
	}
}

// All services of a test have one prefix, so that they get each other's messages.
func ExamplePrefix() {
	prefix := servers.Prefix()
	_ = []sagamill.Config{{Name: "order", Prefix: prefix}, {Name: "payment", Prefix: prefix}}
}

// TestMain of a package whose tests use servers.
func ExampleMain() {
	_ = func(m *testing.M) { servers.Main(m) }
}
