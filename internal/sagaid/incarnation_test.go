package sagaid

import (
	"fmt"
	"testing"
	"time"
)

// A record that is made again after its life has another name, always. Within its life it has the same, but for the keys
// whose span ends in between: after a loss of a minute 1 of 1,440, for a TTL of a day.
func TestIncarnations(t *testing.T) {
	t.Parallel()
	const ttl, keys = 24 * time.Hour, 4000
	begun := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC) // when spans without an offset would all begin
	changed := 0
	for i := range keys {
		life := NewLife("http", "s", fmt.Sprint(i), ttl)
		first := life.Incarnation(begun)
		for _, later := range []time.Duration{ttl, ttl + time.Microsecond, 2*ttl - time.Millisecond, 2 * ttl, 90 * ttl} {
			if life.Incarnation(begun.Add(later)) == first {
				t.Fatalf("key %d has one name for lives that are %v apart", i, later)
			}
		}
		if life.Incarnation(begun.Add(-time.Minute)) != first {
			changed++
		}
	}
	if changed > keys/100 {
		t.Errorf("%d of %d keys have another name after a loss of a minute", changed, keys)
	}
	name := NewLife("http", "s", "k", ttl).Incarnation(begun)
	for what, other := range map[string]Life{
		"namespace": NewLife("http:r", "s", "k", ttl), "TTL": NewLife("http", "s", "k", ttl+time.Millisecond), "key": NewLife("http", "s", "k2", ttl),
	} {
		if other.Incarnation(begun) == name {
			t.Errorf("another %s has the same name", what)
		}
	}
}
