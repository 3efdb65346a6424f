package relaystorm

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	prefetch     = 4
	brokerAway   = 50 * time.Millisecond // pause before the consumer tries again
	dialTimeout  = 5 * time.Second
	headerRelay  = "x-storm-relay"
	headerCopy   = "x-storm-copy"
	headerSecond = "x-storm-second"
)

// A consumer notes what arrives in each queue, in the order in which the broker
// sends it. It stands on the client library alone, not on what is tested, and
// past the proxy that cuts the relays off.
type consumer struct {
	url     string
	history *history
	group   sync.WaitGroup // one goroutine for each queue
	strange chan error     // the first delivery that is no message of the storm
}

// watch consumes queue until ctx ends, whether it exists at the moment or not.
func (c *consumer) watch(ctx context.Context, queue string) {
	c.group.Go(func() {
		for ctx.Err() == nil {
			c.receive(ctx, queue)
			wait(ctx, brokerAway)
		}
	})
}

// receive returns when the connection, the queue or ctx has ended.
func (c *consumer) receive(ctx context.Context, queue string) {
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
		if err := c.note(d); err != nil {
			select {
			case c.strange <- err:
			default:
			}
		}
		if d.Ack(false) != nil {
			return // what was not acked comes again
		}
	}
}

func (c *consumer) note(d amqp.Delivery) error {
	var b body
	if err := json.Unmarshal(d.Body, &b); err != nil {
		return fmt.Errorf("payload of message %s: %w", d.MessageId, err)
	}
	header := func(name string) string {
		value, _ := d.Headers[name].(string)
		return value
	}
	c.history.arrive(arrival{
		id: d.MessageId, key: b.Key, version: b.Version, redelivered: d.Redelivered,
		relay: header(headerRelay), copy: header(headerCopy), overlapped: header(headerSecond) != "",
	})
	return nil
}
