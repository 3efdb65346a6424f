package idemkey_test

import (
	"errors"
	"fmt"
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
