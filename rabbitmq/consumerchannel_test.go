package rabbitmq

import (
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

// A consumer channel whose deliveries have ended with its channel knows why, however busy the
// machine is: a message that cannot be read is not taken for something else.
func TestAConsumerChannelKnowsWhyItHasEnded(t *testing.T) {
	t.Parallel()
	client, err := amqp.Dial(rabbittest.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var work sync.WaitGroup
	defer work.Wait()
	unknown := 0
	for range 100 {
		ch, err := client.Channel()
		if err != nil {
			t.Fatal(err)
		}
		closes := ch.NotifyClose(make(chan *amqp.Error, 1))
		q, err := ch.QueueDeclare("", false, true, true, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		deliveries, err := ch.Consume(q.Name, "", false, true, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		cc := &consumerChannel{conn: &conn{work: &work}, amqp: ch, deliveries: deliveries, acks: newAcks(ch, 1, 0), gone: make(chan struct{})}
		_, err = ch.QueueDeclarePassive(rabbittest.Name(), false, false, false, false, nil)
		if err == nil {
			t.Fatal("there is such a queue")
		}
		for range cc.deliveries { // until they have ended
			t.Error("there was a message")
		}
		cc.watchChannel(closes)
		cc.noteEnd()
		if !strings.Contains(cc.endReason(), "NOT_FOUND") {
			unknown++
		}
	}
	if unknown > 0 {
		t.Errorf("of 100 consumer channels %d did not know their cause", unknown)
	}
}
