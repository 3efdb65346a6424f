package outbox

import "strings"

// sqlLocate finds the messages of the saga $2, of scope $1 unless that is empty,
// and where each is. It is one statement, so that what it says is of one moment,
// and takes no lock but the one that any SELECT does. With no message there is
// still a row that says who publishes. reach has no row where nothing of the log
// counts as published: before the first relay, and after a restore from
// another cluster. A message that is held is in the log as well. $3 limits how many; the oldest published ones are left out first.
const sqlLocate = `
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
		FROM ({leaves}) d
		UNION ALL
		SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, octet_length(payload), created_at,
			state, CASE WHEN state <> 'dead' AND isfinite(due_at) THEN due_at END, attempts, reason, refused_at, true
		FROM {schema}.outbox_held WHERE key = $2 AND ($1 = '' OR scope = $1)) found
	ORDER BY id, held DESC),
picked AS MATERIALIZED (
	SELECT * FROM mine WHERE place <> 'published' OR {published} ORDER BY place = 'published', CASE place WHEN 'published' THEN -id ELSE id END LIMIT $3)
SELECT r.holder, r.now, r.epoch > 0 AND NOT r.restored AND NOT EXISTS (SELECT FROM mark),
	p.id, p.message_id::text, CASE WHEN p.place = 'stored' AND h.id IS NOT NULL THEN 'waiting' ELSE p.place END,
	p.topic, p.type, p.scope, p.key, p.step, p.n, p.ordering_key, p.correlation_id, p.causation_id,
	coalesce(p.size, 0), p.created_at, p.due_at, coalesce(p.attempts, 0), p.reason, p.refused_at,
	coalesce(h.id, 0), h.topic, h.scope, h.key, h.step, h.n, coalesce(h.attempts, 0), h.reason, h.due_at
FROM relay r LEFT JOIN picked p ON true LEFT JOIN LATERAL (
	SELECT id, topic, scope, key, step, n, attempts, reason, CASE WHEN isfinite(due_at) THEN due_at END AS due_at
	FROM (
		SELECT * FROM {schema}.outbox_held f
		WHERE p.place IN ('stored', 'waiting') AND f.state IN ('refused', 'waiting') AND f.ordering_key = p.ordering_key
		ORDER BY f.id LIMIT 1) first
	WHERE first.id <> p.id) h ON true
ORDER BY p.id`

// sqlLocateLeaf has no index to go by: the writer of every message would pay for
// one, and who asks where a saga is can wait for a walk through the log.
const sqlLocateLeaf = `
	SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id,
		octet_length(payload) AS size, created_at, xid
	FROM {schema}.{leaf} WHERE key = $2 AND ($1 = '' OR scope = $1)`

// sqlLocateUnpublishedLeaf passes over what was published before the difference
// that the relay is at, by the index (xid, id), as sqlListLeaf does.
const sqlLocateUnpublishedLeaf = sqlLocateLeaf + `
		AND xid >= coalesce((SELECT pg_snapshot_xmax(past) FROM reach), '0'::xid8)
	UNION ALL` + sqlLocateLeaf + `
		AND xid = ANY (ARRAY(SELECT pg_snapshot_xip(past) FROM reach))`

// located is sqlLocate on the leaves, with published messages or without.
func located(published, leaf string) string {
	return unionOfLeaves(strings.ReplaceAll(sqlLocate, "{published}", published), leaf)
}

// sqlPin keeps the tables from being emptied before the transaction reads them:
// a TRUNCATE takes rows away from a snapshot, too. The relay gives up at once, and
// goes on in the table that it has.
const sqlPin = `LOCK TABLE {schema}.outbox_cursor_0, {schema}.outbox_cursor_1, ONLY {schema}.outbox_0, ONLY {schema}.outbox_1,
	ONLY {schema}.outbox_2, ONLY {schema}.outbox_other IN ACCESS SHARE MODE`
