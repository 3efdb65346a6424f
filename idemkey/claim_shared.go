package idemkey

import (
	"container/list"
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

// A waitingRoom holds the requests that wait for another one with the same key. They hold no connection and
// no place in the store.
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

// enterRoom returns nil if there is no room.
func (w *waitingRoom) enterRoom(id Identity) *waiters {
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

func (w *waitingRoom) leaveRoom(id Identity, g *waiters) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.total--
	if g.n--; g.n == 0 {
		delete(w.keys, id)
	}
}

// runEnded returns the channel that the next wakeWaiters closes.
func (w *waitingRoom) runEnded(g *waiters) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return g.done
}

// wakeWaiters lets the requests that wait for id ask the store again.
func (w *waitingRoom) wakeWaiters(id Identity) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if g := w.keys[id]; g != nil {
		close(g.done)
		g.done = make(chan struct{})
	}
}

// A scopeCount counts the handlers that run in this process, by scope.
type scopeCount struct {
	mu      sync.Mutex
	running map[string]int
}

// enterScope reports false if limit handlers of scope run already.
func (s *scopeCount) enterScope(scope string, limit int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[scope] >= limit {
		return false
	}
	s.running[scope]++
	return true
}

func (s *scopeCount) leaveScope(scope string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[scope]--; s.running[scope] == 0 {
		delete(s.running, scope)
	}
}

// routeSettings are the fingerprint settings of all routes of one middleware, by label. A key that
// is reused on another route meets a record that the other route's settings have made.
type routeSettings struct {
	mu      sync.Mutex
	byLabel map[string]*fingerprinter
}

// addSettings leaves Custom out: its Alg is not known before it is called.
func (s *routeSettings) addSettings(o *Options) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range append([]*fingerprinter{o.current}, o.older...) {
		if f.label != "" {
			s.byLabel[f.label] = f
		}
	}
}

// findSettings returns nil if no route has settings of that label.
func (s *routeSettings) findSettings(label string) *fingerprinter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byLabel[label]
}

// cacheLife bounds how long a response is replayed without asking the store.
const cacheLife = time.Minute

// A replayCache holds completed records of this process. It is sound because a completed record never
// changes before it expires, and because entries are found by the whole identity, scope included.
type replayCache struct {
	max int

	mu      sync.Mutex
	entries map[Identity]*list.Element
	byUse   *list.List // of *cached, the latest at the front
}

type cached struct {
	id    Identity
	rec   Record
	until time.Time // by this process's monotonic clock
}

func newReplayCache(size int) *replayCache {
	return &replayCache{max: size, entries: make(map[Identity]*list.Element), byUse: list.New()}
}

// findReplay decides c if it is a retry of a cached record. All other claims are the store's to decide.
func (h *replayCache) findReplay(c *Claim) (Decision, bool) {
	if h == nil || c.ID.Key == "" {
		return Decision{}, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[c.ID]
	if e == nil {
		return Decision{}, false
	}
	found := e.Value.(*cached)
	if !time.Now().Before(found.until) {
		h.dropEntry(e)
		return Decision{}, false
	}
	if c.Judge(&found.rec) != KindReplay {
		return Decision{}, false
	}
	h.byUse.MoveToFront(e)
	rec := found.rec
	rec.Response = rec.Response.cloneResponse()
	return Decision{Kind: KindReplay, Record: &rec}, true
}

// addRecord remembers rec, which had left of its life at the time of at or later.
func (h *replayCache) addRecord(id Identity, rec Record, left time.Duration, at time.Time) {
	if h == nil || rec.State != StateCompleted || left <= 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.entries[id]; e != nil {
		h.dropEntry(e)
	}
	rec.Response = rec.Response.cloneResponse()
	h.entries[id] = h.byUse.PushFront(&cached{id, rec, at.Add(min(left, cacheLife))})
	if h.byUse.Len() > h.max {
		h.dropEntry(h.byUse.Back())
	}
}

// dropEntry is called with mu held.
func (h *replayCache) dropEntry(e *list.Element) {
	delete(h.entries, h.byUse.Remove(e).(*cached).id)
}
