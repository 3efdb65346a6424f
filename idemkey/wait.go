package idemkey

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// The limits of waiting for a request in flight. A client that guesses keys, or
// repeats one, must not pin the server's goroutines.
const (
	MaxWait          = 2 * time.Second // of Options.Limits.Wait
	MaxWaitersPerKey = 4
	MaxWaiters       = 64
)

// The pauses between two looks at a key that another process runs.
const (
	firstPause = 25 * time.Millisecond
	maxPause   = 250 * time.Millisecond
)

// A waitingRoom is where requests wait for another one with the same key. They
// hold no connection and no place in the store.
type waitingRoom struct {
	mu    sync.Mutex
	total int
	keys  map[Identity]*waiters
}

// waiters are those of one key.
type waiters struct {
	n    int
	done chan struct{} // closed when a run of the key has ended in this process
}

// enter returns nil if there is no room.
func (w *waitingRoom) enter(id Identity) *waiters {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.keys[id]
	if w.total >= MaxWaiters || g != nil && g.n >= MaxWaitersPerKey {
		return nil
	}
	if g == nil {
		g = &waiters{done: make(chan struct{})}
		w.keys[id] = g
	}
	g.n++
	w.total++
	return g
}

func (w *waitingRoom) leave(id Identity, g *waiters) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.total--
	if g.n--; g.n == 0 {
		delete(w.keys, id)
	}
}

// ended returns the channel that the next wake closes.
func (w *waitingRoom) ended(g *waiters) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return g.done
}

// wake tells those who wait for id to look again.
func (w *waitingRoom) wake(id Identity) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if g := w.keys[id]; g != nil {
		close(g.done)
		g.done = make(chan struct{})
	}
}

// await asks again until the key is no longer in flight, the time is over or
// the client has gone. If the other run failed, this one may proceed: it is the
// retry that the client would have sent.
func (x *exchange) await(c Claim, d Decision) (Decision, error) {
	room := x.m.room
	g := room.enter(c.ID)
	if g == nil {
		return d, nil
	}
	defer room.leave(c.ID, g)
	ctx, cancel := context.WithTimeout(x.r.Context(), x.m.opts.Limits.Wait)
	defer cancel()
	ended := room.ended(g) // before the first look: a run that ends in between is not missed
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		next, err := x.ask(c)
		if err != nil || next.Kind != KindInFlight {
			return next, err
		}
		d = next
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ended:
			ended = room.ended(g)
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return d, nil
		}
		timer.Stop()
	}
}
