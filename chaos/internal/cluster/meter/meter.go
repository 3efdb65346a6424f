// Package meter records what orders and messages do while faults strike, and turns the
// record into the figures of one fault.
//
// The services report each completed order and each handled message of topic blue. A
// sampler adds what the outbox holds, several times a second. A [Window] names the moments
// of one fault, and [Meter.WindowFigures] measures it.
package meter

import (
	"slices"
	"sync"
	"time"

	"github.com/sagamill/sagamill/outbox"
)

// A Sample is one look at the services.
type Sample struct {
	At      time.Time
	Stored  int // messages in the outbox that the relay has not published, and does not hold
	Held    int // messages that the relay holds back: refused ones, and those that wait
	Dead    int // dead letters of outbox and inbox
	Relay   outbox.Counters
	Written int // orders
	Done    int // orders whose last step has committed
}

// OpenOrders returns how many orders are written and not completed.
func (s *Sample) OpenOrders() int { return s.Written - s.Done }

// A delivery is one message of topic blue.
type delivery struct{ written, handled time.Time }

// A Meter is a record. Its methods may be called by several goroutines.
type Meter struct {
	mu          sync.Mutex
	written     int         // orders
	colours     int         // messages for red and blue that were written
	red         int         // messages of red that were handled
	completed   []time.Time // ascending
	blue        []delivery
	redelivered []time.Time // ascending
	samples     []Sample
}

// NoteWritten counts what a committed transaction has written: orders, and messages for red and
// blue.
func (m *Meter) NoteWritten(orders, colours int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written, m.colours = m.written+orders, m.colours+colours
}

// Complete records that the last step of an order has committed.
func (m *Meter) Complete(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.completed = appendAscending(m.completed, at)
}

// HandleBlue records that a message of topic blue was handled.
func (m *Meter) HandleBlue(written, handled time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blue = append(m.blue, delivery{written, handled})
}

// HandleRed counts a message of topic red that was handled.
func (m *Meter) HandleRed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.red++
}

// Redeliver records a message that the broker has delivered before.
func (m *Meter) Redeliver(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.redelivered = appendAscending(m.redelivered, at)
}

// AddSample adds a sample, and returns it with the meter's own numbers.
func (m *Meter) AddSample(s Sample) Sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Written, s.Done = m.written, len(m.completed)
	m.samples = append(m.samples, s)
	return s
}

// OrderCounts returns how many orders were written, and how many of them are completed.
func (m *Meter) OrderCounts() (written, completed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.written, len(m.completed)
}

// PendingOrders returns how many sagas are not completed: orders, and messages of red and blue.
func (m *Meter) PendingOrders() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.written + m.colours - len(m.completed) - m.red - len(m.blue)
}

// Redelivered returns how many messages were redelivered.
func (m *Meter) Redelivered() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.redelivered)
}

// isBetween reports whether at is in a span of time, its end excluded.
func isBetween(at, from, to time.Time) bool { return !at.Before(from) && at.Before(to) }

// appendAscending appends a moment. Concurrent reports may arrive out of order; then the later moment counts
// for both.
func appendAscending(times []time.Time, at time.Time) []time.Time {
	if n := len(times); n > 0 && at.Before(times[n-1]) {
		at = times[n-1]
	}
	return append(times, at)
}

// firstFrom returns the index of the first of ascending times that is not before from.
func firstFrom(times []time.Time, from time.Time) int {
	i, _ := slices.BinarySearchFunc(times, from, time.Time.Compare)
	return i
}

// countBetween returns how many of ascending times are in a span, its end excluded.
func countBetween(times []time.Time, from, to time.Time) int {
	return max(0, firstFrom(times, to)-firstFrom(times, from))
}
