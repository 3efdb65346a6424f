package idemkey

import (
	"container/list"
	"sync"
	"time"
)

// cacheLife bounds how long a response is replayed without asking the store.
const cacheLife = time.Minute

// A replayCache holds completed records of this process. It is sound because a
// completed record never changes before it expires; and it is asked by the
// whole identity, scope included.
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

// decide answers c if it is a retry of a cached record. All else is the
// store's to say.
func (h *replayCache) decide(c *Claim) (Decision, bool) {
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
		h.drop(e)
		return Decision{}, false
	}
	if c.Judge(&found.rec) != KindReplay {
		return Decision{}, false
	}
	h.byUse.MoveToFront(e)
	rec := found.rec
	rec.Response = rec.Response.clone()
	return Decision{Kind: KindReplay, Record: &rec}, true
}

// add remembers rec, which had left of its life at the time of at or later.
func (h *replayCache) add(id Identity, rec Record, left time.Duration, at time.Time) {
	if h == nil || rec.State != StateCompleted || left <= 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.entries[id]; e != nil {
		h.drop(e)
	}
	rec.Response = rec.Response.clone()
	h.entries[id] = h.byUse.PushFront(&cached{id, rec, at.Add(min(left, cacheLife))})
	if h.byUse.Len() > h.max {
		h.drop(h.byUse.Back())
	}
}

// drop is called with mu held.
func (h *replayCache) drop(e *list.Element) {
	delete(h.entries, h.byUse.Remove(e).(*cached).id)
}
