package sagatest

import "testing"

// A state that was reached with some faults is passed over only by who has no others left.
func TestKnown(t *testing.T) {
	t.Parallel()
	x := &search{seen: map[uint64][][faultKinds]int{}}
	for i, step := range []struct {
		hash uint64
		used [faultKinds]int
		want bool
	}{
		{1, [faultKinds]int{crash: 1}, false},
		{2, [faultKinds]int{crash: 1}, false},
		{1, [faultKinds]int{crash: 1}, true},
		{1, [faultKinds]int{crash: 2, early: 1}, true},
		{1, [faultKinds]int{early: 1}, false},
		{1, [faultKinds]int{}, false},
		{1, [faultKinds]int{early: 1, failing: 1}, true},
	} {
		if got := x.rememberState(step.hash, step.used); got != step.want {
			t.Errorf("%d: known = %t, want %t", i, got, step.want)
		}
	}
}
