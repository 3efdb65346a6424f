package relaytargets

import (
	"fmt"
	"sync"
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

// stopping is a publisher that holds the calls after the first so many until
// they are let go.
type stopping struct {
	message.Publisher
	mu      sync.Mutex
	left    int
	reached chan struct{} // closed when they are held
	resume  chan struct{}
}

func (p *stopping) Publish(topic string, messages ...*message.Message) error {
	p.mu.Lock()
	p.left--
	if p.left == 0 {
		close(p.reached)
	}
	held := p.left <= 0
	p.mu.Unlock()
	if held {
		<-p.resume
	}
	return p.Publisher.Publish(topic, messages...)
}

// What is committed arrives with all that it was written with, in order for each
// key, although the relay is stopped in the middle and another one goes on;
// what is rolled back never arrives.
func TestEveryCommittedMessageArrivesInOrder(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		const before, perKey = 6, 10
		s, topic := newService(t), b.topic("orders")
		arrived := collect(t, b.subscriber(t, "audit", topic), topic)
		pub := b.publisher(t)

		s.writeRounds(t, topic, 0, before)
		held := &stopping{Publisher: pub, left: 2 * keys, reached: make(chan struct{}), resume: make(chan struct{})}
		first := s.relay(t, held, outbox.RelayOptions{Window: keys, DrainTimeout: time.Minute})
		running := run(t, first.Run)
		<-held.reached
		running.cancel()
		close(held.resume)
		running.wait()
		left := stats(t, first).Stored
		if left == 0 || left == before*keys {
			t.Fatalf("%d messages are left, so that the relay was not stopped in the middle", left)
		}

		run(t, s.relay(t, pub, outbox.RelayOptions{}).Run)
		s.writeRounds(t, topic, before, perKey)
		eventually(t, "all messages", func() bool { return len(arrived.firsts()) >= perKey*keys })
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
