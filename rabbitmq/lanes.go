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
	epoch    *epoch
	delivery amqp.Delivery
	msg      *message.Message
	end      context.CancelFunc // of msg's context
	key      string             // "": in nobody's way
}

// size is how many bytes of payload it has.
func (it *item) size() int { return len(it.delivery.Body) }

// lanes decide which message of a subscription is handed over next. Of the
// items with one key the first is ready or in hand and the others wait behind it.
// Items in hand stay, with their lanes, when their epoch ends: its other
// messages come again and wait behind the old copy.
type lanes struct {
	limit     int           // of items
	byteLimit int           // of the payloads of all items but the last
	wake      chan struct{} // holds one: there is room again, or something ready

	mu      sync.Mutex
	current *epoch
	inHand  int // of the current epoch
	items   int
	bytes   int   // of their payloads
	offered *item // the first that is ready
	ready   []*item
	waiting map[string][]*item // has the key of every item that is ready or in hand
}

func newLanes(limit, byteLimit int) *lanes {
	return &lanes{limit: limit, byteLimit: byteLimit, wake: make(chan struct{}, 1), waiting: make(map[string][]*item)}
}

// begin makes e the epoch that items are taken from.
func (l *lanes) begin(e *epoch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current, l.inHand = e, 0
}

// add takes an item of the current epoch. It returns how many bytes of payload are here now.
func (l *lanes) add(it *item) (bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items++
	l.bytes += it.size()
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

// offer returns the item that is to be handed over, nil if none is ready, and
// whether there is room for one more. It is the same one until it is handed over.
func (l *lanes) offer() (it *item, room bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.offered == nil && len(l.ready) > 0 {
		l.offered, l.ready[0] = l.ready[0], nil
		l.ready = l.ready[1:]
	}
	return l.offered, l.items < l.limit && l.bytes < l.byteLimit
}

// full reports whether the payloads have reached their limit.
func (l *lanes) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes >= l.byteLimit
}

// handedOver says that the offered item is in hand now.
func (l *lanes) handedOver() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offered = nil
	l.inHand++
}

// free reports whether nothing of the current epoch is in hand.
func (l *lanes) free() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inHand == 0
}

// again makes an item in hand ready once more, at the head of its lane. It
// reports false, and does nothing, if the item's epoch is over.
func (l *lanes) again(it *item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.epoch != l.current {
		return false
	}
	l.ready = append(l.ready, it)
	l.inHand--
	l.signal()
	return true
}

// done removes an item in hand. What waits behind it is ready.
func (l *lanes) done(it *item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items--
	l.bytes -= it.size()
	if it.epoch == l.current {
		l.inHand--
	}
	l.signal()
	if it.key == "" {
		return
	}
	behind := l.waiting[it.key]
	if len(behind) == 0 {
		delete(l.waiting, it.key)
		return
	}
	l.waiting[it.key] = behind[1:]
	l.ready = append(l.ready, behind[0])
}

// drop ends the current epoch. It removes and returns what is not in hand.
func (l *lanes) drop() []*item {
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
		l.bytes -= it.size()
	}
	return dropped
}

func (l *lanes) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
