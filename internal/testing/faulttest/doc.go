// Package faulttest strikes a process of its own at each named point
// (internal/failpoint), in each of the ways there are, and waits until it has been
// struck. What others do meanwhile, and what must be true afterwards, is the test's
// to say.
//
// A test names components, not points, so that a new point is struck too, and fails
// the test until the test knows what leads there. A process that does not come to its
// point fails the test: a fault that did not strike has shown nothing.
//
// The process is the test binary itself, whose TestMain does the work when the
// environment says so. It ends with the test at the latest.
package faulttest
