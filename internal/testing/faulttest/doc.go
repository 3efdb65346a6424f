// Package faulttest strikes a separate process at each named point (internal/failpoint), with each action,
// and waits until the fault has struck. The test says what other processes do meanwhile, and what must be
// true afterwards.
//
// A test names components, not points, so that new points are struck too. A new point fails the test until
// the test knows what leads there. A process that does not reach its point fails the test, because a fault
// that did not strike has shown nothing.
//
// The process is the test binary itself. An environment variable makes its TestMain do the work. It ends with
// the test at the latest.
package faulttest
