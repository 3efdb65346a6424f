// Package keysql has the statements about unknown outcomes of requests that packages idempg and operator share.
package keysql

import (
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// IsUnknown is the condition of a record whose outcome is unknown, unless its owner lives and holds the row lock.
const IsUnknown = `expires_at = 'infinity' AND (state = 5 OR state = 1 AND lease_until <= clock_timestamp())`

// ListUnknown lists the first $4 unknown outcomes behind namespace $1, scope $2 and key $3.
const ListUnknown = `
SELECT namespace, scope, key, attempt, created_at, extract(epoch FROM clock_timestamp() - lease_until)::float8, token, fp_alg FROM {schema}.idempotency_key
WHERE (namespace, scope, key) > ($1, $2, $3) AND ` + IsUnknown + `
ORDER BY namespace, scope, key LIMIT $4`

// CountUnknown counts the unknown outcomes of a scope, up to $3. It reads the records of the index that never expire: these,
// and those that run.
const CountUnknown = `
SELECT count(*) FROM (
	SELECT FROM {schema}.idempotency_key WHERE namespace = $1 AND scope = $2 AND ` + IsUnknown + ` LIMIT $3) u`

// Settle ends the unknown outcome of the run with token $4, by the arguments of SettleArgs. It changes no row if there is
// none, or if its owner lives. The token changes too, so that an owner that has been cut off cannot end its run after that. A lease that ended at the epoch says of a failed record that it was decided.
const Settle = `
WITH free AS MATERIALIZED (
	SELECT FROM {schema}.idempotency_key
	WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4::text::uuid AND ` + IsUnknown + `
	FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.idempotency_key
SET state = $5, resp_status = $6, resp_header = $7, resp_body = $8, enc_key_id = nullif($9, ''), token = gen_random_uuid(),
	completed_at = clock_timestamp(), lease_until = 'epoch', expires_at = clock_timestamp() + $10::bigint * interval '1 ms'
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4::text::uuid AND EXISTS (SELECT FROM free)`

// SettleArgs returns the arguments of Settle: u's outcome is r, or, if that is nil, its request may run again.
func SettleArgs(u idemkey.UnknownOutcome, r *idemkey.Response, ttl time.Duration) ([]any, error) {
	args := []any{u.ID.Namespace, u.ID.Scope, u.ID.Key, u.Token}
	if r == nil {
		return append(args, int(idemkey.StateFailed), nil, nil, nil, "", ttl.Milliseconds()), nil
	}
	header, err := r.MarshalHeader()
	return append(args, int(r.State()), r.Status, header, r.Body, r.KeyID, ttl.Milliseconds()), err
}
