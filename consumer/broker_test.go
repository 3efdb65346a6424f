package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// A queue is a broker of one queue, whatever the topic, that any number of
// consumers share. It hands over as many messages as they take, in the order of
// publication, and a nacked one again, marked as redelivered.
type queue struct {
	waiting chan *message.Message

	mu       sync.Mutex
	unacked  map[*message.Message]bool
	handed   func(id string) // called before a message is handed over, if set
	acked    func(id string) // called when it is acked, if set
	emptied  chan struct{}   // holds a token when nothing is unacked
	inFlight sync.WaitGroup
}

func newQueue() *queue {
	return &queue{waiting: make(chan *message.Message, 10_000), unacked: map[*message.Message]bool{}, emptied: make(chan struct{}, 1)}
}

// publish puts copies of msgs into the queue.
func (q *queue) publish(msgs ...*message.Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, msg := range msgs {
		own := msg.Copy()
		q.unacked[own] = true
		q.waiting <- own
	}
}

func (q *queue) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	q.inFlight.Go(func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case msg := <-q.waiting:
				q.hand(ctx, msg, out)
			}
		}
	})
	return out, nil
}

func (q *queue) hand(ctx context.Context, msg *message.Message, out chan<- *message.Message) {
	if q.handed != nil {
		q.handed(msg.UUID)
	}
	select {
	case out <- msg:
		q.inFlight.Go(func() { q.await(msg) })
	case <-ctx.Done():
		q.waiting <- msg
	}
}

// await waits for the one settlement that a consumer owes every delivery.
func (q *queue) await(msg *message.Message) {
	select {
	case <-msg.Acked():
		if q.acked != nil {
			q.acked(msg.UUID)
		}
		q.settle(msg)
	case <-msg.Nacked():
		again := msg.Copy()
		again.Metadata.Set(outbox.PropertyRedelivered, "true")
		q.publish(again)
		q.settle(msg)
	}
}

func (q *queue) settle(msg *message.Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.unacked, msg)
	if len(q.unacked) == 0 {
		select {
		case q.emptied <- struct{}{}:
		default:
		}
	}
}

// drained waits until every message is acked.
func (q *queue) drained(t *testing.T) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		q.mu.Lock()
		left := len(q.unacked)
		q.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-q.emptied:
		case <-limit.C:
			t.Fatalf("%d messages are not acked after %s", left, patience)
		}
	}
}

func (q *queue) MarksRedelivered() bool { return true }
func (q *queue) Close() error           { return nil }

// await polls until done, and fails the test when that takes for ever.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	limit, tick := time.NewTimer(patience), time.NewTicker(5*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// identified returns a message of kind under key, which no other message is.
func identified(kind, key string, amount int) *message.Message {
	msg := message.NewMessage(fmt.Sprint(kind, " ", key, " ", amount), fmt.Appendf(nil, `{"amount":%d}`, amount))
	msg.Metadata.Set(outbox.HeaderKey, key+":pay")
	msg.Metadata.Set(outbox.HeaderScope, "tenant")
	msg.Metadata.Set(outbox.PropertyType, kind)
	return msg
}
