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
	mu    sync.Mutex
	value T
	until time.Time
}

// maxMemoEntries bounds the memory of keys that requests make up.
const maxMemoEntries = 512

// get returns the value of key, which read returned less than age ago. Concurrent calls with one key read once. An error
// is not kept.
func (m *memo[T]) get(ctx context.Context, key string, age time.Duration, read func(context.Context) (T, error)) (T, error) {
	e := m.entryOf(key)
	e.mu.Lock()
	defer e.mu.Unlock()
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
	if len(m.entries) >= cmp.Or(m.limit, maxMemoEntries) || m.entries == nil {
		m.entries = map[string]*memoEntry[T]{}
	}
	e := m.entries[key]
	if e == nil {
		e = &memoEntry[T]{}
		m.entries[key] = e
	}
	return e
}
