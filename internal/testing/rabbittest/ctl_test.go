package rabbittest_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// connect returns a connection to node and what the broker says on it.
func connect(t *testing.T, node *rabbittest.Node) (*amqp.Connection, chan amqp.Blocking, chan *amqp.Error) {
	t.Helper()
	connection, err := amqp.Dial(node.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.CloseDeadline(time.Now().Add(time.Second)) }) // a blocked broker does not answer
	return connection, connection.NotifyBlocked(make(chan amqp.Blocking, 2)), connection.NotifyClose(make(chan *amqp.Error, 1))
}

// receive returns the next of events.
func receive[T any](t *testing.T, what string, events <-chan T) (event T) {
	t.Helper()
	select {
	case event = <-events:
	case <-time.After(patience):
		t.Fatalf("broker does not say %s", what)
	}
	return event
}

// publish sends a message to no queue.
func publish(t *testing.T, connection *amqp.Connection) {
	t.Helper()
	ch, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.PublishWithContext(t.Context(), "", rabbittest.Name(), false, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
}

func TestPrivateBrokerObeysItsOperator(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	node := rabbittest.StartNode(t)
	publishing, blocked, closed := connect(t, node)
	publish(t, publishing)
	node.Block(t)
	publish(t, publishing)
	if b := receive(t, "blocked", blocked); !b.Active {
		t.Errorf("Block sent %+v, want an alarm", b)
	}
	node.Unblock(t)
	if b := receive(t, "unblocked", blocked); b.Active {
		t.Errorf("Unblock sent %+v, want the end of the alarm", b)
	}
	node.CloseConnections(t, "for a test")
	if e := receive(t, "closed", closed); e == nil || e.Code != amqp.ConnectionForced || e.Reason == "" {
		t.Errorf("CloseConnections ended the connection with %v, want CONNECTION_FORCED with its reason", e)
	}
	again, _, _ := connect(t, node)
	publish(t, again)
}
