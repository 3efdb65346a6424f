package operator

import (
	"strings"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// messageColumns are the columns of a message of outbox_held, and of loggedColumns.
const messageColumns = `id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id`

// loggedColumns are those of the row m of a leaf, which leaves out what other columns say.
const loggedColumns = `id, message_id, topic, ` + outboxsql.LoggedType + ` AS type, scope, key, step, n, ` + outboxsql.LoggedOrderingKey + ` AS ordering_key,
		` + outboxsql.LoggedCorrelation + ` AS correlation_id, causation_id`

// messageFilter is the condition of a [MessageFilter]: $1 to $7. An empty parameter matches every message.
const messageFilter = `($1::text = '' OR topic = $1) AND ($2::text = '' OR type = $2) AND ($3::text = '' OR scope = $3)
	AND ($4::text = '' OR key = $4) AND ($5::text = '' OR ordering_key = $5) AND ($6::uuid IS NULL OR message_id = $6)
	AND ($7::text = '' OR correlation_id = $7)`

// sqlPublished is the condition that the row d of the log counts as published.
const sqlPublished = `coalesce((SELECT pg_visible_in_snapshot(d.xid, past) OR pg_visible_in_snapshot(d.xid, next) AND d.id <= last_id FROM reach), false)`

// sqlFirstHeld is the first message of the ordering key of p that is refused or waits.
var sqlFirstHeld = `LEFT JOIN LATERAL (
	SELECT id, topic, scope, key, step, n, attempts, reason, CASE WHEN isfinite(due_at) THEN due_at END AS due_at
	FROM (` + outboxsql.RetriedOfKey("p.ordering_key", "1") + `) first
	WHERE p.place IN ('stored', 'waiting') AND first.id <> p.id) h ON true`

// listedMessage are the columns that scanOutboxMessage reads.
const listedMessage = `p.id, p.message_id::text, CASE WHEN p.place = 'stored' AND h.id IS NOT NULL THEN 'waiting' ELSE p.place END,
	p.topic, p.type, p.scope, p.key, p.step, p.n, p.ordering_key, p.correlation_id, p.causation_id,
	p.size, p.created_at, p.due_at, p.attempts, p.reason, p.refused_at,
	coalesce(h.id, 0), h.topic, h.scope, h.key, h.step, h.n, coalesce(h.attempts, 0), h.reason, h.due_at`

// sqlListStored lists the first $10 messages of the log that are not published, behind the transaction $8 and the id $9.
// It begins at the oldest transaction that the relay has not seen end, by the index (xid, id).
var sqlListStored = sqlReach + `,
page AS MATERIALIZED (
	SELECT * FROM ({leaves}) d ORDER BY xid, id LIMIT $10),
p AS (
	SELECT ` + messageColumns + `, octet_length(payload) AS size, created_at, 'stored' AS place, NULL::timestamptz AS due_at, 0 AS attempts,
		'' AS reason, NULL::timestamptz AS refused_at, xid FROM page)
SELECT p.xid::text, ` + listedMessage + `
FROM p ` + sqlFirstHeld + ` ORDER BY p.xid, p.id`

// sqlStoredLeaf has the limit too: the planner merges no ordered leaves whose columns are expressions.
const sqlStoredLeaf = `
	(SELECT * FROM (SELECT ` + loggedColumns + `, payload, created_at, xid FROM {schema}.{leaf} m) d
	WHERE xid >= coalesce((SELECT pg_snapshot_xmin(past) FROM reach), '0'::xid8) AND (xid, id) > ($8::text::xid8, $9::bigint)
		AND ` + messageFilter + ` AND NOT ` + sqlPublished + ` ORDER BY xid, id LIMIT $10)`

// sqlListLog lists the last $9 messages of the log with an id below $8, published or not, the newest first. One that is
// held has the place that outbox_held says.
var sqlListLog = sqlReach + `,
page AS MATERIALIZED (
	SELECT d.*, CASE WHEN ` + sqlPublished + ` THEN 'published' ELSE 'stored' END AS logged
	FROM ({leaves}) d ORDER BY id DESC LIMIT $9),
p AS (
	SELECT d.id, d.message_id, d.topic, d.type, d.scope, d.key, d.step, d.n, d.ordering_key, d.correlation_id, d.causation_id,
		octet_length(d.payload) AS size, d.created_at, coalesce(w.state, d.logged) AS place,
		CASE WHEN w.state <> 'dead' AND isfinite(w.due_at) THEN w.due_at END AS due_at,
		coalesce(w.attempts, 0) AS attempts, coalesce(w.reason, '') AS reason, w.refused_at
	FROM page d LEFT JOIN {schema}.outbox_held w ON w.id = d.id)
SELECT '', ` + listedMessage + `
FROM p ` + sqlFirstHeld + ` ORDER BY p.id DESC`

const sqlLogLeaf = `
	(SELECT * FROM (SELECT ` + loggedColumns + `, payload, created_at, xid FROM {schema}.{leaf} m) d
	WHERE id < $8::bigint AND ` + messageFilter + ` ORDER BY id DESC LIMIT $9)`

// sqlListHeldPlace lists the first $10 held messages of the state $8 behind the id $9.
var sqlListHeldPlace = `
WITH p AS (
	SELECT ` + messageColumns + `, octet_length(payload) AS size, created_at, state AS place,
		CASE WHEN state <> 'dead' AND isfinite(due_at) THEN due_at END AS due_at, attempts, reason, refused_at
	FROM {schema}.outbox_held WHERE ` + messageFilter + ` AND state = $8 AND id > $9::bigint ORDER BY id LIMIT $10)
SELECT '', ` + listedMessage + `
FROM p ` + sqlFirstHeld + ` ORDER BY p.id`

// sqlReadMessage reads the message $1 with its headers and at most $2 bytes of its payload, held or of the log.
var sqlReadMessage = sqlReach + `,
p AS MATERIALIZED (
	SELECT ` + messageColumns + `, octet_length(payload) AS size, created_at, state AS place,
		CASE WHEN state <> 'dead' AND isfinite(due_at) THEN due_at END AS due_at, attempts, reason, refused_at,
		content_type, headers, payload, 0 AS log
	FROM {schema}.outbox_held WHERE id = $1
	UNION ALL
	SELECT ` + messageColumns + `, octet_length(payload), created_at, CASE WHEN ` + sqlPublished + ` THEN 'published' ELSE 'stored' END,
		NULL, 0, '', NULL, content_type, headers, payload, 1
	FROM ({leaves}) d
	ORDER BY log LIMIT 1)
SELECT '', ` + listedMessage + `, p.content_type, p.headers, substring(p.payload FROM 1 FOR $2::integer)
FROM p ` + sqlFirstHeld

const sqlMessageLeaf = `
	SELECT ` + loggedColumns + `, ` + outboxsql.LoggedContentType + ` AS content_type, headers, payload, created_at, xid FROM {schema}.{leaf} m WHERE id = $1`

// sqlListWaitingKeys lists the first $2 ordering keys behind $1 that are held up, and the first message of each. It reads
// the messages of these keys alone, by the index outbox_held_ordering_key.
var sqlListWaitingKeys = `
SELECT k.ordering_key, k.messages, k.oldest, f.state, f.id, f.topic, f.scope, f.key, f.step, f.n, f.attempts, f.reason,
	CASE WHEN isfinite(f.due_at) THEN f.due_at END
FROM (
	SELECT ordering_key, count(*) AS messages, min(created_at) AS oldest FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key > $1
	GROUP BY ordering_key ORDER BY ordering_key LIMIT $2) k
CROSS JOIN LATERAL (` + outboxsql.RetriedOfKey("k.ordering_key", "1") + `) f
ORDER BY k.ordering_key`

// sqlReadFlow counts the messages of the log that were written in the last minute, among the $1 newest. It also returns
// the number of messages that were read.
const sqlReadFlow = sqlReach + `,
newest AS MATERIALIZED (SELECT id, created_at, xid FROM ({leaves}) d ORDER BY id DESC LIMIT $1)
SELECT count(*) FILTER (WHERE created_at > now - interval '1 minute'),
	count(*) FILTER (WHERE created_at > now - interval '1 minute' AND ` + sqlPublished + `), count(*) FILTER (WHERE created_at <= now - interval '1 minute') = 0, count(*)
FROM newest d, (SELECT clock_timestamp() AS now) moment`

const sqlFlowLeaf = `
	SELECT id, created_at, xid FROM {schema}.{leaf}`

// sqlListSent lists the topics and types of the $1 newest messages of the log.
const sqlListSent = `
SELECT topic, ` + outboxsql.LoggedType + `, count(*), max(created_at)
FROM (SELECT id, topic, type, created_at FROM ({leaves}) d ORDER BY id DESC LIMIT $1) m
GROUP BY 1, 2 ORDER BY 1, 2 LIMIT $2`

const sqlSentLeaf = `
	SELECT id, topic, type, created_at FROM {schema}.{leaf}`

// sqlListReceived lists the topics whose messages steps could not handle, among the $1 that were parked last.
const sqlListReceived = `
SELECT topic, coalesce(step, ''), kind = 'compensation', count(*), max(last_at)
FROM (SELECT topic, step, kind, last_at FROM {schema}.parked ORDER BY id DESC LIMIT $1) newest
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT $2`

// sqlListPlans lists the newest version of each definition.
const sqlListPlans = `
SELECT DISTINCT ON (name) name, version, plan FROM {schema}.saga_definition ORDER BY name, version DESC LIMIT $1`

// sqlPairs are the namespaces and scopes in which a key may be: $1 and $2 or, where one is empty, all that exist. One
// look-up in the primary key leads from each to the next.
const sqlPairs = `
WITH RECURSIVE spaces AS (
	(SELECT namespace FROM {schema}.idempotency_key WHERE $1::text = '' ORDER BY namespace LIMIT 1)
	UNION ALL
	SELECT (SELECT t.namespace FROM {schema}.idempotency_key t WHERE t.namespace > spaces.namespace ORDER BY t.namespace LIMIT 1)
	FROM spaces WHERE spaces.namespace IS NOT NULL),
named AS (
	SELECT $1::text COLLATE "C" AS namespace WHERE $1::text <> ''
	UNION ALL
	SELECT namespace FROM spaces WHERE namespace IS NOT NULL),
walk AS (
	SELECT n.namespace, (SELECT t.scope FROM {schema}.idempotency_key t WHERE t.namespace = n.namespace ORDER BY t.scope LIMIT 1) AS scope
	FROM named n WHERE $2::text = ''
	UNION ALL
	SELECT w.namespace, (SELECT t.scope FROM {schema}.idempotency_key t WHERE t.namespace = w.namespace AND t.scope > w.scope ORDER BY t.scope LIMIT 1)
	FROM walk w WHERE w.scope IS NOT NULL),
pairs AS (
	SELECT namespace, $2::text COLLATE "C" AS scope FROM named WHERE $2::text <> ''
	UNION ALL
	SELECT namespace, scope FROM walk WHERE scope IS NOT NULL)`

// sqlFindRequests finds up to $4 records of the key $3. {bytes} is the size of the response, which needs a grant of its
// own.
const sqlFindRequests = sqlPairs + `
SELECT r.* FROM pairs p CROSS JOIN LATERAL (
	SELECT namespace, scope, key, state, attempt, lease_until, coalesce(resp_status, 0), {bytes}, created_at, completed_at,
		CASE WHEN isfinite(expires_at) THEN expires_at END, clock_timestamp()
	FROM {schema}.idempotency_key k WHERE k.namespace = p.namespace AND k.scope = p.scope AND k.key = $3) r
ORDER BY r.created_at DESC LIMIT $4`

// activityFilter is the condition of an [ActivityFilter], and of rows behind the time $5 and the id $6.
const activityFilter = `($1::text = '' OR who = $1) AND ($2::text = '' OR verb = $2)
	AND ($3::timestamptz IS NULL OR at >= $3) AND ($4::timestamptz IS NULL OR at < $4)
	AND ($5::timestamptz IS NULL OR at < $5 OR at = $5 AND id < $6::bigint)`

// sqlListMessageActivity lists the last $7 changes of messages, with $9 of one of these, of the outbox if $10, else of
// parked. There is no index on the time: people are slow, so the journal is short.
const sqlListMessageActivity = `
SELECT id, at, who, db_user, verb, why, what::text, cardinality(ids), ids[1:5], '', '', '', ''
FROM {schema}.operator_journal WHERE ` + activityFilter + ` AND $8::text = ''
	AND (cardinality($9::bigint[]) IS NULL OR ids && $9 AND starts_with(verb, CASE WHEN $10::boolean THEN 'outbox ' ELSE 'dead ' END))
 ORDER BY at DESC, id DESC LIMIT $7`

// sqlListSagaActivity lists the last $7 decisions about instances, with $8 about those of this key.
const sqlListSagaActivity = `
SELECT id, at, who, '', verb, why, '', 0, '{}'::bigint[], scope, key, path, step
FROM {schema}.saga_journal WHERE ` + activityFilter + ` AND ($8::text = '' OR key = $8)
	AND cardinality($9::bigint[]) IS NULL AND $10::boolean IS NOT NULL
 ORDER BY at DESC, id DESC LIMIT $7`

// sqlFindInstances finds up to $3 instances of the key $2, of scope $1 or, if that is empty, of any. With an id $4 they are
// the instance with that id, and those that are part of it.
const sqlFindInstances = sqlScopes + `
SELECT i.scope, i.key, i.path, i.name, i.id::text, i.status FROM scopes s CROSS JOIN LATERAL (
	SELECT scope, key, path, name, id, status, started_at FROM {schema}.saga
	WHERE scope = s.scope AND key = $2 AND ($4::uuid IS NULL OR id = $4 OR root = $4) ORDER BY scope, key, path LIMIT $3) i
ORDER BY i.path = '' DESC, i.started_at DESC, i.scope, i.key, i.path LIMIT $3`

// sqlFindMessages finds up to $3 messages of the key $2, with $2 as the id of their correlation or their cause, or with
// the id $1. It finds the key and the dead letters by indexes, and looks at each of the other held messages for an id.
const sqlFindMessages = `
SELECT DISTINCT scope, key, type, id, message_id::text FROM (
	SELECT ` + messageColumns + ` FROM {schema}.outbox_held WHERE key = $2
	UNION ALL SELECT ` + messageColumns + ` FROM {schema}.outbox_held WHERE state = 'dead' AND (` + sqlHasMessageID + `)
	UNION ALL SELECT ` + messageColumns + ` FROM {schema}.outbox_held WHERE state = 'delayed' AND (` + sqlHasMessageID + `)
	UNION ALL SELECT ` + messageColumns + ` FROM {schema}.outbox_held WHERE state IN ('refused', 'waiting') AND (` + sqlHasMessageID + `)
	UNION ALL {leaves}) found
ORDER BY id LIMIT $3`

const sqlHasMessageID = `correlation_id = $2 OR causation_id = $2 OR message_id = $1::uuid`

// sqlFindMessagesLeaf needs no complete correlation_id: where it is left out, it is the causation_id or the message_id.
const sqlFindMessagesLeaf = `
	SELECT ` + loggedColumns + ` FROM {schema}.{leaf} m WHERE key = $2 OR ` + sqlHasMessageID

// The headers of a parked message with the ids of its correlation and of its cause.
const (
	sqlParkedCorrelation = `header_values[array_position(header_names, '` + outbox.PropertyCorrelation + `'::bytea)]`
	sqlParkedCause       = `header_values[array_position(header_names, '` + outbox.HeaderCausation + `'::bytea)]`
)

// sqlHasID is the condition that a parked message has the id $1. It gets bytes: PostgreSQL would convert a text anew for
// each row.
const sqlHasID = `(message_id = $1::bytea OR ` + sqlParkedCorrelation + ` = $1 OR ` + sqlParkedCause + ` = $1)`

// sqlFindParkedMessages finds up to $2 parked messages with the id $1: the dead ones by the indexes of ids, which have cut
// them, and all that are retried by looking at each.
const sqlFindParkedMessages = `
SELECT coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), id FROM (
	SELECT scope, key, step, id FROM {schema}.parked
	WHERE state = 'dead' AND ` + sqlHasID + ` AND (substring(message_id FROM 1 FOR 255) = substring($1 FROM 1 FOR 255)
		OR substring(` + sqlParkedCorrelation + ` FROM 1 FOR 255) = substring($1 FROM 1 FOR 255)
		OR substring(` + sqlParkedCause + ` FROM 1 FOR 255) = substring($1 FROM 1 FOR 255))
	UNION ALL
	SELECT scope, key, step, id FROM {schema}.parked WHERE state = 'retrying' AND ` + sqlHasID + `) found
ORDER BY id LIMIT $2`

// readerQueries are the statements of a Reader for a schema.
type readerQueries struct {
	listStored, listLog, listHeld, readMessage, listWaitingKeys, readFlow string
	listSent, listReceived, listPlans                                     string
	findRequests, findRequestsSized                                       string
	listMessageActivity, listSagaActivity                                 string
	findInstances, findID, findMessages, findParked, findSteps            string
}

func newReaderQueries(schema string) readerQueries {
	bind := func(statement string) string { return sqlschema.Bind(schema, statement) }
	leaves := func(statement, leaf string) string { return bind(outboxsql.UnionOfLeaves(statement, leaf)) }
	sized := func(size string) string { return bind(strings.ReplaceAll(sqlFindRequests, "{bytes}", size)) }
	return readerQueries{
		listStored: leaves(sqlListStored, sqlStoredLeaf), listLog: leaves(sqlListLog, sqlLogLeaf), listHeld: bind(sqlListHeldPlace),
		readMessage: leaves(sqlReadMessage, sqlMessageLeaf), listWaitingKeys: bind(sqlListWaitingKeys), readFlow: leaves(sqlReadFlow, sqlFlowLeaf),
		listSent: leaves(sqlListSent, sqlSentLeaf), listReceived: bind(sqlListReceived), listPlans: bind(sqlListPlans),
		findRequests: sized("NULL::bigint"), findRequestsSized: sized("octet_length(resp_body)::bigint"),
		listMessageActivity: bind(sqlListMessageActivity), listSagaActivity: bind(sqlListSagaActivity),
		findInstances: bind(strings.ReplaceAll(sqlFindInstances, "{table}", "saga")), findID: bind(sqlFindID), findMessages: leaves(sqlFindMessages, sqlFindMessagesLeaf),
		findParked: bind(sqlFindParkedMessages), findSteps: bind(strings.ReplaceAll(sqlLocateSteps, "{table}", "inbox")),
	}
}
