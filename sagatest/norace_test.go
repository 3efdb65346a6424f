//go:build !race

package sagatest_test

// mostFaults bounds what is explored.
const mostFaults = 4
