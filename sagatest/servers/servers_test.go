package servers_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/sagatest/servers"
)

func TestMain(m *testing.M) { servers.Main(m) }

// Each test has an empty database, which is gone when the test has ended.
func TestPostgresGivesEachTestItsOwnDatabase(t *testing.T) {
	t.Parallel()
	var first string
	t.Run("first", func(t *testing.T) {
		first = servers.Postgres(t)
		execute(t, first, "CREATE TABLE mine ()")
		execute(t, servers.Postgres(t), "CREATE TABLE mine ()")
	})
	if conn, err := pgx.Connect(t.Context(), first); err == nil {
		_ = conn.Close(t.Context())
		t.Error("the database of a test that has ended is still there")
	}
}

func execute(t *testing.T, database, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		t.Error(err)
	}
}

// The broker takes messages, and two prefixes name different queues on it.
func TestRabbitMQTakesMessages(t *testing.T) {
	t.Parallel()
	conn, err := amqp.Dial(servers.RabbitMQ(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		name := servers.Prefix() + "orders"
		q, err := ch.QueueDeclare(name, false, true, true, false, nil)
		if err != nil || q.Messages != 0 {
			t.Fatalf("%s: %d messages (%v)", name, q.Messages, err)
		}
		if err := ch.PublishWithContext(t.Context(), "", name, true, false, amqp.Publishing{Body: []byte("x")}); err != nil {
			t.Error(err)
		}
	}
}
