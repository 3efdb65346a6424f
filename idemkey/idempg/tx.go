package idempg

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/txguard"
)

// ErrTxManaged reports an attempt to end a transaction that belongs to the
// middleware. The transaction goes on.
var ErrTxManaged = txguard.ErrManaged

// ErrSessionSetting reports a statement that would change a setting of the session, such as SET without LOCAL. The
// session serves other requests afterwards. The statement was not sent, and the transaction goes on.
var ErrSessionSetting = txguard.ErrSession

type txKey struct{}

// TxFrom returns the transaction that commits together with the idempotency
// record of the request that ctx belongs to. A request without a key has one
// as well.
func TxFrom(ctx context.Context) (pgx.Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(pgx.Tx)
	return tx, ok
}

// Tx is [TxFrom] for handlers that are mounted inside of a middleware on a
// [Store], where there always is a transaction. Without one it panics with an [idemkey.ErrNotIdempotent]. If a middleware
// is around the handler, and Methods or Skip of its options pass the request by, the middleware answers with 500
// [idemkey.CodeNotIdempotent].
func Tx(ctx context.Context) pgx.Tx {
	tx, ok := TxFrom(ctx)
	if !ok {
		panic(fmt.Errorf("idempg: no transaction: %w, on an idempg.Store; or this is not the request's own context, as a gin.Context is not", idemkey.ErrNotIdempotent))
	}
	return tx
}

// HandleTx returns a handler that runs fn in the request's transaction.
//
// When fn returns nil, the status it wrote decides: 2xx and 3xx commit, a 4xx
// rolls back and is kept for replays, a 5xx rolls back and may be retried. When fn
// returns an error, what it wrote is discarded and the transaction rolls back;
// the answer is what [idemkey.Fail] says.
//
// The transaction commits after fn has returned. Work that follows the commit,
// such as waking a relay, goes around the middleware's handler: when that
// returns, the outcome is durable.
func HandleTx(fn func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := fn(w, r, Tx(r.Context())); err != nil {
			idemkey.Fail(r.Context(), err)
		}
	})
}
