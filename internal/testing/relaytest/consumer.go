package relaytest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/backoff"
)

const (
	prefetch    = 4
	brokerAway  = 50 * time.Millisecond // pause before the consumer tries again
	dialTimeout = 5 * time.Second
)

// The headers in which a publisher may describe a publication.
const (
	HeaderRelay  = "x-storm-relay"  // the process
	HeaderCopy   = "x-storm-copy"   // a name that no other publication has
	HeaderSecond = "x-storm-second" // another process was publishing; "" or not there: none was
)

// A Consumer notes the arrivals in each queue, in the order in which the broker sends them. It uses the
// client library alone, not the tested code, and connects past the proxy that cuts the relays off.
type Consumer struct {
	url     string
	history *History
	group   sync.WaitGroup // one goroutine for each queue
	strange chan error     // the first delivery that is no message of the test
	open    sync.RWMutex   // held for writing while the consumer is paused
}

// NewConsumer returns a Consumer that notes in h the arrivals at the broker of url.
func NewConsumer(url string, h *History) *Consumer {
	return &Consumer{url: url, history: h, strange: make(chan error, 1)}
}

// Pause stops noting and acknowledging until Resume is called. New messages stay in the queues.
func (c *Consumer) Pause() { c.open.Lock() }

// Resume ends a Pause.
func (c *Consumer) Resume() { c.open.Unlock() }

// Wait waits until the contexts of all calls of Watch have ended, and the consumer
// with them.
func (c *Consumer) Wait() { c.group.Wait() }

// Strange returns an error for the first delivery that is not a message of the test, or nil.
func (c *Consumer) Strange() error {
	select {
	case err := <-c.strange:
		return err
	default:
		return nil
	}
}

// Watch consumes queue until ctx ends. The queue need not exist yet.
func (c *Consumer) Watch(ctx context.Context, queue string) {
	c.group.Go(func() {
		for ctx.Err() == nil {
			c.receiveFromQueue(ctx, queue)
			_ = backoff.Sleep(ctx, brokerAway)
		}
	})
}

// receiveFromQueue returns when the connection, the queue or ctx has ended.
func (c *Consumer) receiveFromQueue(ctx context.Context, queue string) {
	connection, err := amqp.DialConfig(c.url, amqp.Config{Dial: amqp.DefaultDial(dialTimeout), Heartbeat: dialTimeout})
	if err != nil {
		return
	}
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { connection.Close() })()
	ch, err := connection.Channel()
	if err != nil || ch.Qos(prefetch, 0, false) != nil {
		return
	}
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return
	}
	for d := range deliveries {
		c.open.RLock()
		err := c.noteDelivery(d)
		acked := d.Ack(false)
		c.open.RUnlock()
		if err != nil {
			select {
			case c.strange <- err:
			default:
			}
		}
		if acked != nil {
			return // the broker redelivers messages without an ack
		}
	}
}

func (c *Consumer) noteDelivery(d amqp.Delivery) error {
	var b Body
	if err := json.Unmarshal(d.Body, &b); err != nil {
		return fmt.Errorf("payload of message %s: %w", d.MessageId, err)
	}
	header := func(name string) string {
		value, _ := d.Headers[name].(string)
		return value
	}
	c.history.addArrival(Arrival{
		ID: d.MessageId, Key: b.Key, Version: b.Version, Redelivered: d.Redelivered,
		Relay: header(HeaderRelay), Copy: header(HeaderCopy), Overlapped: header(HeaderSecond) != "",
	})
	return nil
}
