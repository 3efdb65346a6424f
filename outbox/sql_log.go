package outbox

// sqlPlanByIndex settles how the statements behind it in the transaction are
// planned. A leaf is empty one minute and full the next, so that statistics
// mislead: a sequential scan would read all that is published already.
const sqlPlanByIndex = `
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true)`

// sqlListDifference lists what became visible after one snapshot: messages of
// transactions that it knew to be in progress ($2) or did not know at all (from
// $1 on), in the order of their ids. The snapshot of the statement itself, now,
// is where the next difference begins; it comes back with no message as well.
// There is none for a relay whose tenure, $6, is over.
// $4, if it is not null, is a snapshot in which the messages must be visible
// besides, $3 the id after which they begin: so a long difference can be listed
// in parts. (id + 0, or the planner might take the index on id and walk through
// all that is published.)
const sqlListDifference = `
SELECT s.now::text, m.leaf, m.id, m.size
FROM (SELECT pg_current_snapshot() AS now FROM {schema}.outbox_tenure WHERE epoch = $6) s
LEFT JOIN LATERAL (
	SELECT leaf, id, size FROM ({leaves}) d
	WHERE id + 0 > $3 AND ($4::text IS NULL OR pg_visible_in_snapshot(xid, $4::text::pg_snapshot))
	ORDER BY id LIMIT $5) m ON true
ORDER BY m.id`

// sqlListLeaf has two branches, since one condition with OR could not use the
// index.
const sqlListLeaf = `
	SELECT {i} AS leaf, id, octet_length(payload) AS size, xid FROM {schema}.{leaf} WHERE xid >= $1::text::xid8
	UNION ALL
	SELECT {i}, id, octet_length(payload), xid FROM {schema}.{leaf} WHERE xid = ANY ($2::text[]::xid8[])`

// sqlFetchMessages reads listed messages, and whether one of the same ordering key is held, behind
// which they have to wait. It takes no lock: nobody changes them.
const sqlFetchMessages = `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, 0 AS attempts, coalesce((
		SELECT h.id FROM {schema}.outbox_held h
		WHERE h.state IN ('refused', 'waiting') AND h.ordering_key = o.ordering_key ORDER BY h.id LIMIT 1), 0) AS behind
FROM {schema}.{leaf} o WHERE id = ANY ($1::bigint[])`

// sqlCurrentLeaf reads where new messages go, and how large each leaf is.
const sqlCurrentLeaf = `
SELECT pg_sequence_last_value('{schema}.outbox_leaf'::regclass) % 3,
	ARRAY[pg_table_size('{schema}.outbox_0'), pg_table_size('{schema}.outbox_1'), pg_table_size('{schema}.outbox_2'), pg_table_size('{schema}.outbox_other')]`

// sqlNextLeaf sends new messages to the leaf $1 further on. A message that finds
// its way into one in between is as well there.
const sqlNextLeaf = `SELECT nextval('{schema}.outbox_leaf') FROM generate_series(1, $1)`

// sqlLockLeaf waits for every transaction that has written to the leaf, for as
// long as lock_timeout allows.
const sqlLockLeaf = `LOCK TABLE {schema}.{leaf} IN ACCESS EXCLUSIVE MODE`

// sqlJudgeLeaf is asked under sqlLockLeaf, so that it sees all there is: whether
// new messages go elsewhere, and whether nothing in the leaf is unpublished or
// younger than $5 microseconds. A copy, which a replay has written, bears the time of
// another message and need not be kept. The cursor is $1 (xmax) and $2 (in progress) of
// its from, $3 (to) and $4 (id).
const sqlJudgeLeaf = `
SELECT pg_sequence_last_value('{schema}.outbox_leaf'::regclass) % 3 IS DISTINCT FROM $6::bigint
	AND NOT EXISTS (SELECT FROM {schema}.{leaf} WHERE xid >= $1::text::xid8
		AND NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)))
	AND NOT EXISTS (SELECT FROM {schema}.{leaf} WHERE xid = ANY ($2::text[]::xid8[])
		AND NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)))
	AND ($5::bigint = 0 OR coalesce((SELECT created_at FROM {schema}.{leaf} WHERE leaf IS DISTINCT FROM -1 ORDER BY id DESC LIMIT 1)
		<= clock_timestamp() - $5 * interval '1 microsecond', true))`

// sqlTruncateLeaf gives the leaf's space back whatever snapshots are held.
const sqlTruncateLeaf = `TRUNCATE {schema}.{leaf}`
