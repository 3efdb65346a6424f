package idempg

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/sagamill/sagamill/idemkey"
)

// memoSize is how many keys a memo can tell apart: 64 KiB.
const memoSize = 8192

// A memo guesses whether this process has met a key before. A retry is then looked
// up, and a new key claimed, each by one statement. A wrong guess costs one more
// statement and has no other effect.
type memo struct {
	seed     maphash.Seed
	slots    [memoSize]atomic.Uint64
	claiming [memoSize]atomic.Uint64
}

func newMemo() *memo { return &memo{seed: maphash.MakeSeed()} }

// metBefore reports whether id was the last to use its slot, and makes it the last.
func (m *memo) metBefore(id idemkey.Identity) bool {
	h := maphash.Comparable(m.seed, id)
	return m.slots[h%memoSize].Swap(h) == h
}

// takeTurn reports whether the caller may claim id now: one at a time does so in
// this process. A claim waits for another process that has inserted the record and not yet
// committed. If that one hangs, further requests must not hang with it and hold a
// connection and a place each: they read the record, which never waits. done ends the turn.
func (m *memo) takeTurn(id idemkey.Identity) (done func(), ok bool) {
	h := maphash.Comparable(m.seed, id) | 1 // 0: the slot is free
	slot := &m.claiming[h%memoSize]
	if slot.CompareAndSwap(0, h) {
		return func() { slot.Store(0) }, true
	}
	return func() {}, slot.Load() != h // the slot is another key's: no harm
}
