---- inboxQueries.bury
UPDATE {schema}.parked SET state = 'dead', last_at = clock_timestamp() WHERE id = ANY ($1)
---- inboxQueries.count0
SELECT count(*) FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR step = $5) AND ($6 = '' OR kind = $6) AND ($7 = '' OR reason = $7)
	AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10) AND ($11 = '' OR topic = $11)
	AND ($12::bytea = '' OR message_id = $12)
---- inboxQueries.count1
SELECT count(*) FROM {schema}.parked WHERE state = 'retrying' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR step = $5) AND ($6 = '' OR kind = $6) AND ($7 = '' OR reason = $7)
	AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10) AND ($11 = '' OR topic = $11)
	AND ($12::bytea = '' OR message_id = $12)
---- inboxQueries.discard

WITH batch AS (SELECT id FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR step = $5) AND ($6 = '' OR kind = $6) AND ($7 = '' OR reason = $7)
	AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10) AND ($11 = '' OR topic = $11)
	AND ($12::bytea = '' OR message_id = $12) ORDER BY id LIMIT $13 FOR UPDATE)
DELETE FROM {schema}.parked p USING batch WHERE p.id = batch.id
RETURNING p.id
---- inboxQueries.discardKept

DELETE FROM {schema}.parked
WHERE id = ANY (ARRAY(SELECT id FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR step = $5) AND ($6 = '' OR kind = $6) AND ($7 = '' OR reason = $7)
	AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10) AND ($11 = '' OR topic = $11)
	AND ($12::bytea = '' OR message_id = $12) ORDER BY id LIMIT $13 FOR UPDATE))
RETURNING id, state, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic, message_id,
	header_names, header_values, payload, octet_length(payload), reason, error, stack, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt
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
---- inboxQueries.holdLetters0

SELECT id, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), coalesce(digest, sha256(payload)),
	header_values[array_position(header_names, 'timestamp'::bytea)], first_at
FROM {schema}.parked WHERE id = ANY ($1) AND state = 'dead' AND NOT (state = 'retrying' AND reason = 'calling' AND due_at > clock_timestamp()) ORDER BY id FOR UPDATE
---- inboxQueries.holdLetters1

SELECT id, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), coalesce(digest, sha256(payload)),
	header_values[array_position(header_names, 'timestamp'::bytea)], first_at
FROM {schema}.parked WHERE id = ANY ($1) AND state = 'retrying' AND NOT (state = 'retrying' AND reason = 'calling' AND due_at > clock_timestamp()) ORDER BY id FOR UPDATE
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
	header_names, header_values, NULL::bytea, octet_length(payload), reason, error, '', attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR step = $5) AND ($6 = '' OR kind = $6) AND ($7 = '' OR reason = $7)
	AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10) AND ($11 = '' OR topic = $11)
	AND ($12::bytea = '' OR message_id = $12) ORDER BY id LIMIT $13
---- inboxQueries.list1
SELECT id, state, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic, message_id,
	header_names, header_values, NULL::bytea, octet_length(payload), reason, error, '', attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt FROM {schema}.parked WHERE state = 'retrying' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR step = $5) AND ($6 = '' OR kind = $6) AND ($7 = '' OR reason = $7)
	AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10) AND ($11 = '' OR topic = $11)
	AND ($12::bytea = '' OR message_id = $12) ORDER BY id LIMIT $13
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
	header_names, header_values, NULL::bytea, octet_length(payload), reason, error, '', attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt FROM {schema}.parked
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
	header_names, header_values, payload, octet_length(payload), reason, error, stack, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt FROM {schema}.parked WHERE id = $1 AND state = 'dead' FOR UPDATE
---- inboxQueries.moveSteps

UPDATE {schema}.inbox i SET state = m.state, updated_at = clock_timestamp()
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) m (scope, key, step, n, state)
WHERE (i.scope, i.key, i.step, i.n) = (m.scope, m.key, m.step, m.n)
---- inboxQueries.page

SELECT id FROM (
	SELECT id, sum(octet_length(payload)) OVER (ORDER BY id) - octet_length(payload) AS before
	FROM (SELECT id, payload FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR step = $5) AND ($6 = '' OR kind = $6) AND ($7 = '' OR reason = $7)
	AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10) AND ($11 = '' OR topic = $11)
	AND ($12::bytea = '' OR message_id = $12) AND kind = ANY ($14) ORDER BY id LIMIT $13) first) sized
WHERE before < $15 ORDER BY id
---- inboxQueries.pick0

SELECT id FROM {schema}.parked WHERE state = 'dead' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR step = $5) AND ($6 = '' OR kind = $6) AND ($7 = '' OR reason = $7)
	AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10) AND ($11 = '' OR topic = $11)
	AND ($12::bytea = '' OR message_id = $12) AND kind = ANY ($14) ORDER BY id LIMIT $13
---- inboxQueries.pick1

SELECT id FROM {schema}.parked WHERE state = 'retrying' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR step = $5) AND ($6 = '' OR kind = $6) AND ($7 = '' OR reason = $7)
	AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10) AND ($11 = '' OR topic = $11)
	AND ($12::bytea = '' OR message_id = $12) AND kind = ANY ($14) ORDER BY id LIMIT $13
---- inboxQueries.read
SELECT id, state, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic, message_id,
	header_names, header_values, payload, octet_length(payload), reason, error, stack, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt FROM {schema}.parked WHERE id = $1
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
	header_names, header_values, payload, octet_length(payload), reason, error, stack, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt FROM {schema}.parked WHERE id = ANY ($1) AND state = 'dead' ORDER BY id
---- inboxQueries.readSteps

SELECT i.scope, i.key, i.step, i.n, i.state, i.attempts, i.undo_attempts, i.digest, i.undo_digest
FROM {schema}.inbox i
WHERE (i.scope, i.key, i.step, i.n) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]))
ORDER BY i.scope, i.key, i.step, i.n
---- inboxQueries.reject

UPDATE {schema}.parked SET reason = $2, error = $3, stack = '', last_at = clock_timestamp() WHERE id = ANY ($1) AND reason <> $2
RETURNING id
---- inboxQueries.retryNow

WITH batch AS (SELECT id FROM {schema}.parked WHERE state = 'retrying' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR step = $5) AND ($6 = '' OR kind = $6) AND ($7 = '' OR reason = $7)
	AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10) AND ($11 = '' OR topic = $11)
	AND ($12::bytea = '' OR message_id = $12) AND NOT (state = 'retrying' AND reason = 'calling' AND due_at > clock_timestamp()) ORDER BY id LIMIT $13 FOR UPDATE SKIP LOCKED)
UPDATE {schema}.parked p SET due_at = least(p.due_at, clock_timestamp())
FROM batch WHERE p.id = batch.id
RETURNING p.id
---- inboxQueries.seeLetters0

SELECT id, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), coalesce(digest, sha256(payload)),
	header_values[array_position(header_names, 'timestamp'::bytea)], first_at
FROM {schema}.parked WHERE id = ANY ($1) AND state = 'dead' AND NOT (state = 'retrying' AND reason = 'calling' AND due_at > clock_timestamp()) ORDER BY id
---- inboxQueries.seeLetters1

SELECT id, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), coalesce(digest, sha256(payload)),
	header_values[array_position(header_names, 'timestamp'::bytea)], first_at
FROM {schema}.parked WHERE id = ANY ($1) AND state = 'retrying' AND NOT (state = 'retrying' AND reason = 'calling' AND due_at > clock_timestamp()) ORDER BY id
---- inboxQueries.send

UPDATE {schema}.parked SET state = 'retrying', attempts = 0, round = round + 1, due_at = clock_timestamp(), redriven_at = clock_timestamp(),
	reason = CASE reason WHEN 'unsettled' THEN 'failed' ELSE reason END
WHERE id = ANY ($1)
---- inboxQueries.tryHoldSteps

SELECT i.scope, i.key, i.step, i.n, i.state, i.attempts, i.undo_attempts, i.digest, i.undo_digest
FROM {schema}.inbox i
WHERE (i.scope, i.key, i.step, i.n) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]))
ORDER BY i.scope, i.key, i.step, i.n FOR UPDATE OF i SKIP LOCKED
