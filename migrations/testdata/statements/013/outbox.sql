---- queries.asynchronous
SELECT set_config('synchronous_commit', 'off', true)
---- queries.beginTenure

WITH before AS (DELETE FROM {schema}.outbox_tenure)
INSERT INTO {schema}.outbox_tenure (epoch) VALUES ($1)
---- queries.checkpoint0

INSERT INTO {schema}.outbox_cursor_0 (epoch, seq, from_snapshot, to_snapshot, last_id)
SELECT $1, $2, $3, $4, $5
WHERE EXISTS (SELECT FROM {schema}.outbox_relay WHERE epoch = $1) AND EXISTS (SELECT FROM {schema}.outbox_tenure WHERE epoch = $1)
---- queries.checkpoint1

INSERT INTO {schema}.outbox_cursor_1 (epoch, seq, from_snapshot, to_snapshot, last_id)
SELECT $1, $2, $3, $4, $5
WHERE EXISTS (SELECT FROM {schema}.outbox_relay WHERE epoch = $1) AND EXISTS (SELECT FROM {schema}.outbox_tenure WHERE epoch = $1)
---- queries.countDifference

SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
FROM (
	(SELECT created_at FROM {schema}.outbox_0 WHERE xid >= $1::text::xid8 LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.outbox_0 WHERE xid = ANY ($2::text[]::xid8[]) LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.outbox_0
	WHERE xid >= $3::text::xid8 AND xid < pg_snapshot_xmax($5::text::pg_snapshot)
		AND id > $6 AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) ORDER BY xid, id LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.outbox_0
	WHERE xid = ANY ($4::text[]::xid8[]) AND id + 0 > $6 AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) LIMIT $7)
UNION ALL
	(SELECT created_at FROM {schema}.outbox_1 WHERE xid >= $1::text::xid8 LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.outbox_1 WHERE xid = ANY ($2::text[]::xid8[]) LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.outbox_1
	WHERE xid >= $3::text::xid8 AND xid < pg_snapshot_xmax($5::text::pg_snapshot)
		AND id > $6 AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) ORDER BY xid, id LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.outbox_1
	WHERE xid = ANY ($4::text[]::xid8[]) AND id + 0 > $6 AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) LIMIT $7)
UNION ALL
	(SELECT created_at FROM {schema}.outbox_2 WHERE xid >= $1::text::xid8 LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.outbox_2 WHERE xid = ANY ($2::text[]::xid8[]) LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.outbox_2
	WHERE xid >= $3::text::xid8 AND xid < pg_snapshot_xmax($5::text::pg_snapshot)
		AND id > $6 AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) ORDER BY xid, id LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.outbox_2
	WHERE xid = ANY ($4::text[]::xid8[]) AND id + 0 > $6 AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) LIMIT $7)
UNION ALL
	(SELECT created_at FROM {schema}.outbox_other WHERE xid >= $1::text::xid8 LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.outbox_other WHERE xid = ANY ($2::text[]::xid8[]) LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.outbox_other
	WHERE xid >= $3::text::xid8 AND xid < pg_snapshot_xmax($5::text::pg_snapshot)
		AND id > $6 AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) ORDER BY xid, id LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.outbox_other
	WHERE xid = ANY ($4::text[]::xid8[]) AND id + 0 > $6 AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) LIMIT $7)) d
---- queries.countHeld

WITH RECURSIVE topics (topic) AS (
	(SELECT topic FROM {schema}.outbox_held WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity' ORDER BY topic LIMIT 1)
	UNION ALL
	SELECT (SELECT topic FROM {schema}.outbox_held
		WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity' AND topic > t.topic ORDER BY topic LIMIT 1)
	FROM topics t WHERE t.topic IS NOT NULL),
refused AS MATERIALIZED (SELECT count(*) AS n FROM (
	SELECT FROM topics t, LATERAL (SELECT FROM {schema}.outbox_held
		WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity' AND topic = t.topic AND state = 'refused' LIMIT $1) h
	LIMIT $1) h)
SELECT (SELECT count(*) FROM (SELECT FROM {schema}.outbox_held WHERE state = 'delayed' LIMIT $1) h),
	(SELECT count(*) FROM (
		SELECT FROM {schema}.outbox_held WHERE state IN ('refused', 'waiting') LIMIT $1 + (SELECT n FROM refused)) h) - n,
	n,
	(SELECT count(*) FROM (SELECT FROM {schema}.outbox_held WHERE state = 'dead' LIMIT $1) h),
	coalesce(extract(epoch FROM clock_timestamp() - (SELECT refused_at FROM {schema}.outbox_held
		WHERE state = 'dead' ORDER BY refused_at LIMIT 1)), 0)::float8
FROM refused
---- queries.currentLeaf

SELECT pg_sequence_last_value('{schema}.outbox_leaf'::regclass) % 3,
	ARRAY[pg_table_size('{schema}.outbox_0'), pg_table_size('{schema}.outbox_1'), pg_table_size('{schema}.outbox_2'), pg_table_size('{schema}.outbox_other')]
---- queries.deferHeld

UPDATE {schema}.outbox_held h
SET state = 'waiting', due_at = clock_timestamp() + o.wait * interval '1 microsecond', reason = o.reason
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) o (id, wait, reason)
WHERE h.id = o.id AND state <> 'dead' AND state <> 'delayed' AND h.id = ANY (ARRAY(SELECT id FROM {schema}.outbox_held WHERE id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED))
---- queries.deleteHeld
DELETE FROM {schema}.outbox_held WHERE id = ANY (ARRAY(SELECT id FROM {schema}.outbox_held WHERE id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED))
---- queries.fence

SELECT epoch FROM {schema}.outbox_relay
WHERE epoch = $1 AND EXISTS (SELECT FROM {schema}.outbox_tenure WHERE epoch = $1) FOR SHARE
---- queries.fetchHeld

SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, attempts
FROM {schema}.outbox_held WHERE id = ANY ($1::bigint[]) AND state <> 'dead' AND state <> 'delayed' FOR UPDATE SKIP LOCKED
---- queries.fetchMessages0

SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, 0 AS attempts, coalesce((SELECT f.id FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AND CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END ORDER BY ordering_key, id LIMIT 1) f), 0) AS behind
FROM {schema}.outbox_0 m
WHERE id = ANY ($1::bigint[]) AND (xid >= $2::text::xid8 OR xid = ANY ($3::text[]::xid8[])) AND pg_visible_in_snapshot(xid, $4::text::pg_snapshot)
---- queries.fetchMessages1

SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, 0 AS attempts, coalesce((SELECT f.id FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AND CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END ORDER BY ordering_key, id LIMIT 1) f), 0) AS behind
FROM {schema}.outbox_1 m
WHERE id = ANY ($1::bigint[]) AND (xid >= $2::text::xid8 OR xid = ANY ($3::text[]::xid8[])) AND pg_visible_in_snapshot(xid, $4::text::pg_snapshot)
---- queries.fetchMessages2

SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, 0 AS attempts, coalesce((SELECT f.id FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AND CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END ORDER BY ordering_key, id LIMIT 1) f), 0) AS behind
FROM {schema}.outbox_2 m
WHERE id = ANY ($1::bigint[]) AND (xid >= $2::text::xid8 OR xid = ANY ($3::text[]::xid8[])) AND pg_visible_in_snapshot(xid, $4::text::pg_snapshot)
---- queries.fetchMessages3

SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, 0 AS attempts, coalesce((SELECT f.id FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AND CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END ORDER BY ordering_key, id LIMIT 1) f), 0) AS behind
FROM {schema}.outbox_other m
WHERE id = ANY ($1::bigint[]) AND (xid >= $2::text::xid8 OR xid = ANY ($3::text[]::xid8[])) AND pg_visible_in_snapshot(xid, $4::text::pg_snapshot)
---- queries.fetchProbe

SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, attempts
FROM {schema}.outbox_held WHERE id = (
	SELECT id FROM (
		(SELECT id FROM {schema}.outbox_held
			WHERE state = 'waiting' AND due_at < 'infinity' AND topic = $1
				AND (due_at, id) > ((SELECT due_at FROM {schema}.outbox_held WHERE id = $2), $2) ORDER BY due_at, id LIMIT 1)
		UNION ALL
		(SELECT id FROM {schema}.outbox_held
			WHERE state = 'waiting' AND due_at < 'infinity' AND topic = $1 ORDER BY due_at, id LIMIT 1)) candidates LIMIT 1)
---- queries.holdMessages

WITH asked AS (
	SELECT * FROM unnest($1::bigint[], $6::uuid[], $2::text[], $3::bigint[], $4::int[], $5::text[])
		WITH ORDINALITY o (id, message_id, state, wait, attempts, reason, ordinal)),
logged AS MATERIALIZED (
	SELECT id, message_id, topic, coalesce(nullif(m.type, ''), m.topic) AS type, scope, key, step, n, CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AS ordering_key,
		coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text) AS correlation_id, causation_id, coalesce(nullif(m.content_type, ''), 'application/json') AS content_type, headers, payload, created_at
	FROM (
		SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_0 WHERE id = ANY ($1::bigint[])
UNION ALL
		SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_1 WHERE id = ANY ($1::bigint[])
UNION ALL
		SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_2 WHERE id = ANY ($1::bigint[])
UNION ALL
		SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_other WHERE id = ANY ($1::bigint[])) m),
compared AS MATERIALIZED (
	SELECT l.*, o.state, o.wait, o.attempts, o.reason, o.ordinal,
		coalesce(same.message_id = l.message_id, false) AS held,
		coalesce(same.message_id <> l.message_id, false) OR row_number() OVER (PARTITION BY l.id ORDER BY o.ordinal) > 1 AS taken,
		last.id AS behind
	FROM asked o
	JOIN logged l USING (id, message_id)
	LEFT JOIN LATERAL (SELECT h.message_id FROM {schema}.outbox_held h WHERE h.id = o.id) same ON true
	LEFT JOIN LATERAL (
		SELECT h.id FROM {schema}.outbox_held h
		WHERE h.state IN ('refused', 'waiting') AND h.ordering_key BETWEEN l.ordering_key AND l.ordering_key
		ORDER BY h.ordering_key DESC, h.id DESC LIMIT 1) last ON last.id > l.id),
missing AS MATERIALIZED (
	SELECT *, bool_or(taken OR behind IS NOT NULL) OVER (PARTITION BY ordering_key ORDER BY ordinal) AS moves
	FROM compared c
	WHERE NOT held AND (behind IS NULL OR NOT EXISTS (
		SELECT FROM {schema}.outbox_held h
		WHERE h.state IN ('refused', 'waiting') AND h.ordering_key BETWEEN c.ordering_key AND c.ordering_key AND h.message_id = c.message_id))
		AND (NOT taken AND behind IS NULL OR NOT EXISTS (SELECT FROM {schema}.outbox_held h WHERE h.state = 'dead' AND h.message_id = c.message_id))),
added AS (
	INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, headers, payload, created_at, state, due_at, attempts, reason, refused_at)
	SELECT CASE WHEN moves THEN nextval('{schema}.outbox_id_seq') ELSE id END, message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, headers, payload, created_at,
		state, CASE state WHEN 'waiting' THEN 'infinity' ELSE clock_timestamp() + wait * interval '1 microsecond' END,
		attempts, reason, CASE WHEN attempts > 0 THEN clock_timestamp() END
	FROM (SELECT * FROM missing ORDER BY ordinal) m
	RETURNING id, message_id)
SELECT o.message_id, o.id, a.id, coalesce(c.taken, false)
FROM asked o LEFT JOIN compared c USING (ordinal) LEFT JOIN added a ON a.message_id = o.message_id
WHERE c.ordinal IS NULL OR a.id <> o.id
---- queries.insertDelayed

INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, state, due_at)
SELECT nextval(pg_get_serial_sequence('{schema}.outbox', 'id')), message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload,
	'delayed', clock_timestamp() + delay * interval '1 microsecond'
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
	$9::text[], $10::text[], $11::text[], $12::json[], $13::bytea[], $14::bigint[])
	AS m (message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, headers, payload, delay)
---- queries.insertMessages

INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload)
SELECT message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
	$9::text[], $10::text[], $11::text[], $12::json[], $13::bytea[])
	WITH ORDINALITY AS m (message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, headers, payload, position)
ORDER BY position
---- queries.insertValues0

INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
---- queries.insertValues1

INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13), ($14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26)
---- queries.insertValues2

INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13), ($14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26), ($27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39)
---- queries.insertValues3

INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13), ($14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26), ($27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39), ($40, $41, $42, $43, $44, $45, $46, $47, $48, $49, $50, $51, $52)
---- queries.judgeLeaf0

SELECT pg_sequence_last_value('{schema}.outbox_leaf'::regclass) % 3 IS DISTINCT FROM $6::bigint
	AND NOT EXISTS (SELECT FROM {schema}.outbox_0 WHERE xid >= $1::text::xid8
		AND NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)))
	AND NOT EXISTS (SELECT FROM {schema}.outbox_0 WHERE xid = ANY ($2::text[]::xid8[])
		AND NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)))
	AND ($5::bigint = 0 OR coalesce((SELECT created_at FROM {schema}.outbox_0 WHERE leaf IS DISTINCT FROM -1 ORDER BY id DESC LIMIT 1)
		<= clock_timestamp() - $5 * interval '1 microsecond', true))
---- queries.judgeLeaf1

SELECT pg_sequence_last_value('{schema}.outbox_leaf'::regclass) % 3 IS DISTINCT FROM $6::bigint
	AND NOT EXISTS (SELECT FROM {schema}.outbox_1 WHERE xid >= $1::text::xid8
		AND NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)))
	AND NOT EXISTS (SELECT FROM {schema}.outbox_1 WHERE xid = ANY ($2::text[]::xid8[])
		AND NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)))
	AND ($5::bigint = 0 OR coalesce((SELECT created_at FROM {schema}.outbox_1 WHERE leaf IS DISTINCT FROM -1 ORDER BY id DESC LIMIT 1)
		<= clock_timestamp() - $5 * interval '1 microsecond', true))
---- queries.judgeLeaf2

SELECT pg_sequence_last_value('{schema}.outbox_leaf'::regclass) % 3 IS DISTINCT FROM $6::bigint
	AND NOT EXISTS (SELECT FROM {schema}.outbox_2 WHERE xid >= $1::text::xid8
		AND NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)))
	AND NOT EXISTS (SELECT FROM {schema}.outbox_2 WHERE xid = ANY ($2::text[]::xid8[])
		AND NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)))
	AND ($5::bigint = 0 OR coalesce((SELECT created_at FROM {schema}.outbox_2 WHERE leaf IS DISTINCT FROM -1 ORDER BY id DESC LIMIT 1)
		<= clock_timestamp() - $5 * interval '1 microsecond', true))
---- queries.judgeLeaf3

SELECT pg_sequence_last_value('{schema}.outbox_leaf'::regclass) % 3 IS DISTINCT FROM $6::bigint
	AND NOT EXISTS (SELECT FROM {schema}.outbox_other WHERE xid >= $1::text::xid8
		AND NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)))
	AND NOT EXISTS (SELECT FROM {schema}.outbox_other WHERE xid = ANY ($2::text[]::xid8[])
		AND NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)))
	AND ($5::bigint = 0 OR coalesce((SELECT created_at FROM {schema}.outbox_other WHERE leaf IS DISTINCT FROM -1 ORDER BY id DESC LIMIT 1)
		<= clock_timestamp() - $5 * interval '1 microsecond', true))
---- queries.lateCheckpoint0

INSERT INTO {schema}.outbox_cursor_0 (epoch, seq, from_snapshot, to_snapshot, last_id)
SELECT $1, $2, $3, $4, $5
FROM set_config('synchronous_commit', 'off', true)
WHERE EXISTS (SELECT FROM {schema}.outbox_relay WHERE epoch = $1) AND EXISTS (SELECT FROM {schema}.outbox_tenure WHERE epoch = $1)
---- queries.lateCheckpoint1

INSERT INTO {schema}.outbox_cursor_1 (epoch, seq, from_snapshot, to_snapshot, last_id)
SELECT $1, $2, $3, $4, $5
FROM set_config('synchronous_commit', 'off', true)
WHERE EXISTS (SELECT FROM {schema}.outbox_relay WHERE epoch = $1) AND EXISTS (SELECT FROM {schema}.outbox_tenure WHERE epoch = $1)
---- queries.leafSizes

SELECT ARRAY[pg_total_relation_size('{schema}.outbox_0'), pg_total_relation_size('{schema}.outbox_1'),
	pg_total_relation_size('{schema}.outbox_2'), pg_total_relation_size('{schema}.outbox_other')]
---- queries.listDifference

SELECT s.now::text, m.leaf, m.id, m.size
FROM (SELECT pg_current_snapshot() AS now FROM {schema}.outbox_tenure WHERE epoch = $6) s
LEFT JOIN LATERAL (
	SELECT leaf, id, size FROM (
	SELECT 0 AS leaf, id, octet_length(payload) AS size, xid FROM {schema}.outbox_0 WHERE xid >= $1::text::xid8
	UNION ALL
	SELECT 0, id, octet_length(payload), xid FROM {schema}.outbox_0 WHERE xid = ANY ($2::text[]::xid8[])
UNION ALL
	SELECT 1 AS leaf, id, octet_length(payload) AS size, xid FROM {schema}.outbox_1 WHERE xid >= $1::text::xid8
	UNION ALL
	SELECT 1, id, octet_length(payload), xid FROM {schema}.outbox_1 WHERE xid = ANY ($2::text[]::xid8[])
UNION ALL
	SELECT 2 AS leaf, id, octet_length(payload) AS size, xid FROM {schema}.outbox_2 WHERE xid >= $1::text::xid8
	UNION ALL
	SELECT 2, id, octet_length(payload), xid FROM {schema}.outbox_2 WHERE xid = ANY ($2::text[]::xid8[])
UNION ALL
	SELECT 3 AS leaf, id, octet_length(payload) AS size, xid FROM {schema}.outbox_other WHERE xid >= $1::text::xid8
	UNION ALL
	SELECT 3, id, octet_length(payload), xid FROM {schema}.outbox_other WHERE xid = ANY ($2::text[]::xid8[])) d
	WHERE id + 0 > $3 AND ($4::text IS NULL OR pg_visible_in_snapshot(xid, $4::text::pg_snapshot))
	ORDER BY id LIMIT $5) m ON true
ORDER BY m.id
---- queries.listRetries

WITH RECURSIVE topics (topic) AS (
	(SELECT topic FROM {schema}.outbox_held WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity' ORDER BY topic LIMIT 1)
	UNION ALL
	SELECT (SELECT topic FROM {schema}.outbox_held
		WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity' AND topic > t.topic ORDER BY topic LIMIT 1)
	FROM topics t WHERE t.topic IS NOT NULL),
due AS (SELECT id, ordering_key FROM (
	SELECT d.* FROM topics t, (VALUES ('refused'), ('waiting')) s (state), LATERAL (
		SELECT o.* FROM (
			SELECT id, ordering_key, due_at, payload FROM {schema}.outbox_held
			WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity'
				AND topic = t.topic AND state = s.state AND due_at <= (SELECT clock_timestamp())
			ORDER BY due_at, id OFFSET 0) o
		WHERE o.id = (SELECT f.id FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN o.ordering_key AND o.ordering_key ORDER BY ordering_key, id LIMIT 1) f)
		ORDER BY o.due_at, o.id LIMIT $1) d
	WHERE t.topic <> ALL ($3::text[])) each ORDER BY due_at, id LIMIT $1)
SELECT h.id, octet_length(h.payload), h.ordering_key
FROM {schema}.outbox_held h
WHERE h.id = ANY (ARRAY(
	SELECT id FROM due
	UNION
	SELECT w.id FROM due, LATERAL (
		SELECT f.id, count(*) FILTER (WHERE f.state = 'refused' AND f.id <> due.id) OVER (ORDER BY f.id) AS refused
		FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN due.ordering_key AND due.ordering_key ORDER BY ordering_key, id LIMIT $2 + 1) f) w
	WHERE refused = 0))
ORDER BY h.id
---- queries.lockLeaf0
LOCK TABLE {schema}.outbox_0 IN ACCESS EXCLUSIVE MODE
---- queries.lockLeaf1
LOCK TABLE {schema}.outbox_1 IN ACCESS EXCLUSIVE MODE
---- queries.lockLeaf2
LOCK TABLE {schema}.outbox_2 IN ACCESS EXCLUSIVE MODE
---- queries.lockLeaf3
LOCK TABLE {schema}.outbox_other IN ACCESS EXCLUSIVE MODE
---- queries.lockRelay

SELECT epoch, holder, system_identifier, extract(epoch FROM lease_until - clock_timestamp())::float8 AS left
FROM {schema}.outbox_relay FOR UPDATE SKIP LOCKED
---- queries.lockSoon
SELECT set_config('lock_timeout', $1, true)
---- queries.lookForHeld

SELECT EXISTS (SELECT FROM {schema}.outbox_held WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity'),
	(SELECT extract(epoch FROM due_at - clock_timestamp())::float8 FROM {schema}.outbox_held WHERE state = 'delayed' ORDER BY due_at, id LIMIT 1)
---- queries.makeTopicDue

WITH RECURSIVE topics (topic) AS (
	(SELECT topic FROM {schema}.outbox_held WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity' ORDER BY topic LIMIT 1)
	UNION ALL
	SELECT (SELECT topic FROM {schema}.outbox_held
		WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity' AND topic > t.topic ORDER BY topic LIMIT 1)
	FROM topics t WHERE t.topic IS NOT NULL)
UPDATE {schema}.outbox_held SET due_at = clock_timestamp()
WHERE id = ANY (ARRAY(
	SELECT id FROM {schema}.outbox_held WHERE id = ANY (ARRAY(
		SELECT d.id FROM topics t, LATERAL (
			SELECT id FROM {schema}.outbox_held
			WHERE state = 'waiting' AND topic = t.topic AND due_at > (SELECT clock_timestamp()) AND due_at < 'infinity'
			ORDER BY due_at, id LIMIT $2) d
		WHERE $1 = '' OR t.topic = $1 LIMIT $2))
	FOR UPDATE SKIP LOCKED))
---- queries.moveDelayed

WITH due AS (
	SELECT id, due_at, octet_length(payload) AS size FROM {schema}.outbox_held
	WHERE state = 'delayed' AND due_at <= (SELECT clock_timestamp()) ORDER BY due_at, id LIMIT $1 FOR UPDATE),
moved AS (
	DELETE FROM {schema}.outbox_held WHERE id = ANY (ARRAY(
		SELECT id FROM (SELECT id, sum(size) OVER (ORDER BY due_at, id) - size AS before FROM due) sized WHERE before < $2))
	RETURNING id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, due_at,
		to_char(CASE reason WHEN '' THEN due_at ELSE created_at END AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS since)
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload)
SELECT message_id, topic, type, scope, key, step, n, CASE WHEN left(ordering_key, 1) IN (E'\x1f', E'\x1e') THEN E'\x1e' || ordering_key ELSE ordering_key END,
	correlation_id, causation_id, content_type,
	CASE WHEN headers IS NULL THEN ('{"timestamp":"' || since || '"}')::json
		WHEN headers::text LIKE '{"%' AND headers::text NOT LIKE '{"timestamp":%' THEN ('{"timestamp":"' || since || '",' || substr(headers::text, 2))::json
		ELSE headers END,
	payload
FROM moved ORDER BY due_at, id
---- queries.nextLeaf
SELECT nextval('{schema}.outbox_leaf') FROM generate_series(1, $1)
---- queries.oldestWriter

SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8, pid
FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND datname = current_database()
ORDER BY xact_start LIMIT 1
---- queries.planByIndex

SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true)
---- queries.promote

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
		FOR UPDATE SKIP LOCKED)))
SELECT key FROM first WHERE id IS NULL
---- queries.promotePage

WITH RECURSIVE first AS (
	SELECT 1 AS n, h.ordering_key, h.id, h.state, h.due_at FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key >= $1 ORDER BY ordering_key, id LIMIT 1) h
	UNION ALL
	SELECT f.n + 1, h.ordering_key, h.id, h.state, h.due_at
	FROM first f, LATERAL (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key > f.ordering_key ORDER BY ordering_key, id LIMIT 1) h
	WHERE f.n < $2),
promoted AS (
	UPDATE {schema}.outbox_held SET due_at = clock_timestamp()
	WHERE id = ANY (ARRAY(
		SELECT id FROM {schema}.outbox_held
		WHERE id = ANY (ARRAY(SELECT id FROM first WHERE state = 'waiting' AND due_at = 'infinity'))
			AND state <> 'refused' AND state <> 'dead' AND state <> 'delayed' AND due_at = 'infinity'
		FOR UPDATE SKIP LOCKED)))
SELECT n, ordering_key FROM first ORDER BY n DESC LIMIT 1
---- queries.readCursor

SELECT epoch, seq, from_snapshot, to_snapshot, last_id, which FROM (
	SELECT epoch, seq, from_snapshot, to_snapshot, last_id, 0 AS which FROM {schema}.outbox_cursor_0
	UNION ALL
	SELECT epoch, seq, from_snapshot, to_snapshot, last_id, 1 FROM {schema}.outbox_cursor_1) c
ORDER BY epoch DESC, seq DESC LIMIT 1
---- queries.readDifference

SELECT m.id, m.message_id, m.topic, m.type, m.scope, m.key, m.step, m.n, m.ordering_key,
	m.correlation_id, m.causation_id, m.content_type, m.headers, CASE WHEN octet_length(m.payload) <= $3 THEN m.payload END,
	m.created_at, 0 AS attempts, coalesce((SELECT f.id FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AND CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END ORDER BY ordering_key, id LIMIT 1) f), 0) AS behind, s.now::text, m.leaf
FROM (SELECT pg_current_snapshot() AS now FROM {schema}.outbox_tenure WHERE epoch = $4) s
LEFT JOIN LATERAL (SELECT * FROM (
		SELECT 0 AS leaf, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_0 WHERE xid >= $1::text::xid8
		UNION ALL
		SELECT 0, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_0 WHERE xid = ANY ($5::text[]::xid8[])
UNION ALL
		SELECT 1 AS leaf, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_1 WHERE xid >= $1::text::xid8
		UNION ALL
		SELECT 1, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_1 WHERE xid = ANY ($5::text[]::xid8[])
UNION ALL
		SELECT 2 AS leaf, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_2 WHERE xid >= $1::text::xid8
		UNION ALL
		SELECT 2, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_2 WHERE xid = ANY ($5::text[]::xid8[])
UNION ALL
		SELECT 3 AS leaf, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_other WHERE xid >= $1::text::xid8
		UNION ALL
		SELECT 3, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_other WHERE xid = ANY ($5::text[]::xid8[])) u ORDER BY id + 0 LIMIT $2) m ON true
ORDER BY m.id
---- queries.readNew

SELECT m.id, m.message_id, m.topic, m.type, m.scope, m.key, m.step, m.n, m.ordering_key,
	m.correlation_id, m.causation_id, m.content_type, m.headers, CASE WHEN octet_length(m.payload) <= $3 THEN m.payload END,
	m.created_at, 0 AS attempts, coalesce((SELECT f.id FROM (
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key BETWEEN CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END AND CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END ORDER BY ordering_key, id LIMIT 1) f), 0) AS behind, s.now::text, m.leaf
FROM (SELECT pg_current_snapshot() AS now FROM {schema}.outbox_tenure WHERE epoch = $4) s
LEFT JOIN LATERAL (SELECT * FROM (
		SELECT 0 AS leaf, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_0 WHERE xid >= $1::text::xid8
UNION ALL
		SELECT 1 AS leaf, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_1 WHERE xid >= $1::text::xid8
UNION ALL
		SELECT 2 AS leaf, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_2 WHERE xid >= $1::text::xid8
UNION ALL
		SELECT 3 AS leaf, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.outbox_other WHERE xid >= $1::text::xid8) u ORDER BY id + 0 LIMIT $2) m ON true
ORDER BY m.id
---- queries.readRelay

SELECT epoch, holder, CASE WHEN holder <> '' THEN extract(epoch FROM lease_until - clock_timestamp()) ELSE 0 END::float8
FROM {schema}.outbox_relay
---- queries.readSystem
SELECT system_identifier::text, pg_current_snapshot()::text FROM pg_control_system()
---- queries.readTenure
SELECT epoch FROM {schema}.outbox_tenure WHERE epoch = $1
---- queries.refuseHeld

UPDATE {schema}.outbox_held h
SET state = o.state, due_at = clock_timestamp() + o.wait * interval '1 microsecond',
	attempts = o.attempts, reason = o.reason, refused_at = clock_timestamp()
FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::int[], $5::text[]) o (id, state, wait, attempts, reason)
WHERE h.id = o.id AND h.attempts = o.attempts - 1 AND h.state <> 'dead' AND h.id = ANY (ARRAY(SELECT id FROM {schema}.outbox_held WHERE id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED))
---- queries.releaseLease
UPDATE {schema}.outbox_relay SET lease_until = 'epoch', holder = '' WHERE epoch = $1
---- queries.renewLease

UPDATE {schema}.outbox_relay SET lease_until = clock_timestamp() + $2 * interval '1 microsecond'
WHERE epoch = $1 AND EXISTS (SELECT FROM {schema}.outbox_tenure WHERE epoch = $1)
---- queries.restampMessages
UPDATE {schema}.outbox SET xid = pg_current_xact_id()
---- queries.stampSystem
UPDATE {schema}.outbox_relay SET system_identifier = $1
---- queries.takeLease

UPDATE {schema}.outbox_relay
SET epoch = $1, holder = $2, lease_until = clock_timestamp() + $3 * interval '1 microsecond'
---- queries.truncateCursor0
TRUNCATE {schema}.outbox_cursor_0
---- queries.truncateCursor1
TRUNCATE {schema}.outbox_cursor_1
---- queries.truncateLeaf0
TRUNCATE {schema}.outbox_0
---- queries.truncateLeaf1
TRUNCATE {schema}.outbox_1
---- queries.truncateLeaf2
TRUNCATE {schema}.outbox_2
---- queries.truncateLeaf3
TRUNCATE {schema}.outbox_other
---- queries.unlimited
SELECT set_config('statement_timeout', '0', true)
