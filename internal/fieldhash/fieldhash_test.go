package fieldhash_test

import (
	"crypto/sha256"
	"testing"

	"github.com/sagamill/sagamill/internal/fieldhash"
)

// The sums are out in the world.
func TestHexNeverChanges(t *testing.T) {
	t.Parallel()
	const want = "fb9abcb07180be92066c09ce253c0a060e4634fe3accf064b556d89a691c8e5f"
	if got := fieldhash.Hex(sha256.New(), "a", "", "bc"); got != want {
		t.Errorf("Hex = %s, want %s", got, want)
	}
}

func TestHexTellsFieldsApart(t *testing.T) {
	t.Parallel()
	seen := make(map[string][]string)
	for _, fields := range [][]string{{"ab", ""}, {"a", "b"}, {"", "ab"}, {"a\x00", "b"}, {"a", "\x00b"}} {
		sum := fieldhash.Hex(sha256.New(), fields...)
		if other, ok := seen[sum]; ok {
			t.Errorf("%q and %q have one sum", fields, other)
		}
		seen[sum] = fields
	}
}
