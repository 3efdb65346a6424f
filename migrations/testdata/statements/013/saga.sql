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
---- queries.addInstance

INSERT INTO {schema}.saga (scope, key, path, id, root, name, version, parent, status, reason, progress, state,
	trace_parent, trace_state, started_at, updated_at, due_at, ended_at, plan_hash)
SELECT $1, $2, $3, $4, $5, $6, $7, nullif($8, ''), $9, $10, $11, $12, $13, $14, now.at, now.at,
	now.at + $15::bigint * interval '1 millisecond', CASE WHEN $16 THEN now.at END, $17
FROM (SELECT clock_timestamp() AS at) AS now
---- queries.claimDue

WITH taken AS MATERIALIZED (
	SELECT due.scope, due.key, due.path FROM {schema}.saga AS due
	JOIN unnest($1::text[], $2::integer[], $6::text[]) AS known (name, version, plan_hash)
		ON due.name = known.name AND due.version = known.version AND due.plan_hash = known.plan_hash
	WHERE due.due_at <= statement_timestamp() AND (due.tries > 0) = $5
	ORDER BY due.due_at LIMIT $3
	FOR UPDATE OF due SKIP LOCKED
)
UPDATE {schema}.saga AS s SET tries = s.tries + 1,
	due_at = clock_timestamp() + $4::bigint * (1 << least(s.tries, 5)) * interval '1 microsecond'
FROM taken
WHERE s.scope = taken.scope AND s.key = taken.key AND s.path = taken.path
RETURNING s.scope, s.key, s.path, s.tries, s.revision
---- queries.deleteEnded

WITH old AS MATERIALIZED (
	SELECT scope, key, root FROM {schema}.saga
	WHERE ended_at < statement_timestamp() - $1::bigint * interval '1 microsecond' AND parent IS NULL
	ORDER BY ended_at LIMIT $2
	FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.saga WHERE (scope, key, root) IN (SELECT scope, key, root FROM old)
RETURNING scope, key, path
---- queries.deleteJournal

DELETE FROM {schema}.saga_journal WHERE (scope, key, path) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]))
---- queries.insertInstance

INSERT INTO {schema}.saga (scope, key, path, id, root, name, version, parent, status, reason, progress, state,
	trace_parent, trace_state, started_at, updated_at, due_at, ended_at, plan_hash)
SELECT $1, $2, $3, $4, $5, $6, $7, nullif($8, ''), $9, $10, $11, $12, $13, $14, now.at, now.at,
	now.at + $15::bigint * interval '1 millisecond', CASE WHEN $16 THEN now.at END, $17
FROM (SELECT clock_timestamp() AS at) AS now
ON CONFLICT (scope, key, path) DO NOTHING
---- queries.limitLock
SELECT set_config('lock_timeout', $1, true)
---- queries.listSilent

WITH silent AS MATERIALIZED (
	SELECT scope, key, path FROM {schema}.saga
	JOIN unnest($1::text[], $2::integer[], $8::text[]) AS known (name, version, plan_hash) USING (name, version, plan_hash)
	WHERE ended_at IS NULL AND status IN ('running', 'compensating')
		AND updated_at < statement_timestamp() - $3::bigint * interval '1 microsecond'
), listed AS MATERIALIZED (
	SELECT scope, key, path FROM silent WHERE (scope, key, path) > ($4, $5, $6) ORDER BY scope, key, path LIMIT $7
)
SELECT scope, key, path, name, version, CASE WHEN length(progress) < 4096 THEN progress ELSE '' END,
	(extract(epoch FROM statement_timestamp() - started_at) * 1000)::bigint
FROM listed JOIN {schema}.saga USING (scope, key, path)
ORDER BY scope, key, path
---- queries.liveVersions

SELECT name, version, count(*), plan_hash
FROM {schema}.saga WHERE ended_at IS NULL
GROUP BY name, version, plan_hash ORDER BY name, version, plan_hash
---- queries.lockInstances

SELECT i.* FROM (
	SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) AS w (scope, key, path) ORDER BY 1, 2, 3
) AS wanted
CROSS JOIN LATERAL (
	SELECT scope, key, path, id, root, name, version, plan_hash, coalesce(parent, ''), status, reason, progress, state,
	revision, trace_parent, trace_state, (extract(epoch FROM clock_timestamp() - started_at) * 1000)::bigint FROM {schema}.saga WHERE scope = wanted.scope AND key = wanted.key AND path = wanted.path FOR UPDATE
) AS i
---- queries.moveInstance

WITH changed AS (
UPDATE {schema}.saga SET status = $4, reason = $5, progress = $6, state = $7, tries = 0,
	revision = CASE WHEN revision = $10 THEN revision + 1 END,
	updated_at = clock_timestamp(), due_at = started_at + $8::bigint * interval '1 millisecond',
	ended_at = CASE WHEN $9 THEN clock_timestamp() END
WHERE scope = $1 AND key = $2 AND path = $3
	RETURNING 1)
SELECT CASE WHEN count(*) <> greatest(count(*), 1)
	THEN (count(*) || ' rows changed, not ' || greatest(count(*), 1) || ': row-level security hides rows of sagamill, or the handler has removed them')::date END
FROM changed
---- queries.nextDue

SELECT (SELECT (extract(epoch FROM due_at - clock_timestamp()) * 1000000)::bigint FROM {schema}.saga
	JOIN unnest($1::text[], $2::integer[], $3::text[]) AS known (name, version, plan_hash) USING (name, version, plan_hash)
	WHERE due_at > '-infinity' AND due_at < 'infinity' ORDER BY due_at LIMIT 1)
---- queries.postpone

UPDATE {schema}.saga SET reason = $4, updated_at = clock_timestamp(),
	status = CASE WHEN $6 THEN 'stuck' ELSE status END,
	due_at = CASE WHEN NOT $6 THEN clock_timestamp() + $5::bigint * interval '1 microsecond' END
WHERE scope = $1 AND key = $2 AND path = $3 AND ended_at IS NULL AND revision = $7 AND tries = $8
---- queries.readNested

SELECT progress, ended_at IS NOT NULL, updated_at < statement_timestamp() - $4::bigint * interval '1 microsecond'
FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3
---- queries.readStats

SELECT s.status, counted.instances, coalesce(extract(epoch FROM clock_timestamp() - least(early.moved, others.moved)) * 1000000, 0)::bigint
FROM (VALUES ('running'), ('compensating'), ('paused'), ('stuck')) s (status)
CROSS JOIN LATERAL (SELECT count(*) AS instances FROM (
	SELECT FROM {schema}.saga WHERE ended_at IS NULL AND status = s.status ORDER BY id LIMIT $1) live) counted
CROSS JOIN LATERAL (SELECT min(updated_at) AS moved FROM (
	SELECT updated_at FROM {schema}.saga WHERE ended_at IS NULL AND status = s.status ORDER BY id LIMIT 100) live) early
CROSS JOIN LATERAL (SELECT min(updated_at) AS moved FROM (
	SELECT updated_at FROM {schema}.saga WHERE ended_at IS NULL AND status = s.status AND id <= (lpad(to_hex((extract(epoch FROM early.moved + interval '2 minutes') * 1000)::bigint), 12, '0') || repeat('f', 20))::uuid
	ORDER BY id LIMIT $1) live) others
UNION ALL
SELECT 'held', counted.instances, coalesce(extract(epoch FROM clock_timestamp() - least(early.moved, others.moved)) * 1000000, 0)::bigint
FROM (SELECT count(*) AS instances FROM (
	SELECT FROM {schema}.saga WHERE ended_at IS NULL AND status = 'running' AND reason <> '' AND tries = 0 ORDER BY root LIMIT $1) held) counted
CROSS JOIN LATERAL (SELECT min(updated_at) AS moved FROM (
	SELECT updated_at FROM {schema}.saga WHERE ended_at IS NULL AND status = 'running' AND reason <> '' AND tries = 0 ORDER BY root LIMIT 100) held) early
CROSS JOIN LATERAL (SELECT min(updated_at) AS moved FROM (
	SELECT updated_at FROM {schema}.saga WHERE ended_at IS NULL AND status = 'running' AND reason <> '' AND tries = 0 AND root <= (lpad(to_hex((extract(epoch FROM early.moved + interval '2 minutes') * 1000)::bigint), 12, '0') || repeat('f', 20))::uuid
	ORDER BY root LIMIT $1) held) others
UNION ALL
SELECT 'due', 0, coalesce(extract(epoch FROM clock_timestamp() - min(due_at)) * 1000000, 0)::bigint
FROM {schema}.saga WHERE due_at < 'infinity'
---- queries.register

INSERT INTO {schema}.saga_definition (name, version, hash, plan) VALUES ($1, $2, $3, $4)
ON CONFLICT (name, version) DO UPDATE SET hash = excluded.hash, plan = excluded.plan, registered_at = clock_timestamp()
WHERE (saga_definition.hash, saga_definition.plan) IS DISTINCT FROM (excluded.hash, excluded.plan)
---- queries.unlimitLock
SET LOCAL lock_timeout TO DEFAULT
