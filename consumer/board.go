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

const (
	// linger is how long a delivery may wait for company while another lane has a
	// batch: a transaction for each costs both sides a multiple of what they share.
	linger = 2 * time.Millisecond

	// worthwhile is how much work for handlers is enough for another lane.
	worthwhile = time.Millisecond
)

// An arrived is a delivery on its way to a lane.
type arrived struct {
	topic string
	msg   *message.Message
	at    time.Time // when it was put on the board
	step  *traffic  // nil: it is nobody's, and becomes a dead letter
	alone bool      // it may not share a transaction
	late  bool      // there was no time for it in a batch that it was in
}

// A traffic is what lanes know of a step.
type traffic struct {
	pace   atomic.Int64 // nanoseconds that a handler takes, smoothed
	direct atomic.Bool  // one has used its transaction, and had a savepoint in a batch
	alone  int          // lanes that have one of its messages alone; the board's
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
	bytes int           // of payload in a load of more than one delivery, at most
	steps int           // whose messages come

	mu     sync.Mutex
	more   sync.Cond // there may be something to take, or the board is closed
	sagas  map[string]*saga
	ready  []*saga // that no lane has, in the order of their first delivery
	busy   int     // lanes that have a batch
	timer  bool    // the end of somebody's linger will be told
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
	bytes int // of payload
}

func newBoard(opts *Options, steps int) *board {
	b := &board{room: make(chan struct{}, boardSize*opts.Lanes*opts.BatchSize), lanes: opts.Lanes, bytes: opts.BatchBytes, steps: steps, sagas: map[string]*saga{}}
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
	a.at = time.Now()
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
			b.handedOut(l)
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
		if len(l.all) == 0 && b.lingers(s.waiting[0], n) {
			kept = append(kept, s)
			continue
		}
		before := len(l.all)
		for len(s.waiting) > 0 && len(l.all) < n && within >= 0 && b.fits(s.waiting[0], l) {
			a := s.waiting[0]
			s.waiting = s.waiting[1:]
			l.all = append(l.all, a)
			l.bytes += len(a.msg.Payload)
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
	return l
}

// handedOut notes that a lane has l. If there is more, another one is told: nobody
// tells more than one.
func (b *board) handedOut(l load) {
	switch first := l.all[0]; {
	case !first.alone:
		b.busy++
	case first.step != nil:
		first.step.alone++
	}
	if len(b.ready) > 0 {
		b.more.Signal()
	}
}

// lingers reports whether a, which may share a transaction, is to wait until a
// lane that has a batch comes back: half of the lanes have one, or with the others it
// is not much, and it has not waited for long. Somebody is told when it has.
func (b *board) lingers(a arrived, n int) bool {
	switch {
	case a.alone || b.busy == 0 || b.closed:
		return false
	case b.busy >= max(1, b.lanes/2):
		return true // until one of them comes back
	case len(b.ready) >= n || time.Duration(len(b.ready))*time.Duration(a.step.pace.Load()) >= worthwhile:
		return false
	}
	left := linger - time.Since(a.at)
	if left <= 0 {
		return false
	}
	if !b.timer {
		b.timer = true
		time.AfterFunc(left, b.lingered)
	}
	return true
}

func (b *board) lingered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = false
	b.more.Signal()
}

// fits reports whether a may go with l. A payload for which l has no room left waits at
// the front, so that it is first in the next load. No step gets the last lane for what
// is alone and may be slow, while there are other steps: it must not hold them up.
func (b *board) fits(a arrived, l load) bool {
	if len(l.all) > 0 {
		return !a.alone && !l.all[0].alone && l.bytes+len(a.msg.Payload) <= b.bytes
	}
	return !a.alone || a.step == nil || b.steps == 1 || b.lanes == 1 || b.closed || a.step.alone < b.lanes-1
}

// free takes back what a lane has not come to, and makes it and what has come for
// the same sagas meanwhile ready to be taken.
func (b *board) free(l load, left []arrived) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch first := l.all[0]; {
	case !first.alone:
		b.busy--
	case first.step != nil:
		first.step.alone--
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
	b.more.Signal()
}

// close lets takers go on to the end.
func (b *board) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.more.Broadcast()
}
