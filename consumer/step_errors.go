package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/pgaway"
)

// ErrTerminal marks an error that no further attempt can mend.
var ErrTerminal = errors.New("consumer: terminal error")

type terminalError struct{ err error }

func (e terminalError) Error() string { return e.err.Error() }

func (e terminalError) Unwrap() []error { return []error{ErrTerminal, e.err} }

// Terminal wraps err so that the message becomes a dead letter at once. nil stays
// nil.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return terminalError{err}
}

// The reasons that go with the errors of this file.
const (
	ReasonParked      Reason = "parked"               // the handler said that a person must decide
	ReasonUnavailable Reason = "database-unavailable" // MaxAttempts entries, the last of which failed by the server's condition
)

// A PanicError is the panic of a handler, or of another function that the user has given.
type PanicError struct {
	Value any
	Stack []byte
}

// Error does not repeat the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("consumer: the handler panicked: %v", e.Value)
}

// guarded returns the error of do, which calls a function of the user's. A panic is a
// [PanicError].
func guarded(do func() error) error {
	err := guard.Call(do)
	if panicked, ok := err.(*guard.PanicError); ok {
		return (*PanicError)(panicked)
	}
	return err
}

// MaxRetryAfter is the longest wait that a handler can ask for.
const MaxRetryAfter = 24 * time.Hour

// ErrParked marks an error that a person must decide about.
var ErrParked = errors.New("consumer: a person must decide")

type parkedError struct{ err error }

func (e parkedError) Error() string { return e.err.Error() }

func (e parkedError) Unwrap() []error { return []error{ErrParked, e.err} }

// Park wraps err so that the message becomes a dead letter at once, as by
// [Terminal], for another reason: nothing is wrong with it, but somebody must
// look before the handler goes on, such as at a payment over a limit. The attempt
// costs nothing: redriven, the message has as many left as before. nil stays nil.
func Park(err error) error {
	if err == nil {
		return nil
	}
	return parkedError{err}
}

type retryError struct {
	err   error
	after time.Duration
}

func (e retryError) Error() string { return e.err.Error() }

func (e retryError) Unwrap() error { return e.err }

// RetryAfter wraps err so that the next attempt is due in d, where the other side
// has said when it makes sense. It counts like any other: the last one leaves a
// dead letter. Without a d of its own, the wait is the step's; it is MaxRetryAfter
// at most. nil stays nil; of two in a chain the outer one counts, and [Terminal]
// and [Park] have precedence.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return retryError{err, min(d, MaxRetryAfter)}
}

// conflictBase is the ceiling of the wait after a first lost race for a lock.
const conflictBase = 20 * time.Millisecond

// wait returns how long after cause, which ended the given attempt, the next one
// is due. One that lost against another transaction need not wait for as long as
// one that met something broken.
func (s *Step) wait(cause error, attempt int) time.Duration {
	var asked retryError
	switch {
	case errors.As(cause, &asked) && asked.after > 0:
		return asked.after
	case isConflict(cause):
		return backoff.Policy{Base: min(conflictBase, s.RetryBase), Cap: s.RetryCap}.Wait(attempt)
	}
	return s.retry().Wait(attempt)
}

// isConflict reports whether a transaction was the victim of others: a
// serialization failure or a deadlock.
func isConflict(err error) bool {
	code := sqlState(err)
	return code == "40001" || code == "40P01"
}

// isNoLogin reports whether nobody could log in to the database, as with another password.
func isNoLogin(err error) bool {
	var refused *pgconn.ConnectError
	return errors.As(err, &refused)
}

// isUnavailable reports whether the server was not in a condition to do its work:
// out of memory, disk or connections, shut down, read-only, or not there.
//
// The entry counts nevertheless: a step that may be entered N times is not
// entered more often, whoever's fault it was. An ill server costs hardly more than
// one: no handler is entered before the same server has taken the claim of its
// message.
func isUnavailable(err error) bool {
	if sqlState(err) != "" {
		return pgaway.Is(err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return false // pgx gives a connection up where the handler's time was over
	}
	return errors.Is(err, errConnLost) || pgaway.Is(err)
}

func sqlState(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
