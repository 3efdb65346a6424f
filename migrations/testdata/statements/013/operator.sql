---- Statements.FindHidden

SELECT name FROM unnest(ARRAY['{schema}.saga']) WITH ORDINALITY AS t (name, position)
WHERE to_regclass(name) IS NOT NULL AND row_security_active(to_regclass(name)::oid)
ORDER BY position LIMIT 1
---- Statements.LockInstance

SELECT scope, key, path, id, root, name, version, plan_hash, coalesce(parent, ''), status, reason, progress, state,
	revision, trace_parent, trace_state, (extract(epoch FROM clock_timestamp() - started_at) * 1000)::bigint FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3 FOR UPDATE
---- Statements.LockRoot

SELECT FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3 FOR UPDATE
---- Statements.ReadInstance

SELECT scope, key, path, id, root, name, version, plan_hash, coalesce(parent, ''), status, reason, progress, state,
	revision, trace_parent, trace_state, (extract(epoch FROM clock_timestamp() - started_at) * 1000)::bigint FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3
---- Statements.TryLockInstance

SELECT scope, key, path, id, root, name, version, plan_hash, coalesce(parent, ''), status, reason, progress, state,
	revision, trace_parent, trace_state, (extract(epoch FROM clock_timestamp() - started_at) * 1000)::bigint FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3 FOR UPDATE SKIP LOCKED
---- Statements.TryLockRoot

SELECT FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3 FOR UPDATE SKIP LOCKED
---- inboxQueries.bury
UPDATE {schema}.parked SET state = 'dead', last_at = clock_timestamp() WHERE id = ANY ($1)
---- inboxQueries.count0
SELECT count(*) FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5)) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7)) AND ($8 = '' OR error LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%') AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11)) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14) OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ($13::timestamptz IS NULL OR last_at <= $13 AND coalesce(redriven_at <= $13, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $13, true) END)
---- inboxQueries.count1
SELECT count(*) FROM {schema}.parked WHERE state = 'retrying' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5)) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7)) AND ($8 = '' OR error LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%') AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11)) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14) OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ($13::timestamptz IS NULL OR last_at <= $13 AND coalesce(redriven_at <= $13, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $13, true) END)
---- inboxQueries.discard

WITH batch AS (SELECT id FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5) IS TRUE) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7) IS TRUE) AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11) IS TRUE) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14) IS TRUE OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ($13::timestamptz IS NULL OR last_at <= $13 AND coalesce(redriven_at <= $13, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $13, true) END) ORDER BY id LIMIT $16 FOR UPDATE)
DELETE FROM {schema}.parked p USING batch WHERE p.id = batch.id
RETURNING p.id
---- inboxQueries.discardKept

DELETE FROM {schema}.parked
WHERE id = ANY (ARRAY(SELECT id FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5) IS TRUE) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7) IS TRUE) AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11) IS TRUE) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14) IS TRUE OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ($13::timestamptz IS NULL OR last_at <= $13 AND coalesce(redriven_at <= $13, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $13, true) END) ORDER BY id LIMIT $16 FOR UPDATE))
RETURNING id, state, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic, message_id,
	header_names, header_values, payload, octet_length(payload), reason, error, stack, fingerprint, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt, nullif(earlier_failures, '[]')
---- inboxQueries.drop
DELETE FROM {schema}.parked WHERE id = ANY ($1)
---- inboxQueries.edit

UPDATE {schema}.parked
SET header_names = $2, header_values = $3, digest = coalesce(digest, sha256(payload)), payload = $4
WHERE id = $1
---- inboxQueries.forceStep

INSERT INTO {schema}.inbox (scope, key, step, n, state, digest, undo_digest)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (scope, key, step, n) DO NOTHING
---- inboxQueries.group0

WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
groups AS (
	SELECT topic, reason AS reason, step, fingerprint, count(*) AS n, min(last_at) AS oldest, max(last_at) AS newest, max(id) AS sample, ARRAY[count(*) FILTER (WHERE last_at > (SELECT now - interval '3600 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '3300 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '3000 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '2700 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '2400 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '2100 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '1800 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '1500 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '1200 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '900 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '600 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '300 seconds' FROM moment))] AS trend
	FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5)) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7)) AND ($8 = '' OR error LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%') AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11)) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14) OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ($13::timestamptz IS NULL OR last_at <= $13 AND coalesce(redriven_at <= $13, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $13, true) END) GROUP BY 1, 2, 3, 4)
SELECT topic, coalesce(step, ''), reason, fingerprint, coalesce((SELECT left(error, 300) FROM {schema}.parked l WHERE l.id = sample), ''), n, oldest, newest, trend,
	(sum(n) OVER ())::bigint, count(*) OVER ()
FROM groups ORDER BY n DESC, 1, 2, 3, 4 LIMIT $16
---- inboxQueries.group1

WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
groups AS (
	SELECT topic, reason AS reason, step, fingerprint, count(*) AS n, min(last_at) AS oldest, max(last_at) AS newest, max(id) AS sample, ARRAY[count(*) FILTER (WHERE last_at > (SELECT now - interval '3600 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '3300 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '3000 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '2700 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '2400 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '2100 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '1800 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '1500 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '1200 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '900 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '600 seconds' FROM moment)), count(*) FILTER (WHERE last_at > (SELECT now - interval '300 seconds' FROM moment))] AS trend
	FROM {schema}.parked WHERE state = 'retrying' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5)) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7)) AND ($8 = '' OR error LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%') AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11)) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14) OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ($13::timestamptz IS NULL OR last_at <= $13 AND coalesce(redriven_at <= $13, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $13, true) END) GROUP BY 1, 2, 3, 4)
SELECT topic, coalesce(step, ''), reason, fingerprint, coalesce((SELECT left(error, 300) FROM {schema}.parked l WHERE l.id = sample), ''), n, oldest, newest, trend,
	(sum(n) OVER ())::bigint, count(*) OVER ()
FROM groups ORDER BY n DESC, 1, 2, 3, 4 LIMIT $16
---- inboxQueries.holdLetters0

SELECT id, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), coalesce(digest, sha256(payload)),
	header_values[array_position(header_names, 'timestamp'::bytea)], first_at, reason
FROM {schema}.parked WHERE id = ANY ($1) AND state = 'dead' AND ($2::timestamptz IS NULL OR last_at <= $2 AND coalesce(redriven_at <= $2, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $2, true) END) AND NOT (state = 'retrying' AND reason = 'calling' AND due_at > clock_timestamp()) ORDER BY id FOR UPDATE
---- inboxQueries.holdLetters1

SELECT id, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), coalesce(digest, sha256(payload)),
	header_values[array_position(header_names, 'timestamp'::bytea)], first_at, reason
FROM {schema}.parked WHERE id = ANY ($1) AND state = 'retrying' AND ($2::timestamptz IS NULL OR last_at <= $2 AND coalesce(redriven_at <= $2, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $2, true) END) AND NOT (state = 'retrying' AND reason = 'calling' AND due_at > clock_timestamp()) ORDER BY id FOR UPDATE
---- inboxQueries.holdSteps

SELECT i.scope, i.key, i.step, i.n, i.state, i.attempts, i.undo_attempts, i.digest, i.undo_digest
FROM {schema}.inbox i
WHERE (i.scope, i.key, i.step, i.n) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]))
ORDER BY i.scope, i.key, i.step, i.n FOR UPDATE OF i
---- inboxQueries.insertJournal

INSERT INTO {schema}.operator_journal (who, verb, what, ids, why)
VALUES (coalesce(nullif($1, ''), session_user), $2, $3, $4, $5)
---- inboxQueries.limitLocks
SELECT set_config('lock_timeout', $1, true)
---- inboxQueries.list0
SELECT id, state, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic, message_id,
	header_names, header_values, NULL::bytea, octet_length(payload), reason, error, '', fingerprint, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt, NULL::jsonb FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5)) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7)) AND ($8 = '' OR error LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%') AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11)) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14) OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ($13::timestamptz IS NULL OR last_at <= $13 AND coalesce(redriven_at <= $13, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $13, true) END) ORDER BY id LIMIT $16
---- inboxQueries.list1
SELECT id, state, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic, message_id,
	header_names, header_values, NULL::bytea, octet_length(payload), reason, error, '', fingerprint, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt, NULL::jsonb FROM {schema}.parked WHERE state = 'retrying' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5)) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7)) AND ($8 = '' OR error LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%') AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11)) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14) OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ($13::timestamptz IS NULL OR last_at <= $13 AND coalesce(redriven_at <= $13, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $13, true) END) ORDER BY id LIMIT $16
---- inboxQueries.locateMoment

SELECT clock_timestamp(), nullif(swept_before, '-infinity'), current_setting('transaction_isolation')
FROM {schema}.inbox_horizon
---- inboxQueries.locateParked

WITH RECURSIVE other AS (
	(SELECT scope FROM {schema}.parked WHERE $1::text = '' ORDER BY scope LIMIT 1)
	UNION ALL
	SELECT (SELECT t.scope FROM {schema}.parked t WHERE t.scope > other.scope ORDER BY t.scope LIMIT 1)
	FROM other WHERE other.scope IS NOT NULL),
scopes AS (
	SELECT $1::text COLLATE "C" AS scope WHERE $1::text <> ''
	UNION ALL
	SELECT scope FROM other WHERE scope IS NOT NULL)
SELECT id, state, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic, message_id,
	header_names, header_values, NULL::bytea, octet_length(payload), reason, error, '', fingerprint, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt, NULL::jsonb FROM {schema}.parked
WHERE id = ANY (ARRAY(SELECT p.id FROM scopes s CROSS JOIN LATERAL (
	SELECT id FROM {schema}.parked WHERE scope = s.scope AND key = $2 LIMIT $3) p))
ORDER BY id LIMIT $3
---- inboxQueries.locateSteps

WITH RECURSIVE other AS (
	(SELECT scope FROM {schema}.inbox WHERE $1::text = '' ORDER BY scope LIMIT 1)
	UNION ALL
	SELECT (SELECT t.scope FROM {schema}.inbox t WHERE t.scope > other.scope ORDER BY t.scope LIMIT 1)
	FROM other WHERE other.scope IS NOT NULL),
scopes AS (
	SELECT $1::text COLLATE "C" AS scope WHERE $1::text <> ''
	UNION ALL
	SELECT scope FROM other WHERE scope IS NOT NULL)
SELECT i.scope, i.key, i.step, i.n, i.state, i.attempts, i.undo_attempts, i.created_at, i.updated_at
FROM scopes s CROSS JOIN LATERAL (
	SELECT scope, key, step, n, state, attempts, undo_attempts, created_at, updated_at
	FROM {schema}.inbox WHERE scope = s.scope AND key = $2 ORDER BY scope, key, step, n LIMIT $3) i
ORDER BY i.created_at, i.scope, i.step, i.n LIMIT $3
---- inboxQueries.lock
SELECT id, state, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic, message_id,
	header_names, header_values, payload, octet_length(payload), reason, error, stack, fingerprint, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt, NULL::jsonb FROM {schema}.parked WHERE id = $1 AND state = 'dead' AND ($2::timestamptz IS NULL OR last_at <= $2 AND coalesce(redriven_at <= $2, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $2, true) END) FOR UPDATE
---- inboxQueries.moveSteps

UPDATE {schema}.inbox i SET state = m.state, updated_at = clock_timestamp()
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) m (scope, key, step, n, state)
WHERE (i.scope, i.key, i.step, i.n) = (m.scope, m.key, m.step, m.n)
---- inboxQueries.page

SELECT id FROM (
	SELECT id, sum(octet_length(payload)) OVER (ORDER BY id) - octet_length(payload) AS before
	FROM (SELECT id, payload FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5) IS TRUE) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7) IS TRUE) AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11) IS TRUE) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14) IS TRUE OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ($13::timestamptz IS NULL OR last_at <= $13 AND coalesce(redriven_at <= $13, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $13, true) END) AND kind = ANY ($17) ORDER BY id LIMIT $16) first) sized
WHERE before < $18 ORDER BY id
---- inboxQueries.pick0

SELECT id FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5) IS TRUE) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7) IS TRUE) AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11) IS TRUE) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14) IS TRUE OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ($13::timestamptz IS NULL OR last_at <= $13 AND coalesce(redriven_at <= $13, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $13, true) END) AND kind = ANY ($17) ORDER BY id LIMIT $16
---- inboxQueries.pick1

SELECT id FROM {schema}.parked WHERE state = 'retrying' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5) IS TRUE) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7) IS TRUE) AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11) IS TRUE) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14) IS TRUE OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ($13::timestamptz IS NULL OR last_at <= $13 AND coalesce(redriven_at <= $13, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $13, true) END) AND kind = ANY ($17) ORDER BY id LIMIT $16
---- inboxQueries.read
SELECT id, state, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic, message_id,
	header_names, header_values, substring(payload FROM 1 FOR $2::integer), octet_length(payload), reason, error, stack, fingerprint, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt, nullif(earlier_failures, '[]') FROM {schema}.parked WHERE id = $1
---- inboxQueries.readClock

SELECT clock_timestamp() - $1::bigint * interval '1 microsecond',
	CASE WHEN $2::bigint > 0 THEN clock_timestamp() - $2::bigint * interval '1 microsecond' END
---- inboxQueries.readCopies

SELECT scope, key, step, n, kind, coalesce(digest, sha256(payload)) FROM {schema}.parked
WHERE state = 'retrying' AND (scope, key, step, n) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]))
---- inboxQueries.readHorizon
SELECT nullif(swept_before, '-infinity') FROM {schema}.inbox_horizon
---- inboxQueries.readLetters
SELECT id, state, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic, message_id,
	header_names, header_values, payload, octet_length(payload), reason, error, stack, fingerprint, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt, NULL::jsonb FROM {schema}.parked WHERE id = ANY ($1) AND state = 'dead' ORDER BY id
---- inboxQueries.readSteps

SELECT i.scope, i.key, i.step, i.n, i.state, i.attempts, i.undo_attempts, i.digest, i.undo_digest
FROM {schema}.inbox i
WHERE (i.scope, i.key, i.step, i.n) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]))
ORDER BY i.scope, i.key, i.step, i.n
---- inboxQueries.reject

UPDATE {schema}.parked SET reason = $2, error = $3, stack = '', last_at = clock_timestamp(), earlier_failures = CASE
		WHEN parked.error = '' OR parked.reason IN ('calling', 'unsettled', 'action-dead') THEN parked.earlier_failures
		ELSE CASE WHEN jsonb_array_length(parked.earlier_failures) < 9 THEN parked.earlier_failures ELSE parked.earlier_failures - 1 END
			|| jsonb_build_object('at', CASE WHEN parked.last_at BETWEEN '1970-01-01Z' AND '9999-12-31Z'
					THEN to_char(parked.last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END,
				'reason', parked.reason, 'error', left(parked.error, 1000), 'stack', left(parked.stack, 4000)) END
WHERE id = ANY ($1) AND reason <> $2
RETURNING id
---- inboxQueries.retryNow

WITH batch AS (SELECT id FROM {schema}.parked WHERE state = 'retrying' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5) IS TRUE) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7) IS TRUE) AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11) IS TRUE) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14) IS TRUE OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ($13::timestamptz IS NULL OR last_at <= $13 AND coalesce(redriven_at <= $13, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $13, true) END) AND NOT (state = 'retrying' AND reason = 'calling' AND due_at > clock_timestamp()) ORDER BY id LIMIT $16 FOR UPDATE SKIP LOCKED)
UPDATE {schema}.parked p SET due_at = least(p.due_at, clock_timestamp())
FROM batch WHERE p.id = batch.id
RETURNING p.id
---- inboxQueries.seeLetters0

SELECT id, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), coalesce(digest, sha256(payload)),
	header_values[array_position(header_names, 'timestamp'::bytea)], first_at, reason
FROM {schema}.parked WHERE id = ANY ($1) AND state = 'dead' AND ($2::timestamptz IS NULL OR last_at <= $2 AND coalesce(redriven_at <= $2, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $2, true) END) AND NOT (state = 'retrying' AND reason = 'calling' AND due_at > clock_timestamp()) ORDER BY id
---- inboxQueries.seeLetters1

SELECT id, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), coalesce(digest, sha256(payload)),
	header_values[array_position(header_names, 'timestamp'::bytea)], first_at, reason
FROM {schema}.parked WHERE id = ANY ($1) AND state = 'retrying' AND ($2::timestamptz IS NULL OR last_at <= $2 AND coalesce(redriven_at <= $2, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, 'x-sagamill-edited'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= $2, true) END) AND NOT (state = 'retrying' AND reason = 'calling' AND due_at > clock_timestamp()) ORDER BY id
---- inboxQueries.send

UPDATE {schema}.parked SET state = 'retrying', attempts = 0, round = round + 1, due_at = clock_timestamp(), redriven_at = clock_timestamp(),
	reason = CASE reason WHEN 'unsettled' THEN 'failed' ELSE reason END,
	error = CASE reason WHEN 'unsettled' THEN '' ELSE error END, stack = CASE reason WHEN 'unsettled' THEN '' ELSE stack END
WHERE id = ANY ($1)
---- inboxQueries.tryHoldSteps

SELECT i.scope, i.key, i.step, i.n, i.state, i.attempts, i.undo_attempts, i.digest, i.undo_digest
FROM {schema}.inbox i
WHERE (i.scope, i.key, i.step, i.n) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]))
ORDER BY i.scope, i.key, i.step, i.n FOR UPDATE OF i SKIP LOCKED
---- instanceQueries.checkPicked

SELECT EXISTS (SELECT FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3 AND ($4::text = '' OR name = $4) AND ($5::integer = 0 OR version = $5) AND ($6::text = '' OR status = $6)
	AND (NOT $7::boolean OR ended_at IS NULL) AND (cardinality($8::text[]) IS NULL OR scope = ANY ($8)) AND ($9::text = '' OR key = $9)
	AND ($10::bigint = 0 OR started_at <= coalesce($13, clock_timestamp()) - $10::bigint * interval '1 microsecond')
	AND ($11::bigint = 0 OR updated_at <= coalesce($13, clock_timestamp()) - $11::bigint * interval '1 microsecond')
	AND ($12::uuid IS NULL OR id = $12) AND ($13::timestamptz IS NULL OR updated_at <= $13)
	AND ($14::bigint = 0 OR ended_at > coalesce($13, now()) - $14::bigint * interval '1 microsecond'))
---- instanceQueries.count

SELECT count(*) FROM (
	SELECT FROM {schema}.saga
	WHERE (scope, key, path) > ($1, $2, $3) AND ($4::text = '' OR name = $4) AND ($5::integer = 0 OR version = $5) AND ($6::text = '' OR status = $6)
	AND (NOT $7::boolean OR ended_at IS NULL) AND (cardinality($8::text[]) IS NULL OR scope = ANY ($8)) AND ($9::text = '' OR key = $9)
	AND ($10::bigint = 0 OR started_at <= coalesce($13, clock_timestamp()) - $10::bigint * interval '1 microsecond')
	AND ($11::bigint = 0 OR updated_at <= coalesce($13, clock_timestamp()) - $11::bigint * interval '1 microsecond')
	AND ($12::uuid IS NULL OR id = $12) AND ($13::timestamptz IS NULL OR updated_at <= $13)
	AND ($14::bigint = 0 OR ended_at > coalesce($13, now()) - $14::bigint * interval '1 microsecond')
	LIMIT $15) counted
---- instanceQueries.decide

UPDATE {schema}.saga SET status = $4, reason = $5, progress = $6, tries = 0,
	revision = CASE WHEN revision = $9 THEN revision + 1 END,
	updated_at = clock_timestamp(), due_at = CASE WHEN $7 THEN clock_timestamp() END,
	ended_at = CASE WHEN $8 THEN clock_timestamp() END
WHERE scope = $1 AND key = $2 AND path = $3
---- instanceQueries.findAddresses

WITH RECURSIVE other AS (
	(SELECT scope FROM {schema}.saga WHERE $3 = '' OR scope = $3 ORDER BY scope LIMIT 1)
	UNION ALL
	SELECT (SELECT s.scope FROM {schema}.saga AS s WHERE s.scope > other.scope AND $3 = '' ORDER BY s.scope LIMIT 1)
	FROM other WHERE other.scope IS NOT NULL)
SELECT s.scope, s.key, s.path FROM other JOIN {schema}.saga AS s USING (scope)
WHERE s.key = $1 AND CASE $2 WHEN '' THEN s.parent IS NULL ELSE s.path = $2 END
ORDER BY s.started_at DESC, s.scope, s.path LIMIT $4
---- instanceQueries.findID

SELECT scope, key, path FROM (
	(SELECT scope, key, path FROM {schema}.saga WHERE ended_at >= $2 AND ended_at < $3 AND id = $1 LIMIT 1)
	UNION ALL
	(SELECT scope, key, path FROM {schema}.saga WHERE ended_at IS NULL AND status IN ('running', 'compensating', 'paused', 'stuck') AND id = $1 LIMIT 1)
	UNION ALL
	(SELECT scope, key, path FROM {schema}.saga WHERE ended_at - started_at > '10 minutes'::interval AND id = $1 LIMIT 1)) found
LIMIT 1
---- instanceQueries.insertJournal

INSERT INTO {schema}.saga_journal (scope, key, path, verb, step, who, why) VALUES ($1, $2, $3, $4, $5, $6, $7)
---- instanceQueries.knowsName

SELECT EXISTS (SELECT FROM {schema}.saga_definition WHERE name = $1) OR EXISTS (SELECT FROM {schema}.saga WHERE name = $1 AND ended_at IS NULL)
---- instanceQueries.limitLocks
SELECT set_config('lock_timeout', $1, true)
---- instanceQueries.list

SELECT scope, key, path, id, root, name, version, coalesce(parent, ''), status, reason, tries,
	started_at, updated_at, due_at, ended_at FROM {schema}.saga
WHERE (scope, key, path) > ($1, $2, $3) AND ($4::text = '' OR name = $4) AND ($5::integer = 0 OR version = $5) AND ($6::text = '' OR status = $6)
	AND (NOT $7::boolean OR ended_at IS NULL) AND (cardinality($8::text[]) IS NULL OR scope = ANY ($8)) AND ($9::text = '' OR key = $9)
	AND ($10::bigint = 0 OR started_at <= coalesce($13, clock_timestamp()) - $10::bigint * interval '1 microsecond')
	AND ($11::bigint = 0 OR updated_at <= coalesce($13, clock_timestamp()) - $11::bigint * interval '1 microsecond')
	AND ($12::uuid IS NULL OR id = $12) AND ($13::timestamptz IS NULL OR updated_at <= $13)
	AND ($14::bigint = 0 OR ended_at > coalesce($13, now()) - $14::bigint * interval '1 microsecond')
ORDER BY scope, key, path LIMIT $15
---- instanceQueries.listScopesOfKey

WITH RECURSIVE other AS (
	(SELECT scope FROM {schema}.saga ORDER BY scope LIMIT 1)
	UNION ALL
	SELECT (SELECT s.scope FROM {schema}.saga s WHERE s.scope > other.scope ORDER BY s.scope LIMIT 1)
	FROM other WHERE other.scope IS NOT NULL)
SELECT scope FROM other WHERE scope IS NOT NULL AND EXISTS (SELECT FROM {schema}.saga s WHERE s.scope = other.scope AND s.key = $1) LIMIT $2
---- instanceQueries.pick

SELECT scope, key, path, id, root, name, version, coalesce(parent, ''), status, reason, tries,
	started_at, updated_at, due_at, ended_at, plan_hash, CASE WHEN length(progress) <= $17 THEN progress ELSE '' END,
	(extract(epoch FROM clock_timestamp() - started_at) * 1000)::bigint
FROM {schema}.saga
WHERE (scope, key, path) > ($1, $2, $3) AND ($4::text = '' OR name = $4) AND ($5::integer = 0 OR version = $5) AND ($6::text = '' OR status = $6)
	AND (NOT $7::boolean OR ended_at IS NULL) AND (cardinality($8::text[]) IS NULL OR scope = ANY ($8)) AND ($9::text = '' OR key = $9)
	AND ($10::bigint = 0 OR started_at <= coalesce($13, clock_timestamp()) - $10::bigint * interval '1 microsecond')
	AND ($11::bigint = 0 OR updated_at <= coalesce($13, clock_timestamp()) - $11::bigint * interval '1 microsecond')
	AND ($12::uuid IS NULL OR id = $12) AND ($13::timestamptz IS NULL OR updated_at <= $13)
	AND ($14::bigint = 0 OR ended_at > coalesce($13, now()) - $14::bigint * interval '1 microsecond') AND started_at <= $16
ORDER BY scope, key, path LIMIT $15
---- instanceQueries.readClock
SELECT clock_timestamp()
---- instanceQueries.readEnded

SELECT scope, key, path, root::text, status FROM {schema}.saga
WHERE ended_at IS NOT NULL AND (scope, key, path) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]))
---- instanceQueries.readFamily

SELECT scope, key, path, id, root, name, version, coalesce(parent, ''), status, reason, tries,
	started_at, updated_at, due_at, ended_at FROM {schema}.saga WHERE scope = $1 AND key = $2 ORDER BY path
---- instanceQueries.readJournal

SELECT id, at, verb, step, who, why FROM {schema}.saga_journal WHERE scope = $1 AND key = $2 AND path = $3 ORDER BY id
---- instanceQueries.readPace

WITH moment AS MATERIALIZED (SELECT now, date_part('epoch', now) AS epoch FROM clock_timestamp() AS now),
first AS MATERIALIZED (
	SELECT (lpad(to_hex((extract(epoch FROM now - ($1::integer + $3::integer) * interval '1 minute') * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid AS id
	FROM moment),
ended AS MATERIALIZED (
	SELECT floor(((SELECT epoch FROM moment) - date_part('epoch', started_at)) / 60)::integer AS began,
		floor(((SELECT epoch FROM moment) - date_part('epoch', ended_at)) / 60)::integer AS ended, status, count(*) AS instances
	FROM (SELECT started_at, ended_at, status FROM {schema}.saga
		WHERE ended_at > (SELECT now FROM moment) - $1::integer * interval '1 minute' ORDER BY ended_at DESC LIMIT $2) newest
	GROUP BY 1, 2, 3),
ends AS (
	SELECT ended AS minute, sum(instances) FILTER (WHERE status = 'completed') AS completed,
		sum(instances) FILTER (WHERE status = 'compensated') AS compensated
	FROM ended GROUP BY minute),
starts AS (
	SELECT minute, sum(instances) AS started
	FROM (SELECT began AS minute, instances FROM ended
		UNION ALL
		SELECT floor(((SELECT epoch FROM moment) - date_part('epoch', started_at)) / 60)::integer, 1 FROM {schema}.saga
		WHERE ended_at IS NULL AND status IN ('running', 'compensating', 'paused', 'stuck') AND id >= (SELECT id FROM first)
			AND started_at > (SELECT now FROM moment) - $1::integer * interval '1 minute') begun
	GROUP BY minute)
SELECT minute, coalesce(started, 0)::bigint, coalesce(completed, 0)::bigint, coalesce(compensated, 0)::bigint
FROM starts FULL JOIN ends USING (minute) WHERE minute BETWEEN 0 AND $1 - 1
UNION ALL
SELECT -1, coalesce(sum(instances), 0)::bigint, coalesce(max(ended), 0), 0 FROM ended
---- instanceQueries.readPlan

SELECT plan FROM {schema}.saga_definition WHERE name = $1 AND version = $2 AND starts_with(hash, $3)
---- instanceQueries.readWaits

SELECT s.scope, s.key, s.path, s.progress, p.plan
FROM unnest($1::text[], $2::text[], $3::text[]) AS w (scope, key, path)
JOIN {schema}.saga AS s ON s.scope = w.scope AND s.key = w.key AND s.path = w.path
JOIN {schema}.saga_definition AS p ON p.name = s.name AND p.version = s.version AND starts_with(p.hash, s.plan_hash)
WHERE s.ended_at IS NULL AND length(s.progress) <= $4
---- keyQueries.find

WITH RECURSIVE spaces AS (
	(SELECT namespace FROM {schema}.idempotency_key WHERE $1::text = '' ORDER BY namespace LIMIT 1)
	UNION ALL
	SELECT (SELECT t.namespace FROM {schema}.idempotency_key t WHERE t.namespace > spaces.namespace ORDER BY t.namespace LIMIT 1)
	FROM spaces WHERE spaces.namespace IS NOT NULL),
named AS (
	SELECT $1::text COLLATE "C" AS namespace WHERE $1::text <> ''
	UNION ALL
	SELECT namespace FROM spaces WHERE namespace IS NOT NULL),
walk AS (
	SELECT n.namespace, (SELECT t.scope FROM {schema}.idempotency_key t WHERE t.namespace = n.namespace ORDER BY t.scope LIMIT 1) AS scope
	FROM named n WHERE $2::text = ''
	UNION ALL
	SELECT w.namespace, (SELECT t.scope FROM {schema}.idempotency_key t WHERE t.namespace = w.namespace AND t.scope > w.scope ORDER BY t.scope LIMIT 1)
	FROM walk w WHERE w.scope IS NOT NULL),
pairs AS (
	SELECT namespace, $2::text COLLATE "C" AS scope FROM named WHERE $2::text <> ''
	UNION ALL
	SELECT namespace, scope FROM walk WHERE scope IS NOT NULL)
SELECT r.* FROM pairs p CROSS JOIN LATERAL (
	SELECT namespace, scope, key, state, attempt, token::text, created_at, lease_until, expires_at = 'infinity', clock_timestamp() FROM {schema}.idempotency_key k
	WHERE k.namespace = p.namespace AND k.scope = p.scope AND k.key = $3) r
LIMIT $4
---- keyQueries.insertJournal

INSERT INTO {schema}.operator_journal (who, verb, what, ids, why)
VALUES (coalesce(nullif($1, ''), session_user), $2, $3, $4, $5)
---- keyQueries.list

SELECT namespace, scope, key, state, attempt, token::text, created_at, lease_until, expires_at = 'infinity', clock_timestamp() FROM {schema}.idempotency_key
WHERE (namespace, scope, key) > ($1, $2, $3) AND expires_at = 'infinity' AND (state = 5 OR state = 1 AND lease_until <= clock_timestamp()) AND ($4::text = '' OR namespace = $4) AND ($5::text = '' OR scope = $5)
ORDER BY namespace, scope, key LIMIT $6
---- keyQueries.listOpen

SELECT namespace, scope, key, state, attempt, token::text, created_at, lease_until, expires_at = 'infinity', clock_timestamp() FROM {schema}.idempotency_key
WHERE (namespace, scope, key) > ($1, $2, $3) AND expires_at = 'infinity'
ORDER BY namespace, scope, key LIMIT $4
---- keyQueries.read

SELECT namespace, scope, key, state, attempt, token::text, created_at, lease_until, expires_at = 'infinity', clock_timestamp() FROM {schema}.idempotency_key WHERE namespace = $1 AND scope = $2 AND key = $3
---- keyQueries.settle

WITH free AS MATERIALIZED (
	SELECT FROM {schema}.idempotency_key
	WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4::text::uuid AND expires_at = 'infinity' AND (state = 5 OR state = 1 AND lease_until <= clock_timestamp())
	FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.idempotency_key
SET state = $5, resp_status = $6, resp_header = $7, resp_body = $8, enc_key_id = nullif($9, ''), token = gen_random_uuid(),
	completed_at = clock_timestamp(), lease_until = 'epoch', expires_at = clock_timestamp() + $10::bigint * interval '1 ms'
WHERE namespace = $1 AND scope = $2 AND key = $3 AND token = $4::text::uuid AND EXISTS (SELECT FROM free)
---- outboxQueries.bury

WITH batch AS (SELECT id FROM {schema}.outbox_held WHERE (state = 'refused' OR state = 'waiting' AND due_at < 'infinity' AND reason <> '') AND id > $1 AND coalesce(refused_at, created_at) <= $2 AND ($3::bigint[] IS NULL OR id = ANY ($3))
	AND ($4::uuid IS NULL OR message_id = $4) AND ($5 = '' OR (topic = $5) IS TRUE) AND ($6 = '' OR scope = $6) AND ($7 = '' OR key = $7)
	AND ($8 = '' OR position($8 IN reason) > 0) AND ($9 = '' OR (step = $9) IS TRUE) AND ($10::timestamptz IS NULL OR coalesce(refused_at, created_at) <= $10)
	AND ((fingerprint = $11) IS TRUE OR $11 = '') AND (NOT $12::boolean OR step = '') ORDER BY id LIMIT $13 FOR UPDATE)
UPDATE {schema}.outbox_held h
SET state = 'dead', attempts = greatest(h.attempts, 1), refused_at = clock_timestamp()
FROM batch WHERE h.id = batch.id
RETURNING h.id, h.ordering_key
---- outboxQueries.copyLogged

INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, leaf)
SELECT message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type,
	(coalesce(headers::jsonb, '{}') || jsonb_build_object('x-sagamill-replayed', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')))::json,
	payload, created_at, -1
FROM {schema}.outbox WHERE id = ANY ($1::bigint[])
ORDER BY id
---- outboxQueries.count
SELECT count(*) FROM {schema}.outbox_held WHERE state = 'dead' AND id > $1 AND refused_at <= $2 AND ($3::bigint[] IS NULL OR id = ANY ($3))
	AND ($4::uuid IS NULL OR message_id = $4) AND ($5 = '' OR (topic = $5)) AND ($6 = '' OR scope = $6) AND ($7 = '' OR key = $7)
	AND ($8 = '' OR reason LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%') AND ($9 = '' OR (step = $9)) AND ($10::timestamptz IS NULL OR refused_at <= $10)
	AND ((fingerprint = $11) OR $11 = '') AND (NOT $12::boolean OR step = '')
---- outboxQueries.countLogged
SELECT count(*), coalesce(max(id), 0) FROM {schema}.outbox m WHERE leaf IS DISTINCT FROM -1 AND id > $5 AND ($1 = '' OR scope = $1) AND ($2 = '' OR key = $2)
	AND ($3::timestamptz IS NULL OR created_at >= $3) AND ($4::timestamptz IS NULL OR created_at < $4)
	AND NOT EXISTS (SELECT FROM {schema}.outbox_held h WHERE h.id = m.id)
---- outboxQueries.countRetrying
SELECT count(*) FROM {schema}.outbox_held WHERE (state = 'refused' OR state = 'waiting' AND due_at < 'infinity' AND reason <> '') AND id > $1 AND coalesce(refused_at, created_at) <= $2 AND ($3::bigint[] IS NULL OR id = ANY ($3))
	AND ($4::uuid IS NULL OR message_id = $4) AND ($5 = '' OR (topic = $5)) AND ($6 = '' OR scope = $6) AND ($7 = '' OR key = $7)
	AND ($8 = '' OR reason LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%') AND ($9 = '' OR (step = $9)) AND ($10::timestamptz IS NULL OR coalesce(refused_at, created_at) <= $10)
	AND ((fingerprint = $11) OR $11 = '') AND (NOT $12::boolean OR step = '')
---- outboxQueries.discard

WITH batch AS (SELECT id FROM {schema}.outbox_held WHERE state = 'dead' AND id > $1 AND refused_at <= $2 AND ($3::bigint[] IS NULL OR id = ANY ($3))
	AND ($4::uuid IS NULL OR message_id = $4) AND ($5 = '' OR (topic = $5) IS TRUE) AND ($6 = '' OR scope = $6) AND ($7 = '' OR key = $7)
	AND ($8 = '' OR position($8 IN reason) > 0) AND ($9 = '' OR (step = $9) IS TRUE) AND ($10::timestamptz IS NULL OR refused_at <= $10)
	AND ((fingerprint = $11) IS TRUE OR $11 = '') AND (NOT $12::boolean OR step = '') ORDER BY id LIMIT $13 FOR UPDATE)
DELETE FROM {schema}.outbox_held h USING batch WHERE h.id = batch.id
RETURNING h.id, h.ordering_key
---- outboxQueries.group

WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
groups AS (
	SELECT topic, '' AS reason, step, fingerprint, count(*) AS n, min(refused_at) AS oldest, max(refused_at) AS newest, max(id) AS sample, ARRAY[count(*) FILTER (WHERE refused_at > (SELECT now - interval '3600 seconds' FROM moment)), count(*) FILTER (WHERE refused_at > (SELECT now - interval '3300 seconds' FROM moment)), count(*) FILTER (WHERE refused_at > (SELECT now - interval '3000 seconds' FROM moment)), count(*) FILTER (WHERE refused_at > (SELECT now - interval '2700 seconds' FROM moment)), count(*) FILTER (WHERE refused_at > (SELECT now - interval '2400 seconds' FROM moment)), count(*) FILTER (WHERE refused_at > (SELECT now - interval '2100 seconds' FROM moment)), count(*) FILTER (WHERE refused_at > (SELECT now - interval '1800 seconds' FROM moment)), count(*) FILTER (WHERE refused_at > (SELECT now - interval '1500 seconds' FROM moment)), count(*) FILTER (WHERE refused_at > (SELECT now - interval '1200 seconds' FROM moment)), count(*) FILTER (WHERE refused_at > (SELECT now - interval '900 seconds' FROM moment)), count(*) FILTER (WHERE refused_at > (SELECT now - interval '600 seconds' FROM moment)), count(*) FILTER (WHERE refused_at > (SELECT now - interval '300 seconds' FROM moment))] AS trend
	FROM {schema}.outbox_held WHERE state = 'dead' AND id > $1 AND refused_at <= $2 AND ($3::bigint[] IS NULL OR id = ANY ($3))
	AND ($4::uuid IS NULL OR message_id = $4) AND ($5 = '' OR (topic = $5)) AND ($6 = '' OR scope = $6) AND ($7 = '' OR key = $7)
	AND ($8 = '' OR reason LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%') AND ($9 = '' OR (step = $9)) AND ($10::timestamptz IS NULL OR refused_at <= $10)
	AND ((fingerprint = $11) OR $11 = '') AND (NOT $12::boolean OR step = '') GROUP BY 1, 2, 3, 4)
SELECT topic, coalesce(step, ''), reason, fingerprint, coalesce((SELECT left(reason, 300) FROM {schema}.outbox_held l WHERE l.id = sample), ''), n, oldest, newest, trend,
	(sum(n) OVER ())::bigint, count(*) OVER ()
FROM groups ORDER BY n DESC, 1, 2, 3, 4 LIMIT $13
---- outboxQueries.groupRetrying

WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
groups AS (
	SELECT topic, '' AS reason, step, fingerprint, count(*) AS n, min(coalesce(refused_at, created_at)) AS oldest, max(coalesce(refused_at, created_at)) AS newest, max(id) AS sample, ARRAY[count(*) FILTER (WHERE coalesce(refused_at, created_at) > (SELECT now - interval '3600 seconds' FROM moment)), count(*) FILTER (WHERE coalesce(refused_at, created_at) > (SELECT now - interval '3300 seconds' FROM moment)), count(*) FILTER (WHERE coalesce(refused_at, created_at) > (SELECT now - interval '3000 seconds' FROM moment)), count(*) FILTER (WHERE coalesce(refused_at, created_at) > (SELECT now - interval '2700 seconds' FROM moment)), count(*) FILTER (WHERE coalesce(refused_at, created_at) > (SELECT now - interval '2400 seconds' FROM moment)), count(*) FILTER (WHERE coalesce(refused_at, created_at) > (SELECT now - interval '2100 seconds' FROM moment)), count(*) FILTER (WHERE coalesce(refused_at, created_at) > (SELECT now - interval '1800 seconds' FROM moment)), count(*) FILTER (WHERE coalesce(refused_at, created_at) > (SELECT now - interval '1500 seconds' FROM moment)), count(*) FILTER (WHERE coalesce(refused_at, created_at) > (SELECT now - interval '1200 seconds' FROM moment)), count(*) FILTER (WHERE coalesce(refused_at, created_at) > (SELECT now - interval '900 seconds' FROM moment)), count(*) FILTER (WHERE coalesce(refused_at, created_at) > (SELECT now - interval '600 seconds' FROM moment)), count(*) FILTER (WHERE coalesce(refused_at, created_at) > (SELECT now - interval '300 seconds' FROM moment))] AS trend
	FROM {schema}.outbox_held WHERE (state = 'refused' OR state = 'waiting' AND due_at < 'infinity' AND reason <> '') AND id > $1 AND coalesce(refused_at, created_at) <= $2 AND ($3::bigint[] IS NULL OR id = ANY ($3))
	AND ($4::uuid IS NULL OR message_id = $4) AND ($5 = '' OR (topic = $5)) AND ($6 = '' OR scope = $6) AND ($7 = '' OR key = $7)
	AND ($8 = '' OR reason LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%') AND ($9 = '' OR (step = $9)) AND ($10::timestamptz IS NULL OR coalesce(refused_at, created_at) <= $10)
	AND ((fingerprint = $11) OR $11 = '') AND (NOT $12::boolean OR step = '') GROUP BY 1, 2, 3, 4)
SELECT topic, coalesce(step, ''), reason, fingerprint, coalesce((SELECT left(reason, 300) FROM {schema}.outbox_held l WHERE l.id = sample), ''), n, oldest, newest, trend,
	(sum(n) OVER ())::bigint, count(*) OVER ()
FROM groups ORDER BY n DESC, 1, 2, 3, 4 LIMIT $13
---- outboxQueries.insertJournal

INSERT INTO {schema}.operator_journal (who, verb, what, ids, why)
VALUES (coalesce(nullif($1, ''), session_user), $2, $3, $4, $5)
---- outboxQueries.limitLocks
SELECT set_config('lock_timeout', $1, true)
---- outboxQueries.list

SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type,
	headers, NULL::bytea, octet_length(payload), created_at, attempts, reason, fingerprint, coalesce(refused_at, created_at),
	CASE WHEN state <> 'dead' THEN due_at END
FROM {schema}.outbox_held WHERE state = 'dead' AND id > $1 AND refused_at <= $2 AND ($3::bigint[] IS NULL OR id = ANY ($3))
	AND ($4::uuid IS NULL OR message_id = $4) AND ($5 = '' OR (topic = $5)) AND ($6 = '' OR scope = $6) AND ($7 = '' OR key = $7)
	AND ($8 = '' OR reason LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%') AND ($9 = '' OR (step = $9)) AND ($10::timestamptz IS NULL OR refused_at <= $10)
	AND ((fingerprint = $11) OR $11 = '') AND (NOT $12::boolean OR step = '') ORDER BY id LIMIT $13
---- outboxQueries.listJournal

SELECT id, at, who, db_user, verb, what, ids, why FROM {schema}.operator_journal
WHERE ($1::timestamptz IS NULL OR at >= $1) AND ($2::bigint = 0 OR id < $2)
ORDER BY id DESC LIMIT $3
---- outboxQueries.listLogged

SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, octet_length(payload), created_at
FROM {schema}.outbox m
WHERE leaf IS DISTINCT FROM -1 AND id > $5 AND ($1 = '' OR scope = $1) AND ($2 = '' OR key = $2)
	AND ($3::timestamptz IS NULL OR created_at >= $3) AND ($4::timestamptz IS NULL OR created_at < $4)
	AND NOT EXISTS (SELECT FROM {schema}.outbox_held h WHERE h.id = m.id) AND id <= $6
ORDER BY id LIMIT $7
---- outboxQueries.listRetrying

SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type,
	headers, NULL::bytea, octet_length(payload), created_at, attempts, reason, fingerprint, coalesce(refused_at, created_at),
	CASE WHEN state <> 'dead' THEN due_at END
FROM {schema}.outbox_held WHERE (state = 'refused' OR state = 'waiting' AND due_at < 'infinity' AND reason <> '') AND id > $1 AND coalesce(refused_at, created_at) <= $2 AND ($3::bigint[] IS NULL OR id = ANY ($3))
	AND ($4::uuid IS NULL OR message_id = $4) AND ($5 = '' OR (topic = $5)) AND ($6 = '' OR scope = $6) AND ($7 = '' OR key = $7)
	AND ($8 = '' OR reason LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%') AND ($9 = '' OR (step = $9)) AND ($10::timestamptz IS NULL OR coalesce(refused_at, created_at) <= $10)
	AND ((fingerprint = $11) OR $11 = '') AND (NOT $12::boolean OR step = '') ORDER BY id LIMIT $13
---- outboxQueries.locate

WITH relay AS MATERIALIZED (
	SELECT epoch, CASE WHEN lease_until > clock_timestamp() THEN holder ELSE '' END AS holder, clock_timestamp() AS now,
		system_identifier <> (SELECT system_identifier::text FROM pg_control_system()) AS restored
	FROM {schema}.outbox_relay),
mark AS MATERIALIZED (
	SELECT from_snapshot, to_snapshot, last_id FROM (
		SELECT epoch, seq, from_snapshot, to_snapshot, last_id FROM {schema}.outbox_cursor_0
		UNION ALL
		SELECT epoch, seq, from_snapshot, to_snapshot, last_id FROM {schema}.outbox_cursor_1) c
	ORDER BY epoch DESC, seq DESC LIMIT 1),
reach AS MATERIALIZED (
	SELECT from_snapshot::pg_snapshot AS past, to_snapshot::pg_snapshot AS next, last_id
	FROM mark, relay
	WHERE NOT restored
		AND pg_snapshot_xmax(coalesce(to_snapshot, from_snapshot)::pg_snapshot) <= pg_snapshot_xmax(pg_current_snapshot())),
mine AS MATERIALIZED (
	SELECT DISTINCT ON (id) * FROM (
		SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, size, created_at,
			CASE WHEN (SELECT pg_visible_in_snapshot(d.xid, past) OR pg_visible_in_snapshot(d.xid, next) AND d.id <= last_id FROM reach)
				THEN 'published' ELSE 'stored' END AS place,
			NULL::timestamptz AS due_at, 0 AS attempts, '' AS reason, NULL::timestamptz AS refused_at, false AS held
		FROM (
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.outbox_0 m WHERE key = $2 AND ($1 = '' OR scope = $1)
UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.outbox_1 m WHERE key = $2 AND ($1 = '' OR scope = $1)
UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.outbox_2 m WHERE key = $2 AND ($1 = '' OR scope = $1)
UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.outbox_other m WHERE key = $2 AND ($1 = '' OR scope = $1)) d
		UNION ALL
		SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, octet_length(payload), created_at,
			state, CASE WHEN state <> 'dead' AND isfinite(due_at) THEN due_at END, attempts, reason, refused_at, true
		FROM {schema}.outbox_held WHERE key = $2 AND ($1 = '' OR scope = $1)) found
	ORDER BY id, held DESC),
picked AS MATERIALIZED (
	SELECT * FROM mine WHERE place <> 'published' OR true ORDER BY place = 'published', CASE place WHEN 'published' THEN -id ELSE id END LIMIT $3)
SELECT r.holder, r.now, r.epoch > 0 AND NOT r.restored AND NOT EXISTS (SELECT FROM mark),
	p.id, p.message_id::text, CASE WHEN p.place = 'stored' AND h.id IS NOT NULL THEN 'waiting' ELSE p.place END,
	p.topic, p.type, p.scope, p.key, p.step, p.n, p.ordering_key, p.correlation_id, p.causation_id,
	coalesce(p.size, 0), p.created_at, p.due_at, coalesce(p.attempts, 0), p.reason, p.refused_at,
	coalesce(h.id, 0), h.topic, h.scope, h.key, h.step, h.n, coalesce(h.attempts, 0), h.reason, h.due_at
FROM relay r LEFT JOIN picked p ON true LEFT JOIN LATERAL (
	SELECT id, topic, scope, key, step, n, attempts, reason, CASE WHEN isfinite(due_at) THEN due_at END AS due_at
	FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN p.ordering_key AND p.ordering_key ORDER BY ordering_key, id LIMIT 1) first
	WHERE p.place IN ('stored', 'waiting') AND first.id <> p.id) h ON true
ORDER BY p.id
---- outboxQueries.locateUnpublished

WITH relay AS MATERIALIZED (
	SELECT epoch, CASE WHEN lease_until > clock_timestamp() THEN holder ELSE '' END AS holder, clock_timestamp() AS now,
		system_identifier <> (SELECT system_identifier::text FROM pg_control_system()) AS restored
	FROM {schema}.outbox_relay),
mark AS MATERIALIZED (
	SELECT from_snapshot, to_snapshot, last_id FROM (
		SELECT epoch, seq, from_snapshot, to_snapshot, last_id FROM {schema}.outbox_cursor_0
		UNION ALL
		SELECT epoch, seq, from_snapshot, to_snapshot, last_id FROM {schema}.outbox_cursor_1) c
	ORDER BY epoch DESC, seq DESC LIMIT 1),
reach AS MATERIALIZED (
	SELECT from_snapshot::pg_snapshot AS past, to_snapshot::pg_snapshot AS next, last_id
	FROM mark, relay
	WHERE NOT restored
		AND pg_snapshot_xmax(coalesce(to_snapshot, from_snapshot)::pg_snapshot) <= pg_snapshot_xmax(pg_current_snapshot())),
mine AS MATERIALIZED (
	SELECT DISTINCT ON (id) * FROM (
		SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, size, created_at,
			CASE WHEN (SELECT pg_visible_in_snapshot(d.xid, past) OR pg_visible_in_snapshot(d.xid, next) AND d.id <= last_id FROM reach)
				THEN 'published' ELSE 'stored' END AS place,
			NULL::timestamptz AS due_at, 0 AS attempts, '' AS reason, NULL::timestamptz AS refused_at, false AS held
		FROM (
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.outbox_0 m WHERE key = $2 AND ($1 = '' OR scope = $1)
		AND xid >= coalesce((SELECT pg_snapshot_xmax(past) FROM reach), '0'::xid8)
	UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.outbox_0 m WHERE key = $2 AND ($1 = '' OR scope = $1)
		AND xid = ANY (ARRAY(SELECT pg_snapshot_xip(past) FROM reach))
UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.outbox_1 m WHERE key = $2 AND ($1 = '' OR scope = $1)
		AND xid >= coalesce((SELECT pg_snapshot_xmax(past) FROM reach), '0'::xid8)
	UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.outbox_1 m WHERE key = $2 AND ($1 = '' OR scope = $1)
		AND xid = ANY (ARRAY(SELECT pg_snapshot_xip(past) FROM reach))
UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.outbox_2 m WHERE key = $2 AND ($1 = '' OR scope = $1)
		AND xid >= coalesce((SELECT pg_snapshot_xmax(past) FROM reach), '0'::xid8)
	UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.outbox_2 m WHERE key = $2 AND ($1 = '' OR scope = $1)
		AND xid = ANY (ARRAY(SELECT pg_snapshot_xip(past) FROM reach))
UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.outbox_other m WHERE key = $2 AND ($1 = '' OR scope = $1)
		AND xid >= coalesce((SELECT pg_snapshot_xmax(past) FROM reach), '0'::xid8)
	UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.outbox_other m WHERE key = $2 AND ($1 = '' OR scope = $1)
		AND xid = ANY (ARRAY(SELECT pg_snapshot_xip(past) FROM reach))) d
		UNION ALL
		SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, octet_length(payload), created_at,
			state, CASE WHEN state <> 'dead' AND isfinite(due_at) THEN due_at END, attempts, reason, refused_at, true
		FROM {schema}.outbox_held WHERE key = $2 AND ($1 = '' OR scope = $1)) found
	ORDER BY id, held DESC),
picked AS MATERIALIZED (
	SELECT * FROM mine WHERE place <> 'published' OR false ORDER BY place = 'published', CASE place WHEN 'published' THEN -id ELSE id END LIMIT $3)
SELECT r.holder, r.now, r.epoch > 0 AND NOT r.restored AND NOT EXISTS (SELECT FROM mark),
	p.id, p.message_id::text, CASE WHEN p.place = 'stored' AND h.id IS NOT NULL THEN 'waiting' ELSE p.place END,
	p.topic, p.type, p.scope, p.key, p.step, p.n, p.ordering_key, p.correlation_id, p.causation_id,
	coalesce(p.size, 0), p.created_at, p.due_at, coalesce(p.attempts, 0), p.reason, p.refused_at,
	coalesce(h.id, 0), h.topic, h.scope, h.key, h.step, h.n, coalesce(h.attempts, 0), h.reason, h.due_at
FROM relay r LEFT JOIN picked p ON true LEFT JOIN LATERAL (
	SELECT id, topic, scope, key, step, n, attempts, reason, CASE WHEN isfinite(due_at) THEN due_at END AS due_at
	FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN p.ordering_key AND p.ordering_key ORDER BY ordering_key, id LIMIT 1) first
	WHERE p.place IN ('stored', 'waiting') AND first.id <> p.id) h ON true
ORDER BY p.id
---- outboxQueries.lockLease
SELECT epoch FROM {schema}.outbox_relay FOR NO KEY UPDATE
---- outboxQueries.oldestLogged

SELECT min(created_at) FROM {schema}.outbox WHERE leaf IS DISTINCT FROM -1
---- outboxQueries.pin
LOCK TABLE {schema}.outbox_cursor_0, {schema}.outbox_cursor_1, ONLY {schema}.outbox_0, ONLY {schema}.outbox_1,
	ONLY {schema}.outbox_2, ONLY {schema}.outbox_other IN ACCESS SHARE MODE
---- outboxQueries.planByIndex

SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true)
---- outboxQueries.planBySearch

SELECT set_config('enable_seqscan', 'off', true), set_config('enable_indexscan', 'off', true), set_config('enable_bitmapscan', 'on', true),
	set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true),
	set_config('plan_cache_mode', 'force_custom_plan', true)
---- outboxQueries.promote

WITH keys AS (SELECT DISTINCT key FROM unnest($1::text[]) u (key)),
first AS (SELECT k.key, f.id, f.state, f.due_at
	FROM keys k LEFT JOIN LATERAL (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN k.key AND k.key ORDER BY ordering_key, id LIMIT 1) f ON true),
promoted AS (
	UPDATE {schema}.outbox_held SET due_at = clock_timestamp()
	WHERE id = ANY (ARRAY(
		SELECT id FROM {schema}.outbox_held
		WHERE id = ANY (ARRAY(SELECT id FROM first WHERE state = 'waiting' AND due_at = 'infinity'))
			AND state <> 'refused' AND state <> 'dead' AND state <> 'delayed' AND due_at = 'infinity'
		FOR UPDATE)))
SELECT key FROM first WHERE id IS NULL
---- outboxQueries.read

SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type,
	headers, substring(payload FROM 1 FOR $2::integer), octet_length(payload), created_at, attempts, reason, fingerprint, coalesce(refused_at, created_at),
	CASE WHEN state <> 'dead' THEN due_at END
FROM {schema}.outbox_held WHERE id = $1 AND (state = 'dead' OR (state = 'refused' OR state = 'waiting' AND due_at < 'infinity' AND reason <> ''))
---- outboxQueries.readClock
SELECT clock_timestamp() - $1::bigint * interval '1 microsecond'
---- outboxQueries.readContents

SELECT DISTINCT ON (id) id, content_type, headers, payload FROM (
	SELECT id, coalesce(nullif(m.content_type, ''), 'application/json') AS content_type, headers, CASE WHEN octet_length(payload) <= $2::integer THEN payload END AS payload
	FROM {schema}.outbox m WHERE id = ANY ($1::bigint[])
	UNION ALL
	SELECT id, content_type, headers, CASE WHEN octet_length(payload) <= $2::integer THEN payload END
	FROM {schema}.outbox_held WHERE id = ANY ($1::bigint[])) found
ORDER BY id
---- outboxQueries.redrive

WITH batch AS (SELECT id FROM {schema}.outbox_held WHERE state = 'dead' AND id > $1 AND refused_at <= $2 AND ($3::bigint[] IS NULL OR id = ANY ($3))
	AND ($4::uuid IS NULL OR message_id = $4) AND ($5 = '' OR (topic = $5) IS TRUE) AND ($6 = '' OR scope = $6) AND ($7 = '' OR key = $7)
	AND ($8 = '' OR position($8 IN reason) > 0) AND ($9 = '' OR (step = $9) IS TRUE) AND ($10::timestamptz IS NULL OR refused_at <= $10)
	AND ((fingerprint = $11) IS TRUE OR $11 = '') AND (NOT $12::boolean OR step = '') ORDER BY id LIMIT $13 FOR UPDATE)
UPDATE {schema}.outbox_held h
SET state = 'delayed', attempts = 0, refused_at = NULL, due_at = (SELECT clock_timestamp())
FROM batch WHERE h.id = batch.id
RETURNING h.id, h.ordering_key
---- overviewQueries.readRequests

SELECT k.*, u.*, (SELECT greatest(coalesce(extract(epoch FROM clock_timestamp() - min(expires_at)), 0), 0)::float8 FROM (
	SELECT expires_at FROM {schema}.idempotency_key WHERE expires_at < 'infinity' ORDER BY expires_at LIMIT 1) AS oldest)
FROM (
	SELECT count(*), count(*) FILTER (WHERE abandoned), greatest(coalesce(extract(epoch FROM clock_timestamp() - min(lease_until)), 0), 0)::float8
	FROM (SELECT state, lease_until, state = 1 AND lease_until <= clock_timestamp() AS abandoned, expires_at = 'infinity' AND (state = 5 OR state = 1 AND lease_until <= clock_timestamp()) AS unknown
		FROM {schema}.idempotency_key ORDER BY expires_at DESC LIMIT $1) AS newest
	WHERE state = 1 AND NOT unknown) k,
(SELECT count(*), greatest(coalesce(extract(epoch FROM clock_timestamp() - min(lease_until)), 0), 0)::float8
	FROM (SELECT lease_until FROM {schema}.idempotency_key WHERE expires_at = 'infinity' AND (state = 5 OR state = 1 AND lease_until <= clock_timestamp()) LIMIT $2) AS open) u
---- readerQueries.findID

SELECT scope, key, path FROM (
	(SELECT scope, key, path FROM {schema}.saga WHERE ended_at >= $2 AND ended_at < $3 AND id = $1 LIMIT 1)
	UNION ALL
	(SELECT scope, key, path FROM {schema}.saga WHERE ended_at IS NULL AND status IN ('running', 'compensating', 'paused', 'stuck') AND id = $1 LIMIT 1)
	UNION ALL
	(SELECT scope, key, path FROM {schema}.saga WHERE ended_at - started_at > '10 minutes'::interval AND id = $1 LIMIT 1)) found
LIMIT 1
---- readerQueries.findInstances

WITH RECURSIVE other AS (
	(SELECT scope FROM {schema}.saga WHERE $1::text = '' ORDER BY scope LIMIT 1)
	UNION ALL
	SELECT (SELECT t.scope FROM {schema}.saga t WHERE t.scope > other.scope ORDER BY t.scope LIMIT 1)
	FROM other WHERE other.scope IS NOT NULL),
scopes AS (
	SELECT $1::text COLLATE "C" AS scope WHERE $1::text <> ''
	UNION ALL
	SELECT scope FROM other WHERE scope IS NOT NULL)
SELECT i.scope, i.key, i.path, i.name, i.id::text, i.status FROM scopes s CROSS JOIN LATERAL (
	SELECT scope, key, path, name, id, status, started_at FROM {schema}.saga
	WHERE scope = s.scope AND key = $2 AND ($4::uuid IS NULL OR id = $4 OR root = $4) ORDER BY scope, key, path LIMIT $3) i
ORDER BY i.path = '' DESC, i.started_at DESC, i.scope, i.key, i.path LIMIT $3
---- readerQueries.findMessages

SELECT DISTINCT scope, key, type, id, message_id::text FROM (
	SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id FROM {schema}.outbox_held WHERE key = $2
	UNION ALL SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id FROM {schema}.outbox_held WHERE state = 'dead' AND (correlation_id = $2 OR causation_id = $2 OR message_id = $1::uuid)
	UNION ALL SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id FROM {schema}.outbox_held WHERE state = 'delayed' AND (correlation_id = $2 OR causation_id = $2 OR message_id = $1::uuid)
	UNION ALL SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id FROM {schema}.outbox_held WHERE state IN ('refused', 'waiting') AND (correlation_id = $2 OR causation_id = $2 OR message_id = $1::uuid)
	UNION ALL 
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id FROM {schema}.outbox_0 m WHERE key = $2 OR correlation_id = $2 OR causation_id = $2 OR message_id = $1::uuid
UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id FROM {schema}.outbox_1 m WHERE key = $2 OR correlation_id = $2 OR causation_id = $2 OR message_id = $1::uuid
UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id FROM {schema}.outbox_2 m WHERE key = $2 OR correlation_id = $2 OR causation_id = $2 OR message_id = $1::uuid
UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id FROM {schema}.outbox_other m WHERE key = $2 OR correlation_id = $2 OR causation_id = $2 OR message_id = $1::uuid) found
ORDER BY id LIMIT $3
---- readerQueries.findParked

SELECT coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), id FROM (
	SELECT scope, key, step, id FROM {schema}.parked
	WHERE state = 'dead' AND (message_id = $1::bytea OR header_values[array_position(header_names, 'correlation-id'::bytea)] = $1 OR header_values[array_position(header_names, 'x-causation-id'::bytea)] = $1) AND (substring(message_id FROM 1 FOR 255) = substring($1 FROM 1 FOR 255)
		OR substring(header_values[array_position(header_names, 'correlation-id'::bytea)] FROM 1 FOR 255) = substring($1 FROM 1 FOR 255)
		OR substring(header_values[array_position(header_names, 'x-causation-id'::bytea)] FROM 1 FOR 255) = substring($1 FROM 1 FOR 255))
	UNION ALL
	SELECT scope, key, step, id FROM {schema}.parked WHERE state = 'retrying' AND (message_id = $1::bytea OR header_values[array_position(header_names, 'correlation-id'::bytea)] = $1 OR header_values[array_position(header_names, 'x-causation-id'::bytea)] = $1)) found
ORDER BY id LIMIT $2
---- readerQueries.findRequests

WITH RECURSIVE spaces AS (
	(SELECT namespace FROM {schema}.idempotency_key WHERE $1::text = '' ORDER BY namespace LIMIT 1)
	UNION ALL
	SELECT (SELECT t.namespace FROM {schema}.idempotency_key t WHERE t.namespace > spaces.namespace ORDER BY t.namespace LIMIT 1)
	FROM spaces WHERE spaces.namespace IS NOT NULL),
named AS (
	SELECT $1::text COLLATE "C" AS namespace WHERE $1::text <> ''
	UNION ALL
	SELECT namespace FROM spaces WHERE namespace IS NOT NULL),
walk AS (
	SELECT n.namespace, (SELECT t.scope FROM {schema}.idempotency_key t WHERE t.namespace = n.namespace ORDER BY t.scope LIMIT 1) AS scope
	FROM named n WHERE $2::text = ''
	UNION ALL
	SELECT w.namespace, (SELECT t.scope FROM {schema}.idempotency_key t WHERE t.namespace = w.namespace AND t.scope > w.scope ORDER BY t.scope LIMIT 1)
	FROM walk w WHERE w.scope IS NOT NULL),
pairs AS (
	SELECT namespace, $2::text COLLATE "C" AS scope FROM named WHERE $2::text <> ''
	UNION ALL
	SELECT namespace, scope FROM walk WHERE scope IS NOT NULL)
SELECT r.* FROM pairs p CROSS JOIN LATERAL (
	SELECT namespace, scope, key, state, attempt, lease_until, coalesce(resp_status, 0), NULL::bigint, created_at, completed_at,
		CASE WHEN isfinite(expires_at) THEN expires_at END, clock_timestamp()
	FROM {schema}.idempotency_key k WHERE k.namespace = p.namespace AND k.scope = p.scope AND k.key = $3) r
ORDER BY r.created_at DESC LIMIT $4
---- readerQueries.findRequestsSized

WITH RECURSIVE spaces AS (
	(SELECT namespace FROM {schema}.idempotency_key WHERE $1::text = '' ORDER BY namespace LIMIT 1)
	UNION ALL
	SELECT (SELECT t.namespace FROM {schema}.idempotency_key t WHERE t.namespace > spaces.namespace ORDER BY t.namespace LIMIT 1)
	FROM spaces WHERE spaces.namespace IS NOT NULL),
named AS (
	SELECT $1::text COLLATE "C" AS namespace WHERE $1::text <> ''
	UNION ALL
	SELECT namespace FROM spaces WHERE namespace IS NOT NULL),
walk AS (
	SELECT n.namespace, (SELECT t.scope FROM {schema}.idempotency_key t WHERE t.namespace = n.namespace ORDER BY t.scope LIMIT 1) AS scope
	FROM named n WHERE $2::text = ''
	UNION ALL
	SELECT w.namespace, (SELECT t.scope FROM {schema}.idempotency_key t WHERE t.namespace = w.namespace AND t.scope > w.scope ORDER BY t.scope LIMIT 1)
	FROM walk w WHERE w.scope IS NOT NULL),
pairs AS (
	SELECT namespace, $2::text COLLATE "C" AS scope FROM named WHERE $2::text <> ''
	UNION ALL
	SELECT namespace, scope FROM walk WHERE scope IS NOT NULL)
SELECT r.* FROM pairs p CROSS JOIN LATERAL (
	SELECT namespace, scope, key, state, attempt, lease_until, coalesce(resp_status, 0), octet_length(resp_body)::bigint, created_at, completed_at,
		CASE WHEN isfinite(expires_at) THEN expires_at END, clock_timestamp()
	FROM {schema}.idempotency_key k WHERE k.namespace = p.namespace AND k.scope = p.scope AND k.key = $3) r
ORDER BY r.created_at DESC LIMIT $4
---- readerQueries.findSteps

WITH RECURSIVE other AS (
	(SELECT scope FROM {schema}.inbox WHERE $1::text = '' ORDER BY scope LIMIT 1)
	UNION ALL
	SELECT (SELECT t.scope FROM {schema}.inbox t WHERE t.scope > other.scope ORDER BY t.scope LIMIT 1)
	FROM other WHERE other.scope IS NOT NULL),
scopes AS (
	SELECT $1::text COLLATE "C" AS scope WHERE $1::text <> ''
	UNION ALL
	SELECT scope FROM other WHERE scope IS NOT NULL)
SELECT i.scope, i.key, i.step, i.n, i.state, i.attempts, i.undo_attempts, i.created_at, i.updated_at
FROM scopes s CROSS JOIN LATERAL (
	SELECT scope, key, step, n, state, attempts, undo_attempts, created_at, updated_at
	FROM {schema}.inbox WHERE scope = s.scope AND key = $2 ORDER BY scope, key, step, n LIMIT $3) i
ORDER BY i.created_at, i.scope, i.step, i.n LIMIT $3
---- readerQueries.listHeld

WITH p AS (
	SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, octet_length(payload) AS size, created_at, state AS place,
		CASE WHEN state <> 'dead' AND isfinite(due_at) THEN due_at END AS due_at, attempts, reason, refused_at
	FROM {schema}.outbox_held WHERE ($1::text = '' OR topic = $1) AND ($2::text = '' OR type = $2) AND ($3::text = '' OR scope = $3)
	AND ($4::text = '' OR key = $4) AND ($5::text = '' OR ordering_key = $5) AND ($6::uuid IS NULL OR message_id = $6)
	AND ($7::text = '' OR correlation_id = $7) AND state = $8 AND id > $9::bigint ORDER BY id LIMIT $10)
SELECT '', p.id, p.message_id::text, CASE WHEN p.place = 'stored' AND h.id IS NOT NULL THEN 'waiting' ELSE p.place END,
	p.topic, p.type, p.scope, p.key, p.step, p.n, p.ordering_key, p.correlation_id, p.causation_id,
	p.size, p.created_at, p.due_at, p.attempts, p.reason, p.refused_at,
	coalesce(h.id, 0), h.topic, h.scope, h.key, h.step, h.n, coalesce(h.attempts, 0), h.reason, h.due_at
FROM p LEFT JOIN LATERAL (
	SELECT id, topic, scope, key, step, n, attempts, reason, CASE WHEN isfinite(due_at) THEN due_at END AS due_at
	FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN p.ordering_key AND p.ordering_key ORDER BY ordering_key, id LIMIT 1) first
	WHERE p.place IN ('stored', 'waiting') AND first.id <> p.id) h ON true ORDER BY p.id
---- readerQueries.listLog

WITH relay AS MATERIALIZED (
	SELECT epoch, CASE WHEN lease_until > clock_timestamp() THEN holder ELSE '' END AS holder, clock_timestamp() AS now,
		system_identifier <> (SELECT system_identifier::text FROM pg_control_system()) AS restored
	FROM {schema}.outbox_relay),
mark AS MATERIALIZED (
	SELECT from_snapshot, to_snapshot, last_id FROM (
		SELECT epoch, seq, from_snapshot, to_snapshot, last_id FROM {schema}.outbox_cursor_0
		UNION ALL
		SELECT epoch, seq, from_snapshot, to_snapshot, last_id FROM {schema}.outbox_cursor_1) c
	ORDER BY epoch DESC, seq DESC LIMIT 1),
reach AS MATERIALIZED (
	SELECT from_snapshot::pg_snapshot AS past, to_snapshot::pg_snapshot AS next, last_id
	FROM mark, relay
	WHERE NOT restored
		AND pg_snapshot_xmax(coalesce(to_snapshot, from_snapshot)::pg_snapshot) <= pg_snapshot_xmax(pg_current_snapshot())),
page AS MATERIALIZED (
	SELECT d.*, CASE WHEN coalesce((SELECT pg_visible_in_snapshot(d.xid, past) OR pg_visible_in_snapshot(d.xid, next) AND d.id <= last_id FROM reach), false) THEN 'published' ELSE 'stored' END AS logged
	FROM (
	(SELECT * FROM (SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, payload, created_at, xid FROM {schema}.outbox_0 m) d
	WHERE id < $8::bigint AND ($1::text = '' OR topic = $1) AND ($2::text = '' OR type = $2) AND ($3::text = '' OR scope = $3)
	AND ($4::text = '' OR key = $4) AND ($5::text = '' OR ordering_key = $5) AND ($6::uuid IS NULL OR message_id = $6)
	AND ($7::text = '' OR correlation_id = $7) ORDER BY id DESC LIMIT $9)
UNION ALL
	(SELECT * FROM (SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, payload, created_at, xid FROM {schema}.outbox_1 m) d
	WHERE id < $8::bigint AND ($1::text = '' OR topic = $1) AND ($2::text = '' OR type = $2) AND ($3::text = '' OR scope = $3)
	AND ($4::text = '' OR key = $4) AND ($5::text = '' OR ordering_key = $5) AND ($6::uuid IS NULL OR message_id = $6)
	AND ($7::text = '' OR correlation_id = $7) ORDER BY id DESC LIMIT $9)
UNION ALL
	(SELECT * FROM (SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, payload, created_at, xid FROM {schema}.outbox_2 m) d
	WHERE id < $8::bigint AND ($1::text = '' OR topic = $1) AND ($2::text = '' OR type = $2) AND ($3::text = '' OR scope = $3)
	AND ($4::text = '' OR key = $4) AND ($5::text = '' OR ordering_key = $5) AND ($6::uuid IS NULL OR message_id = $6)
	AND ($7::text = '' OR correlation_id = $7) ORDER BY id DESC LIMIT $9)
UNION ALL
	(SELECT * FROM (SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, payload, created_at, xid FROM {schema}.outbox_other m) d
	WHERE id < $8::bigint AND ($1::text = '' OR topic = $1) AND ($2::text = '' OR type = $2) AND ($3::text = '' OR scope = $3)
	AND ($4::text = '' OR key = $4) AND ($5::text = '' OR ordering_key = $5) AND ($6::uuid IS NULL OR message_id = $6)
	AND ($7::text = '' OR correlation_id = $7) ORDER BY id DESC LIMIT $9)) d ORDER BY id DESC LIMIT $9),
p AS (
	SELECT d.id, d.message_id, d.topic, d.type, d.scope, d.key, d.step, d.n, d.ordering_key, d.correlation_id, d.causation_id,
		octet_length(d.payload) AS size, d.created_at, coalesce(w.state, d.logged) AS place,
		CASE WHEN w.state <> 'dead' AND isfinite(w.due_at) THEN w.due_at END AS due_at,
		coalesce(w.attempts, 0) AS attempts, coalesce(w.reason, '') AS reason, w.refused_at
	FROM page d LEFT JOIN {schema}.outbox_held w ON w.id = d.id)
SELECT '', p.id, p.message_id::text, CASE WHEN p.place = 'stored' AND h.id IS NOT NULL THEN 'waiting' ELSE p.place END,
	p.topic, p.type, p.scope, p.key, p.step, p.n, p.ordering_key, p.correlation_id, p.causation_id,
	p.size, p.created_at, p.due_at, p.attempts, p.reason, p.refused_at,
	coalesce(h.id, 0), h.topic, h.scope, h.key, h.step, h.n, coalesce(h.attempts, 0), h.reason, h.due_at
FROM p LEFT JOIN LATERAL (
	SELECT id, topic, scope, key, step, n, attempts, reason, CASE WHEN isfinite(due_at) THEN due_at END AS due_at
	FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN p.ordering_key AND p.ordering_key ORDER BY ordering_key, id LIMIT 1) first
	WHERE p.place IN ('stored', 'waiting') AND first.id <> p.id) h ON true ORDER BY p.id DESC
---- readerQueries.listMessageActivity

SELECT id, at, who, db_user, verb, why, what::text, cardinality(ids), ids[1:5], '', '', '', ''
FROM {schema}.operator_journal WHERE ($1::text = '' OR who = $1) AND ($2::text = '' OR verb = $2)
	AND ($3::timestamptz IS NULL OR at >= $3) AND ($4::timestamptz IS NULL OR at < $4)
	AND ($5::timestamptz IS NULL OR at < $5 OR at = $5 AND id < $6::bigint) AND $8::text = ''
	AND (cardinality($9::bigint[]) IS NULL OR ids && $9 AND starts_with(verb, CASE WHEN $10::boolean THEN 'outbox ' ELSE 'dead ' END))
 ORDER BY at DESC, id DESC LIMIT $7
---- readerQueries.listPlans

SELECT DISTINCT ON (name) name, version, plan FROM {schema}.saga_definition ORDER BY name, version DESC LIMIT $1
---- readerQueries.listReceived

SELECT topic, coalesce(step, ''), kind = 'compensation', count(*), max(last_at)
FROM (SELECT topic, step, kind, last_at FROM {schema}.parked ORDER BY id DESC LIMIT $1) newest
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT $2
---- readerQueries.listSagaActivity

SELECT id, at, who, '', verb, why, '', 0, '{}'::bigint[], scope, key, path, step
FROM {schema}.saga_journal WHERE ($1::text = '' OR who = $1) AND ($2::text = '' OR verb = $2)
	AND ($3::timestamptz IS NULL OR at >= $3) AND ($4::timestamptz IS NULL OR at < $4)
	AND ($5::timestamptz IS NULL OR at < $5 OR at = $5 AND id < $6::bigint) AND ($8::text = '' OR key = $8)
	AND cardinality($9::bigint[]) IS NULL AND $10::boolean IS NOT NULL
 ORDER BY at DESC, id DESC LIMIT $7
---- readerQueries.listSent

SELECT topic, coalesce(nullif(m.type, ''), m.topic), count(*), max(created_at)
FROM (SELECT id, topic, type, created_at FROM (
	SELECT id, topic, type, created_at FROM {schema}.outbox_0
UNION ALL
	SELECT id, topic, type, created_at FROM {schema}.outbox_1
UNION ALL
	SELECT id, topic, type, created_at FROM {schema}.outbox_2
UNION ALL
	SELECT id, topic, type, created_at FROM {schema}.outbox_other) d ORDER BY id DESC LIMIT $1) m
GROUP BY 1, 2 ORDER BY 1, 2 LIMIT $2
---- readerQueries.listStored

WITH relay AS MATERIALIZED (
	SELECT epoch, CASE WHEN lease_until > clock_timestamp() THEN holder ELSE '' END AS holder, clock_timestamp() AS now,
		system_identifier <> (SELECT system_identifier::text FROM pg_control_system()) AS restored
	FROM {schema}.outbox_relay),
mark AS MATERIALIZED (
	SELECT from_snapshot, to_snapshot, last_id FROM (
		SELECT epoch, seq, from_snapshot, to_snapshot, last_id FROM {schema}.outbox_cursor_0
		UNION ALL
		SELECT epoch, seq, from_snapshot, to_snapshot, last_id FROM {schema}.outbox_cursor_1) c
	ORDER BY epoch DESC, seq DESC LIMIT 1),
reach AS MATERIALIZED (
	SELECT from_snapshot::pg_snapshot AS past, to_snapshot::pg_snapshot AS next, last_id
	FROM mark, relay
	WHERE NOT restored
		AND pg_snapshot_xmax(coalesce(to_snapshot, from_snapshot)::pg_snapshot) <= pg_snapshot_xmax(pg_current_snapshot())),
page AS MATERIALIZED (
	SELECT * FROM (
	(SELECT * FROM (SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, payload, created_at, xid FROM {schema}.outbox_0 m) d
	WHERE xid >= coalesce((SELECT pg_snapshot_xmin(past) FROM reach), '0'::xid8) AND (xid, id) > ($8::text::xid8, $9::bigint)
		AND ($1::text = '' OR topic = $1) AND ($2::text = '' OR type = $2) AND ($3::text = '' OR scope = $3)
	AND ($4::text = '' OR key = $4) AND ($5::text = '' OR ordering_key = $5) AND ($6::uuid IS NULL OR message_id = $6)
	AND ($7::text = '' OR correlation_id = $7) AND NOT coalesce((SELECT pg_visible_in_snapshot(d.xid, past) OR pg_visible_in_snapshot(d.xid, next) AND d.id <= last_id FROM reach), false) ORDER BY xid, id LIMIT $10)
UNION ALL
	(SELECT * FROM (SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, payload, created_at, xid FROM {schema}.outbox_1 m) d
	WHERE xid >= coalesce((SELECT pg_snapshot_xmin(past) FROM reach), '0'::xid8) AND (xid, id) > ($8::text::xid8, $9::bigint)
		AND ($1::text = '' OR topic = $1) AND ($2::text = '' OR type = $2) AND ($3::text = '' OR scope = $3)
	AND ($4::text = '' OR key = $4) AND ($5::text = '' OR ordering_key = $5) AND ($6::uuid IS NULL OR message_id = $6)
	AND ($7::text = '' OR correlation_id = $7) AND NOT coalesce((SELECT pg_visible_in_snapshot(d.xid, past) OR pg_visible_in_snapshot(d.xid, next) AND d.id <= last_id FROM reach), false) ORDER BY xid, id LIMIT $10)
UNION ALL
	(SELECT * FROM (SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, payload, created_at, xid FROM {schema}.outbox_2 m) d
	WHERE xid >= coalesce((SELECT pg_snapshot_xmin(past) FROM reach), '0'::xid8) AND (xid, id) > ($8::text::xid8, $9::bigint)
		AND ($1::text = '' OR topic = $1) AND ($2::text = '' OR type = $2) AND ($3::text = '' OR scope = $3)
	AND ($4::text = '' OR key = $4) AND ($5::text = '' OR ordering_key = $5) AND ($6::uuid IS NULL OR message_id = $6)
	AND ($7::text = '' OR correlation_id = $7) AND NOT coalesce((SELECT pg_visible_in_snapshot(d.xid, past) OR pg_visible_in_snapshot(d.xid, next) AND d.id <= last_id FROM reach), false) ORDER BY xid, id LIMIT $10)
UNION ALL
	(SELECT * FROM (SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, payload, created_at, xid FROM {schema}.outbox_other m) d
	WHERE xid >= coalesce((SELECT pg_snapshot_xmin(past) FROM reach), '0'::xid8) AND (xid, id) > ($8::text::xid8, $9::bigint)
		AND ($1::text = '' OR topic = $1) AND ($2::text = '' OR type = $2) AND ($3::text = '' OR scope = $3)
	AND ($4::text = '' OR key = $4) AND ($5::text = '' OR ordering_key = $5) AND ($6::uuid IS NULL OR message_id = $6)
	AND ($7::text = '' OR correlation_id = $7) AND NOT coalesce((SELECT pg_visible_in_snapshot(d.xid, past) OR pg_visible_in_snapshot(d.xid, next) AND d.id <= last_id FROM reach), false) ORDER BY xid, id LIMIT $10)) d ORDER BY xid, id LIMIT $10),
p AS (
	SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, octet_length(payload) AS size, created_at, 'stored' AS place, NULL::timestamptz AS due_at, 0 AS attempts,
		'' AS reason, NULL::timestamptz AS refused_at, xid FROM page)
SELECT p.xid::text, p.id, p.message_id::text, CASE WHEN p.place = 'stored' AND h.id IS NOT NULL THEN 'waiting' ELSE p.place END,
	p.topic, p.type, p.scope, p.key, p.step, p.n, p.ordering_key, p.correlation_id, p.causation_id,
	p.size, p.created_at, p.due_at, p.attempts, p.reason, p.refused_at,
	coalesce(h.id, 0), h.topic, h.scope, h.key, h.step, h.n, coalesce(h.attempts, 0), h.reason, h.due_at
FROM p LEFT JOIN LATERAL (
	SELECT id, topic, scope, key, step, n, attempts, reason, CASE WHEN isfinite(due_at) THEN due_at END AS due_at
	FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN p.ordering_key AND p.ordering_key ORDER BY ordering_key, id LIMIT 1) first
	WHERE p.place IN ('stored', 'waiting') AND first.id <> p.id) h ON true ORDER BY p.xid, p.id
---- readerQueries.listWaitingKeys

SELECT k.ordering_key, k.messages, k.oldest, f.state, f.id, f.topic, f.scope, f.key, f.step, f.n, f.attempts, f.reason,
	CASE WHEN isfinite(f.due_at) THEN f.due_at END
FROM (
	SELECT ordering_key, count(*) AS messages, min(created_at) AS oldest FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key > $1
	GROUP BY ordering_key ORDER BY ordering_key LIMIT $2) k
CROSS JOIN LATERAL (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN k.ordering_key AND k.ordering_key ORDER BY ordering_key, id LIMIT 1) f
ORDER BY k.ordering_key
---- readerQueries.readFlow

WITH relay AS MATERIALIZED (
	SELECT epoch, CASE WHEN lease_until > clock_timestamp() THEN holder ELSE '' END AS holder, clock_timestamp() AS now,
		system_identifier <> (SELECT system_identifier::text FROM pg_control_system()) AS restored
	FROM {schema}.outbox_relay),
mark AS MATERIALIZED (
	SELECT from_snapshot, to_snapshot, last_id FROM (
		SELECT epoch, seq, from_snapshot, to_snapshot, last_id FROM {schema}.outbox_cursor_0
		UNION ALL
		SELECT epoch, seq, from_snapshot, to_snapshot, last_id FROM {schema}.outbox_cursor_1) c
	ORDER BY epoch DESC, seq DESC LIMIT 1),
reach AS MATERIALIZED (
	SELECT from_snapshot::pg_snapshot AS past, to_snapshot::pg_snapshot AS next, last_id
	FROM mark, relay
	WHERE NOT restored
		AND pg_snapshot_xmax(coalesce(to_snapshot, from_snapshot)::pg_snapshot) <= pg_snapshot_xmax(pg_current_snapshot())),
newest AS MATERIALIZED (SELECT id, created_at, xid FROM (
	SELECT id, created_at, xid FROM {schema}.outbox_0
UNION ALL
	SELECT id, created_at, xid FROM {schema}.outbox_1
UNION ALL
	SELECT id, created_at, xid FROM {schema}.outbox_2
UNION ALL
	SELECT id, created_at, xid FROM {schema}.outbox_other) d ORDER BY id DESC LIMIT $1)
SELECT count(*) FILTER (WHERE created_at > now - interval '1 minute'),
	count(*) FILTER (WHERE created_at > now - interval '1 minute' AND coalesce((SELECT pg_visible_in_snapshot(d.xid, past) OR pg_visible_in_snapshot(d.xid, next) AND d.id <= last_id FROM reach), false)), count(*) FILTER (WHERE created_at <= now - interval '1 minute') = 0, count(*)
FROM newest d, (SELECT clock_timestamp() AS now) moment
---- readerQueries.readMessage

WITH relay AS MATERIALIZED (
	SELECT epoch, CASE WHEN lease_until > clock_timestamp() THEN holder ELSE '' END AS holder, clock_timestamp() AS now,
		system_identifier <> (SELECT system_identifier::text FROM pg_control_system()) AS restored
	FROM {schema}.outbox_relay),
mark AS MATERIALIZED (
	SELECT from_snapshot, to_snapshot, last_id FROM (
		SELECT epoch, seq, from_snapshot, to_snapshot, last_id FROM {schema}.outbox_cursor_0
		UNION ALL
		SELECT epoch, seq, from_snapshot, to_snapshot, last_id FROM {schema}.outbox_cursor_1) c
	ORDER BY epoch DESC, seq DESC LIMIT 1),
reach AS MATERIALIZED (
	SELECT from_snapshot::pg_snapshot AS past, to_snapshot::pg_snapshot AS next, last_id
	FROM mark, relay
	WHERE NOT restored
		AND pg_snapshot_xmax(coalesce(to_snapshot, from_snapshot)::pg_snapshot) <= pg_snapshot_xmax(pg_current_snapshot())),
p AS MATERIALIZED (
	SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, octet_length(payload) AS size, created_at, state AS place,
		CASE WHEN state <> 'dead' AND isfinite(due_at) THEN due_at END AS due_at, attempts, reason, refused_at,
		content_type, headers, payload, 0 AS log
	FROM {schema}.outbox_held WHERE id = $1
	UNION ALL
	SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, octet_length(payload), created_at, CASE WHEN coalesce((SELECT pg_visible_in_snapshot(d.xid, past) OR pg_visible_in_snapshot(d.xid, next) AND d.id <= last_id FROM reach), false) THEN 'published' ELSE 'stored' END,
		NULL, 0, '', NULL, content_type, headers, payload, 1
	FROM (
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, coalesce(nullif(m.content_type, ''), 'application/json') AS content_type, headers, payload, created_at, xid FROM {schema}.outbox_0 m WHERE id = $1
UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, coalesce(nullif(m.content_type, ''), 'application/json') AS content_type, headers, payload, created_at, xid FROM {schema}.outbox_1 m WHERE id = $1
UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, coalesce(nullif(m.content_type, ''), 'application/json') AS content_type, headers, payload, created_at, xid FROM {schema}.outbox_2 m WHERE id = $1
UNION ALL
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, coalesce(nullif(m.content_type, ''), 'application/json') AS content_type, headers, payload, created_at, xid FROM {schema}.outbox_other m WHERE id = $1) d
	ORDER BY log LIMIT 1)
SELECT '', p.id, p.message_id::text, CASE WHEN p.place = 'stored' AND h.id IS NOT NULL THEN 'waiting' ELSE p.place END,
	p.topic, p.type, p.scope, p.key, p.step, p.n, p.ordering_key, p.correlation_id, p.causation_id,
	p.size, p.created_at, p.due_at, p.attempts, p.reason, p.refused_at,
	coalesce(h.id, 0), h.topic, h.scope, h.key, h.step, h.n, coalesce(h.attempts, 0), h.reason, h.due_at, p.content_type, p.headers, substring(p.payload FROM 1 FOR $2::integer)
FROM p LEFT JOIN LATERAL (
	SELECT id, topic, scope, key, step, n, attempts, reason, CASE WHEN isfinite(due_at) THEN due_at END AS due_at
	FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN p.ordering_key AND p.ordering_key ORDER BY ordering_key, id LIMIT 1) first
	WHERE p.place IN ('stored', 'waiting') AND first.id <> p.id) h ON true
