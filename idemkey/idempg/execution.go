package idempg

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/txguard"
)

// An execution owns one claim and the connection of its transaction.
type execution struct {
	s     *Store
	conn  *pgxpool.Conn
	tx    pgx.Tx // nil until it is open
	id    idemkey.Identity
	token pgtype.UUID
	ended sync.Once
}

func (e *execution) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, txKey{}, txguard.Wrap(e.tx))
}

// end gives connection and place back. A connection that is still in a
// transaction is closed by the pool, which rolls back. A second call does nothing.
func (e *execution) end() {
	e.ended.Do(func() {
		e.conn.Release()
		<-e.s.slot
	})
}

// Commit makes the business writes and the record durable together. It looks
// at the transaction's state first and at the command tag last: a COMMIT of a
// failed transaction is answered with ROLLBACK and no error.
func (e *execution) Commit(ctx context.Context, r idemkey.Response) error {
	defer e.end()
	if err := e.checkOpen(ctx); err != nil {
		return err
	}
	if e.id.Key != "" {
		changed, err := e.complete(ctx, e.tx, &r)
		if err != nil {
			return e.undo(ctx, rolledBack(err, "complete record"))
		}
		if !changed {
			return e.undo(ctx, idemkey.ErrLeaseLost)
		}
	}
	if err := failpoint.Hit("idempg/before-commit"); err != nil {
		return e.undo(ctx, &idemkey.CommitError{Err: err})
	}
	err := e.tx.Commit(ctx)
	if err == nil {
		err = failpoint.Hit("idempg/after-commit")
	}
	if err == nil {
		return nil
	}
	if refused(err) {
		return e.undo(ctx, rolledBack(err, "commit"))
	}
	return e.lookUp(ctx, fmt.Errorf("commit: %w", err))
}

// checkOpen returns why the transaction cannot be committed.
func (e *execution) checkOpen(ctx context.Context) error {
	switch conn := e.conn.Conn(); {
	case conn.IsClosed(): // the handler cancelled a statement; COMMIT was never sent
		return e.undo(ctx, &idemkey.CommitError{Err: errors.New("the connection was closed")})
	case txguard.StatusOf(conn) == txguard.Ended:
		return e.bury(ctx)
	case txguard.StatusOf(conn) == txguard.Aborted:
		return e.undo(ctx, &idemkey.CommitError{Err: pgx.ErrTxCommitRollback})
	}
	return nil
}

// bury leaves a tombstone where the handler has ended the transaction itself.
// What it committed cannot be taken back, so the request must never run again.
func (e *execution) bury(ctx context.Context) error {
	_ = e.rollback(ctx) // closes the handle, in case the handler has kept it
	if e.id.Key == "" {
		return idemkey.ErrTxMisuse
	}
	_, err := e.complete(ctx, e.s.pool, &idemkey.Response{Status: http.StatusInternalServerError, Dropped: true})
	return errors.Join(idemkey.ErrTxMisuse, err)
}

// An execer is a transaction or the pool.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// complete keeps r. It reports false if another owner has the record.
func (e *execution) complete(ctx context.Context, db execer, r *idemkey.Response) (bool, error) {
	header, err := r.MarshalHeader()
	if err != nil {
		return false, err
	}
	tag, err := db.Exec(ctx, e.s.q.completeRecord, e.id.Namespace, e.id.Scope, e.id.Key, e.token,
		int(r.State()), r.Status, header, r.Body, r.KeyID)
	return tag.RowsAffected() == 1, err
}

// undo rolls back and frees the key for the next attempt. It returns cause.
func (e *execution) undo(ctx context.Context, cause error) error {
	return errors.Join(cause, e.letGo(ctx, e.s.q.failRecord, e.id.Namespace, e.id.Scope, e.id.Key, e.token, 0))
}

// letGo rolls back and runs a statement that gives the record up.
func (e *execution) letGo(ctx context.Context, statement string, args ...any) error {
	if err := e.rollback(ctx); err != nil && ctx.Err() != nil {
		return err // no time left: the lease will tell
	}
	if e.id.Key == "" {
		return nil
	}
	// The statement skips a locked row. Where the connection was lost, the server
	// frees the lock a moment after the client has heard of it: without another
	// look the key would stay in progress until the grace is over.
	for range letGoTries {
		tag, err := e.after().Exec(ctx, statement, args...)
		if err != nil {
			return fmt.Errorf("idempg: release record: %w", err)
		}
		if tag.RowsAffected() > 0 || !e.conn.Conn().IsClosed() {
			return nil
		}
		select {
		case <-time.After(letGoPause):
		case <-ctx.Done():
			return nil // the lease will tell
		}
	}
	return nil
}

// How often a record whose row is still locked by a lost connection is looked
// at again, and after which pause.
const (
	letGoTries = 20
	letGoPause = 10 * time.Millisecond
)

// after returns what to run a statement on once the transaction has ended: its
// own connection, which saves another, or the pool if that is no longer usable.
func (e *execution) after() execer {
	if conn := e.conn.Conn(); !conn.IsClosed() && txguard.StatusOf(conn) == txguard.Ended {
		return e.conn
	}
	return e.s.pool
}

// rollback ends the transaction. On an error the connection is closed, and the
// server rolls back as soon as it notices.
func (e *execution) rollback(ctx context.Context) error {
	if err := e.tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		_ = e.conn.Conn().Close(ctx) // it is of no use any more
		return fmt.Errorf("idempg: roll back: %w", err)
	}
	return nil
}

// Reject rolls back and keeps r in a transaction of its own. A crash in between
// is harmless: the request runs again, and nothing was committed.
func (e *execution) Reject(ctx context.Context, r idemkey.Response) error {
	defer e.end()
	_ = e.rollback(ctx) // a connection that cannot roll back is closed
	if e.id.Key == "" {
		return nil
	}
	changed, err := e.complete(ctx, e.after(), &r)
	switch {
	case err != nil:
		if state, lookErr := e.state(ctx); lookErr == nil && state == r.State() {
			return nil // the reply was lost, not the update
		}
		return fmt.Errorf("idempg: keep response: %w", err)
	case !changed:
		return fmt.Errorf("idempg: keep response: %w", idemkey.ErrLeaseLost)
	}
	return nil
}

// Release rolls back and lets the record go. After an error the record lapses
// by itself, and the business writes are rolled back all the same.
func (e *execution) Release(ctx context.Context, mode idemkey.ReleaseMode, status int) error {
	defer e.end()
	if mode == idemkey.Forget {
		return e.letGo(ctx, e.s.q.forgetRecord, e.id.Namespace, e.id.Scope, e.id.Key, e.token)
	}
	return e.letGo(ctx, e.s.q.failRecord, e.id.Namespace, e.id.Scope, e.id.Key, e.token, status)
}

// lookUp finds out what became of a COMMIT whose reply was lost. The record
// committed with the business writes, so it is the answer; and while it is
// still in progress, its row lock tells whether the transaction is open yet.
func (e *execution) lookUp(ctx context.Context, cause error) error {
	_ = e.conn.Conn().Close(ctx) // what comes back on it now would answer another question
	if e.id.Key == "" {
		return fmt.Errorf("idempg: %w: %w", idemkey.ErrOutcomeUnknown, cause)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.s.opts.LookupTimeout)
	defer cancel()
	for try := range lookups {
		if try > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(e.s.opts.LookupTimeout / (2 * lookups)):
			}
		}
		known, err := e.verdict(ctx, cause)
		if known {
			return err
		}
	}
	return fmt.Errorf("idempg: %w: %w", idemkey.ErrOutcomeUnknown, cause)
}

// verdict asks once. If it is known, err is what Commit returns.
func (e *execution) verdict(ctx context.Context, cause error) (known bool, err error) {
	state, err := e.state(ctx)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return true, fmt.Errorf("idempg: %w", idemkey.ErrLeaseLost) // only over a transaction that had ended
	case err != nil:
		return false, nil
	case state == idemkey.StateCompleted, state == idemkey.StateTombstone:
		return true, nil
	}
	// In progress and not locked: the transaction has ended without a commit.
	tag, err := e.s.pool.Exec(ctx, e.s.q.failRecord, e.id.Namespace, e.id.Scope, e.id.Key, e.token, 0)
	if err != nil || tag.RowsAffected() == 0 {
		return false, nil
	}
	return true, fmt.Errorf("idempg: %w", &idemkey.CommitError{Err: cause})
}

// state reads what the record says of this claim, on another connection.
func (e *execution) state(ctx context.Context) (idemkey.State, error) {
	var state idemkey.State
	err := e.s.pool.QueryRow(ctx, e.s.q.readState, e.id.Namespace, e.id.Scope, e.id.Key, e.token).Scan(&state)
	return state, err
}

// refused reports that the server has answered and did not commit. A fatal
// error says nothing of the kind: the session may have ended after the commit.
func refused(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	pgErr := (*pgconn.PgError)(nil)
	return errors.As(err, &pgErr) && (pgErr.SeverityUnlocalized == "ERROR" || pgErr.Severity == "ERROR")
}

// rolledBack names what a definite failure means to the caller.
func rolledBack(err error, what string) error {
	switch {
	case conflict(err):
		return fmt.Errorf("idempg: %s: %w: %w", what, idemkey.ErrTxConflict, err)
	case refused(err):
		return fmt.Errorf("idempg: %s: %w", what, &idemkey.CommitError{Err: err})
	}
	return fmt.Errorf("idempg: %s: %w", what, err)
}
