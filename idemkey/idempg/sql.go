package idempg

import (
	"strings"

	"github.com/sagamill/sagamill/internal/keysql"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/txguard"
)

// recordColumns are as they are stored: computing on them would cost the server more than reading them. All
// times are compared with its clock.
const recordColumns = `state, fp, fp_alg, token, attempt, lease_until, created_at, expires_at, clock_timestamp(),
	resp_status, resp_header, resp_body, enc_key_id`

// sqlReadRecord reads the committed record without waiting for a lock.
const sqlReadRecord = `
SELECT ` + recordColumns + ` FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3`

// commitOf is an expression that makes the transaction's commit asynchronous unless external is true, and durable if it is:
// the session's default may be off.
func commitOf(external string) string {
	return `CASE WHEN NOT ` + external + ` THEN set_config('synchronous_commit', 'off', true)
	WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END`
}

// sqlInsertClaim makes the caller the owner of an absent key. A concurrent claim
// waits for the other insert, which commits at once. DO NOTHING, since DO UPDATE
// would wait for a running owner's row lock even where its WHERE is false. While an
// owner's COMMIT is under way this waits for it, but never for a handler. The commit is
// asynchronous: a claim that is lost with the server has committed nothing. With $9 the handler has effects outside of
// the database: then the commit is not, and the record expires once its outcome is known.
var sqlInsertClaim = `
INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
VALUES ($1, $2, $3, 1, $4, $5, $6, 1,
	clock_timestamp() + $7::bigint * interval '1 ms', CASE WHEN $9 THEN 'infinity' ELSE clock_timestamp() + $8::bigint * interval '1 ms' END)
ON CONFLICT (namespace, scope, key) DO NOTHING
RETURNING expires_at, created_at, ` + commitOf("$9")

// sqlTakeOver makes the caller the owner of a record that was read with token
// $4. It changes no row if the record has changed since, or if its owner still
// holds the row lock: the lock, not the clock, proves that an owner lives. It
// never changes a completed record that has not expired.
var sqlTakeOver = `
WITH free AS MATERIALIZED (
	SELECT 1 FROM {schema}.idempotency_key
	WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND (state IN (2, 5)
		OR state = 1 AND lease_until <= clock_timestamp()
		OR state IN (3, 4) AND expires_at <= clock_timestamp())
	FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.idempotency_key
SET state = 1, fp = $5, fp_alg = $6, token = $7, attempt = $8,
	lease_until = clock_timestamp() + $9::bigint * interval '1 ms',
	expires_at = CASE WHEN $11 THEN 'infinity' ELSE clock_timestamp() + $10::bigint * interval '1 ms' END,
	created_at = CASE WHEN $8 = 1 THEN clock_timestamp() ELSE created_at END,
	resp_status = NULL, resp_header = NULL, resp_body = NULL, enc_key_id = NULL, completed_at = NULL
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND EXISTS (SELECT FROM free)
RETURNING expires_at, created_at, CASE WHEN $11 AND current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END`

// sqlFindAbandoned returns a row if the owner of the claim with token $4 has died:
// a running owner holds the row lock, even after its lease.
const sqlFindAbandoned = `
SELECT 1 FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1
FOR UPDATE SKIP LOCKED`

// txLimits bound the transaction that they are selected in. No statement runs
// longer than the handler may. The server ends the session of a process that
// hangs. It notices a dead client while a statement runs: without that limit
// a dead owner's lock would stay until the statement ends.
const txLimits = `
	set_config('statement_timeout',
		CASE WHEN current_setting('statement_timeout')::interval BETWEEN interval '1 us' AND $1::bigint * interval '1 ms'
		THEN current_setting('statement_timeout') ELSE $1::bigint::text END, true)
	|| set_config('idle_in_transaction_session_timeout', $2::bigint::text, true)
	|| set_config('client_connection_check_interval', $3::bigint::text, true) AS limits, ` + txguard.Role

// txOrigin tells when and on which server a transaction has got its id.
const txOrigin = `pg_postmaster_start_time() AS server_started, statement_timestamp() AS opened`

// sqlReadCommitted returns whether the transaction called $1 was committed. No row: the server was started after
// time $2, has crashed after time $3, or is another one, as after a failover. It may then have given the id to
// another transaction, because an id that was not yet written to the log is given out again. A crash resets the
// statistics of the server. So does an operator; that costs an answer, too.
const sqlReadCommitted = `
SELECT pg_xact_status($1::text::xid8)
WHERE pg_postmaster_start_time() = $2 AND pg_stat_get_bgwriter_stat_reset_time() < $3`

// sqlLimitTx is for transactions without a record.
const sqlLimitTx = `SELECT` + txLimits + `, pg_current_xact_id()::text, ` + txOrigin

// onlyInTx makes a statement fail, with an error that says why, unless it is executed in the transaction
// called {xid}, or that is empty. A handler may have ended the transaction and begun another in one
// string or past its pgx.Tx; only the id shows that. The failing expression depends on the current
// id, or the planner would evaluate it beforehand.
const onlyInTx = `CASE WHEN {xid} NOT IN ('', pg_current_xact_id()::text)
	THEN (pg_current_xact_id() || ' is not ' || {xid} || ': the handler has ended the transaction')::boolean ELSE true END`

// sqlCheckTx is for transactions without a record.
var sqlCheckTx = `SELECT ` + strings.ReplaceAll(onlyInTx, "{xid}", "$1::text")

// sqlLockRecord takes the row lock that is the owner's proof of life, held to
// the end of the business transaction. No row, or an error: the claim was taken
// over, or is being taken over.
const sqlLockRecord = `
SELECT` + txLimits + `, pg_current_xact_id()::text, ` + txOrigin + `
FROM {schema}.idempotency_key
WHERE namespace = $4 AND scope = $5 AND key = $6 AND token = $7 AND state = 1
FOR UPDATE NOWAIT`

// sqlTryLock takes the advisory lock that is the owner's proof of life under
// ClaimInline, if it is free. A caller that does not get it needs no transaction id.
const sqlTryLock = `
SELECT mine, clock_timestamp() + $5::bigint * interval '1 ms' AS expires_at,` + txLimits + `,
	CASE WHEN mine THEN pg_current_xact_id()::text ELSE '' END, ` + txOrigin + `
FROM (SELECT pg_try_advisory_xact_lock($4) AS mine) AS key_lock`

// ownersOfLock are the sessions that hold the advisory lock $1, which has halves in pg_locks.
const ownersOfLock = `
FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1
	AND classid = ($1::bigint >> 32 & 4294967295)::oid AND objid = ($1::bigint & 4294967295)::oid
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// sqlReadLock looks for an owner of the lock. It takes no lock and waits for none.
const sqlReadLock = `SELECT EXISTS (SELECT` + ownersOfLock + `)`

// sqlEndOwner ends session $2, if it is an owner, and waits for its end for up to a second.
const sqlEndOwner = `SELECT pg_terminate_backend(pid, 1000)` + ownersOfLock + ` AND pid = $2::bigint`

// sqlEndLostOwner ends session $5, if it holds the row lock of the claim with token $4. The lock proves that the process id
// does not belong to another session by now. No row: the record is not this claim's any more.
const sqlEndLostOwner = `
SELECT (SELECT pg_terminate_backend(pid) FROM pg_locks
	WHERE locktype = 'transactionid' AND granted AND transactionid = k.xmax AND pid = $5::bigint)
FROM {schema}.idempotency_key AS k
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1`

// sqlCompleteRecord keeps a response. It changes one row if the caller still
// owns the record, else none. If $10 is not null, the record expires so many milliseconds from now.
const sqlCompleteRecord = `
UPDATE {schema}.idempotency_key
SET state = $5, resp_status = $6, resp_header = $7, resp_body = $8, enc_key_id = nullif($9, ''), completed_at = clock_timestamp(),
	expires_at = coalesce(clock_timestamp() + $10::bigint * interval '1 ms', expires_at)
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1`

// sqlCommitRecord keeps a response in the business transaction, where COMMIT follows without waiting for an
// answer. So it fails, with a division by zero, if another owner has the record, by onlyInTx if the transaction is not
// the one called $11, and by [txguard.CodeUnchanged] if there is no record: the row lock keeps others from removing it,
// but not the handler, and row-level security may hide it.
var sqlCommitRecord = txguard.MustChange(`
UPDATE {schema}.idempotency_key
SET state = CASE WHEN token = $4 AND state = 1 THEN $5::smallint ELSE 1 / (attempt - attempt) END,
	resp_status = $6, resp_header = $7, resp_body = $8, enc_key_id = nullif($9, ''), completed_at = clock_timestamp(),
	expires_at = coalesce(clock_timestamp() + $10::bigint * interval '1 ms', expires_at)
WHERE namespace = $1 AND scope = $2 AND key = $3 AND ` + strings.ReplaceAll(onlyInTx, "{xid}", "$11::text"))

// sqlKeepInline keeps a response under ClaimInline, where no record has been
// before. A record of a leasing store, or an expired one, is replaced if it is still the
// one that was read; over another it fails, as sqlCommitRecord does.
const sqlKeepInline = `
INSERT INTO {schema}.idempotency_key AS k (namespace, scope, key, token, state, resp_status, resp_header, resp_body, enc_key_id,
	fp, fp_alg, expires_at, attempt, lease_until, created_at, completed_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, nullif($9, ''),
	$10, $11, $12::timestamptz, 1, clock_timestamp(), $12::timestamptz - $13::bigint * interval '1 ms', clock_timestamp()
{only}
ON CONFLICT (namespace, scope, key) DO UPDATE SET
	state = CASE WHEN k.token = $14::uuid AND k.state = $15::smallint THEN excluded.state ELSE 1 / (k.attempt - k.attempt) END,
	token = excluded.token, resp_status = excluded.resp_status, resp_header = excluded.resp_header, resp_body = excluded.resp_body,
	enc_key_id = excluded.enc_key_id, fp = excluded.fp, fp_alg = excluded.fp_alg, expires_at = excluded.expires_at,
	attempt = excluded.attempt, lease_until = excluded.lease_until, created_at = excluded.created_at, completed_at = excluded.completed_at`

// sqlLockPrior locks the record that ClaimInline is to replace, unless it is locked.
const sqlLockPrior = `
SELECT 1 FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = $5
FOR UPDATE SKIP LOCKED`

// sqlForgetPrior deletes a record that a leasing store has left, so that its key is new.
const sqlForgetPrior = `
DELETE FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = $5`

// sqlFailRecord releases a record for its request's next attempt, or by state 5 for a decision. It skips a
// locked row: then the owner's transaction has not ended, and nothing is decided. If $7 is not null, the record expires so
// many milliseconds from now.
const sqlFailRecord = `
WITH free AS MATERIALIZED (
	SELECT 1 FROM {schema}.idempotency_key
	WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1
	FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.idempotency_key SET state = $6::smallint, resp_status = $5, lease_until = clock_timestamp(),
	expires_at = CASE WHEN $6::smallint = 5 THEN 'infinity' ELSE coalesce(clock_timestamp() + $7::bigint * interval '1 ms', expires_at) END
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

// sqlReadState returns the state of the claim with token $4. No row: the record is not
// this claim's any more.
const sqlReadState = `
SELECT state FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4`

// sqlReadUnwritten returns whether the record is that of the claim with token $4, null if there is none, and whether
// row-level security hides rows from this session.
const sqlReadUnwritten = `
SELECT (SELECT token = $4 FROM {schema}.idempotency_key WHERE namespace = $1 AND scope = $2 AND key = $3),
	row_security_active('{schema}.idempotency_key')`

// sqlReadHolder returns whether the record is that of the claim with token $4. No row: there
// is no record.
const sqlReadHolder = `
SELECT token = $4 FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3`

// sqlKeepUnknown lets a record never expire whose outcome is unknown: it was claimed by a handler that was said to have no
// effects outside of the database.
const sqlKeepUnknown = `
UPDATE {schema}.idempotency_key SET expires_at = 'infinity'
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state IN (1, 5)`

// sqlLockState is sqlReadState for a record that is not locked. Its result is durable: a row lock
// is written to the log.
const sqlLockState = sqlReadState + ` FOR UPDATE SKIP LOCKED`

// sqlSweepRecords deletes a batch of expired records. Instances that sweep at
// the same time skip each other's rows, and the row of a live owner is locked. The index is searched with
// statement_timestamp(): with a clock that goes on, each sweep would read all live records.
const sqlSweepRecords = `
WITH old AS MATERIALIZED (
	SELECT namespace, scope, key FROM {schema}.idempotency_key
	WHERE expires_at <= statement_timestamp() AND NOT (state = 1 AND lease_until > clock_timestamp())
	ORDER BY expires_at LIMIT $1
	FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.idempotency_key AS k USING old
WHERE k.namespace = old.namespace AND k.scope = old.scope AND k.key = old.key`

// queries are the statements bound to one schema.
type queries struct {
	readRecord, insertClaim, takeOver, findAbandoned                   string
	lockRecord, completeRecord, commitRecord, failRecord, forgetRecord string
	keepInline, commitInline, lockPrior, forgetPrior                   string
	readState, readHolder, lockState, sweepRecords, findOverQuota      string
	readUnwritten, findHidden, countUnknown, listUnknown, settle       string
	endLostOwner, keepUnknown                                          string
}

func newQueries(schema string) queries {
	bind := func(statement string) string { return sqlschema.Bind(schema, statement) }
	return queries{
		readRecord: bind(sqlReadRecord), insertClaim: bind(sqlInsertClaim),
		takeOver: bind(sqlTakeOver), findAbandoned: bind(sqlFindAbandoned),
		lockRecord: bind(sqlLockRecord), completeRecord: bind(sqlCompleteRecord), commitRecord: bind(sqlCommitRecord),
		failRecord: bind(sqlFailRecord), forgetRecord: bind(sqlForgetRecord),
		keepInline:   bind(strings.ReplaceAll(sqlKeepInline, "{only}", "WHERE pg_try_advisory_xact_lock($16)")),
		commitInline: bind(txguard.MustChange(strings.ReplaceAll(sqlKeepInline, "{only}", "WHERE "+strings.ReplaceAll(onlyInTx, "{xid}", "$16::text")))),
		lockPrior:    bind(sqlLockPrior), forgetPrior: bind(sqlForgetPrior),
		readState: bind(sqlReadState), readHolder: bind(sqlReadHolder), lockState: bind(sqlLockState), sweepRecords: bind(sqlSweepRecords), findOverQuota: bind(sqlFindOverQuota),
		countUnknown: bind(keysql.CountUnknown), listUnknown: bind(keysql.ListUnknown), settle: bind(keysql.Settle),
		readUnwritten: bind(sqlReadUnwritten), findHidden: bind(pg.SQLFindHidden("idempotency_key")), endLostOwner: bind(sqlEndLostOwner), keepUnknown: bind(sqlKeepUnknown),
	}
}
