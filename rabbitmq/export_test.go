package rabbitmq

import (
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
