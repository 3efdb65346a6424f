package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// ErrTerminal marks an error that no further attempt can change.
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

// A PanicError is the panic of a handler, or of another function of the user.
type PanicError struct {
	Value any
	Stack []byte
}

// Error does not repeat the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("consumer: the handler panicked: %v", e.Value)
}

// callGuarded returns the error of do, which calls a function of the user. A panic is a [PanicError]. It is
// [Terminal] if its value is an [outbox.ErrInvalid], as that of [outbox.JSON]: no attempt makes the message valid.
func callGuarded(do func() error) error {
	err := guard.Call(do)
	panicked, ok := err.(*guard.PanicError)
	if !ok {
		return err
	}
	if cause, ok := panicked.Value.(error); ok && errors.Is(cause, outbox.ErrInvalid) {
		return Terminal(invalidPanic{(*PanicError)(panicked)})
	}
	return (*PanicError)(panicked)
}

// An invalidPanic is a panic with an [outbox.ErrInvalid].
type invalidPanic struct{ *PanicError }

func (e invalidPanic) Unwrap() []error { return []error{e.PanicError, outbox.ErrInvalid} }

// MaxRetryAfter is the longest wait that a handler can ask for.
const MaxRetryAfter = 24 * time.Hour

// ErrParked marks an error that a person must decide about.
var ErrParked = errors.New("consumer: a person must decide")

type parkedError struct{ err error }

func (e parkedError) Error() string { return e.err.Error() }

func (e parkedError) Unwrap() []error { return []error{ErrParked, e.err} }

// Park wraps err so that the message becomes a dead letter at once, as by [Terminal], for another reason: the
// message is fine, but a person must look before the handler goes on, such as at a payment over a limit. The attempt
// is not counted. A redrive gives the message all its attempts again. An orchestrated saga waits for the person, or
// until the step's deadline: see package saga. nil stays nil.
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

// RetryAfter wraps err so that the next attempt is due in d, for an other side that has said when it makes sense. It
// counts like any other attempt: the last one leaves a dead letter. If d is not positive, the wait is the step's. It
// is MaxRetryAfter at most. nil stays nil. Of two in a chain the outer one counts; [Terminal] and [Park] have
// precedence.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return retryError{err, min(d, MaxRetryAfter)}
}

// waitAfter returns how long after cause, which ended the given attempt, the next one is due.
func (s *Step) waitAfter(cause error, attempt int) time.Duration {
	var asked retryError
	if errors.As(cause, &asked) && asked.after > 0 {
		return asked.after
	}
	return s.retryPolicy().Wait(attempt)
}

// isConflict reports whether a transaction lost against others: a serialization failure or a deadlock.
func isConflict(err error) bool {
	code := sqlState(err)
	return code == "40001" || code == "40P01"
}

// How often, and for how long, a handler is entered again at once after a deadlock or a serialization failure.
const (
	maxRepeats  = 5
	repeatLimit = 2 * time.Second
)

// repeatPolicy is the wait before that.
var repeatPolicy = backoff.Policy{Base: 20 * time.Millisecond, Cap: 400 * time.Millisecond}

// isContested reports whether err is a deadlock or a serialization failure that has left the transaction on conn open
// and aborted. What a handler asks for, such as [Terminal], has precedence. After an errTxInUse, conn is not looked at.
func isContested(conn *pgx.Conn, err error) bool {
	var asked retryError
	return isConflict(err) && !errors.Is(err, errTxInUse) && !conn.IsClosed() && !conn.PgConn().IsBusy() && txguard.StatusOf(conn) == txguard.Aborted &&
		!errors.Is(err, ErrTerminal) && !errors.Is(err, ErrParked) && !errors.As(err, &asked)
}

// isNoLogin reports whether the database refused the login, as with another password.
func isNoLogin(err error) bool {
	var refused *pgconn.ConnectError
	return errors.As(err, &refused)
}

// isUnavailable reports whether the server could not do its work: out of memory, disk or connections, shut down,
// read-only, or not reachable.
//
// The entry counts nevertheless: a step with MaxAttempts N is not entered more often, regardless of the fault. A
// server that is down hardly costs more than one entry: a handler is entered only after the same server has taken
// the claim of its message.
func isUnavailable(err error) bool {
	if sqlState(err) != "" {
		return pg.IsAway(err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return false // pgx gives a connection up where the handler's time was over
	}
	return errors.Is(err, errConnLost) || pg.IsAway(err)
}

func sqlState(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// ErrTxManaged reports that a handler called Commit or Rollback on its transaction. The transaction is unaffected.
var ErrTxManaged = txguard.ErrManaged

// ErrSessionSetting reports a statement of a handler that would change a setting of the session, such as SET without
// LOCAL. The session serves other messages afterwards. The statement was not sent, and the transaction is unaffected.
var ErrSessionSetting = txguard.ErrSession
