package rabbitmq

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
)

// An item is a delivery in this process, from its receipt until it is settled or
// dropped.
type item struct {
	channel  *consumerChannel
	delivery amqp.Delivery
	msg      *message.Message
	end      context.CancelFunc // of msg's context
	key      string             // "": in nobody's way
}

// payloadSize is how many bytes of payload it has.
func (it *item) payloadSize() int { return len(it.delivery.Body) }

// lanes decide which message of a subscription is handed over next. Of the
// items with one key the first is ready or in hand and the others wait behind it.
// Items in hand stay, with their lanes, when their consumer channel ends: its other
// messages come again and wait behind the old copy.
type lanes struct {
	limit     int           // of items
	byteLimit int           // of the payloads of all items but the last
	wake      chan struct{} // holds one: there is room again, or something ready

	mu      sync.Mutex
	awaited bool // the intake has found no room since wake was signalled last
	current *consumerChannel
	inHand  int // of the current consumer channel
	items   int
	bytes   int   // of their payloads
	offered *item // the first that is ready
	ready   []*item
	waiting map[string][]*item // has the key of every item that is ready or in hand
}

func newLanes(limit, byteLimit int) *lanes {
	return &lanes{limit: limit, byteLimit: byteLimit, wake: make(chan struct{}, 1), waiting: make(map[string][]*item)}
}

// beginChannel makes cc the consumer channel that items are taken from.
func (l *lanes) beginChannel(cc *consumerChannel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current, l.inHand = cc, 0
}

// addItem takes an item of the current consumer channel. It returns how many bytes of payload are here now.
func (l *lanes) addItem(it *item) (bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items++
	l.bytes += it.payloadSize()
	if it.key == "" {
		l.ready = append(l.ready, it)
		return l.bytes
	}
	behind, busy := l.waiting[it.key]
	if busy {
		l.waiting[it.key] = append(behind, it)
		return l.bytes
	}
	l.waiting[it.key] = nil
	l.ready = append(l.ready, it)
	return l.bytes
}

// offerNext returns the item that is to be handed over, nil if none is ready, and
// whether there is room for one more. It is the same one until it is handed over. If there
// is no room, wake is signalled when an item in hand is finished.
func (l *lanes) offerNext() (it *item, room bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.offered == nil && len(l.ready) > 0 {
		l.offered, l.ready[0] = l.ready[0], nil
		l.ready = l.ready[1:]
	}
	room = l.items < l.limit && l.bytes < l.byteLimit
	l.awaited = l.awaited || !room
	return l.offered, room
}

// isFull reports whether the payloads have reached their limit.
func (l *lanes) isFull() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes >= l.byteLimit
}

// noteHandedOver says that the offered item is in hand now.
func (l *lanes) noteHandedOver() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offered = nil
	l.inHand++
}

// hasRoom reports whether nothing of the current consumer channel is in hand. If something is, wake is signalled
// when an item in hand is finished.
func (l *lanes) hasRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awaited = l.awaited || l.inHand > 0
	return l.inHand == 0
}

// offerAgain makes an item in hand ready once more, at the head of its lane. It
// reports false, and does nothing, if the item's consumer channel is over.
func (l *lanes) offerAgain(it *item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.channel != l.current {
		return false
	}
	l.ready = append(l.ready, it)
	l.inHand--
	l.signalRoom()
	return true
}

// finishItem removes an item in hand. The item behind it is ready then. The intake is not woken for nothing: at low
// load that is a switch of goroutines for each message.
func (l *lanes) finishItem(it *item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items--
	l.bytes -= it.payloadSize()
	if it.channel == l.current {
		l.inHand--
	}
	if l.readyBehind(it) || l.awaited {
		l.signalRoom()
	}
}

// readyBehind makes the item ready that waits for it, and reports whether there is one. The caller holds mu.
func (l *lanes) readyBehind(it *item) bool {
	if it.key == "" {
		return false
	}
	behind := l.waiting[it.key]
	if len(behind) == 0 {
		delete(l.waiting, it.key)
		return false
	}
	l.waiting[it.key] = behind[1:]
	l.ready = append(l.ready, behind[0])
	return true
}

// dropItems ends the current consumer channel. It removes and returns the items that are not in hand.
func (l *lanes) dropItems() []*item {
	l.mu.Lock()
	defer l.mu.Unlock()
	dropped := l.ready
	if l.offered != nil {
		dropped = append([]*item{l.offered}, dropped...)
	}
	heads := len(dropped)
	for key, behind := range l.waiting {
		dropped = append(dropped, behind...)
		l.waiting[key] = nil
	}
	for _, head := range dropped[:heads] {
		delete(l.waiting, head.key)
	}
	l.current, l.offered, l.ready = nil, nil, nil
	l.items -= len(dropped)
	for _, it := range dropped {
		l.bytes -= it.payloadSize()
	}
	return dropped
}

// signalRoom wakes the intake. The caller holds mu.
func (l *lanes) signalRoom() {
	l.awaited = false
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// The prefetch follows the sizes of the messages in steps, because each step renews the
// subscription. It is computed from this period of deliveries and the one before.
const (
	// longPeriod is how many deliveries a period has at most.
	longPeriod = 512

	// shortPeriod is how many it must have to end at a look at the topology. A few small
	// messages say nothing about the next ones.
	shortPeriod = 32

	// growthFactor is how many times as large the prefetch must become, unless it reaches the
	// most that is allowed.
	growthFactor = 2
)

// sizes remembers the largest payload seen lately. One goroutine uses it.
type sizes struct {
	largest int // of this period
	before  int // largest of the period before
	seen    int // deliveries of this period
}

// addSize counts a delivery with so many bytes of payload.
func (z *sizes) addSize(bytes int) {
	z.largest = max(z.largest, bytes)
	if z.seen++; z.seen >= longPeriod {
		z.turnPeriod()
	}
}

// lookBack ends the period if it has seen enough.
func (z *sizes) lookBack() {
	if z.seen >= shortPeriod {
		z.turnPeriod()
	}
}

func (z *sizes) turnPeriod() { z.before, z.largest, z.seen = z.largest, 0, 0 }

// fitCount returns how many messages like the largest have limit bytes, at least 1 and at most most.
func (z *sizes) fitCount(limit, most int) int {
	largest := max(z.largest, z.before)
	if largest == 0 {
		return most
	}
	return max(1, min(limit/largest, most))
}

// prefetchCount returns how many messages the next consumer channel may be sent ahead of their acks.
func (s *subscription) prefetchCount() int {
	if s.single {
		return 1
	}
	return s.sizes.fitCount(s.subscriber.opts.PrefetchBytes, s.subscriber.opts.Prefetch)
}

// isMisfit reports whether cc is to be renewed with another prefetch: the payloads that are here
// have reached their limit, or all of a larger prefetch would have room.
func (s *subscription) isMisfit(cc *consumerChannel) bool {
	fit, most := s.prefetchCount(), s.subscriber.opts.Prefetch
	switch {
	case s.single:
		return false
	case fit < cc.prefetch:
		return s.lanes.isFull()
	}
	return fit > cc.prefetch && (fit == most || fit >= growthFactor*cc.prefetch)
}
