// Package target prints the results of this module's benchmarks and compares them with their goals.
package target

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A Target is a measured value with its goal.
type Target struct {
	Name   string
	Value  float64
	Goal   float64
	AtMost bool // the goal is an upper bound
}

// String returns the line: target NAME VALUE GOAL ok|short.
func (t Target) String() string {
	sign, verdict := ">=", "short"
	met := t.Value >= t.Goal
	if t.AtMost {
		sign, met = "<=", t.Value <= t.Goal
	}
	if met {
		verdict = "ok"
	}
	return fmt.Sprintf("target %s %.2f %s%g %s", t.Name, t.Value, sign, t.Goal, verdict)
}

// MedianOf returns the median of values: the greater middle one of an even number, and 0 of none.
func MedianOf(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// Percentile returns the value that a share p of values, between 0 and 1, does
// not exceed. Of no values it is zero.
func Percentile[T cmp.Ordered](values []T, p float64) T {
	if len(values) == 0 {
		var zero T
		return zero
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(p*float64(len(sorted)-1))]
}

// RatioOf returns the median of the rounds' ratios, if both were measured in each.
func RatioOf(of, to []float64) (ratio float64, ok bool) {
	if len(of) == 0 || len(of) != len(to) {
		return 0, false
	}
	each := make([]float64, len(of))
	for i := range of {
		each[i] = of[i] / to[i]
	}
	return MedianOf(each), true
}

// Milliseconds returns d in milliseconds.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
