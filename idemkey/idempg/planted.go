package idempg

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// What this file does is wrong. It is in no binary but one that is built with the
// tag of a bug of package planted.

// notSent reports whether err is of a COMMIT of which pgx says that nothing was sent.
func notSent(err error) bool { return pgconn.SafeToRetry(err) }

const sqlForgetAny = `
DELETE FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4`

// forget makes the key new without a look at what the record says.
func (e *execution) forget(ctx context.Context, cause error) error {
	e.closed()
	_, err := e.s.pool.Exec(ctx, sqlschema.Bind(e.s.opts.Schema, sqlForgetAny), e.id.Namespace, e.id.Scope, e.id.Key, e.token)
	return errors.Join(&idemkey.CommitError{Err: cause}, err)
}

// acceptStale lets an owner that was overtaken run the request and keep its response.
func (q *queries) acceptStale() {
	q.lockRecord = strings.Replace(q.lockRecord, "token = $7 AND state = 1", "$7::uuid IS NOT NULL", 1)
	q.commitRecord = strings.Replace(q.commitRecord, "token = $4 AND state = 1", "$4::uuid IS NOT NULL", 1)
}
