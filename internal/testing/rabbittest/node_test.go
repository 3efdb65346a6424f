package rabbittest_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

func TestPrivateBrokerKeepsItsDataOverAKill(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	node := rabbittest.StartNode(t)
	name := rabbittest.Name()
	args := amqp.Table{"x-queue-type": "quorum"}
	if _, err := rabbittest.Channel(t, node.URL()).QueueDeclare(name, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	node.Kill()
	if _, err := amqp.Dial(node.URL()); err == nil {
		t.Fatal("node is killed and answers")
	}
	node.Start(t)
	if _, err := rabbittest.Channel(t, node.URL()).QueueDeclarePassive(name, true, false, false, false, args); err != nil {
		t.Errorf("queue after restart: %v", err)
	}
}
