package target_test

import (
	"testing"

	"github.com/sagamill/sagamill/bench/internal/target"
)

func TestTargetSaysWhetherItIsMet(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		target target.Target
		want   string
	}{
		{target.Target{Name: "rate", Value: 0.8, Goal: 0.8}, "target rate 0.80 >=0.8 ok"},
		{target.Target{Name: "rate", Value: 0.79, Goal: 0.8}, "target rate 0.79 >=0.8 short"},
		{target.Target{Name: "ms", Value: 10, Goal: 10, AtMost: true}, "target ms 10.00 <=10 ok"},
		{target.Target{Name: "ms", Value: 10.01, Goal: 10, AtMost: true}, "target ms 10.01 <=10 short"},
	} {
		if got := tt.target.String(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 3, 2}, 3},
	} {
		if got := target.MedianOf(tt.values); got != tt.want {
			t.Errorf("Median(%v) = %v, want %v", tt.values, got, tt.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	hundred := make([]int, 101)
	for i := range hundred {
		hundred[i] = 100 - i // it sorts
	}
	for _, tt := range []struct {
		values []int
		p      float64
		want   int
	}{
		{nil, 0.5, 0},
		{[]int{7}, 0.99, 7},
		{hundred, 0, 0},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
	} {
		if got := target.Percentile(tt.values, tt.p); got != tt.want {
			t.Errorf("Percentile(%d values, %v) = %d, want %d", len(tt.values), tt.p, got, tt.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("Percentile changed the order of its argument")
	}
}

func TestRatio(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		of, to []float64
		want   float64
		wantOK bool
	}{
		{nil, nil, 0, false},
		{[]float64{1}, nil, 0, false},
		{[]float64{4, 1, 9}, []float64{2, 1, 3}, 2, true}, // each round for itself
	} {
		if got, ok := target.RatioOf(tt.of, tt.to); got != tt.want || ok != tt.wantOK {
			t.Errorf("Ratio(%v, %v) = %v, %v, want %v, %v", tt.of, tt.to, got, ok, tt.want, tt.wantOK)
		}
	}
}
