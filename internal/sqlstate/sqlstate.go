// Package sqlstate reads the error code in the error of a database, for packages that import no driver.
package sqlstate

import "errors"

// The codes of transactions that conflicted with others.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
)

// Conflict reports whether err is or wraps a serialization failure or a deadlock, as a pgconn.PgError
// or a pq.Error is one. The transaction has rolled back, and is likely to succeed if it runs again.
func Conflict(err error) bool {
	var e interface{ SQLState() string }
	return errors.As(err, &e) && (e.SQLState() == serializationFailure || e.SQLState() == deadlockDetected)
}
