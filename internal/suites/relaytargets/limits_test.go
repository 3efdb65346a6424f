package relaytargets

import (
	"context"
	"fmt"
	"testing"

	"github.com/sagamill/sagamill/outbox"
)

// A message over the server's limit, a megabyte by default, is held as refused
// after three tries, with what is behind it in its key; the others go out.
func TestAMessageOverTheLimitOfNATSIsRefused(t *testing.T) {
	t.Parallel()
	b := newNATS(t)
	s, topic := newService(t), b.topic("orders")
	arrived := collect(t, b.subscriber(t, "audit", topic), topic)
	r := s.relay(t, b.publisher(t), outbox.RelayOptions{Lanes: 2})
	message := func(key string, size int) outbox.Message {
		return outbox.Message{Topic: topic, Scope: "s", Key: key, N: fmt.Sprint(size), Step: "step", Payload: make([]byte, size)}
	}
	s.write(t, nil, message("large", outbox.MaxPayload), message("large", 1))
	run(t, r.Run)
	written := 0
	eventually(t, "a refusal", func() bool {
		s.write(t, nil, message(fmt.Sprint("small", written), 2))
		written++
		return stats(t, r).Refused == 1
	})
	eventually(t, "the others", func() bool { return len(arrived.firsts()) == written })
	for _, msg := range arrived.firsts() {
		if len(msg.Payload) != 2 {
			t.Errorf("a message of %d bytes has overtaken the refused one", len(msg.Payload))
		}
	}
	if got := stats(t, r); got.Waiting != 1 {
		t.Errorf("%+v, want the message behind it to wait", got)
	}
}

// Messages that a closed subscriber has handed over without an ack are redelivered to another subscriber of
// the service.
func TestAClosedSubscriberLosesNothing(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b remote) {
		s, topic := newService(t), b.topic("orders")
		run(t, s.relay(t, b.publisher(t), outbox.RelayOptions{}).Run)
		first := b.subscriber(t, "audit", topic)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		in, err := first.Subscribe(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 4 {
			s.write(t, nil, numbered(topic, 1, n))
		}
		acked, unacked := <-in, ""
		acked.Ack()
		unacked = (<-in).UUID
		cancel()
		for range in { // until it has ended
		}
		if err := first.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		arrived := collect(t, b.subscriber(t, "audit", topic), topic)
		eventually(t, "the rest", func() bool { return len(arrived.firsts()) >= 3 })
		came := map[string]bool{}
		for _, msg := range arrived.firsts() {
			came[msg.UUID] = true
		}
		if came[acked.UUID] || !came[unacked] || !came[messageID(1, 2)] || !came[messageID(1, 3)] {
			t.Errorf("%v came again, want all but the message that was acked, %s", came, acked.UUID)
		}
	})
}
