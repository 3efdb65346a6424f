package rabbitmq_test

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

// The order over a handover (G5.6) rests on the broker. When the active consumer of a quorum queue leaves by the end of
// its channel or connection, the next one first gets all that it had unacked, in order. That is seen here without a
// line of this package. The last case is why a queue is not handed over by basic.cancel (decision 117).
func TestTheBrokerHandsBackInOrder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		leave    func(t *testing.T, a *rawConsumer)
		overtake bool // messages that the first consumer never had come first
	}{
		{name: "the channel is closed", leave: func(t *testing.T, a *rawConsumer) {
			if err := a.ch.Close(); err != nil {
				t.Error(err)
			}
		}},
		{name: "the channel is closed while acks are sent", leave: func(_ *testing.T, a *rawConsumer) {
			var acks sync.WaitGroup
			acks.Go(func() {
				for tag := uint64(rawPrefetch); tag > rawPrefetch/2; tag -= 2 {
					_ = a.ch.Ack(tag, false) // an error if the channel is closed
				}
			})
			_ = a.ch.Close()
			acks.Wait()
		}},
		{name: "the connection is closed", leave: func(t *testing.T, a *rawConsumer) {
			if err := a.connection.Close(); err != nil {
				t.Error(err)
			}
		}},
		{name: "the connection is cut", leave: func(_ *testing.T, a *rawConsumer) { a.cut() }},
		{name: "the consumer is cancelled", overtake: true, leave: func(t *testing.T, a *rawConsumer) {
			if err := a.ch.Cancel(rawTag, false); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			admin := rabbittest.Channel(t, rabbittest.URL())
			for round := range 3 {
				handBack(t, admin, round, tt.leave, tt.overtake)
			}
		})
	}
}

const (
	rawPrefetch = 20
	rawMessages = 60
	rawTag      = "c"
)

// handBack publishes messages, lets a consumer leave that has some of them, and checks what the next one gets.
func handBack(t *testing.T, admin *amqp.Channel, round int, leave func(*testing.T, *rawConsumer), overtake bool) {
	t.Helper()
	queue := rabbittest.Name()
	arguments := amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}
	if _, err := admin.QueueDeclare(queue, true, false, false, false, arguments); err != nil {
		t.Fatal(err)
	}
	rabbittest.Delete(t, []string{queue}, nil)
	a := newRawConsumer(t, queue)
	for i := range rawMessages {
		msg := amqp.Publishing{Body: strconv.AppendInt(nil, int64(i), 10)}
		if err := admin.PublishWithContext(t.Context(), "", queue, false, false, msg); err != nil {
			t.Fatal(err)
		}
	}
	for range rawPrefetch {
		a.receive(t)
	}
	b := newRawConsumer(t, queue)
	for _, tag := range []uint64{1, 7, 4} {
		if err := a.ch.Ack(tag, false); err != nil {
			t.Fatal(err)
		}
	}
	leave(t, a)
	var got []int
	for len(got) == 0 || slices.Max(got) < rawMessages-1 {
		n, d := b.receive(t)
		if len(got) == 0 && (n >= rawPrefetch) != overtake {
			t.Errorf("round %d: the next consumer gets message %d first", round, n)
		}
		got = append(got, n)
		if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}
	}
	if !overtake && !slices.IsSorted(got) {
		t.Errorf("round %d: the next consumer gets %v", round, got)
	}
}

// A rawConsumer is a consumer of the AMQP client alone.
type rawConsumer struct {
	socket     net.Conn
	connection *amqp.Connection
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
}

func newRawConsumer(t *testing.T, queue string) *rawConsumer {
	t.Helper()
	c := &rawConsumer{}
	var err error
	c.connection, err = amqp.DialConfig(rabbittest.URL(), amqp.Config{Dial: func(network, address string) (_ net.Conn, err error) {
		c.socket, err = amqp.DefaultDial(10*time.Second)(network, address)
		return c.socket, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.connection.Close() })
	if c.ch, err = c.connection.Channel(); err == nil {
		err = c.ch.Qos(rawPrefetch, 0, false)
	}
	if err == nil {
		c.deliveries, err = c.ch.Consume(queue, rawTag, false, false, false, false, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *rawConsumer) receive(t *testing.T) (n int, d amqp.Delivery) {
	t.Helper()
	select {
	case d = <-c.deliveries:
	case <-time.After(30 * time.Second):
	}
	n, err := strconv.Atoi(string(d.Body))
	if err != nil {
		t.Fatal(fmt.Errorf("no message came: %w", err))
	}
	return n, d
}

// cut ends the connection as the death of the process does.
func (c *rawConsumer) cut() {
	_ = c.socket.(*net.TCPConn).SetLinger(0)
	c.socket.Close()
}
