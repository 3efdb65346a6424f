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

// Isolated tells of each topic that goes on on a connection of its own.
func (s *Subscriber) Isolated() *testsignal.Signal[string] { return &s.signals.isolated }

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

// RefusalMemory is for how long a refused destination is not tried.
const RefusalMemory = refusalMemory

// DeleteThrough is Delete, and calls unbound when the queues are unbound and not deleted yet.
func (t Topology) DeleteThrough(ctx context.Context, url string, unbound func()) ([]Part, error) {
	return t.delete(ctx, url, nil, unbound)
}
