package idemkey_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
)

func newMemory(t *testing.T, opts *idemkey.MemoryOptions) *idemkey.Memory {
	t.Helper()
	m, err := idemkey.NewMemory(opts)
	if err != nil {
		t.Fatalf("NewMemory: %v", err)
	}
	return m
}

func TestMemory(t *testing.T) {
	t.Parallel()
	idemkeytest.Run(t, func(t *testing.T) idemkeytest.Subject {
		m := newMemory(t, nil)
		return idemkeytest.Subject{
			Store:  m,
			Crash:  func(_ testing.TB, id idemkey.Identity, _ idemkey.Execution) { m.Lapse(id) },
			Expire: func(_ testing.TB, id idemkey.Identity) { m.Expire(id) },
		}
	})
}

// An owner whose record was swept finds that its response was not stored.
func TestMemorySweptOwner(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		end  func(idemkey.Execution) error
		want error
	}{
		{func(e idemkey.Execution) error { return e.Commit(t.Context(), idemkey.Response{Status: 200}) }, idemkey.ErrNotStored},
		{func(e idemkey.Execution) error { return e.Release(t.Context(), idemkey.Forget, 500) }, nil},
	} {
		m := newMemory(t, nil)
		c := idemkeytest.Claim("k", "a")
		d, err := m.Begin(t.Context(), c)
		if err != nil {
			t.Fatalf("Begin: %v", err)
		}
		m.Lapse(c.ID)
		m.Expire(c.ID)
		if n, err := m.Sweep(t.Context(), 1); n != 1 || err != nil {
			t.Fatalf("Sweep = %d, %v; want 1", n, err)
		}
		if err := tt.end(d.Exec); !errors.Is(err, tt.want) {
			t.Errorf("late end: %v, want %v", err, tt.want)
		}
		if d, err := m.Begin(t.Context(), c); err != nil || d.Kind != idemkey.KindProceed || d.Attempt != 1 {
			t.Errorf("Begin = %+v, %v; want attempt 1", d, err)
		}
	}
}

// A full store makes room by what has expired and refuses a new key otherwise.
func TestMemoryMaxEntries(t *testing.T) {
	t.Parallel()
	const limit = 3
	m := newMemory(t, &idemkey.MemoryOptions{MaxEntries: limit})
	for i := range limit {
		d, err := m.Begin(t.Context(), idemkeytest.Claim(fmt.Sprint(i), "a"))
		if err != nil {
			t.Fatalf("Begin %d: %v", i, err)
		}
		if err := d.Exec.Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
			t.Fatalf("Commit %d: %v", i, err)
		}
	}
	if _, err := m.Begin(t.Context(), idemkeytest.Claim("more", "a")); !errors.Is(err, idemkey.ErrCapacity) {
		t.Errorf("Begin over the limit: %v, want ErrCapacity", err)
	}
	if d, err := m.Begin(t.Context(), idemkeytest.Claim("1", "a")); err != nil || d.Kind != idemkey.KindReplay {
		t.Errorf("Begin of a stored key = %d, %v; want a replay", d.Kind, err)
	}
	m.Expire(idemkeytest.Claim("1", "a").ID)
	if d, err := m.Begin(t.Context(), idemkeytest.Claim("more", "a")); err != nil || d.Kind != idemkey.KindProceed {
		t.Errorf("Begin after expiry = %d, %v; want to proceed", d.Kind, err)
	}
	if _, err := idemkey.NewMemory(&idemkey.MemoryOptions{MaxEntries: -1}); err == nil {
		t.Error("NewMemory accepted a negative limit")
	}
}

// One scope cannot fill the store for the others: its live records are counted,
// and only new keys are refused.
func TestMemoryMaxPerScope(t *testing.T) {
	t.Parallel()
	m := newMemory(t, &idemkey.MemoryOptions{MaxPerScope: 2})
	claim := func(scope, key string) idemkey.Claim {
		c := idemkeytest.Claim(key, "a")
		c.ID.Scope = scope
		return c
	}
	keep := func(c idemkey.Claim) {
		t.Helper()
		d, err := m.Begin(t.Context(), c)
		if err != nil || d.Kind != idemkey.KindProceed {
			t.Fatalf("Begin = %d, %v; want to proceed", d.Kind, err)
		}
		if err := d.Exec.Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(c idemkey.Claim) {
		t.Helper()
		if _, err := m.Begin(t.Context(), c); !errors.Is(err, idemkey.ErrCapacity) || !strings.Contains(err.Error(), "MemoryOptions.MaxPerScope") {
			t.Errorf("Begin over the quota: %v, want ErrCapacity that names it", err)
		}
	}
	keep(claim("a", "1"))
	keep(claim("a", "2"))
	refused(claim("a", "3"))
	keep(claim("b", "3"))
	if d, err := m.Begin(t.Context(), claim("a", "2")); err != nil || d.Kind != idemkey.KindReplay {
		t.Errorf("Begin of a stored key = %d, %v; want a replay", d.Kind, err)
	}
	m.Expire(claim("a", "1").ID)
	keep(claim("a", "1")) // as new, in its own place
	refused(claim("a", "3"))
	m.Expire(claim("a", "2").ID)
	d, err := m.Begin(t.Context(), claim("a", "3")) // in the place of the expired one
	if err != nil {
		t.Fatalf("Begin after expiry: %v", err)
	}
	refused(claim("a", "4"))
	if err := d.Exec.Release(t.Context(), idemkey.Forget, 400); err != nil {
		t.Fatal(err)
	}
	keep(claim("a", "4")) // in the place of the forgotten one
	if _, err := idemkey.NewMemory(&idemkey.MemoryOptions{MaxPerScope: -1}); err == nil {
		t.Error("NewMemory accepted a negative quota")
	}
}

// Find says what Begin would, and claims nothing.
func TestMemoryFind(t *testing.T) {
	t.Parallel()
	testFind(t, newMemory(t, nil))
}

// testFind puts a Finder through the states.
func testFind(t *testing.T, store interface {
	idemkey.Store
	idemkey.Finder
}) {
	find := func(c idemkey.Claim, want idemkey.Kind) {
		t.Helper()
		d, decided, err := store.Find(t.Context(), c)
		if err != nil || decided != (want != 0) || d.Kind != want || d.Exec != nil {
			t.Errorf("Find = %+v, %t, %v; want kind %d", d, decided, err, want)
		}
		if want == idemkey.KindReplay && string(d.Record.Response.Body) != "body" {
			t.Errorf("Find found %+v", d.Record)
		}
	}
	c, other := idemkeytest.Claim("k", "a"), idemkeytest.Claim("k", "b")
	find(c, 0)
	d, err := store.Begin(t.Context(), c)
	if err != nil || d.Kind != idemkey.KindProceed {
		t.Fatalf("Begin after Find = %d, %v; want to proceed", d.Kind, err)
	}
	find(c, idemkey.KindInFlight)
	find(other, idemkey.KindMismatch)
	if err := d.Exec.Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Fatal(err)
	}
	find(c, 0)
	if d, err = store.Begin(t.Context(), c); err != nil || d.Attempt != 2 {
		t.Fatalf("Begin after Find = %+v, %v; want attempt 2", d, err)
	}
	if err := d.Exec.Commit(t.Context(), idemkey.Response{Status: 200, Body: []byte("body")}); err != nil {
		t.Fatal(err)
	}
	find(c, idemkey.KindReplay)
	c.ID.Key = ""
	find(c, 0)
	if _, _, err := store.Find(t.Context(), idemkey.Claim{}); err == nil {
		t.Error("Find accepted an empty claim")
	}
}
