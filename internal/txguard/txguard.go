// Package txguard hands a transaction to code that may work in it but not end
// it: sagamill's own rows are in the same transaction, and only sagamill knows
// when they are complete.
package txguard

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// ErrManaged reports an attempt to end a transaction that belongs to the
// caller.
var ErrManaged = errors.New("the transaction is ended by sagamill, not by the handler")

// Wrap returns tx without the power to end it. Begin still opens a savepoint,
// which the holder ends itself.
func Wrap(tx pgx.Tx) pgx.Tx { return guarded{tx} }

type guarded struct{ pgx.Tx }

func (guarded) Commit(context.Context) error   { return ErrManaged }
func (guarded) Rollback(context.Context) error { return ErrManaged }

// InTransaction reports whether tx is open and not aborted. After a handler
// that sent COMMIT or ROLLBACK as SQL, or that swallowed an error, it is not.
func InTransaction(tx pgx.Tx) bool {
	const inTransaction = 'T' // of the protocol's ReadyForQuery message
	return tx.Conn().PgConn().TxStatus() == inTransaction
}
