package outbox

// sqlLimitIdle frees the relay's locks when its process hangs in the middle of a
// pass, so that another takes over. The setting ends with the transaction.
const sqlLimitIdle = `SELECT set_config('idle_in_transaction_session_timeout', $1, true)`

// sqlLockHeld picks refused messages that are due, without those that wait behind
// an earlier refused message of their key, and without those of the topics $3. It stops
// before the batch exceeds $2 bytes of payload, but takes one message in any case. Nobody
// but the active relay and an operator locks these rows; SKIP LOCKED lets the operator win.
const sqlLockHeld = sqlHeldTopics + `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, attempts
FROM {schema}.outbox_held
WHERE id = ANY (ARRAY(
	SELECT id FROM (
		SELECT id, sum(octet_length(payload)) OVER (ORDER BY due_at, id) - octet_length(payload) AS before
		FROM (SELECT id, due_at, payload FROM (` + sqlDueByTopic + `) each ORDER BY due_at, id LIMIT $1) due) sized
	WHERE before < $2))
FOR UPDATE SKIP LOCKED`

// sqlLockStored picks the oldest stored messages, without those that wait
// behind a refused message of their key, up to $2 bytes of payload like
// sqlLockHeld. The length of a payload is known without reading it.
const sqlLockStored = `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, 0 AS attempts
FROM {schema}.outbox
WHERE id = ANY (ARRAY(
	SELECT id FROM (
		SELECT id, sum(octet_length(payload)) OVER (ORDER BY id) - octet_length(payload) AS before
		FROM (
			SELECT id, payload
			FROM {schema}.outbox o
			WHERE NOT EXISTS (SELECT 1 FROM {schema}.outbox_held h WHERE h.state IN ('refused', 'waiting') AND h.ordering_key = o.ordering_key)
			ORDER BY id
			LIMIT $1) oldest) sized
	WHERE before < $2))
FOR UPDATE SKIP LOCKED`

// sqlDeleteStored forgets what the broker has confirmed.
const sqlDeleteStored = `DELETE FROM {schema}.outbox WHERE id = ANY($1::bigint[])`

// sqlHoldStored moves a message that the broker refused for the first time to
// the side. $2 is the state, $3 the backoff in microseconds, $4 the reason.
const sqlHoldStored = `
WITH refused AS (DELETE FROM {schema}.outbox WHERE id = $1
	RETURNING id, message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, headers, payload, created_at)
INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, state, due_at, attempts, reason, refused_at)
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at,
	$2, clock_timestamp() + $3 * interval '1 microsecond', 1, $4, clock_timestamp()
FROM refused`

// sqlDeferStored moves a message whose topic takes none at present to the side, for $2
// microseconds and with the reason $3. It spends no attempt.
const sqlDeferStored = `
WITH deferred AS (DELETE FROM {schema}.outbox WHERE id = $1
	RETURNING id, message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, headers, payload, created_at)
INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, state, due_at, reason)
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at,
	'waiting', clock_timestamp() + $2 * interval '1 microsecond', $3
FROM deferred`

// sqlHoldAgain notes one more refusal of a message that is held already.
const sqlHoldAgain = `
UPDATE {schema}.outbox_held
SET state = $2, due_at = clock_timestamp() + $3 * interval '1 microsecond',
	attempts = attempts + 1, reason = $4, refused_at = clock_timestamp()
WHERE id = $1`
