---- effectQueries.leaseDelivery

INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload,
	reason, error, stack, attempts, due_at, in_doubt)
VALUES ('retrying', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, clock_timestamp() + $15 * interval '1 microsecond', true)
ON CONFLICT (scope, key, step, n, kind) WHERE state = 'retrying' DO NOTHING
RETURNING id
---- effectQueries.leaseParked

WITH changed AS (
UPDATE {schema}.parked
SET reason = 'calling', in_doubt = true, not_done = false, last_at = clock_timestamp(), due_at = clock_timestamp() + $2 * interval '1 microsecond',
	earlier_failures = CASE
		WHEN parked.error = '' OR parked.reason IN ('calling', 'unsettled', 'action-dead') THEN parked.earlier_failures
		ELSE CASE WHEN jsonb_array_length(parked.earlier_failures) < 9 THEN parked.earlier_failures ELSE parked.earlier_failures - 1 END
			|| jsonb_build_object('at', CASE WHEN parked.last_at BETWEEN '1970-01-01Z' AND '9999-12-31Z'
					THEN to_char(parked.last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END,
				'reason', parked.reason, 'error', left(parked.error, 1000), 'stack', left(parked.stack, 4000)) END
WHERE id = $1
	RETURNING 1)
SELECT CASE WHEN count(*) <> greatest(count(*), 1)
	THEN (count(*) || ' rows changed, not ' || greatest(count(*), 1) || ': row-level security hides rows of sagamill, or the handler has removed them')::date END
FROM changed
---- effectQueries.postpone

WITH changed AS (
UPDATE {schema}.parked
SET attempts = attempts - 1, reason = 'unsettled', due_at = t.now + $2::bigint * interval '1 microsecond',
	last_at = t.now + ($2::bigint - $3::bigint) * interval '1 microsecond'
FROM (SELECT clock_timestamp() AS now) AS t
WHERE id = $1
	RETURNING 1)
SELECT CASE WHEN count(*) <> greatest(count(*), 1)
	THEN (count(*) || ' rows changed, not ' || greatest(count(*), 1) || ': row-level security hides rows of sagamill, or the handler has removed them')::date END
FROM changed
---- effectQueries.readDoubt

SELECT in_doubt,
	(extract(epoch FROM last_at + CASE
		WHEN reason = 'unsettled' THEN $3::bigint
		WHEN reason IN ('calling', 'waits-for-action', 'waits-for-order') OR redriven_at > last_at THEN $2::bigint
		ELSE $3::bigint END * interval '1 microsecond' - clock_timestamp()) * 1000000)::bigint,
	(extract(epoch FROM coalesce(redriven_at, first_at) + $2::bigint * interval '1 microsecond' - clock_timestamp()) * 1000000)::bigint,
	reason = 'unsettled', not_done OR attempts = 1 AND round = 0
FROM {schema}.parked
WHERE id = $1
---- effectQueries.readOther

SELECT coalesce(digest, sha256(payload)) <> $6
FROM {schema}.parked
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND kind = $5 AND state = 'retrying'
---- effectQueries.setDoubt

WITH changed AS (
UPDATE {schema}.parked
SET in_doubt = $2, not_done = $4, last_at = last_at + CASE state WHEN 'retrying' THEN $3::bigint ELSE 0 END * interval '1 microsecond'
WHERE id = $1
	RETURNING 1)
SELECT CASE WHEN count(*) <> greatest(count(*), 1)
	THEN (count(*) || ' rows changed, not ' || greatest(count(*), 1) || ': row-level security hides rows of sagamill, or the handler has removed them')::date END
FROM changed
---- queries.bury

INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload,
	reason, error, stack, attempts, due_at)
VALUES ('dead', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, clock_timestamp())
---- queries.cancelParked

DELETE FROM {schema}.parked
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND kind = 'action' AND reason <> 'key-reused'
RETURNING reason, error
---- queries.claimMany

INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts, digest, undo_digest)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::bytea[], $8::bytea[])
ON CONFLICT (scope, key, step, n) DO NOTHING
---- queries.claimNew

INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts, digest, undo_digest)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (scope, key, step, n) DO NOTHING
RETURNING pg_current_xact_id()::xid, current_setting('role'),
	set_config('idle_in_transaction_session_timeout', $9, true) || set_config('client_connection_check_interval', '1000', true) || CASE WHEN current_setting('tcp_keepalives_idle')::int > 4
	THEN set_config('tcp_keepalives_idle', '2', false) || set_config('tcp_keepalives_interval', '1', false)
		|| set_config('tcp_keepalives_count', '2', false)
	ELSE '' END,
	clock_timestamp()
---- queries.claimOne

INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts, digest, undo_digest)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (scope, key, step, n) DO NOTHING
---- queries.claimStep

INSERT INTO {schema}.inbox (scope, key, step, n, state)
VALUES ($1, $2, $3, $4, 'open')
ON CONFLICT (scope, key, step, n) DO NOTHING
---- queries.countAction

INSERT INTO {schema}.inbox AS i (scope, key, step, n, state, attempts)
VALUES ($1, $2, $3, $4, 'open', $5)
ON CONFLICT (scope, key, step, n) DO UPDATE
SET attempts = i.attempts + 1, updated_at = clock_timestamp()
WHERE i.state = 'open'
RETURNING attempts
---- queries.countCompensation

UPDATE {schema}.inbox
SET undo_attempts = CASE undo_attempts WHEN 0 THEN $5 ELSE undo_attempts + 1 END, updated_at = clock_timestamp()
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND state = 'done' AND undo_digest IS NULL
RETURNING undo_attempts
---- queries.countParked

UPDATE {schema}.parked
SET attempts = attempts + 1, not_done = false
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND kind = $5 AND state = 'retrying'
---- queries.deleteParked

WITH changed AS (DELETE FROM {schema}.parked WHERE id = $1
	RETURNING 1)
SELECT CASE WHEN count(*) <> greatest(count(*), 1)
	THEN (count(*) || ' rows changed, not ' || greatest(count(*), 1) || ': row-level security hides rows of sagamill, or the handler has removed them')::date END
FROM changed
---- queries.findHidden

SELECT name FROM unnest(ARRAY['{schema}.inbox', '{schema}.parked']) WITH ORDINALITY AS t (name, position)
WHERE to_regclass(name) IS NOT NULL AND row_security_active(to_regclass(name)::oid)
ORDER BY position LIMIT 1
---- queries.handBack

UPDATE {schema}.parked
SET attempts = attempts - 1, due_at = clock_timestamp() + $4 * interval '1 microsecond'
WHERE id = $1 AND attempts = $2 AND round = $3 AND state = 'retrying'
---- queries.limitIdle
SELECT set_config('idle_in_transaction_session_timeout', $1, true) || set_config('client_connection_check_interval', '1000', true) || CASE WHEN current_setting('tcp_keepalives_idle')::int > 4
	THEN set_config('tcp_keepalives_idle', '2', false) || set_config('tcp_keepalives_interval', '1', false)
		|| set_config('tcp_keepalives_count', '2', false)
	ELSE '' END, current_setting('role')
---- queries.lockMany

SELECT a.ordinal::integer, i.state, i.attempts, i.undo_attempts, i.digest, i.undo_digest
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS a (scope, key, step, n, ordinal)
CROSS JOIN LATERAL (
	SELECT state, attempts, undo_attempts, digest, undo_digest
	FROM {schema}.inbox
	WHERE scope = a.scope AND key = a.key AND step = a.step AND n = a.n AND xmin <> pg_current_xact_id()::xid
	FOR UPDATE) i
---- queries.lockParked

SELECT true FROM {schema}.parked
WHERE id = $1 AND attempts = $2 AND round = $3 AND state = 'retrying'
FOR UPDATE
---- queries.lockStep

SELECT state, attempts, undo_attempts, digest, undo_digest
FROM {schema}.inbox
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4
FOR UPDATE
---- queries.moveStep

WITH changed AS (
UPDATE {schema}.inbox
SET state = $5, attempts = $6, undo_attempts = $7,
	digest = coalesce($8, digest), undo_digest = coalesce($9, undo_digest), updated_at = clock_timestamp()
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4
	RETURNING 1)
SELECT CASE WHEN count(*) <> greatest(count(*), 1)
	THEN (count(*) || ' rows changed, not ' || greatest(count(*), 1) || ': row-level security hides rows of sagamill, or the handler has removed them')::date END
FROM changed
---- queries.nameParked

UPDATE {schema}.parked
SET kind = $3, scope = $4, key = $5, step = $6, n = $7, message_id = $8, header_names = $9, header_values = $10, payload = $11, digest = $12
WHERE id = $1 AND attempts = $2 AND state = 'retrying' AND kind = 'unknown'
---- queries.nextDue

SELECT (SELECT extract(epoch FROM greatest(due_at, 'epoch') - statement_timestamp())::float8 FROM {schema}.parked
	WHERE state = 'retrying' AND due_at < 'infinity' ORDER BY due_at LIMIT 1)
---- queries.openClaim

SELECT nullif(h.swept_before, '-infinity'), pg_current_xact_id()::xid, current_setting('role'),
	set_config('idle_in_transaction_session_timeout', $5, true) || set_config('client_connection_check_interval', '1000', true) || CASE WHEN current_setting('tcp_keepalives_idle')::int > 4
	THEN set_config('tcp_keepalives_idle', '2', false) || set_config('tcp_keepalives_interval', '1', false)
		|| set_config('tcp_keepalives_count', '2', false)
	ELSE '' END,
	i.state, i.attempts, i.undo_attempts, i.digest, i.undo_digest
FROM {schema}.inbox_horizon AS h
LEFT JOIN (
	SELECT state, attempts, undo_attempts, digest, undo_digest
	FROM {schema}.inbox
	WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND xmin <> pg_current_xact_id()::xid
	FOR UPDATE) AS i ON true
---- queries.openClaims

SELECT nullif(swept_before, '-infinity'), pg_current_xact_id()::xid, current_setting('role')
FROM {schema}.inbox_horizon
---- queries.park

INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload,
	reason, error, stack, attempts, due_at)
VALUES ('retrying', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, clock_timestamp() + $15 * interval '1 microsecond')
ON CONFLICT (scope, key, step, n, kind) WHERE state = 'retrying' DO UPDATE
SET attempts = greatest(parked.attempts, EXCLUDED.attempts), reason = EXCLUDED.reason, error = EXCLUDED.error,
	not_done = false, stack = EXCLUDED.stack, last_at = clock_timestamp(), earlier_failures = CASE
		WHEN parked.error = '' OR parked.reason IN ('calling', 'unsettled', 'action-dead') THEN parked.earlier_failures
		ELSE CASE WHEN jsonb_array_length(parked.earlier_failures) < 9 THEN parked.earlier_failures ELSE parked.earlier_failures - 1 END
			|| jsonb_build_object('at', CASE WHEN parked.last_at BETWEEN '1970-01-01Z' AND '9999-12-31Z'
					THEN to_char(parked.last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END,
				'reason', parked.reason, 'error', left(parked.error, 1000), 'stack', left(parked.stack, 4000)) END
WHERE coalesce(parked.digest, sha256(parked.payload)) = sha256(EXCLUDED.payload)
---- queries.readAttempts

SELECT attempts, undo_attempts
FROM {schema}.inbox
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4
---- queries.readBehind

SELECT a.ordinal::integer
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS a (scope, key, step, n, ordinal)
WHERE EXISTS (
	SELECT FROM {schema}.parked p
	WHERE (p.scope, p.key, p.step) = (a.scope, a.key, a.step) AND p.n <> a.n AND p.state = 'retrying'
		AND p.reason <> 'waits-for-action')
---- queries.readNotDone

SELECT coalesce(bool_and(NOT in_doubt AND (not_done OR reason = 'waits-for-order' AND attempts = 0 AND round = 0) AND $6 <> ALL (header_names)), false)
FROM {schema}.parked
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND kind = 'action' AND state = $5 AND reason <> 'key-reused'
---- queries.readStats

WITH parked AS (
	SELECT step, kind, false AS dead, reason, count(*), min(first_at) AS first_at, min(due_at) FILTER (WHERE isfinite(due_at)) AS due_at
	FROM (SELECT step, kind, reason, first_at, due_at FROM {schema}.parked WHERE state = 'retrying' ORDER BY due_at LIMIT $1) r
	GROUP BY step, kind, reason
	UNION ALL
	SELECT step, kind, true, reason, count(*), min(first_at), NULL
	FROM (SELECT step, kind, reason, first_at FROM {schema}.parked WHERE state = 'dead' ORDER BY last_at LIMIT $1) d
	GROUP BY step, kind, reason
)
SELECT coalesce(step, ''), kind = 'compensation', dead, reason, sum(count)::bigint,
	(extract(epoch FROM clock_timestamp() - min(first_at)) * 1000000)::bigint,
	coalesce(extract(epoch FROM clock_timestamp() - min(due_at)) * 1000000, 0)::bigint
FROM parked
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4
---- queries.refuseParked

UPDATE {schema}.parked
SET state = 'dead', reason = $3, error = $4, stack = $5, attempts = $6, last_at = clock_timestamp(), earlier_failures = CASE
		WHEN parked.error = '' OR parked.reason IN ('calling', 'unsettled', 'action-dead') THEN parked.earlier_failures
		ELSE CASE WHEN jsonb_array_length(parked.earlier_failures) < 9 THEN parked.earlier_failures ELSE parked.earlier_failures - 1 END
			|| jsonb_build_object('at', CASE WHEN parked.last_at BETWEEN '1970-01-01Z' AND '9999-12-31Z'
					THEN to_char(parked.last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END,
				'reason', parked.reason, 'error', left(parked.error, 1000), 'stack', left(parked.stack, 4000)) END
WHERE id = $1 AND attempts = $2 AND state = 'retrying' AND kind = 'unknown'
---- queries.reopen

UPDATE {schema}.inbox
SET state = 'open', attempts = $6, updated_at = clock_timestamp()
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND state = 'done' AND digest = $5 AND xmin = $7
---- queries.repark

WITH changed AS (
UPDATE {schema}.parked
SET state = $2, reason = $3, error = $4, stack = $5, attempts = $6, not_done = false,
	due_at = clock_timestamp() + $7 * interval '1 microsecond', last_at = clock_timestamp(), earlier_failures = CASE
		WHEN parked.error = '' OR parked.reason IN ('calling', 'unsettled', 'action-dead') THEN parked.earlier_failures
		ELSE CASE WHEN jsonb_array_length(parked.earlier_failures) < 9 THEN parked.earlier_failures ELSE parked.earlier_failures - 1 END
			|| jsonb_build_object('at', CASE WHEN parked.last_at BETWEEN '1970-01-01Z' AND '9999-12-31Z'
					THEN to_char(parked.last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END,
				'reason', parked.reason, 'error', left(parked.error, 1000), 'stack', left(parked.stack, 4000)) END
WHERE id = $1
	RETURNING 1)
SELECT CASE WHEN count(*) <> greatest(count(*), 1)
	THEN (count(*) || ' rows changed, not ' || greatest(count(*), 1) || ': row-level security hides rows of sagamill, or the handler has removed them')::date END
FROM changed
---- queries.takeParked

UPDATE {schema}.parked
SET attempts = attempts + 1, due_at = clock_timestamp() + $3 * interval '1 microsecond'
WHERE id = ANY(ARRAY(
	SELECT id FROM {schema}.parked
	WHERE state = 'retrying' AND due_at <= statement_timestamp() AND (step IS NULL AND topic = ANY($5) OR step = ANY($1)
		AND NOT (step = ANY($4) AND EXISTS (
			SELECT FROM {schema}.parked e
			WHERE (e.scope, e.key, e.step) = (parked.scope, parked.key, parked.step) AND e.n <> parked.n AND e.state = 'retrying'
				AND e.reason <> 'waits-for-action' AND e.id < parked.id)))
	ORDER BY due_at
	LIMIT $2
	FOR UPDATE SKIP LOCKED))
RETURNING id, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic,
	message_id, header_names, header_values, payload, digest, attempts, round, reason
---- queries.tryLockStep

SELECT state, attempts, undo_attempts, digest, undo_digest
FROM {schema}.inbox
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4
FOR UPDATE SKIP LOCKED
---- queries.unclaim

WITH changed AS (
DELETE FROM {schema}.inbox i
USING unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS a (scope, key, step, n)
WHERE i.scope = a.scope AND i.key = a.key AND i.step = a.step AND i.n = a.n
	RETURNING 1)
SELECT CASE WHEN count(*) <> cardinality($1::text[])
	THEN (count(*) || ' rows changed, not ' || cardinality($1::text[]) || ': row-level security hides rows of sagamill, or the handler has removed them')::date END
FROM changed
---- queries.yieldParked

WITH other AS (SELECT coalesce(digest, sha256(payload)) = $4 AS same FROM {schema}.parked
	WHERE state = 'retrying' AND kind = $3 AND scope = $7 AND key = $8 AND step = $9 AND n = $10),
dropped AS (DELETE FROM {schema}.parked p USING other
	WHERE other.same AND p.id = $1 AND p.attempts = $2 AND p.state = 'retrying' AND p.kind = 'unknown')
UPDATE {schema}.parked
SET state = 'dead', kind = $3, scope = $7, key = $8, step = $9, n = $10, reason = $5, error = $6, stack = '', attempts = 0,
	last_at = clock_timestamp(), earlier_failures = CASE
		WHEN parked.error = '' OR parked.reason IN ('calling', 'unsettled', 'action-dead') THEN parked.earlier_failures
		ELSE CASE WHEN jsonb_array_length(parked.earlier_failures) < 9 THEN parked.earlier_failures ELSE parked.earlier_failures - 1 END
			|| jsonb_build_object('at', CASE WHEN parked.last_at BETWEEN '1970-01-01Z' AND '9999-12-31Z'
					THEN to_char(parked.last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END,
				'reason', parked.reason, 'error', left(parked.error, 1000), 'stack', left(parked.stack, 4000)) END
FROM other WHERE NOT other.same AND id = $1 AND attempts = $2 AND state = 'retrying' AND kind = 'unknown'
---- retentionQueries.findOld

SELECT max(i.updated_at) FILTER (WHERE i.updated_at < $3 AND i.state NOT IN ('retrying', 'undoing') AND (
	SELECT p.id FROM {schema}.parked AS p
	WHERE p.scope = i.scope AND p.key = i.key AND p.step = i.step AND p.n = i.n LIMIT 1) IS NULL),
	min(i.updated_at) FILTER (WHERE i.updated_at >= $3)
FROM {schema}.inbox AS i
WHERE i.ctid >= $1::tid AND i.ctid < $2::tid
---- retentionQueries.hasTooOld

SELECT EXISTS (
	SELECT FROM {schema}.parked
	WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND kind = $5 AND reason = $6 AND payload = $7)
---- retentionQueries.planSweep

SELECT clock_timestamp() - $1 * interval '1 microsecond',
	pg_relation_size('{schema}.inbox') / current_setting('block_size')::bigint,
	nullif(swept_before, '-infinity')
FROM {schema}.inbox_horizon
---- retentionQueries.raiseHorizon

UPDATE {schema}.inbox_horizon
SET swept_before = $1
WHERE swept_before < $1
---- retentionQueries.readHorizon
SELECT nullif(swept_before, '-infinity') FROM {schema}.inbox_horizon
---- retentionQueries.removeOld

WITH old AS MATERIALIZED (
	SELECT i.ctid FROM {schema}.inbox AS i
	WHERE i.ctid >= $1::tid AND i.ctid < $2::tid AND i.updated_at < $3
		AND i.updated_at <= (SELECT swept_before - $4 * interval '1 microsecond' FROM {schema}.inbox_horizon)
		AND i.state NOT IN ('retrying', 'undoing') AND (
	SELECT p.id FROM {schema}.parked AS p
	WHERE p.scope = i.scope AND p.key = i.key AND p.step = i.step AND p.n = i.n LIMIT 1) IS NULL
	FOR UPDATE OF i SKIP LOCKED)
DELETE FROM {schema}.inbox WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))
