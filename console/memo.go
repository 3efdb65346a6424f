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

const (
	// maxMemoEntries bounds the memory of keys that requests make up.
	maxMemoEntries = 512

	// A value of getShared is kept for readShare times as long as its read took, if that is longer than its age, but not
	// longer than maxMemoAge. So what a page shows takes one part in readShare of a processor, or one read in a minute,
	// however large the tables are.
	readShare  = 300
	maxMemoAge = time.Minute
)

// get returns the value of key, which read returned less than age ago. Concurrent calls with one key read once. An error
// is not kept. A call waits for another one until its own ctx ends.
func (m *memo[T]) get(ctx context.Context, key string, age time.Duration, read func(context.Context) (T, error)) (T, error) {
	return m.getFor(ctx, key, func(time.Duration) time.Duration { return age }, read)
}

// getShared is get for what open pages read again and again: a value whose read took long is kept for longer.
func (m *memo[T]) getShared(ctx context.Context, key string, age time.Duration, read func(context.Context) (T, error)) (T, error) {
	return m.getFor(ctx, key, func(took time.Duration) time.Duration { return max(age, min(readShare*took, maxMemoAge)) }, read)
}

// getFor is get. A value is kept as long as keep says, which gets how long the read took.
func (m *memo[T]) getFor(ctx context.Context, key string, keep func(took time.Duration) time.Duration, read func(context.Context) (T, error)) (T, error) {
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
	begun := time.Now()
	value, err := read(ctx)
	if err == nil {
		e.value, e.until = value, time.Now().Add(keep(time.Since(begun)))
	}
	return value, err
}

// put makes value the one of key for age. It waits for nobody: if the key is being read, that read gives the value.
func (m *memo[T]) put(key string, age time.Duration, value T) {
	e := m.entryOf(key)
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
		e.value, e.until = value, time.Now().Add(age)
	default:
	}
}

// peek returns the value of key if get would return it without a read.
func (m *memo[T]) peek(key string) (value T, known bool) {
	e := m.entryOf(key)
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	default: // it is being read
		return value, false
	}
	if time.Now().Before(e.until) {
		return e.value, true
	}
	return value, false
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
