// Package txguard hands a transaction to code that may work in it but must not end it. Rows of sagamill are
// in the same transaction, and only sagamill knows when they are complete. The package also has the limits of such a
// transaction: see LimitTransaction.
package txguard

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrManaged reports an attempt to end a transaction that belongs to the
// caller.
var ErrManaged = errors.New("the transaction is ended by sagamill, not by the handler")

// Wrap returns tx without the power to end it, neither by its methods nor by SQL, or to change settings of the session:
// see [Ends] and [ChangesSession]. Begin still opens a savepoint, which the holder ends itself. Its Conn is the unguarded
// connection: see [StatusOf].
func Wrap(tx pgx.Tx) pgx.Tx {
	return guarded{tx, func(sql string) error {
		switch {
		case Ends(sql):
			return ErrManaged
		case ChangesSession(sql):
			return ErrSession
		}
		return nil
	}}
}

// WrapSession is [Wrap] where the owner of tx itself finds out that it was ended by SQL.
func WrapSession(tx pgx.Tx) pgx.Tx {
	return guarded{tx, func(sql string) error {
		if ChangesSession(sql) {
			return ErrSession
		}
		return nil
	}}
}

// Unwrap returns the transaction that Wrap or WrapSession was given, and any other tx as it is.
func Unwrap(tx pgx.Tx) pgx.Tx {
	if g, ok := tx.(guarded); ok {
		return g.Tx
	}
	return tx
}

type guarded struct {
	pgx.Tx
	refuse func(sql string) error // returns why sql is not sent
}

func (guarded) Commit(context.Context) error   { return ErrManaged }
func (guarded) Rollback(context.Context) error { return ErrManaged }

func (g guarded) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := g.refuse(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	return g.Tx.Exec(ctx, sql, args...)
}

func (g guarded) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := g.refuse(sql); err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{QueuedQueries: []*pgx.QueuedQuery{{}}}, err).Query()
	}
	return g.Tx.Query(ctx, sql, args...)
}

func (g guarded) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := g.refuse(sql); err != nil {
		return refused{err}
	}
	return g.Tx.QueryRow(ctx, sql, args...)
}

// refused is the row of a statement that was not sent.
type refused struct{ err error }

func (r refused) Scan(...any) error { return r.err }

// Begin returns a savepoint that is guarded too. Its holder ends it by its methods.
func (g guarded) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, err := g.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return part{guarded{inner, g.refuse}}, nil
}

// A part is a guarded savepoint.
type part struct{ guarded }

func (p part) Commit(ctx context.Context) error   { return p.guarded.Tx.Commit(ctx) }
func (p part) Rollback(ctx context.Context) error { return p.guarded.Tx.Rollback(ctx) }

func (g guarded) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if err := g.refuse(q.SQL); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
	}
	return g.Tx.SendBatch(ctx, b)
}

// A Status is the server's view of a transaction, after its last answer.
type Status byte

// The values, of the protocol's ReadyForQuery message.
const (
	Ended   Status = 'I' // the holder sent COMMIT or ROLLBACK as SQL
	Open    Status = 'T'
	Aborted Status = 'E' // a statement failed; a COMMIT would be answered ROLLBACK
)

// StatusOf returns the status of the transaction on conn, without asking the
// server again.
func StatusOf(conn *pgx.Conn) Status { return Status(conn.PgConn().TxStatus()) }
