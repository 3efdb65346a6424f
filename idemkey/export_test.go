package idemkey

import (
	"container/heap"
	"time"
)

// Lapse makes the lease of id's record run out.
func (m *Memory) Lapse(id Identity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries[id].leaseUntil = m.now()
}

// Expire makes id's record expire.
func (m *Memory) Expire(id Identity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[id]
	e.rec.ExpiresAt = m.now().Add(-time.Hour)
	heap.Fix(&m.byAge, e.index)
}

// Stored returns id's record.
func (m *Memory) Stored(id Identity) Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries[id].readRecord(m.now())
}

// Swap puts a response into id's record.
func (m *Memory) Swap(r Response, id Identity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries[id].rec.Response = r
}
