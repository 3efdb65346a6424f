package inproc

import (
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

// A delivery is a message on its way to one service.
type delivery struct {
	message *message.Message
	parcel  *parcel
	again   bool // it was handed over before
}

// A lane holds the deliveries of one ordering identity. While its first delivery is in hand or held back, the
// lane is not in ready.
type lane struct {
	identity string // "" for a message without one, alone in its lane
	waiting  []delivery
}

// A queue holds the messages of one topic that one service has not acked yet.
type queue struct {
	mu    sync.Mutex
	lanes map[string]*lane // by identity
	ready []*lane          // whose first delivery may be handed over, oldest first
	wake  chan struct{}    // holds a value if ready may not be empty
}

func createQueue() *queue {
	return &queue{lanes: make(map[string]*lane), wake: make(chan struct{}, 1)}
}

// identityOf returns "" for a message without an idempotency key.
func identityOf(msg *message.Message) string {
	key := msg.Metadata[outbox.HeaderKey]
	if key == "" {
		return ""
	}
	if colon := strings.LastIndexByte(key, ':'); colon >= 0 {
		key = key[:colon]
	}
	return msg.Metadata[outbox.HeaderScope] + "\x00" + key
}

func (q *queue) putDelivery(d delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id := identityOf(d.message)
	l := q.lanes[id]
	if l != nil {
		l.waiting = append(l.waiting, d)
		return
	}
	l = &lane{identity: id, waiting: []delivery{d}}
	if id != "" {
		q.lanes[id] = l
	}
	q.offerLane(l)
}

// offerLane makes l ready. The caller holds the lock.
func (q *queue) offerLane(l *lane) {
	q.ready = append(q.ready, l)
	q.signalReaders()
}

func (q *queue) signalReaders() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// takeDelivery returns a ready lane and its first delivery. The caller gives it back by finishDelivery or
// retryLane. The lane is nil if none is ready.
func (q *queue) takeDelivery() (*lane, delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.ready) > 0 {
		l := q.ready[0]
		q.ready = q.ready[1:]
		if len(q.ready) > 0 {
			q.signalReaders() // two messages may have left one signal
		}
		if d := l.waiting[0]; !d.parcel.withdrawn.Load() {
			return l, d
		}
		q.shiftLane(l)
	}
	return nil, delivery{}
}

// finishDelivery removes the first delivery of l.
func (q *queue) finishDelivery(l *lane) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shiftLane(l)
}

// shiftLane removes the first delivery of l and makes the next one ready. The
// caller holds the lock.
func (q *queue) shiftLane(l *lane) {
	l.waiting[0] = delivery{}
	if l.waiting = l.waiting[1:]; len(l.waiting) > 0 {
		q.offerLane(l)
	} else {
		delete(q.lanes, l.identity)
	}
}

// retryLane makes the first delivery of l ready again. again says that a handler has had it.
func (q *queue) retryLane(l *lane, again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l.waiting[0].again = l.waiting[0].again || again
	q.offerLane(l)
}
