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

// Full tells of each topic of which Prefetch messages are in hand.
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

// LeaveUnresponsive makes p leave its broker as one that does not confirm.
func LeaveUnresponsive(t testing.TB, p *Publisher) { p.link.leave(held(t, p.link), unresponsive) }

// Prove makes p say that its broker has confirmed.
func Prove(t testing.TB, p *Publisher) { p.link.proved(held(t, p.link)) }

// PublishesTo and ConsumesFrom return the URL of the broker, and whether it is left by now.
func PublishesTo(t testing.TB, p *Publisher) (url string, left bool) {
	c := held(t, p.link)
	return c.url, c.left.Load()
}

func ConsumesFrom(t testing.TB, s *Subscriber) (url string, left bool) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.topics { // of which there is one
		if c := of.conn.Load(); c != nil {
			return c.url, c.left.Load()
		}
	}
	t.Fatal("nothing is consumed")
	return "", false
}

// held returns the connection of a link with several addresses.
func held(t testing.TB, l *link) *conn {
	t.Helper()
	l.addresses.mu.Lock()
	defer l.addresses.mu.Unlock()
	c := l.addresses.holders[l]
	if c == nil {
		t.Fatal("link has no connection")
	}
	return c
}

// LongPeriod is how many deliveries the sizes of messages are remembered for, once or twice.
const LongPeriod = longPeriod

// RefusalMemory is for how long a refused destination is not tried.
const RefusalMemory = refusalMemory

// DeleteThrough is Delete, and calls unbound when the queues are unbound and not deleted yet.
func (t Topology) DeleteThrough(ctx context.Context, url string, unbound func()) ([]Part, error) {
	return t.delete(ctx, url, nil, unbound)
}
