package relaystorm

import (
	"maps"
	"slices"
	"sync"
)

// A message is one that a writer has written.
type message struct {
	id, key, topic string
	version        int64 // of the key, from 1 on without gaps
	round          int
}

// An arrival is one delivery to the test's consumer.
type arrival struct {
	id, key     string
	version     int64
	relay       string // the process that published it
	copy        string // unique for each publication, the same in a redelivery
	redelivered bool   // the broker's word
	overlapped  bool   // another relay was publishing when this one began to
}

// A history is what was committed, what was rolled back and what arrived, each in
// the order in which the test learnt of it.
type history struct {
	mu        sync.Mutex
	committed map[string]message // by id
	undone    map[string]message // rolled back
	awaited   map[string]message // committed and not arrived
	seen      map[string]bool    // arrived
	arrivals  []arrival
}

func newHistory() *history {
	return &history{
		committed: make(map[string]message), undone: make(map[string]message),
		awaited: make(map[string]message), seen: make(map[string]bool),
	}
}

// commit notes messages whose transaction has committed.
func (h *history) commit(messages ...message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range messages {
		h.committed[m.id] = m
		if !h.seen[m.id] {
			h.awaited[m.id] = m
		}
	}
}

// undo notes messages that must never arrive.
func (h *history) undo(messages ...message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range messages {
		h.undone[m.id] = m
	}
}

func (h *history) arrive(a arrival) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.arrivals = append(h.arrivals, a)
	h.seen[a.id] = true
	delete(h.awaited, a.id)
}

// missing returns the committed messages that have not arrived, without those of
// the topic but.
func (h *history) missing(but string) (messages []message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.awaited {
		if m.topic != but {
			messages = append(messages, m)
		}
	}
	return messages
}

// count returns how many deliveries there were.
func (h *history) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.arrivals)
}

// evidence returns a copy for the checker.
func (h *history) evidence() evidence {
	h.mu.Lock()
	defer h.mu.Unlock()
	return evidence{committed: maps.Clone(h.committed), undone: maps.Clone(h.undone), arrivals: slices.Clone(h.arrivals)}
}
