package outbox

// sqlHoldMessages copies messages of a leaf to the side: refused ones with when
// they are due again, those that wait behind one until they are the first. A
// message that is there already was copied by a transaction whose outcome was
// not known.
const sqlHoldMessages = `
INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, state, due_at, attempts, reason, refused_at)
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at,
	o.state, CASE o.state WHEN 'waiting' THEN 'infinity' ELSE clock_timestamp() + o.wait * interval '1 microsecond' END,
	o.attempts, o.reason, CASE WHEN o.attempts > 0 THEN clock_timestamp() END
FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::int[], $5::text[]) o (id, state, wait, attempts, reason)
JOIN {schema}.{leaf} USING (id)
ON CONFLICT (id) DO NOTHING`

// sqlMoveDelayed makes delayed messages that are due part of the log, at most $1 of
// them and up to $2 bytes of payload, or one, in the order in which they were due. They
// get new ids, and the time of now as that of their writing, by which the log is kept and
// replayed. What a receiver needs to know is since when they may have been handled: that
// goes with them as a header. It is when they were due, however often they are moved, as
// after a recovery to an earlier time; of a redriven one, which has the reason of its last
// refusal, when it was written first. Whoever moves them at the same time waits, and finds
// those that are left. (The clock is read in a SELECT of its own, once: what may change
// from row to row is no condition for an index. Headers are put together as text: that
// fails for no JSON that somebody has stored.)
const sqlMoveDelayed = `
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
SELECT message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type,
	CASE WHEN headers IS NULL THEN ('{"timestamp":"' || since || '"}')::json
		WHEN headers::text LIKE '{"%' AND headers::text NOT LIKE '{"timestamp":%' THEN ('{"timestamp":"' || since || '",' || substr(headers::text, 2))::json
		ELSE headers END,
	payload
FROM moved ORDER BY due_at, id`

// sqlHeldTopics lists the topics that have messages which are tried again by themselves, one step
// into the index outbox_held_topic for each. The last one is null.
const sqlHeldTopics = `
WITH RECURSIVE topics (topic) AS (
	(SELECT topic FROM {schema}.outbox_held WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity' ORDER BY topic LIMIT 1)
	UNION ALL
	SELECT (SELECT h.topic FROM {schema}.outbox_held h
		WHERE h.state <> 'dead' AND h.state <> 'delayed' AND h.due_at < 'infinity' AND h.topic > t.topic ORDER BY h.topic LIMIT 1)
	FROM topics t WHERE t.topic IS NOT NULL)`

// sqlDueByTopic reads messages that are due and the first of their keys, up to $1 of each topic
// but those of $3, which stall: not one of theirs is walked past. (Whether a message is the first
// of its key is one look into an index for each that is due; as EXISTS it could become a join
// with all that are held. OFFSET 0 keeps that condition out of the walk in the order of the index:
// the planner takes it for one that a single message meets, and would read and sort all that are due.)
const sqlDueByTopic = `
	SELECT d.* FROM topics t, (VALUES ('refused'), ('waiting')) s (state), LATERAL (
		SELECT o.* FROM (
			SELECT id, ordering_key, due_at, payload FROM {schema}.outbox_held
			WHERE state <> 'dead' AND state <> 'delayed' AND due_at < 'infinity'
				AND topic = t.topic AND state = s.state AND due_at <= (SELECT clock_timestamp())
			ORDER BY due_at, id OFFSET 0) o
		WHERE o.id = (
			SELECT h.id FROM {schema}.outbox_held h
			WHERE h.state IN ('refused', 'waiting') AND h.ordering_key = o.ordering_key ORDER BY h.id LIMIT 1)
		ORDER BY o.due_at, o.id LIMIT $1) d
	WHERE t.topic <> ALL ($3::text[])`

// sqlListRetries lists refused messages that are due, and some of those that
// wait behind them, up to the next refused one, over which a delayed message may have
// come to lie: its id can be older than its commit. $1 and $2 limit how many. Messages of
// the topics $3, which stall, are left out.
const sqlListRetries = sqlHeldTopics + `,
due AS (SELECT id, ordering_key FROM (` + sqlDueByTopic + `) each ORDER BY due_at, id LIMIT $1)
SELECT h.id, octet_length(h.payload)
FROM {schema}.outbox_held h
WHERE h.id = ANY (ARRAY(
	SELECT id FROM due
	UNION
	SELECT w.id FROM due, LATERAL (
		SELECT id, count(*) FILTER (WHERE state = 'refused' AND id <> due.id) OVER (ORDER BY id) AS refused FROM (
			SELECT f.id, f.state FROM {schema}.outbox_held f
			WHERE f.state IN ('refused', 'waiting') AND f.ordering_key = due.ordering_key ORDER BY f.id LIMIT $2 + 1) f) w
	WHERE refused = 0))
ORDER BY h.id`

// sqlFetchHeld reads listed messages. Somebody may have made a dead letter of one,
// and even have redriven it. What a person has locked is passed over, until the lock goes.
const sqlFetchHeld = `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, attempts
FROM {schema}.outbox_held WHERE id = ANY ($1::bigint[]) AND state IN ('refused', 'waiting') FOR UPDATE SKIP LOCKED`

// sqlUnlockedHeld locks the messages $1, but those that a person has locked: they stay as they
// are, and are sent again. To wait for one would hold up all topics.
const sqlUnlockedHeld = `(SELECT id FROM {schema}.outbox_held WHERE id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED)`

// sqlDeleteHeld forgets what the broker has confirmed.
const sqlDeleteHeld = `DELETE FROM {schema}.outbox_held WHERE id = ANY (ARRAY` + sqlUnlockedHeld + `)`

// sqlRefuseHeld notes one more refusal. Attempts are compared, so that a
// transaction repeated because its outcome was not known counts once. What
// somebody has made a dead letter while it was on its way stays one.
const sqlRefuseHeld = `
UPDATE {schema}.outbox_held h
SET state = o.state, due_at = clock_timestamp() + o.wait * interval '1 microsecond',
	attempts = o.attempts, reason = o.reason, refused_at = clock_timestamp()
FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::int[], $5::text[]) o (id, state, wait, attempts, reason)
WHERE h.id = o.id AND h.attempts = o.attempts - 1 AND h.state <> 'dead' AND h.id = ANY (ARRAY` + sqlUnlockedHeld + `)`

// sqlDeferHeld notes when messages that were deferred are tried again. They spend no
// attempt. A refused one becomes 'waiting' too, because sqlMakeTopicDue selects that state. A
// message that somebody has made a dead letter meanwhile stays one.
const sqlDeferHeld = `
UPDATE {schema}.outbox_held h
SET state = 'waiting', due_at = clock_timestamp() + o.wait * interval '1 microsecond', reason = o.reason
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) o (id, wait, reason)
WHERE h.id = o.id AND h.state IN ('refused', 'waiting') AND h.id = ANY (ARRAY` + sqlUnlockedHeld + `)`

// sqlFetchProbe reads a message that waits because the topic $1 stalls: the one that is due next
// after message $2, or if there is none the first.
const sqlFetchProbe = `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, attempts
FROM {schema}.outbox_held WHERE id = (
	SELECT id FROM (
		(SELECT id FROM {schema}.outbox_held
			WHERE state = 'waiting' AND due_at < 'infinity' AND topic = $1
				AND (due_at, id) > ((SELECT due_at FROM {schema}.outbox_held WHERE id = $2), $2) ORDER BY due_at, id LIMIT 1)
		UNION ALL
		(SELECT id FROM {schema}.outbox_held
			WHERE state = 'waiting' AND due_at < 'infinity' AND topic = $1 ORDER BY due_at, id LIMIT 1)) candidates LIMIT 1)`

// sqlMakeTopicDue makes up to $2 messages due that wait because the topic $1 stalled, or any
// topic if $1 is empty. It needs no fence: a message that is due too soon is deferred anew.
const sqlMakeTopicDue = sqlHeldTopics + `
UPDATE {schema}.outbox_held SET due_at = clock_timestamp()
WHERE id = ANY (ARRAY(
	SELECT id FROM {schema}.outbox_held WHERE id = ANY (ARRAY(
		SELECT d.id FROM topics t, LATERAL (
			SELECT id FROM {schema}.outbox_held
			WHERE state = 'waiting' AND topic = t.topic AND due_at > (SELECT clock_timestamp()) AND due_at < 'infinity'
			ORDER BY due_at, id LIMIT $2) d
		WHERE $1 = '' OR t.topic = $1 LIMIT $2))
	FOR UPDATE SKIP LOCKED))`

// sqlPromote makes the first message that waits in each of the keys $1 due,
// and returns the keys in which nothing holds back what comes later. One that a person has
// locked is left to sqlPromotePage.
const sqlPromote = `
WITH keys AS (SELECT DISTINCT key FROM unnest($1::text[]) u (key)),
first AS (SELECT k.key, f.id, f.state, f.due_at FROM keys k LEFT JOIN LATERAL (
	SELECT id, state, due_at FROM {schema}.outbox_held
	WHERE ordering_key = k.key AND state IN ('refused', 'waiting') ORDER BY id LIMIT 1) f ON true),
promoted AS (` + sqlPromoteFirst + `)
SELECT key FROM first WHERE id IS NULL`

// sqlPromoteFirst makes those of first due that wait behind none.
const sqlPromoteFirst = `
	UPDATE {schema}.outbox_held SET due_at = clock_timestamp()
	WHERE id = ANY (ARRAY(
		SELECT id FROM {schema}.outbox_held
		WHERE id = ANY (ARRAY(SELECT id FROM first WHERE state = 'waiting' AND due_at = 'infinity')) AND state = 'waiting' AND due_at = 'infinity'
		FOR UPDATE SKIP LOCKED))`

// sqlPromotePage does so for $2 keys from $1 on, in case somebody has removed a message
// that others wait behind. It returns how many keys it has looked at, and the last one.
const sqlPromotePage = `
WITH RECURSIVE first AS (
	(SELECT 1 AS n, ordering_key, id, state, due_at FROM {schema}.outbox_held
		WHERE state IN ('refused', 'waiting') AND ordering_key >= $1 ORDER BY ordering_key, id LIMIT 1)
	UNION ALL
	SELECT f.n + 1, h.* FROM first f, LATERAL (
		SELECT ordering_key, id, state, due_at FROM {schema}.outbox_held
		WHERE state IN ('refused', 'waiting') AND ordering_key > f.ordering_key ORDER BY ordering_key, id LIMIT 1) h
	WHERE f.n < $2),
promoted AS (` + sqlPromoteFirst + `)
SELECT n, ordering_key FROM first ORDER BY n DESC LIMIT 1`
