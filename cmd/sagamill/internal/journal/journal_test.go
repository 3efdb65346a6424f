package journal

import "testing"

func TestIDs(t *testing.T) {
	t.Parallel()
	if got := formatIDRange([]int64{1, 2, 3, 4, 5, 9}); got != "1…9" {
		t.Errorf("many ids are %q, want the first and the last", got)
	}
}
