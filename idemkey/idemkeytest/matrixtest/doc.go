// Package matrixtest proves, point by point, what is true when a request is
// interrupted. Nothing is exported.
//
//   - TestEveryFailpoint: a process is killed, stopped past its lease, delayed or failed at each failpoint, on each store.
//   - TestFailureMatrix: it dies, hangs or loses its store at other points; a row for each point, a column for each store.
//     Every cell is a process that serves HTTP, and a client that retries with the same key and the same body.
//   - TestStatuses: every problem that the middleware answers with, at least one row for each code.
//   - TestTransitions: every transition of a record, as a client sees it, on every store.
//
// A new store is an element of columns. A cell fails for each row that does not state the store's guarantee.
//
// # What no cell can show
//
// A Postgres that fails over to an asynchronous standby may lose its last commits. The business rows and the record
// of a request are one commit. They are lost together, and the retry runs once on the new primary.
//
// The clock of an application's host decides nothing: no statement and no script gets a time. TestNoHostTime, and
// TestClockSkew in package idemredis, check the statements and scripts. An idemkey.Memory reads the monotonic clock,
// which does not jump.
package matrixtest
