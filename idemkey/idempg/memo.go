package idempg

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/sagamill/sagamill/idemkey"
)

// memoSize is how many keys a memo can tell apart: 64 KiB.
const memoSize = 8192

// A memo guesses whether this process has met a key before, so that a retry is
// looked up and a new key claimed, each by one statement. A wrong guess costs a
// statement more and nothing else.
type memo struct {
	seed     maphash.Seed
	slots    [memoSize]atomic.Uint64
	claiming [memoSize]atomic.Uint64
}

func newMemo() *memo { return &memo{seed: maphash.MakeSeed()} }

// met reports whether id is the last that came by its slot, which it is from now on.
func (m *memo) metBefore(id idemkey.Identity) bool {
	h := maphash.Comparable(m.seed, id)
	return m.slots[h%memoSize].Swap(h) == h
}

// claim reports whether the caller may claim id now: one at a time does so in
// this process. A claim waits for whoever has inserted the record and not yet
// committed; if that should hang, the others do not hang with it, each on a
// connection and a place of its own: they read the record, which waits for nobody.
// done ends the turn.
func (m *memo) takeTurn(id idemkey.Identity) (done func(), ok bool) {
	h := maphash.Comparable(m.seed, id) | 1 // 0 is nobody
	slot := &m.claiming[h%memoSize]
	if slot.CompareAndSwap(0, h) {
		return func() { slot.Store(0) }, true
	}
	return func() {}, slot.Load() != h // the slot is another key's: no harm
}
