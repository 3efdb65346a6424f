package relaytargets

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sagamill/sagamill/outbox"
)

const keys = 50

// numbered is the n-th message of a key. Its text is of the kind that gets changed
// on the way: blanks at the ends, line breaks, bytes that are no UTF-8.
func numbered(topic string, key, n int) outbox.Message {
	return outbox.Message{
		Topic: topic, Type: "order.created", Scope: " tenant ü ", Key: fmt.Sprintf(" key:%d ", key), Step: "pay", N: fmt.Sprint(n),
		Payload: fmt.Appendf(nil, "%d\x00\xff", n), ContentType: "application/x-test",
		ID: messageID(key, n), CorrelationID: fmt.Sprint("saga ", key), CausationID: "cause",
		Headers: map[string]string{"traceparent": "00-1-2-01", "X-Own name ü": " ü\r\n line ", "empty": ""},
	}
}

func messageID(key, n int) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "%d/%d", key, n)).String()
}

// metadata is what numbered has to arrive with, its time aside.
func metadata(key, n int) map[string]string {
	return map[string]string{
		outbox.HeaderKey: fmt.Sprintf(" key:%d :pay#%d", key, n), outbox.HeaderScope: " tenant ü ", outbox.HeaderCausation: "cause",
		"traceparent": "00-1-2-01", "X-Own name ü": " ü\r\n line ", "empty": "",
		outbox.PropertyType: "order.created", outbox.PropertyCorrelation: fmt.Sprint("saga ", key), outbox.PropertyContentType: "application/x-test",
	}
}

// writeRounds stores the messages from to until of every key, several keys at
// once, with transactions that roll back in between.
func (s *service) writeRounds(t testing.TB, topic string, from, until int) {
	t.Helper()
	const writers = 5
	var work sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			for n := from; n < until; n++ {
				for key := w; key < keys; key += writers {
					if (key+n)%3 == 0 {
						undone := numbered(topic, key, n)
						undone.ID = ""
						undone.Payload = []byte("rolled back")
						s.write(t, errRollBack, undone)
					}
					s.write(t, nil, numbered(topic, key, n))
				}
			}
		})
	}
	work.Wait()
}

// A stuck publisher makes so many calls and holds the others until it is let go.
type stuck struct {
	message.Publisher
	left   atomic.Int64
	held   chan struct{} // closed when one is
	resume chan struct{}
	calls  sync.WaitGroup
}

func (p *stuck) Publish(topic string, messages ...*message.Message) error {
	p.calls.Add(1)
	defer p.calls.Done()
	left := p.left.Add(-1)
	if left == -1 {
		close(p.held)
	}
	if left < 0 {
		<-p.resume
	}
	return p.Publisher.Publish(topic, messages...)
}

// A committed message arrives complete, in order for each key. That holds although the first relay is stopped
// during calls that hang, another relay goes on, and those calls get through after all. A message that was
// rolled back never arrives.
func TestEveryCommittedMessageArrivesInOrder(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		const before, perKey = 6, 10
		s, topic := newService(t), b.topic("orders")
		arrived := collect(t, b.subscriber(t, "audit", topic), topic)
		pub := b.publisher(t)

		s.writeRounds(t, topic, 0, before)
		hanging := &stuck{Publisher: pub, held: make(chan struct{}), resume: make(chan struct{})}
		hanging.left.Store(2 * keys)
		first := s.relay(t, hanging, outbox.RelayOptions{Window: keys, DrainTimeout: 100 * time.Millisecond})
		running := run(t, first.Run)
		<-hanging.held
		running.stop()
		if left := stats(t, first).Stored; left < (before-2)*keys || left >= before*keys {
			t.Errorf("%d of %d messages are left, so that the relay was not stopped in the middle", left, before*keys)
		}

		run(t, s.relay(t, pub, outbox.RelayOptions{}).Run)
		s.writeRounds(t, topic, before, perKey)
		eventually(t, "all messages", func() bool { return len(arrived.firsts()) >= perKey*keys })
		close(hanging.resume)
		hanging.calls.Wait()
		checkArrivals(t, arrived.firsts(), perKey)
		eventually(t, "nothing left", func() bool { return stats(t, first).Stored == 0 })
		if held := stats(t, first); held.Refused+held.Waiting+held.Dead+held.Delayed != 0 {
			t.Errorf("held: %+v", held)
		}
	})
}

func checkArrivals(t *testing.T, all []*message.Message, perKey int) {
	t.Helper()
	if len(all) != perKey*keys {
		t.Errorf("%d messages arrived, want %d", len(all), perKey*keys)
	}
	next := map[string]int{} // by key
	for _, got := range all {
		var key int
		_, _ = fmt.Sscanf(got.Metadata[outbox.PropertyCorrelation], "saga %d", &key)
		saga := got.Metadata[outbox.PropertyCorrelation]
		n := next[saga]
		next[saga]++
		if got.UUID != messageID(key, n) || string(got.Payload) != fmt.Sprintf("%d\x00\xff", n) {
			t.Fatalf("%s: message %d is %s, %q", saga, n, got.UUID, got.Payload)
		}
		if _, err := time.Parse(time.RFC3339Nano, got.Metadata[outbox.PropertyTimestamp]); err != nil {
			t.Fatalf("timestamp: %v", err)
		}
		delete(got.Metadata, outbox.PropertyTimestamp)
		if diff := cmp.Diff(metadata(key, n), map[string]string(got.Metadata)); diff != "" {
			t.Fatalf("metadata (-want +got):\n%s", diff)
		}
	}
}
