package rabbitmq

import "github.com/sagamill/sagamill/internal/testsignal"

// SetAckLimit makes s send n acks together, whatever its prefetch is.
func (s *Subscriber) SetAckLimit(n int) { s.ackLimit = func(int) int { return n } }

// Full tells of each topic of which Prefetch messages are in hand.
func (s *Subscriber) Full() *testsignal.Signal[string] { return &s.signals.full }

// Held tells of each message whose nack is held.
func (s *Subscriber) Held() *testsignal.Signal[string] { return &s.signals.held }
