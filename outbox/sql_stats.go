package outbox

// sqlReadRelay reads who publishes, without a lock.
const sqlReadRelay = `
SELECT epoch, CASE WHEN lease_until > clock_timestamp() THEN holder ELSE '' END, log FROM {schema}.outbox_relay`

// sqlCountTable counts what a table log has not published, and how old the
// oldest of it is, in seconds.
const sqlCountTable = `
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8 FROM {schema}.outbox`

// sqlCountDifference counts what an append-only log has not published. The
// cursor is as in sqlJudgeLeaf.
const sqlCountDifference = `
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
FROM ({leaves}) d
WHERE NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot))`

const sqlCountLeaf = `
	SELECT id, created_at, xid FROM {schema}.{leaf} WHERE xid >= $1::text::xid8
	UNION ALL
	SELECT id, created_at, xid FROM {schema}.{leaf} WHERE xid = ANY ($2::text[]::xid8[])`

// sqlCountHeld counts by state.
const sqlCountHeld = `
SELECT count(*) FILTER (WHERE state = 'delayed'), count(*) FILTER (WHERE state = 'waiting'),
	count(*) FILTER (WHERE state = 'refused'), count(*) FILTER (WHERE state = 'dead')
FROM {schema}.outbox_held`

// sqlLeafSizes reads the bytes of each leaf with its indexes.
const sqlLeafSizes = `
SELECT ARRAY[pg_total_relation_size('{schema}.outbox_0'), pg_total_relation_size('{schema}.outbox_1'),
	pg_total_relation_size('{schema}.outbox_2'), pg_total_relation_size('{schema}.outbox_other')]`

// sqlOldestWriter reads how long the oldest transaction is open that may still
// add messages, in seconds, and of which process it is. A role that may not see
// other roles' sessions sees its own only.
const sqlOldestWriter = `
SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8, pid
FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND datname = current_database()
ORDER BY xact_start LIMIT 1`

// sqlListDead lists dead letters, the latest first. Empty conditions hold for all.
const sqlListDead = `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type,
	coalesce(headers::text, ''), payload, created_at, attempts, reason, refused_at
FROM {schema}.outbox_held
WHERE state = 'dead' AND ($1::bigint[] IS NULL OR id = ANY ($1)) AND ($2 = '' OR topic = $2) AND ($3 = '' OR scope = $3) AND ($4 = '' OR key = $4)
	AND ($5 = '' OR position($5 IN reason) > 0) AND refused_at <= clock_timestamp() - $6::bigint * interval '1 microsecond' AND id > $7
ORDER BY id LIMIT $8`

// sqlRedrive sends dead letters round again, with all their attempts.
const sqlRedrive = `
UPDATE {schema}.outbox_held
SET state = 'delayed', attempts = 0, refused_at = NULL, due_at = clock_timestamp()
WHERE state = 'dead' AND id = ANY ($1::bigint[])`

// sqlDiscard forgets dead letters for good.
const sqlDiscard = `DELETE FROM {schema}.outbox_held WHERE state = 'dead' AND id = ANY ($1::bigint[])`
