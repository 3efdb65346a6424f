// Package txguard hands a transaction to code that may work in it but not end
// it: sagamill's own rows are in the same transaction, and only sagamill knows
// when they are complete.
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

// Wrap returns tx without the power to end it, by its methods or by SQL that it is
// given to execute. Begin still opens a savepoint, which the holder ends itself.
// Its Conn is the bare one: see [StatusOf].
func Wrap(tx pgx.Tx) pgx.Tx { return guarded{tx} }

type guarded struct{ pgx.Tx }

func (guarded) Commit(context.Context) error   { return ErrManaged }
func (guarded) Rollback(context.Context) error { return ErrManaged }

func (g guarded) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if Ends(sql) {
		return pgconn.CommandTag{}, ErrManaged
	}
	return g.Tx.Exec(ctx, sql, args...)
}

func (g guarded) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if Ends(q.SQL) {
			return pgx.FailedBatchResults(b, ErrManaged)
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
