package outbox

// sqlReadRelay reads who publishes, without a lock.
const sqlReadRelay = `
SELECT epoch, CASE WHEN lease_until > clock_timestamp() THEN holder ELSE '' END FROM {schema}.outbox_relay`

// sqlCountDifference counts what is not published. $1 (xmax)
// and $2 (in progress) are of the newest snapshot in the cursor. If that is its to,
// it is $5, $3 and $4 are of its from, and after $6 there are ids of the difference
// left. $7 limits each part.
const sqlCountDifference = `
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
FROM ({leaves}) d`

// sqlCountLeaf has a part for each index condition. They exclude each other, and
// come in the order of transactions, so that the oldest message is among the first.
// What of a difference is published is passed over within the index (xid, id);
// ORDER BY, and id + 0, keep the planner from taking that on id.
const sqlCountLeaf = `
	(SELECT created_at FROM {schema}.{leaf} WHERE xid >= $1::text::xid8 LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.{leaf} WHERE xid = ANY ($2::text[]::xid8[]) LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.{leaf}
	WHERE xid >= $3::text::xid8 AND xid < pg_snapshot_xmax($5::text::pg_snapshot)
		AND id > $6 AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) ORDER BY xid, id LIMIT $7)
	UNION ALL
	(SELECT created_at FROM {schema}.{leaf}
	WHERE xid = ANY ($4::text[]::xid8[]) AND id + 0 > $6 AND pg_visible_in_snapshot(xid, $5::text::pg_snapshot) LIMIT $7)`

// sqlCountHeld counts by state, up to $1 each.
const sqlCountHeld = `
SELECT (SELECT count(*) FROM (SELECT FROM {schema}.outbox_held WHERE state = 'delayed' AND state <> 'dead' LIMIT $1) h),
	(SELECT count(*) FROM (SELECT FROM {schema}.outbox_held WHERE state = 'waiting' LIMIT $1) h),
	(SELECT count(*) FROM (SELECT FROM {schema}.outbox_held WHERE state = 'refused' LIMIT $1) h),
	(SELECT count(*) FROM (SELECT FROM {schema}.outbox_held WHERE state = 'dead' LIMIT $1) h)`

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
