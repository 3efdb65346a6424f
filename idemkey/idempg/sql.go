package idempg

import "github.com/sagamill/sagamill/internal/sqlschema"

// sqlInsertClaim makes the caller the owner of an absent key, in a transaction
// of its own. A concurrent claim waits for the other insert, which commits at
// once. DO NOTHING, since DO UPDATE would wait for a running owner's row lock
// even where its WHERE is false. While an owner is between its last update and
// its commit, this waits too, up to lock_timeout. The commit is asynchronous: a
// claim that is lost with the server has committed nothing.
const sqlInsertClaim = `
WITH setting AS MATERIALIZED (
	SELECT set_config('synchronous_commit', 'off', true) AS durable, set_config('lock_timeout', $9::text, true) AS wait
)
INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
SELECT $1::text, $2::text, $3::text, 1, $4::bytea, $5::text, $6::uuid, 1,
	clock_timestamp() + $7::bigint * interval '1 ms', clock_timestamp() + $8::bigint * interval '1 ms'
FROM setting WHERE durable = 'off' AND wait <> ''
ON CONFLICT (namespace, scope, key) DO NOTHING
RETURNING expires_at`

// sqlReadRecord reads what is committed, without waiting for anybody.
const sqlReadRecord = `
SELECT state, fp, fp_alg, token, attempt,
	greatest(0, ceil(extract(epoch FROM lease_until - clock_timestamp()) * 1000))::bigint AS lease_left,
	expires_at <= clock_timestamp() AS expired, expires_at,
	greatest(0, floor(extract(epoch FROM expires_at - clock_timestamp()) * 1000))::bigint AS life_left,
	resp_status, resp_header, resp_body, coalesce(enc_key_id, '') AS enc_key_id
FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3`

// sqlTakeOver makes the caller the owner of a record that was read with token
// $4, unless the record has changed since or its owner still holds the row lock:
// the lock, not the clock, proves that an owner lives. It never changes a
// completed record that has not expired.
const sqlTakeOver = `
WITH free AS MATERIALIZED (
	SELECT 1 FROM {schema}.idempotency_key
	WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND (state = 2
		OR state = 1 AND lease_until <= clock_timestamp()
		OR state IN (3, 4) AND expires_at <= clock_timestamp())
	FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.idempotency_key
SET state = 1, fp = $5, fp_alg = $6, token = $7, attempt = $8,
	lease_until = clock_timestamp() + $9::bigint * interval '1 ms',
	expires_at = clock_timestamp() + $10::bigint * interval '1 ms',
	created_at = CASE WHEN $8 = 1 THEN clock_timestamp() ELSE created_at END,
	resp_status = NULL, resp_header = NULL, resp_body = NULL, enc_key_id = NULL, completed_at = NULL
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND EXISTS (SELECT FROM free)
RETURNING expires_at`

// sqlFindAbandoned returns a row if the owner of the claim with token $4 has died:
// a running one holds the row lock, however long ago its lease ran out.
const sqlFindAbandoned = `
SELECT 1 FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1
FOR UPDATE SKIP LOCKED`

// sqlLimitTx bounds the transaction it runs in: no statement runs longer than
// the handler may, and the server ends the session of a process that hangs.
// The waits for a lock are bounded for sqlLockRecord alone; what the session had is
// remembered for sqlRestoreLockTimeout.
const sqlLimitTx = `
SELECT set_config('statement_timeout',
		CASE WHEN current_setting('statement_timeout')::interval BETWEEN interval '1 us' AND $1::bigint * interval '1 ms'
		THEN current_setting('statement_timeout') ELSE $1::bigint::text END, true),
	set_config('idle_in_transaction_session_timeout', $2::bigint::text, true),
	set_config('sagamill.lock_timeout', current_setting('lock_timeout'), true),
	set_config('lock_timeout', $3::bigint::text, true)`

// sqlLimitTxWatched also lets the server notice a dead client while a statement
// runs. Without it the dead owner's row lock stays until the statement ends.
const sqlLimitTxWatched = sqlLimitTx + `,
	set_config('client_connection_check_interval', $4::bigint::text, true)`

// sqlLockRecord takes the row lock that is the owner's proof of life, held to
// the end of the business transaction, and then restores lock_timeout. No row:
// the claim was taken over.
const sqlLockRecord = `
WITH mine AS MATERIALIZED (
	SELECT expires_at FROM {schema}.idempotency_key
	WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1
	FOR UPDATE
)
SELECT expires_at, set_config('lock_timeout', current_setting('sagamill.lock_timeout'), true) FROM mine`

// sqlRestoreLockTimeout is for transactions without a record.
const sqlRestoreLockTimeout = `SELECT set_config('lock_timeout', current_setting('sagamill.lock_timeout'), true)`

// sqlCompleteRecord keeps a response. It changes one row if the caller still
// owns the record, else none.
const sqlCompleteRecord = `
UPDATE {schema}.idempotency_key
SET state = $5, resp_status = $6, resp_header = $7, resp_body = $8, enc_key_id = nullif($9, ''), completed_at = clock_timestamp()
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1`

// sqlFailRecord releases a record for its request's next attempt. It skips a
// locked row: then the owner's transaction has not ended, and nothing is decided.
const sqlFailRecord = `
WITH free AS MATERIALIZED (
	SELECT 1 FROM {schema}.idempotency_key
	WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1
	FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.idempotency_key SET state = 2, resp_status = $5, lease_until = clock_timestamp()
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1 AND EXISTS (SELECT FROM free)`

// sqlForgetRecord makes the key new, under the same conditions.
const sqlForgetRecord = `
WITH free AS MATERIALIZED (
	SELECT 1 FROM {schema}.idempotency_key
	WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1
	FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1 AND EXISTS (SELECT FROM free)`

// sqlReadState tells what became of the claim with token $4. No row: it is no
// longer the record's.
const sqlReadState = `
SELECT state FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4`

// sqlSweepRecords deletes a batch of expired records. Instances that sweep at
// the same time skip each other's rows, and the row of a live owner is locked.
const sqlSweepRecords = `
WITH old AS MATERIALIZED (
	SELECT namespace, scope, key FROM {schema}.idempotency_key
	WHERE expires_at <= clock_timestamp() AND NOT (state = 1 AND lease_until > clock_timestamp())
	ORDER BY expires_at LIMIT $1
	FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.idempotency_key AS k USING old
WHERE k.namespace = old.namespace AND k.scope = old.scope AND k.key = old.key`

// queries are the statements bound to one schema.
type queries struct {
	insertClaim, readRecord, takeOver, findAbandoned string
	limitTx, limitTxWatched                          string
	lockRecord, restoreLockTimeout                   string
	completeRecord, failRecord, forgetRecord         string
	readState, sweepRecords                          string
}

func newQueries(schema string) queries {
	q := queries{
		insertClaim: sqlInsertClaim, readRecord: sqlReadRecord, takeOver: sqlTakeOver, findAbandoned: sqlFindAbandoned,
		limitTx: sqlLimitTx, limitTxWatched: sqlLimitTxWatched, lockRecord: sqlLockRecord, restoreLockTimeout: sqlRestoreLockTimeout,
		completeRecord: sqlCompleteRecord, failRecord: sqlFailRecord, forgetRecord: sqlForgetRecord,
		readState: sqlReadState, sweepRecords: sqlSweepRecords,
	}
	for _, statement := range []*string{
		&q.insertClaim, &q.readRecord, &q.takeOver, &q.findAbandoned, &q.lockRecord, &q.completeRecord,
		&q.failRecord, &q.forgetRecord, &q.readState, &q.sweepRecords,
	} {
		*statement = sqlschema.Bind(schema, *statement)
	}
	return q
}
