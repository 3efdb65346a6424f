package consumer

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

// boardSize is how many deliveries are on the board or in a lane, in batches for
// each lane, before subscriptions wait: one can fill up while another is handled.
const boardSize = 2

// An arrived is a delivery on its way to a lane.
type arrived struct {
	topic string
	msg   *message.Message
	step  *traffic // nil: it is nobody's, and becomes a dead letter
	alone bool     // it may not share a transaction
}

// A traffic is what lanes know of a step.
type traffic struct {
	pace  atomic.Int64 // nanoseconds that a handler takes, smoothed
	alone int          // lanes that have one of its messages alone; the board's
}

// note learns how long one handler took.
func (t *traffic) note(took time.Duration) {
	before := t.pace.Load()
	t.pace.Store(before + (int64(took)-before)/8)
}

// A board is where deliveries wait for lanes. Those of one saga go to one lane at
// a time, in their order, so that they neither overtake each other nor wait for
// one lock on many connections; nobody else waits for them.
type board struct {
	room  chan struct{} // holds one for each delivery on the board or in a lane
	lanes int           // that take from it
	steps int           // whose messages come

	mu     sync.Mutex
	more   sync.Cond // there may be something to take, or the board is closed
	sagas  map[string]*saga
	ready  []*saga // that no lane has, in the order of their first delivery
	closed bool
}

// A saga is deliveries with the same scope and key.
type saga struct {
	key     string
	waiting []arrived
}

// A load is what a lane has taken from the board.
type load struct {
	all   []arrived
	sagas []*saga
}

func newBoard(lanes, batch, steps int) *board {
	b := &board{room: make(chan struct{}, boardSize*lanes*batch), lanes: lanes, steps: steps, sagas: map[string]*saga{}}
	b.more.L = &b.mu
	return b
}

// put hangs a up. It waits while there is no room, and reports false if ctx ends
// first.
func (b *board) put(ctx context.Context, a arrived) bool {
	select {
	case b.room <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	key := sagaOf(a.msg)
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sagas[key]
	if s == nil {
		s = &saga{key: key}
		b.sagas[key] = s
		b.ready = append(b.ready, s)
		b.more.Signal()
	}
	s.waiting = append(s.waiting, a)
	return true
}

// sagaOf returns the scope and key of msg. What has none is as good as one saga:
// it only becomes dead letters.
func sagaOf(msg *message.Message) string {
	key := msg.Metadata.Get(outbox.HeaderKey)
	if colon := strings.LastIndexByte(key, ':'); colon >= 0 {
		key = key[:colon]
	}
	return msg.Metadata.Get(outbox.HeaderScope) + "\x00" + key
}

// take returns up to n deliveries whose handlers are likely to be through within
// the time given, or one. They and their sagas are the caller's until it returns
// them by free. It waits until there is something, and returns nothing once the
// board is closed and empty.
func (b *board) take(n int, within time.Duration) load {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if l := b.pick(n, int64(within)); len(l.all) > 0 {
			return l
		}
		if b.closed && len(b.ready) == 0 {
			return load{}
		}
		b.more.Wait()
	}
}

// pick is called by who holds mu. What is alone is picked only as the first.
func (b *board) pick(n int, within int64) (l load) {
	kept := b.ready[:0]
	for i, s := range b.ready {
		if len(l.all) == n || within < 0 || len(l.all) > 0 && l.all[0].alone {
			kept = append(kept, b.ready[i:]...)
			break
		}
		before := len(l.all)
		for len(s.waiting) > 0 && len(l.all) < n && within >= 0 && b.fits(s.waiting[0], l.all) {
			a := s.waiting[0]
			s.waiting = s.waiting[1:]
			l.all = append(l.all, a)
			if a.step != nil {
				within -= a.step.pace.Load()
			}
		}
		if len(l.all) == before {
			kept = append(kept, s)
			continue
		}
		l.sagas = append(l.sagas, s)
	}
	clear(b.ready[len(kept):])
	b.ready = kept
	if len(l.all) > 0 && l.all[0].alone && l.all[0].step != nil {
		l.all[0].step.alone++
	}
	return l
}

// fits reports whether a may go with others. No step gets the last lane for what
// is alone and may be slow, while there are other steps: it must not hold them up.
func (b *board) fits(a arrived, others []arrived) bool {
	if len(others) > 0 {
		return !a.alone && !others[0].alone
	}
	return !a.alone || a.step == nil || b.steps == 1 || b.lanes == 1 || b.closed || a.step.alone < b.lanes-1
}

// free takes back what a lane has not come to, and makes it and what has come for
// the same sagas meanwhile ready to be taken.
func (b *board) free(l load, left []arrived) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.all[0].alone && l.all[0].step != nil {
		l.all[0].step.alone--
	}
	for _, a := range slices.Backward(left) {
		s := b.sagas[sagaOf(a.msg)]
		s.waiting = slices.Insert(s.waiting, 0, a)
	}
	for range len(l.all) - len(left) {
		<-b.room
	}
	for _, s := range l.sagas {
		if len(s.waiting) == 0 {
			delete(b.sagas, s.key)
			continue
		}
		b.ready = append(b.ready, s)
	}
	b.more.Broadcast()
}

// close lets takers go on to the end.
func (b *board) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.more.Broadcast()
}
