package consumer

import (
	"fmt"
	"testing"
)

// Every cell of the state machine, for an arrival with the recorded payload.
func TestDecide(t *testing.T) {
	t.Parallel()
	type key struct {
		state        state
		kind         kind
		parked, once bool // once: Step.CancelParked
	}
	want := map[key]verdict{}
	set := func(s state, k kind, delivery, parkedCopy, deliveryCancels, parkedCancels verdict) {
		want[key{s, k, false, false}], want[key{s, k, true, false}] = delivery, parkedCopy
		want[key{s, k, false, true}], want[key{s, k, true, true}] = deliveryCancels, parkedCancels
	}
	for _, s := range []state{void, compensated} {
		set(s, action, superseded, superseded, superseded, superseded)
	}
	for _, s := range []state{done, refused, undoing, undoDead, dead} {
		set(s, action, duplicate, duplicate, duplicate, duplicate)
	}
	for _, s := range []state{absent, open} {
		set(s, action, run, run, run, run)
		set(s, compensation, tombstone, tombstone, tombstone, tombstone)
	}
	set(retrying, action, duplicate, run, duplicate, run)

	set(done, compensation, run, run, run, run)
	set(refused, compensation, tombstone, tombstone, tombstone, tombstone)
	set(undoing, compensation, duplicate, run, duplicate, run)
	for _, s := range []state{void, compensated, undoDead} {
		set(s, compensation, duplicate, duplicate, duplicate, duplicate)
	}
	set(retrying, compensation, wait, wait, tombstone, tombstone)
	set(dead, compensation, refuse, refuse, tombstone, tombstone)

	same, other := []byte("same"), []byte("other")
	for k, v := range want {
		t.Run(fmt.Sprintf("%s %s parked=%t cancels=%t", k.state, k.kind, k.parked, k.once), func(t *testing.T) {
			c := cell{state: k.state}
			a := arrival{kind: k.kind, digest: same, parked: k.parked, cancelParked: k.once}
			if got := decide(c, a); got != v {
				t.Errorf("nothing recorded: %s, want %s", got, v)
			}
			known := v
			if k.kind == compensation && (k.state == retrying || k.state == dead) {
				known = tombstone
			}
			if got := decide(cell{state: k.state, notDone: true}, a); got != known {
				t.Errorf("known to have done nothing: %s, want %s", got, known)
			}
			c.digest, c.undoDigest = same, same
			recorded := v
			if k == (key{done, compensation, false, k.once}) {
				recorded = duplicate // it was parked behind the action: the parked copy wins
			}
			if got := decide(c, a); got != recorded {
				t.Errorf("same payload recorded: %s, want %s", got, recorded)
			}
			c.digest, c.undoDigest = other, other
			if got := decide(c, a); got != reused {
				t.Errorf("other payload recorded: %s, want %s", got, v)
			}
		})
	}
	// A crashed attempt may have had an effect outside the database.
	if got := decide(cell{state: open, attempts: 1}, arrival{kind: compensation}); got != wait {
		t.Errorf("compensation after a crashed attempt: %s, want wait", got)
	}
}
