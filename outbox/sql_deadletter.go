package outbox

import "strings"

// The messages that a person deals with: dead letters, and those that the relay tries again
// by itself. The latter are refused ones, and those of stalled topics, which have a finite due
// time and a reason. The condition is
// no parameter: the planner would not know then which partial index has them.
const (
	sqlDead    = `state = 'dead'`
	sqlRefused = `(state = 'refused' OR state = 'waiting' AND due_at < 'infinity' AND reason <> '')`
)

// ofLetters puts a condition, and the filter that goes with it, into statement.
func ofLetters(condition, statement string) string {
	since := "refused_at" // has an index of dead letters
	if condition != sqlDead {
		since = "coalesce(refused_at, created_at)"
	}
	return strings.NewReplacer("{letters}", condition, "{since}", since).Replace(strings.ReplaceAll(statement, "{picked}", sqlPicked))
}

// sqlReadClock reads the database's clock, $1 microseconds ago.
const sqlReadClock = `SELECT clock_timestamp() - $1::bigint * interval '1 microsecond'`

// sqlPicked is the condition of a filter, from an id on. What is empty holds for
// all.
const sqlPicked = `{letters} AND id > $1 AND {since} <= $2 AND ($3::bigint[] IS NULL OR id = ANY ($3))
	AND ($4::uuid IS NULL OR message_id = $4) AND ($5 = '' OR topic = $5) AND ($6 = '' OR scope = $6) AND ($7 = '' OR key = $7)
	AND ($8 = '' OR position($8 IN reason) > 0)`

const sqlCountLetters = `SELECT count(*) FROM {schema}.outbox_held WHERE {picked}`

// sqlListLetters leaves the payloads out: a page of them may be as large as
// $9 messages are at the most.
const sqlListLetters = `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type,
	headers, NULL::bytea, octet_length(payload), created_at, attempts, reason, coalesce(refused_at, created_at),
	CASE WHEN state <> 'dead' THEN due_at END
FROM {schema}.outbox_held WHERE {picked} ORDER BY id LIMIT $9`

// sqlReadLetter reads one message with its payload.
const sqlReadLetter = `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type,
	headers, payload, octet_length(payload), created_at, attempts, reason, coalesce(refused_at, created_at),
	CASE WHEN state <> 'dead' THEN due_at END
FROM {schema}.outbox_held WHERE id = $1 AND {letters}`

// sqlRedrive sends up to $9 dead letters round again, with all their attempts. They are
// due at one moment, so that they keep their order. Two
// people who do so at once lock them in one order; who comes second finds them
// not dead any more.
const sqlRedrive = `
WITH batch AS (SELECT id FROM {schema}.outbox_held WHERE {picked} ORDER BY id LIMIT $9 FOR UPDATE)
UPDATE {schema}.outbox_held h
SET state = 'delayed', attempts = 0, refused_at = NULL, due_at = (SELECT clock_timestamp())
FROM batch WHERE h.id = batch.id
RETURNING h.id, h.ordering_key`

// sqlDiscard forgets up to $9 dead letters for good.
const sqlDiscard = `
WITH batch AS (SELECT id FROM {schema}.outbox_held WHERE {picked} ORDER BY id LIMIT $9 FOR UPDATE)
DELETE FROM {schema}.outbox_held h USING batch WHERE h.id = batch.id
RETURNING h.id, h.ordering_key`

// sqlLockLease waits for the relay to have noted what it is about to note, and
// keeps it from more. A message that it is just putting behind a refused one
// would otherwise be seen by nobody: not by sqlPromote here, and the relay's own
// still sees the refused one.
const sqlLockLease = `SELECT epoch FROM {schema}.outbox_relay FOR NO KEY UPDATE`

// sqlRelease makes up to $9 refused messages dead, and those that wait for their topic.
// sqlPromote follows it in its transaction.
const sqlRelease = `
WITH batch AS (SELECT id FROM {schema}.outbox_held WHERE {picked} ORDER BY id LIMIT $9 FOR UPDATE)
UPDATE {schema}.outbox_held h
SET state = 'dead', attempts = greatest(h.attempts, 1), refused_at = coalesce(h.refused_at, clock_timestamp())
FROM batch WHERE h.id = batch.id
RETURNING h.id, h.ordering_key`
