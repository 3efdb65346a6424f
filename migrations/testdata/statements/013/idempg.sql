---- queries.commitInline

WITH changed AS (
INSERT INTO {schema}.idempotency_key AS k (namespace, scope, key, token, state, resp_status, resp_header, resp_body, enc_key_id,
	fp, fp_alg, expires_at, attempt, lease_until, created_at, completed_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, nullif($9, ''),
	$10, $11, $12::timestamptz, 1, clock_timestamp(), $12::timestamptz - $13::bigint * interval '1 ms', clock_timestamp()
WHERE CASE WHEN $16::text NOT IN ('', pg_current_xact_id()::text)
	THEN (pg_current_xact_id() || ' is not ' || $16::text || ': the handler has ended the transaction')::boolean ELSE true END
ON CONFLICT (namespace, scope, key) DO UPDATE SET
	state = CASE WHEN k.token = $14::uuid AND k.state = $15::smallint THEN excluded.state ELSE 1 / (k.attempt - k.attempt) END,
	token = excluded.token, resp_status = excluded.resp_status, resp_header = excluded.resp_header, resp_body = excluded.resp_body,
	enc_key_id = excluded.enc_key_id, fp = excluded.fp, fp_alg = excluded.fp_alg, expires_at = excluded.expires_at,
	attempt = excluded.attempt, lease_until = excluded.lease_until, created_at = excluded.created_at, completed_at = excluded.completed_at
	RETURNING 1)
SELECT CASE WHEN count(*) <> greatest(count(*), 1)
	THEN (count(*) || ' rows changed, not ' || greatest(count(*), 1) || ': row-level security hides rows of sagamill, or the handler has removed them')::date END
FROM changed
---- queries.commitRecord

WITH changed AS (
UPDATE {schema}.idempotency_key
SET state = CASE WHEN token = $4 AND state = 1 THEN $5::smallint ELSE 1 / (attempt - attempt) END,
	resp_status = $6, resp_header = $7, resp_body = $8, enc_key_id = nullif($9, ''), completed_at = clock_timestamp(),
	expires_at = coalesce(clock_timestamp() + $10::bigint * interval '1 ms', expires_at)
WHERE namespace = $1 AND scope = $2 AND key = $3 AND CASE WHEN $11::text NOT IN ('', pg_current_xact_id()::text)
	THEN (pg_current_xact_id() || ' is not ' || $11::text || ': the handler has ended the transaction')::boolean ELSE true END
	RETURNING 1)
SELECT CASE WHEN count(*) <> greatest(count(*), 1)
	THEN (count(*) || ' rows changed, not ' || greatest(count(*), 1) || ': row-level security hides rows of sagamill, or the handler has removed them')::date END
FROM changed
---- queries.completeRecord

UPDATE {schema}.idempotency_key
SET state = $5, resp_status = $6, resp_header = $7, resp_body = $8, enc_key_id = nullif($9, ''), completed_at = clock_timestamp(),
	expires_at = coalesce(clock_timestamp() + $10::bigint * interval '1 ms', expires_at)
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1
---- queries.countUnknown

SELECT count(*) FROM (
	SELECT FROM {schema}.idempotency_key WHERE namespace = $1 AND scope = $2 AND expires_at = 'infinity' AND (state = 5 OR state = 1 AND lease_until <= clock_timestamp()) LIMIT $3) u
---- queries.endLostOwner

SELECT (SELECT pg_terminate_backend(pid) FROM pg_locks
	WHERE locktype = 'transactionid' AND granted AND transactionid = k.xmax AND pid = $5::bigint)
FROM {schema}.idempotency_key AS k
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1
---- queries.failRecord

WITH free AS MATERIALIZED (
	SELECT 1 FROM {schema}.idempotency_key
	WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1
	FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.idempotency_key SET state = $6::smallint, resp_status = $5, lease_until = clock_timestamp(),
	expires_at = CASE WHEN $6::smallint = 5 THEN 'infinity' ELSE coalesce(clock_timestamp() + $7::bigint * interval '1 ms', expires_at) END
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1 AND EXISTS (SELECT FROM free)
---- queries.findAbandoned

SELECT 1 FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1
FOR UPDATE SKIP LOCKED
---- queries.findHidden

SELECT name FROM unnest(ARRAY['{schema}.idempotency_key']) WITH ORDINALITY AS t (name, position)
WHERE to_regclass(name) IS NOT NULL AND row_security_active(to_regclass(name)::oid)
ORDER BY position LIMIT 1
---- queries.findOverQuota

SELECT 1 FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND (expires_at > clock_timestamp() OR state = 1 AND lease_until > clock_timestamp())
ORDER BY key OFFSET $3 LIMIT 1
---- queries.forgetPrior

DELETE FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = $5
---- queries.forgetRecord

WITH free AS MATERIALIZED (
	SELECT 1 FROM {schema}.idempotency_key
	WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1
	FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = 1 AND EXISTS (SELECT FROM free)
---- queries.insertClaim

INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
VALUES ($1, $2, $3, 1, $4, $5, $6, 1,
	clock_timestamp() + $7::bigint * interval '1 ms', CASE WHEN $9 THEN 'infinity' ELSE clock_timestamp() + $8::bigint * interval '1 ms' END)
ON CONFLICT (namespace, scope, key) DO NOTHING
RETURNING expires_at, created_at, CASE WHEN NOT $9 THEN set_config('synchronous_commit', 'off', true)
	WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END
---- queries.keepInline

INSERT INTO {schema}.idempotency_key AS k (namespace, scope, key, token, state, resp_status, resp_header, resp_body, enc_key_id,
	fp, fp_alg, expires_at, attempt, lease_until, created_at, completed_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, nullif($9, ''),
	$10, $11, $12::timestamptz, 1, clock_timestamp(), $12::timestamptz - $13::bigint * interval '1 ms', clock_timestamp()
WHERE pg_try_advisory_xact_lock($16)
ON CONFLICT (namespace, scope, key) DO UPDATE SET
	state = CASE WHEN k.token = $14::uuid AND k.state = $15::smallint THEN excluded.state ELSE 1 / (k.attempt - k.attempt) END,
	token = excluded.token, resp_status = excluded.resp_status, resp_header = excluded.resp_header, resp_body = excluded.resp_body,
	enc_key_id = excluded.enc_key_id, fp = excluded.fp, fp_alg = excluded.fp_alg, expires_at = excluded.expires_at,
	attempt = excluded.attempt, lease_until = excluded.lease_until, created_at = excluded.created_at, completed_at = excluded.completed_at
---- queries.keepUnknown

UPDATE {schema}.idempotency_key SET expires_at = 'infinity'
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state IN (1, 5)
---- queries.listUnknown

SELECT namespace, scope, key, attempt, created_at, extract(epoch FROM clock_timestamp() - lease_until)::float8, token, fp_alg FROM {schema}.idempotency_key
WHERE (namespace, scope, key) > ($1, $2, $3) AND expires_at = 'infinity' AND (state = 5 OR state = 1 AND lease_until <= clock_timestamp())
ORDER BY namespace, scope, key LIMIT $4
---- queries.lockPrior

SELECT 1 FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 AND state = $5
FOR UPDATE SKIP LOCKED
---- queries.lockRecord

SELECT
	set_config('statement_timeout',
		CASE WHEN current_setting('statement_timeout')::interval BETWEEN interval '1 us' AND $1::bigint * interval '1 ms'
		THEN current_setting('statement_timeout') ELSE $1::bigint::text END, true)
	|| set_config('idle_in_transaction_session_timeout', $2::bigint::text, true)
	|| set_config('client_connection_check_interval', $3::bigint::text, true) AS limits, current_setting('role'), pg_current_xact_id()::text, pg_postmaster_start_time() AS server_started, statement_timestamp() AS opened
FROM {schema}.idempotency_key
WHERE namespace = $4 AND scope = $5 AND key = $6 AND token = $7 AND state = 1
FOR UPDATE NOWAIT
---- queries.lockState

SELECT state FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4 FOR UPDATE SKIP LOCKED
---- queries.readHolder

SELECT token = $4 FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3
---- queries.readRecord

SELECT state, fp, fp_alg, token, attempt, lease_until, created_at, expires_at, clock_timestamp(),
	resp_status, resp_header, resp_body, enc_key_id FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3
---- queries.readState

SELECT state FROM {schema}.idempotency_key
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4
---- queries.readUnwritten

SELECT (SELECT token = $4 FROM {schema}.idempotency_key WHERE namespace = $1 AND scope = $2 AND key = $3),
	row_security_active('{schema}.idempotency_key')
---- queries.settle

WITH free AS MATERIALIZED (
	SELECT FROM {schema}.idempotency_key
	WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4::text::uuid AND expires_at = 'infinity' AND (state = 5 OR state = 1 AND lease_until <= clock_timestamp())
	FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.idempotency_key
SET state = $5, resp_status = $6, resp_header = $7, resp_body = $8, enc_key_id = nullif($9, ''), token = gen_random_uuid(),
	completed_at = clock_timestamp(), lease_until = 'epoch', expires_at = clock_timestamp() + $10::bigint * interval '1 ms'
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4::text::uuid AND EXISTS (SELECT FROM free)
---- queries.sweepRecords

WITH old AS MATERIALIZED (
	SELECT namespace, scope, key FROM {schema}.idempotency_key
	WHERE expires_at <= statement_timestamp() AND NOT (state = 1 AND lease_until > clock_timestamp())
	ORDER BY expires_at LIMIT $1
	FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.idempotency_key AS k USING old
WHERE k.namespace = old.namespace AND k.scope = old.scope AND k.key = old.key
---- queries.takeOver

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
RETURNING expires_at, created_at, CASE WHEN $11 AND current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END
