package rabbitmq

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// An epoch is one channel with one consumer. Its deliveries are settled on it
// or not at all.
type epoch struct {
	conn       *conn
	amqp       *amqp.Channel
	tag        string
	prefetch   int
	deliveries <-chan amqp.Delivery
	acks       *acks
	gone       chan struct{} // closed once the channel is
	cause      *amqp.Error   // why, if the broker said so; valid once gone is closed
	cancels    <-chan string // has an element once the broker has cancelled the consumer, before deliveries ends
	inHand     sync.WaitGroup
}

// start starts the goroutines of e, which end with the channel.
func (e *epoch) start(closes <-chan *amqp.Error) {
	e.conn.work.Go(func() {
		e.cause = <-closes
		close(e.gone)
	})
	e.conn.work.Go(func() { e.acks.run(e.gone) })
}

// ended is called once deliveries is closed. If that is so because the channel is, it
// waits for the cause: the client has told it before, but to a goroutine that may not
// have run yet.
func (e *epoch) ended() {
	if e.amqp.IsClosed() {
		<-e.gone
	}
}

// over reports whether the channel of e is gone.
func (e *epoch) over() bool {
	select {
	case <-e.gone:
		return true
	default:
		return false
	}
}

// unreadable reports whether the client itself ended e because it could not
// read what the broker sent.
func (e *epoch) unreadable() bool {
	select {
	case <-e.gone:
		return e.cause != nil && !e.cause.Server &&
			(strings.Contains(e.cause.Reason, amqp.ErrSyntax.Reason) || strings.Contains(e.cause.Reason, amqp.ErrFrame.Reason))
	default:
		return false
	}
}

// cancelled reports, once, whether the broker has ended the consumer and not the channel,
// as it does when the queue is deleted.
func (e *epoch) cancelled() bool {
	select {
	case _, told := <-e.cancels:
		return told
	default:
		return false
	}
}

func (e *epoch) reason() string {
	select {
	case <-e.gone:
		if e.cause != nil {
			return e.cause.Error()
		}
		return "channel closed"
	default:
		return "consumer cancelled"
	}
}

// hold waits for about delay, but not on a channel that is gone or when it is
// time to stop.
func (e *epoch) hold(intake context.Context, delay time.Duration) {
	timer := time.NewTimer(delay/2 + rand.N(delay))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-intake.Done():
	case <-e.gone:
	}
}

// cancelAndDrain stops the consumer and returns the tags of what was sent before and not
// taken. It takes the deliveries while it waits, or the client would keep the payloads of all.
// It reports false if the broker did not answer.
func (e *epoch) cancelAndDrain() (sent []uint64, ok bool) {
	cancelled := make(chan bool, 1)
	e.conn.work.Go(func() { cancelled <- e.cancel() })
	for deliveries := e.deliveries; ; {
		select {
		case d, more := <-deliveries:
			if !more {
				return sent, <-cancelled
			}
			sent = append(sent, d.DeliveryTag)
		case ok = <-cancelled:
			if !ok {
				return nil, false
			}
			for d := range deliveries {
				sent = append(sent, d.DeliveryTag)
			}
			return sent, true
		}
	}
}

// cancel stops the consumer. It reports whether the broker said so, and then
// deliveries ends after what was sent before.
func (e *epoch) cancel() bool {
	_, err := call(context.Background(), e.conn, func() (any, error) { return nil, e.amqp.Cancel(e.tag, false) }, nil)
	return err == nil
}

// close tells the broker what became of the deliveries and closes the channel,
// which gives back the others, in the order in which they came. If the broker does not
// answer in time, the connection is dropped, which does the same.
func (e *epoch) close() {
	defer time.AfterFunc(e.conn.limits.RequestTimeout, e.conn.drop).Stop()
	e.acks.flush()
	e.conn.closeChannel(e.amqp)
	<-e.gone
}
