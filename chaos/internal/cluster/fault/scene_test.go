package fault

import "testing"

func TestMost(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		of, tiebreak [3]int
		want         int
	}{
		{[3]int{0, 5, 0}, [3]int{9, 0, 9}, 1},
		{[3]int{2, 1, 2}, [3]int{0, 9, 1}, 2},
		{[3]int{0, -1, 0}, [3]int{1, 9, 0}, 0},
		{[3]int{}, [3]int{}, 0},
	} {
		if got := indexOfMost(tt.of, tt.tiebreak); got != tt.want {
			t.Errorf("most of %v, then of %v: %d, want %d", tt.of, tt.tiebreak, got, tt.want)
		}
	}
}
