package rabbitmq

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

const (
	// maxCollectedAcks is how many acks are sent together at most, or a quarter of the prefetch if
	// that is less. Collected acks are no credit for the broker, which must not run out of it
	// meanwhile.
	maxCollectedAcks = 64

	// ackDelay is how long an ack waits for others at most.
	ackDelay = time.Millisecond
)

// A settler is an [amqp091.Channel], as far as acks need one.
type settler interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
}

// acks tells the broker what became of the deliveries of one channel, and of no
// other: it begins and ends with a consumer channel. Acks are collected, so that one frame
// answers for all deliveries up to the first that is not settled.
//
// Errors are not looked at: they mean that the channel is gone, and with it the
// deliveries, which come again.
type acks struct {
	channel settler
	limit   int           // of collected acks
	delay   time.Duration // of the first of them
	pending chan struct{} // holds one: something was collected

	// sending is held from deciding what to send until it is sent. Two frames
	// that overtook each other could name a tag that is already settled, for
	// which the broker closes the channel.
	sending sync.Mutex

	mu        sync.Mutex
	untold    []untold // in the order of their tags
	collected int      // how many of them are acked
	total     int      // how many ever were
}

// An untold delivery is one that the broker counts as unacknowledged.
type untold struct {
	tag   uint64
	acked bool
}

func newAcks(channel settler, limit int, delay time.Duration) *acks {
	return &acks{channel: channel, limit: limit, delay: delay, pending: make(chan struct{}, 1)}
}

// ackLimit returns how many acks to collect where the broker sends prefetch
// messages ahead of them.
func ackLimit(prefetch int) int { return max(1, min(maxCollectedAcks, prefetch/4)) }

// sendAcksUntil sends the collected acks after each delay, until gone is closed.
func (a *acks) sendAcksUntil(gone <-chan struct{}) {
	timer := time.NewTimer(a.delay)
	defer timer.Stop()
	for {
		select {
		case <-a.pending:
		case <-gone:
			return
		}
		timer.Reset(a.delay)
		select {
		case <-timer.C:
			a.flushAcks()
		case <-gone:
			return
		}
	}
}

// noteDelivery makes tag known, in the order in which the broker gave them out.
// A tag that is not known is never covered by the ack of another.
func (a *acks) noteDelivery(tag uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.untold = append(a.untold, untold{tag: tag})
}

// countOpen returns how many deliveries are neither acked nor nacked.
func (a *acks) countOpen() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.untold) - a.collected
}

// countAcked returns how many deliveries were acked.
func (a *acks) countAcked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total
}

// collectAck collects the ack of tag, and sends all of them if they are many.
func (a *acks) collectAck(tag uint64) {
	a.mu.Lock()
	if i, ok := a.findTag(tag); ok && !a.untold[i].acked {
		a.untold[i].acked = true
		a.collected++
		a.total++
	}
	n := a.collected
	a.mu.Unlock()
	if n >= a.limit {
		a.flushAcks()
		return
	}
	select {
	case a.pending <- struct{}{}:
	default:
	}
}

// sendNack gives tag back. Until that is sent tag counts as unsettled: an ack of
// several that was sent before would cover it, and the message be lost.
func (a *acks) sendNack(tag uint64, requeue bool) {
	a.sending.Lock()
	defer a.sending.Unlock()
	_ = a.channel.Nack(tag, false, requeue)
	a.mu.Lock()
	defer a.mu.Unlock()
	if i, ok := a.findTag(tag); ok {
		a.untold = slices.Delete(a.untold, i, i+1)
	}
}

// flushAcks sends the collected acks.
func (a *acks) flushAcks() {
	a.sending.Lock()
	defer a.sending.Unlock()
	prefix, others := a.takeCollected()
	if prefix != 0 {
		_ = a.channel.Ack(prefix, true)
	}
	for _, tag := range others {
		_ = a.channel.Ack(tag, false)
	}
}

// takeCollected returns the last tag before the first delivery that is not acked, 0 if
// there is none, and the acked tags after it.
func (a *acks) takeCollected() (prefix uint64, others []uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	rest := a.untold[:0]
	for _, d := range a.untold {
		switch {
		case !d.acked:
			rest = append(rest, d)
		case len(rest) == 0:
			prefix = d.tag
		default:
			others = append(others, d.tag)
		}
	}
	a.untold, a.collected = rest, 0
	return prefix, others
}

// findTag is called by who holds mu.
func (a *acks) findTag(tag uint64) (int, bool) {
	return slices.BinarySearchFunc(a.untold, tag, func(d untold, tag uint64) int { return cmp.Compare(d.tag, tag) })
}
