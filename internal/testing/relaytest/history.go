package relaytest

import (
	"maps"
	"slices"
	"sync"
)

// A Message is a message of a writer.
type Message struct {
	ID, Key, Topic string
	Version        int64 // of the key, rising
	Round          int
	Delayed        bool // it arrives after the versions before it; later ones need not wait for it
}

// A Body is a message's payload.
type Body struct {
	Key     string `json:"key"`
	Version int64  `json:"version"`
}

// An Arrival is one delivery to the test's consumer.
type Arrival struct {
	ID, Key     string
	Version     int64
	Relay       string // the process that published it, or "" if unknown
	Copy        string // unique for each publication, the same in a redelivery
	Redelivered bool   // the broker's word
	Overlapped  bool   // another relay was publishing when this one began to
}

// A History is what was committed, what was rolled back and what arrived, each in
// the order in which the test learnt of it.
type History struct {
	mu        sync.Mutex
	committed map[string]Message // by id
	undone    map[string]Message // rolled back
	awaited   map[string]Message // committed and not arrived
	seen      map[string]bool    // arrived
	arrivals  []Arrival
}

// NewHistory returns an empty history.
func NewHistory() *History {
	return &History{
		committed: make(map[string]Message), undone: make(map[string]Message),
		awaited: make(map[string]Message), seen: make(map[string]bool),
	}
}

// Commit notes messages whose transaction has committed.
func (h *History) Commit(messages ...Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range messages {
		h.committed[m.ID] = m
		if !h.seen[m.ID] {
			h.awaited[m.ID] = m
		}
	}
}

// Undo notes messages that must never arrive.
func (h *History) Undo(messages ...Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range messages {
		h.undone[m.ID] = m
	}
}

// Withdraw notes that the committed messages of topic were removed: they must never
// arrive.
func (h *History) Withdraw(topic string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, m := range h.committed {
		if m.Topic == topic {
			delete(h.committed, id)
			delete(h.awaited, id)
			h.undone[id] = m
		}
	}
}

// addArrival notes a delivery.
func (h *History) addArrival(a Arrival) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.arrivals = append(h.arrivals, a)
	h.seen[a.ID] = true
	delete(h.awaited, a.ID)
}

// Missing returns the committed messages that have not arrived, except those of the topic but.
func (h *History) Missing(but string) (messages []Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.awaited {
		if m.Topic != but {
			messages = append(messages, m)
		}
	}
	return messages
}

// Count returns the number of deliveries.
func (h *History) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.arrivals)
}

// Evidence returns a copy for the checker.
func (h *History) Evidence() Evidence {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Evidence{Committed: maps.Clone(h.committed), Undone: maps.Clone(h.undone), Arrivals: slices.Clone(h.arrivals)}
}
