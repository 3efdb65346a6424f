package outbox

// sqlListKept lists messages of an append-only log, published or not, each once
// however often it was replayed. Those that are held have their way before them.
// What a table log has stored is not published yet. There is no index for it: an
// operator can wait for a walk through what is kept.
const sqlListKept = `
SELECT id, message_id, topic, type, scope, key, step, n, octet_length(payload), created_at FROM (
	SELECT DISTINCT ON (message_id) id, message_id, topic, type, scope, key, step, n, payload, created_at
	FROM {schema}.outbox
	WHERE ($1 = '' OR scope = $1) AND ($2 = '' OR key = $2)
		AND ($3::timestamptz IS NULL OR created_at >= $3) AND ($4::timestamptz IS NULL OR created_at < $4)
	ORDER BY message_id, id) kept
WHERE message_id NOT IN (SELECT message_id FROM {schema}.outbox_held)
	AND EXISTS (SELECT FROM {schema}.outbox_relay WHERE log = 'append')
ORDER BY id LIMIT $5`

// sqlCopyKept stores copies of messages at the end of the log. created_at is theirs,
// since it tells a consumer how old what they say is.
const sqlCopyKept = `
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at)
SELECT message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at
FROM {schema}.outbox WHERE id = ANY ($1::bigint[])
ORDER BY id`

// sqlReadKept reads what is known of why nothing is kept.
const sqlReadKept = `
SELECT log, (SELECT min(created_at) FROM {schema}.outbox) FROM {schema}.outbox_relay`
