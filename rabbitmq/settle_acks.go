package rabbitmq

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

const (
	// maxCollectedAcks is how many acks are sent together at most, or a quarter of the prefetch if that is less.
	// The broker counts collected acks against the prefetch. So it can always send three quarters of the
	// prefetch ahead.
	maxCollectedAcks = 64

	// ackDelay is how long an ack waits for others at most. At 60 messages a second that makes one ack of two,
	// and each costs the broker a command in the log of the queue.
	//
	// A process that dies, or a connection that is lost, costs the acks of this time: up to maxCollectedAcks
	// messages of a subscription are delivered again although they are settled, and a consumer's inbox finds
	// them done. They are among the messages that the broker had sent ahead, all of which are delivered again
	// and count for the queue's delivery limit, if it was the connection that was lost.
	ackDelay = 20 * time.Millisecond
)

// A settler is an [amqp091.Channel], as far as acks need one.
type settler interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
}

// acks tells the broker what became of the deliveries of one channel, and of no
// other: it begins and ends with a consumer channel. Acks are collected, so that one frame
// answers for all deliveries up to the first that is not settled. They are sent when limit of
// them are collected, when the first of them is delay old, before a nack, and before the channel is closed.
//
// Errors are not looked at: they mean that the channel is gone, and with it the
// deliveries, which come again.
type acks struct {
	channel settler
	limit   int           // of collected acks
	delay   time.Duration // of the first of them
	overdue *time.Timer   // runs while acks are collected

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
	a := &acks{channel: channel, limit: limit, delay: delay, overdue: time.NewTimer(delay)}
	a.overdue.Stop()
	return a
}

// ackLimit returns how many acks to collect where the broker sends prefetch
// messages ahead of them.
func ackLimit(prefetch int) int { return max(1, min(maxCollectedAcks, prefetch/4)) }

// sendAcksUntil sends the collected acks whenever the first of them is delay old, until gone is closed.
func (a *acks) sendAcksUntil(gone <-chan struct{}) {
	defer a.overdue.Stop()
	for {
		select {
		case <-a.overdue.C:
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
	if a.addAck(tag) >= a.limit {
		a.flushAcks()
	}
}

// addAck notes that tag is acked, and returns how many acks are collected. The first starts the clock.
func (a *acks) addAck(tag uint64) (collected int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i, ok := a.findTag(tag)
	if !ok || a.untold[i].acked {
		return a.collected
	}
	a.untold[i].acked = true
	a.collected++
	a.total++
	if a.collected == 1 {
		a.overdue.Reset(a.delay)
	}
	return a.collected
}

// sendNack gives tag back, after the collected acks. Until that is sent tag counts as unsettled: an ack of
// several that was sent before would cover it, and the message be lost.
func (a *acks) sendNack(tag uint64, requeue bool) {
	a.sending.Lock()
	defer a.sending.Unlock()
	a.sendCollected()
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
	a.sendCollected()
}

// sendCollected sends the collected acks. The caller holds sending.
func (a *acks) sendCollected() {
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
	a.overdue.Stop()
	return prefix, others
}

// findTag is called by who holds mu.
func (a *acks) findTag(tag uint64) (int, bool) {
	return slices.BinarySearchFunc(a.untold, tag, func(d untold, tag uint64) int { return cmp.Compare(d.tag, tag) })
}
