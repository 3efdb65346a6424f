// Package matrixtest proves, point by point, what is true when a request is
// interrupted. Nothing is exported.
//
//   - TestEveryFailpoint: a process is killed, stopped past its lease, delayed or failed at each failpoint, on each store.
//   - TestFailureMatrix: where else it dies, hangs or loses its store, one row a point; one column a store.
//     Every cell is a process that serves HTTP, and a client that retries with the same key and the same body.
//   - TestStatuses: every problem that the middleware answers with, one row or more a code.
//   - TestTransitions: every transition of a record, as a client sees it, on every store.
//
// A store is added as an element of columns, and gets a failing cell for each row that does not say what it promises.
//
// # What no cell can show
//
// A Postgres that fails over to an asynchronous standby may lose its last commits. The business rows and the record of a
// request are one commit, so they are lost together, and the retry runs once on the new primary.
//
// The clock of an application's host decides nothing: no statement and no script is sent a time. TestNoHostTime, and
// TestClockSkew in package idemredis, look at what is sent. An idemkey.Memory reads the monotonic clock, which does not jump.
package matrixtest
