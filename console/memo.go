package console

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// A memo keeps values for a short time, so that several browsers with one page open cost one read. Nothing is read
// unless a request asks for it. The zero memo is empty.
type memo[T any] struct {
	limit   int // of the entries; default: maxMemoEntries
	mu      sync.Mutex
	entries map[string]*memoEntry[T]
}

type memoEntry[T any] struct {
	turn  chan struct{} // who has sent into it reads or sets the others
	value T
	until time.Time
}

// maxMemoEntries bounds the memory of keys that requests make up.
const maxMemoEntries = 512

// get returns the value of key, which read returned less than age ago. Concurrent calls with one key read once. An error
// is not kept. A call waits for another one until its own ctx ends.
func (m *memo[T]) get(ctx context.Context, key string, age time.Duration, read func(context.Context) (T, error)) (T, error) {
	e := m.entryOf(key)
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
	if time.Now().Before(e.until) {
		return e.value, nil
	}
	value, err := read(ctx)
	if err == nil {
		e.value, e.until = value, time.Now().Add(age)
	}
	return value, err
}

func (m *memo[T]) entryOf(key string) *memoEntry[T] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[key]; e != nil {
		return e
	}
	if len(m.entries) >= cmp.Or(m.limit, maxMemoEntries) || m.entries == nil {
		m.entries = map[string]*memoEntry[T]{}
	}
	e := &memoEntry[T]{turn: make(chan struct{}, 1)}
	m.entries[key] = e
	return e
}
