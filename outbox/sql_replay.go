package outbox

// sqlKept is the condition of what can be replayed: messages of the log,
// published or not, which a filter picks. Copies are in no leaf that rotates, and leaf
// says what they are: they are not replayed themselves. Held messages have their way
// before them. There is no
// index for it: an operator can wait for a walk through what is kept.
const sqlKept = `leaf IS DISTINCT FROM -1 AND id > $5 AND ($1 = '' OR scope = $1) AND ($2 = '' OR key = $2)
	AND ($3::timestamptz IS NULL OR created_at >= $3) AND ($4::timestamptz IS NULL OR created_at < $4)
	AND NOT EXISTS (SELECT FROM {schema}.outbox_held h WHERE h.id = o.id)`

// sqlListKept lists the first $7 of them, up to the id $6, in the order of their ids.
const sqlListKept = `
SELECT id, message_id, topic, type, scope, key, step, n, octet_length(payload), created_at
FROM {schema}.outbox o
WHERE {kept} AND id <= $6
ORDER BY id LIMIT $7`

// sqlCountKept counts them, and reads the last one's id.
const sqlCountKept = `SELECT count(*), coalesce(max(id), 0) FROM {schema}.outbox o WHERE {kept}`

// sqlCopyKept stores copies of messages at the end of the log. created_at is theirs,
// since it tells a consumer how old what they say is. The relay would take it for the
// age of those that were written before: so they go to the leaf that takes whatever is in
// no other. They are marked in their headers, which stay with them wherever they are kept.
const sqlCopyKept = `
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, leaf)
SELECT message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type,
	(coalesce(headers::jsonb, '{}') || jsonb_build_object('` + HeaderReplayed + `', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')))::json,
	payload, created_at, -1
FROM {schema}.outbox WHERE id = ANY ($1::bigint[])
ORDER BY id`

// sqlReadKept reads what is known of why nothing is kept.
const sqlReadKept = `
SELECT min(created_at) FROM {schema}.outbox WHERE leaf IS DISTINCT FROM -1`
