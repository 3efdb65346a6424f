package operator

import (
	"strings"

	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// The conditions of the letters of the outbox: dead letters, and messages that the relay retries.
// The latter are refused messages, and those of stalled topics, which have a finite due time and
// a reason. The condition is no parameter, so that the planner can use a partial index.
const (
	sqlDead    = `state = 'dead'`
	sqlRefused = `(state = 'refused' OR state = 'waiting' AND due_at < 'infinity' AND reason <> '')`
)

// ofLetters inserts a condition and its filter into statement.
func ofLetters(condition, statement string) string {
	since := "refused_at" // has an index of dead letters
	if condition != sqlDead {
		since = "coalesce(refused_at, created_at)"
	}
	return strings.NewReplacer("{letters}", condition, "{since}", since).Replace(fillPicked(statement, sqlHeldPicked, "reason"))
}

// sqlHeldClock reads the database's clock, $1 microseconds ago.
const sqlHeldClock = `SELECT clock_timestamp() - $1::bigint * interval '1 microsecond'`

// sqlHeldPicked is the condition of a filter, behind an id. An empty parameter matches every
// letter.
const sqlHeldPicked = `{letters} AND id > $1 AND {since} <= $2 AND ($3::bigint[] IS NULL OR id = ANY ($3))
	AND ($4::uuid IS NULL OR message_id = $4) AND ($5 = '' OR (topic = $5){no index}) AND ($6 = '' OR scope = $6) AND ($7 = '' OR key = $7)
	AND ($8 = '' OR {contains}) AND ($9 = '' OR (step = $9){no index}) AND ($10::timestamptz IS NULL OR {since} <= $10)
	AND ((fingerprint = $11){no index} OR $11 = '') AND (NOT $12::boolean OR step = '')`

const sqlCountHeld = `SELECT count(*) FROM {schema}.outbox_held WHERE {picked}`

// sqlListHeld leaves out payloads: a page of them may take as much memory as $13 largest
// messages.
const sqlListHeld = `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type,
	headers, NULL::bytea, octet_length(payload), created_at, attempts, reason, fingerprint, coalesce(refused_at, created_at),
	CASE WHEN state <> 'dead' THEN due_at END
FROM {schema}.outbox_held WHERE {picked} ORDER BY id LIMIT $13`

// sqlReadHeld reads the message $1 with at most $2 bytes of its payload.
const sqlReadHeld = `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type,
	headers, substring(payload FROM 1 FOR $2::integer), octet_length(payload), created_at, attempts, reason, fingerprint, coalesce(refused_at, created_at),
	CASE WHEN state <> 'dead' THEN due_at END
FROM {schema}.outbox_held WHERE id = $1 AND {letters}`

// sqlRedriveHeld makes up to $13 dead letters due, with all their attempts. They are due at one
// moment, so that they keep their order. Two operators at once lock them in one order; the
// second one finds them no longer dead.
const sqlRedriveHeld = `
WITH batch AS (SELECT id FROM {schema}.outbox_held WHERE {picked batch} ORDER BY id LIMIT $13 FOR UPDATE)
UPDATE {schema}.outbox_held h
SET state = 'delayed', attempts = 0, refused_at = NULL, due_at = (SELECT clock_timestamp())
FROM batch WHERE h.id = batch.id
RETURNING h.id, h.ordering_key`

// sqlDiscardHeld removes up to $13 dead letters for good.
const sqlDiscardHeld = `
WITH batch AS (SELECT id FROM {schema}.outbox_held WHERE {picked batch} ORDER BY id LIMIT $13 FOR UPDATE)
DELETE FROM {schema}.outbox_held h USING batch WHERE h.id = batch.id
RETURNING h.id, h.ordering_key`

// sqlLockLease waits for a transaction of the relay and keeps the relay from beginning
// another. Otherwise a message that the relay is just storing behind a refused one would be
// missed: outboxsql.PromoteLocked here does not see it yet, and the relay still sees the refused one.
const sqlLockLease = `SELECT epoch FROM {schema}.outbox_relay FOR NO KEY UPDATE`

// sqlBuryHeld makes up to $13 refused messages dead letters, and messages that wait for their
// topic. Their last refusal is then the time of the burial, so that a filter by a moment before it leaves them alone.
// outboxsql.PromoteLocked follows it in the transaction.
const sqlBuryHeld = `
WITH batch AS (SELECT id FROM {schema}.outbox_held WHERE {picked batch} ORDER BY id LIMIT $13 FOR UPDATE)
UPDATE {schema}.outbox_held h
SET state = 'dead', attempts = greatest(h.attempts, 1), refused_at = clock_timestamp()
FROM batch WHERE h.id = batch.id
RETURNING h.id, h.ordering_key`

// sqlReach begins a statement with how far the relay has published. reach has no row if nothing of the log counts as
// published: before the first relay, and after a restore from another cluster.
const sqlReach = `
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
		AND pg_snapshot_xmax(coalesce(to_snapshot, from_snapshot)::pg_snapshot) <= pg_snapshot_xmax(pg_current_snapshot()))`

// sqlLocateMessages finds the messages of the saga $2, of scope $1 unless that is empty, and
// the place of each. It is one statement, so that its result is of one moment, and takes no
// lock besides that of any SELECT. Without a message it still returns a row with the relay.
// A held message is in the log as well. $3 limits the messages; the oldest published ones are left out first.
var sqlLocateMessages = sqlReach + `,
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
FROM relay r LEFT JOIN picked p ON true ` + sqlFirstHeld + `
ORDER BY p.id`

// sqlLocateLeaf needs [outboxsql.PlanBySearch].
const sqlLocateLeaf = `
	SELECT id, message_id, topic, ` + outboxsql.LoggedType + ` AS type, scope, key, step, n, ` + outboxsql.LoggedOrderingKey + ` AS ordering_key,
		` + outboxsql.LoggedCorrelation + ` AS correlation_id, causation_id, octet_length(payload) AS size, created_at, xid
	FROM {schema}.{leaf} m WHERE key = $2 AND ($1 = '' OR scope = $1)`

// sqlLocateUnpublishedLeaf skips messages that were published before the difference that the
// relay is at, by the index (xid, id), as the relay does.
const sqlLocateUnpublishedLeaf = sqlLocateLeaf + `
		AND xid >= coalesce((SELECT pg_snapshot_xmax(past) FROM reach), '0'::xid8)
	UNION ALL` + sqlLocateLeaf + `
		AND xid = ANY (ARRAY(SELECT pg_snapshot_xip(past) FROM reach))`

// locateInLeaves is sqlLocateMessages on the leaves, with published messages or without.
func locateInLeaves(published, leaf string) string {
	return outboxsql.UnionOfLeaves(strings.ReplaceAll(sqlLocateMessages, "{published}", published), leaf)
}

// sqlReadContents reads what the messages with the ids $1 carry, payloads of at most $2 bytes. A message that is held may
// be in the log too, and is read once.
const sqlReadContents = `
SELECT DISTINCT ON (id) id, content_type, headers, payload FROM (
	SELECT id, ` + outboxsql.LoggedContentType + ` AS content_type, headers, CASE WHEN octet_length(payload) <= $2::integer THEN payload END AS payload
	FROM {schema}.outbox m WHERE id = ANY ($1::bigint[])
	UNION ALL
	SELECT id, content_type, headers, CASE WHEN octet_length(payload) <= $2::integer THEN payload END
	FROM {schema}.outbox_held WHERE id = ANY ($1::bigint[])) found
ORDER BY id`

// sqlPin keeps the tables from being emptied before the transaction reads them: TRUNCATE
// removes rows from older snapshots too. The relay gives up at once and continues in its
// current table.
const sqlPin = `LOCK TABLE {schema}.outbox_cursor_0, {schema}.outbox_cursor_1, ONLY {schema}.outbox_0, ONLY {schema}.outbox_1,
	ONLY {schema}.outbox_2, ONLY {schema}.outbox_other IN ACCESS SHARE MODE`

// sqlLogged is the condition of messages that can be replayed: those of the log, published or
// not, that a filter picks. Copies are excluded by their leaf, -1; held messages are excluded
// because the relay still handles them. There is no index: an operator can wait for a scan.
const sqlLogged = `leaf IS DISTINCT FROM -1 AND id > $5 AND ($1 = '' OR scope = $1) AND ($2 = '' OR key = $2)
	AND ($3::timestamptz IS NULL OR created_at >= $3) AND ($4::timestamptz IS NULL OR created_at < $4)
	AND NOT EXISTS (SELECT FROM {schema}.outbox_held h WHERE h.id = m.id)`

// sqlListLogged lists the first $7 of them up to the id $6, in the order of their ids.
const sqlListLogged = `
SELECT id, message_id, topic, ` + outboxsql.LoggedType + ` AS type, scope, key, step, n, octet_length(payload), created_at
FROM {schema}.outbox m
WHERE {logged} AND id <= $6
ORDER BY id LIMIT $7`

// sqlCountLogged counts them, and reads the last one's id.
const sqlCountLogged = `SELECT count(*), coalesce(max(id), 0) FROM {schema}.outbox m WHERE {logged}`

// sqlCopyLogged stores copies of messages at the end of the log. They keep their created_at,
// which tells a consumer the age of the message. The relay would take it for the age of the
// rows before them, so they go to the catch-all leaf. A header marks them, and stays with them.
const sqlCopyLogged = `
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, leaf)
SELECT message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type,
	(coalesce(headers::jsonb, '{}') || jsonb_build_object('` + outbox.HeaderReplayed + `', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')))::json,
	payload, created_at, -1
FROM {schema}.outbox WHERE id = ANY ($1::bigint[])
ORDER BY id`

// sqlOldestLogged reads when the oldest message was written that the log holds.
const sqlOldestLogged = `
SELECT min(created_at) FROM {schema}.outbox WHERE leaf IS DISTINCT FROM -1`

// sqlListJournal lists entries of the journal, the newest first: at most $3, since $1 and with
// an id below $2.
const sqlListJournal = `
SELECT id, at, who, db_user, verb, what, ids, why FROM {schema}.operator_journal
WHERE ($1::timestamptz IS NULL OR at >= $1) AND ($2::bigint = 0 OR id < $2)
ORDER BY id DESC LIMIT $3`

// outboxQueries are the statements on the messages of a schema's outbox, and on the journal.
type outboxQueries struct {
	readClock, read, list, count, listRetrying, countRetrying               string
	group, groupRetrying                                                    string
	redrive, discard, bury, lockLease, limitLocks, promote                  string
	listLogged, countLogged, copyLogged, oldestLogged                       string
	locate, locateUnpublished, pin, planByIndex, planBySearch, readContents string
	insertJournal, listJournal                                              string
}

func newOutboxQueries(schema string) outboxQueries {
	bind := func(statement string) string { return sqlschema.Bind(schema, statement) }
	logged := func(statement string) string { return bind(strings.ReplaceAll(statement, "{logged}", sqlLogged)) }
	return outboxQueries{
		readClock: sqlHeldClock, read: bind(ofLetters("("+sqlDead+" OR "+sqlRefused+")", sqlReadHeld)),
		list: bind(ofLetters(sqlDead, sqlListHeld)), count: bind(ofLetters(sqlDead, sqlCountHeld)),
		group: bind(ofLetters(sqlDead, groupedLetters(outboxGrouping))), groupRetrying: bind(ofLetters(sqlRefused, groupedLetters(outboxGrouping))),
		listRetrying: bind(ofLetters(sqlRefused, sqlListHeld)), countRetrying: bind(ofLetters(sqlRefused, sqlCountHeld)),
		redrive: bind(ofLetters(sqlDead, sqlRedriveHeld)), discard: bind(ofLetters(sqlDead, sqlDiscardHeld)),
		bury: bind(ofLetters(sqlRefused, sqlBuryHeld)), lockLease: bind(sqlLockLease), limitLocks: sqlLimitLocks, promote: bind(outboxsql.PromoteLocked),
		listLogged: logged(sqlListLogged), countLogged: logged(sqlCountLogged), copyLogged: bind(sqlCopyLogged), oldestLogged: bind(sqlOldestLogged),
		locate: bind(locateInLeaves("true", sqlLocateLeaf)), locateUnpublished: bind(locateInLeaves("false", sqlLocateUnpublishedLeaf)),
		pin: bind(sqlPin), planByIndex: outboxsql.PlanByIndex, planBySearch: outboxsql.PlanBySearch, readContents: bind(sqlReadContents),
		insertJournal: bind(journal.SQLInsert), listJournal: bind(sqlListJournal),
	}
}
