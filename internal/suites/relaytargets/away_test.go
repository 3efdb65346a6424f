package relaytargets

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
)

// failing counts the errors of a publisher, which may be replaced.
type failing struct {
	mu     sync.Mutex
	pub    message.Publisher
	errors atomic.Int64
}

func (p *failing) replace(pub message.Publisher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pub = pub
}

func (p *failing) Publish(topic string, messages ...*message.Message) error {
	p.mu.Lock()
	pub := p.pub
	p.mu.Unlock()
	err := pub.Publish(topic, messages...)
	if err != nil {
		p.errors.Add(1)
	}
	return err
}

func (p *failing) Close() error { return errors.New("the publisher is the caller's") }

const awayKeys, awayEach = 5, 4

// writeWhileAway stores messages for a broker that is away, and waits until the
// relay has met that several times. None of them may be refused.
func (s *service) writeWhileAway(t *testing.T, r *outbox.Relay, pub *failing, topic string) {
	t.Helper()
	before := pub.errors.Load()
	for n := range awayEach {
		for key := range awayKeys {
			s.write(t, nil, numbered(topic, key, n))
		}
	}
	eventually(t, "errors", func() bool { return pub.errors.Load() >= before+5 })
	if got := stats(t, r); got.Stored != awayEach*awayKeys || got.Refused+got.Dead+got.Waiting != 0 {
		t.Errorf("while the broker is away: %+v, want %d messages stored and none refused", got, awayEach*awayKeys)
	}
}

// checkBack waits for them.
func (s *service) checkBack(t *testing.T, r *outbox.Relay, arrived *arrivals) {
	t.Helper()
	eventually(t, "all messages", func() bool { return len(arrived.firsts()) >= awayEach*awayKeys })
	next := make([]int, awayKeys)
	for _, msg := range arrived.firsts() {
		var key int
		_, _ = fmt.Sscanf(msg.Metadata[outbox.PropertyCorrelation], "saga %d", &key)
		if want := messageID(key, next[key]); msg.UUID != want {
			t.Fatalf("key %d: message %d is not the next", key, next[key])
		}
		next[key]++
	}
	eventually(t, "nothing left", func() bool { return stats(t, r).Stored == 0 })
	if got := stats(t, r); got.Refused+got.Dead+got.Waiting != 0 {
		t.Errorf("when the broker is back: %+v, want none refused", got)
	}
}

// A server that is not there when the relay starts, nor later for a while, is
// waited for.
func TestAServerThatIsAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b remote) {
		s, topic := newService(t), b.topic("orders")
		arrived := collect(t, b.subscriber(t, "audit", topic), topic)

		nobody := &failing{pub: b.at(unused(t)).publisher(t)}
		refused := run(t, s.relay(t, nobody, outbox.RelayOptions{}).Run)
		proxy := rabbittest.NewProxy(t, "amqp://"+b.addr())
		pub := &failing{pub: b.at(host(t, proxy.URL())).publisher(t)}
		r := s.relay(t, pub, outbox.RelayOptions{})
		s.writeWhileAway(t, r, nobody, topic)
		refused.stop()

		run(t, r.Run)
		s.checkBack(t, r, arrived)
		arrived.forget()
		proxy.Refuse(true)
		s.writeWhileAway(t, r, pub, topic)
		if got := arrived.firsts(); len(got) != 0 {
			t.Errorf("%d messages arrived although the server is away", len(got))
		}
		proxy.Refuse(false)
		s.checkBack(t, r, arrived)
	})
}

// unused returns an address that refuses connections.
func unused(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func host(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// A gochannel that has been closed takes nothing more. What it does not take
// stays, for its successor.
func TestAClosedChannelIsReplaced(t *testing.T) {
	t.Parallel()
	s := newService(t)
	old := newChannel(t)
	pub := &failing{pub: old.GoChannel}
	r := s.relay(t, pub, outbox.RelayOptions{})
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	run(t, r.Run)
	s.writeWhileAway(t, r, pub, "orders")
	successor := newChannel(t)
	arrived := collect(t, successor.GoChannel, "orders")
	pub.replace(successor.GoChannel)
	s.checkBack(t, r, arrived)
}
