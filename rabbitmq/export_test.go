package rabbitmq

import (
	"context"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/testsignal"
)

// CollectAcks makes s send acks when there are limit of them, or after delay.
func (s *Subscriber) CollectAcks(limit int, delay time.Duration) {
	s.ackLimit, s.ackDelay = func(int) int { return limit }, delay
}

// Full signals each topic with Prefetch messages in hand.
func (s *Subscriber) Full() *testsignal.Signal[string] { return &s.signals.full }

// Held tells of each message whose nack is held.
func (s *Subscriber) Held() *testsignal.Signal[string] { return &s.signals.held }

// Isolated tells of each topic that goes on with one message at a time.
func (s *Subscriber) Isolated() *testsignal.Signal[string] { return &s.signals.isolated }

// Consumes tells with which prefetch s consumes, each time that it does.
func (s *Subscriber) Consumes() *testsignal.Signal[int] { return &s.signals.consumes }

// Received tells with each delivery how many bytes of payload its topic has in this process.
func (s *Subscriber) Received() *testsignal.Signal[int] { return &s.signals.received }

// Opened sends true for each channel that p opens for messages.
func Opened(p *Publisher) *testsignal.Signal[bool] { return &p.signals.opened }

// OpenedBy returns how many channels p has opened since its signal was enabled
// or asked.
func OpenedBy(t testing.TB, p *Publisher) int {
	p.signals.opened.Send(false)
	n := 0
	for p.signals.opened.Wait(t) {
		n++
	}
	return n
}

// Leave makes every connection of cfg prefer other brokers to that of url.
func Leave(url string) { known.noteLeft(url) }

// LeaveUnconfirmed makes p leave its broker because a message to topic is not confirmed.
func LeaveUnconfirmed(t testing.TB, p *Publisher, topic string) {
	p.link.leaveUnconfirmed(currentOf(t, p.link), p.routeOf(topic).destination, time.Now())
}

// PublishesTo and ConsumesFrom return the URL of the broker, and whether it is left by now.
func PublishesTo(t testing.TB, p *Publisher) (url string, left bool) {
	c := currentOf(t, p.link)
	return c.url, c.left.Load()
}

func ConsumesFrom(t testing.TB, s *Subscriber) (url string, left bool) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.topics { // of which there is one
		if cc := of.channel.Load(); cc != nil {
			return cc.conn.url, cc.conn.left.Load()
		}
	}
	t.Fatal("nothing is consumed")
	return "", false
}

// ConsumerTag returns the tag of the consumer of the only topic.
func ConsumerTag(t testing.TB, s *Subscriber) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.topics {
		if cc := of.channel.Load(); cc != nil {
			return cc.tag
		}
	}
	t.Fatal("nothing is consumed")
	return ""
}

// currentOf returns the connection of a link.
func currentOf(t testing.TB, l *link) *conn {
	t.Helper()
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.current == nil {
		t.Fatal("link has no connection")
	}
	return l.current
}

// LongPeriod is how many deliveries the sizes of messages are remembered for, once or twice.
const LongPeriod = longPeriod

// RefusalMemory is for how long a refused destination is not tried.
const RefusalMemory = refusalMemory

// DeleteThrough is Delete, and calls unbound when the queues are unbound and not deleted yet.
func (t Topology) DeleteThrough(ctx context.Context, url string, unbound func()) ([]Part, error) {
	return t.deleteTopology(ctx, url, nil, unbound)
}
