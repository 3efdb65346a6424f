//go:build race

package sagatest_test

// mostFaults bounds what is explored: with the race detector everything takes ten times as long.
const mostFaults = 2
