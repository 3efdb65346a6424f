package operator

import (
	"strings"

	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// sqlLetterClock reads the database's clock, $1 and $2 microseconds ago. A $2 of 0 is
// no lower bound.
const sqlLetterClock = `
SELECT clock_timestamp() - $1::bigint * interval '1 microsecond',
	CASE WHEN $2::bigint > 0 THEN clock_timestamp() - $2::bigint * interval '1 microsecond' END`

// sqlBeginLetters begins an operator's transaction. Consumers wait for its locks of steps and letters. If the
// process is suspended in the transaction, the server ends the session after 30 s and releases the locks.
const sqlBeginLetters = `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '30s'`

// sqlPicked is the condition of a filter, behind an id. An empty parameter matches
// every letter. The state is no parameter, so that the planner can use the partial
// index of that state. {contains} is one of the next two. {no index} is sqlNoIndex in batches, and empty elsewhere.
const sqlPicked = `state = '{state}' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR (step = $5){no index}) AND ($6 = '' OR kind = $6)
	AND ($7 = '' OR (reason = $7){no index}) AND ($8 = '' OR {contains}) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10)
	AND ($11 = '' OR (topic = $11){no index}) AND ($12::bytea = '' OR message_id = $12) AND ((fingerprint = $14){no index} OR $14 = '')
	AND (NOT $15::boolean OR coalesce(step, '') = '') AND ({unchanged $13})`

// The conditions that a text contains $8. With LIKE, the planner estimates by its statistics how rare that is, and may then
// read the table in the order in which it lies. It takes position for common, so that the batches of a new error, which the
// statistics do not have, go on by the primary key. chr(92) is a backslash, whatever the server's settings are.
const (
	sqlContains      = `{text} LIKE '%' || replace(replace(replace($8, chr(92), chr(92) || chr(92)), '%', chr(92) || '%'), '_', chr(92) || '_') || '%'`
	sqlContainsBatch = `position($8 IN {text}) > 0`
)

// sqlNoIndex follows a comparison that no index is to serve. Batches go on by the primary key. By the index of a group, each
// batch would read and sort the whole group.
const sqlNoIndex = " IS TRUE"

// fillPicked inserts picked, a condition on text, into statement, in place of {picked} or {picked batch}.
func fillPicked(statement, picked, text string) string {
	with := func(contains, test string) string {
		return strings.NewReplacer("{contains}", strings.ReplaceAll(contains, "{text}", text), "{no index}", test).Replace(picked)
	}
	return strings.NewReplacer("{picked}", with(sqlContains, ""), "{picked batch}", with(sqlContainsBatch, sqlNoIndex)).Replace(statement)
}

// sqlUnchanged is the condition of a letter that has not changed since {moment}, which may be null. The time of an edit is in
// a header that only an edit sets, once there is a digest.
const sqlUnchanged = `{moment}::timestamptz IS NULL OR last_at <= {moment} AND coalesce(redriven_at <= {moment}, true)
	AND CASE WHEN digest IS NULL THEN true ELSE coalesce(substring(
		convert_from(header_values[array_position(header_names, '` + HeaderEdited + `'::bytea)], 'LATIN1')
		FROM '^edit [0-9]+ at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z) by ')::timestamptz <= {moment}, true) END`

// sqlLetter are the columns of a letter. Lists leave out the payload: a page of
// payloads may take as much memory as that many largest messages.
const sqlLetter = `id, state, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic, message_id,
	header_names, header_values, {payload}, octet_length(payload), reason, error, {stack}, fingerprint, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt, {earlier}`

const sqlCountLetters = `SELECT count(*) FROM {schema}.parked WHERE {picked}`

const sqlListLetters = `SELECT {letter} FROM {schema}.parked WHERE {picked} ORDER BY id LIMIT $16`

// sqlReadLetter reads the letter $1, and at most $2 bytes of its payload.
const sqlReadLetter = `SELECT {letter} FROM {schema}.parked WHERE id = $1`

// sqlLockLetter locks a dead letter, so that it is neither redriven nor discarded
// while it is edited, unless it has changed since $2. The transaction locks nothing else of its step.
const sqlLockLetter = `SELECT {letter} FROM {schema}.parked WHERE id = $1 AND state = 'dead' AND ({unchanged $2}) FOR UPDATE`

// sqlNotCalling leaves out messages whose call is probably under way: the attempt has
// a lease, and a call holds no lock.
const sqlNotCalling = ` AND NOT (state = 'retrying' AND reason = 'calling' AND due_at > clock_timestamp())`

// sqlRetryNow makes messages due. A message that runs is locked by its consumer,
// and left out.
const sqlRetryNow = `
WITH batch AS (SELECT id FROM {schema}.parked WHERE {picked batch}` + sqlNotCalling + ` ORDER BY id LIMIT $16 FOR UPDATE SKIP LOCKED)
UPDATE {schema}.parked p SET due_at = least(p.due_at, clock_timestamp())
FROM batch WHERE p.id = batch.id
RETURNING p.id`

// sqlDiscard removes up to $16 dead letters for good. Two operators at once lock them
// in one order; the second one finds them gone.
const sqlDiscard = `
WITH batch AS (SELECT id FROM {schema}.parked WHERE {picked batch} ORDER BY id LIMIT $16 FOR UPDATE)
DELETE FROM {schema}.parked p USING batch WHERE p.id = batch.id
RETURNING p.id`

// sqlDiscardKept does the same and returns them.
const sqlDiscardKept = `
DELETE FROM {schema}.parked
WHERE id = ANY (ARRAY(SELECT id FROM {schema}.parked WHERE {picked batch} ORDER BY id LIMIT $16 FOR UPDATE))
RETURNING {letter}`

// sqlEditLetter replaces headers and payload of a dead letter. Its digest stays that of
// the first payload, also after several edits.
const sqlEditLetter = `
UPDATE {schema}.parked
SET header_names = $2, header_values = $3, digest = coalesce(digest, sha256(payload)), payload = $4
WHERE id = $1`

// sqlPickLetters picks up to $16 letters of the kinds $17 without a lock: sqlHoldLetters
// checks them again.
const sqlPickLetters = `
SELECT id FROM {schema}.parked WHERE {picked batch} AND kind = ANY ($17) ORDER BY id LIMIT $16`

// sqlPageLetters picks up to $16 letters of the kinds $17, but stops before they
// exceed $18 bytes of payload, and takes one in any case.
const sqlPageLetters = `
SELECT id FROM (
	SELECT id, sum(octet_length(payload)) OVER (ORDER BY id) - octet_length(payload) AS before
	FROM (SELECT id, payload FROM {schema}.parked WHERE {picked batch} AND kind = ANY ($17) ORDER BY id LIMIT $16) first) sized
WHERE before < $18 ORDER BY id`

// sqlReadLetters reads whole letters for a preview.
const sqlReadLetters = `SELECT {letter} FROM {schema}.parked WHERE id = ANY ($1) AND state = 'dead' ORDER BY id`

// sqlLimitLocks bounds each wait for a lock. The setting ends with the transaction.
const sqlLimitLocks = `SELECT set_config('lock_timeout', $1, true)`

// sqlReadSteps reads the rows of steps that exist.
const sqlReadSteps = `
SELECT i.scope, i.key, i.step, i.n, i.state, i.attempts, i.undo_attempts, i.digest, i.undo_digest
FROM {schema}.inbox i
WHERE (i.scope, i.key, i.step, i.n) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]))
ORDER BY i.scope, i.key, i.step, i.n`

// sqlHoldSteps locks them as a delivery of the step does, and before the letters as a
// retry does: so no other transaction decides about the step meanwhile, and none
// deadlocks. The rows are locked in one order.
const sqlHoldSteps = sqlReadSteps + ` FOR UPDATE OF i`

// sqlTryHoldSteps skips locked steps: a handler may take long, and the other steps must
// not wait for it.
const sqlTryHoldSteps = sqlHoldSteps + ` SKIP LOCKED`

// sqlSeeLetters reads the identities of letters that have not changed since $2.
const sqlSeeLetters = `
SELECT id, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), coalesce(digest, sha256(payload)),
	header_values[array_position(header_names, 'timestamp'::bytea)], first_at, reason
FROM {schema}.parked WHERE id = ANY ($1) AND state = '{state}' AND ({unchanged $2})` + sqlNotCalling + ` ORDER BY id`

// sqlHoldLetters locks them. A letter that another operator has handled is left out.
const sqlHoldLetters = sqlSeeLetters + ` FOR UPDATE`

// sqlReadCopies reads which messages of steps are retrying already. Under the locks of
// sqlHoldSteps none is added; where the step has no row, the index parked_retrying
// refuses a second one.
const sqlReadCopies = `
SELECT scope, key, step, n, kind, coalesce(digest, sha256(payload)) FROM {schema}.parked
WHERE state = 'retrying' AND (scope, key, step, n) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]))`

// sqlSendLetters makes letters retrying, with all their attempts. The new round fences off the result of an
// attempt from before the redrive. A letter that waited for such an attempt to settle waits no longer: its
// reason 'unsettled' becomes 'failed'. Its error is one of the earlier failures already (inbox.SQLKeepFailure).
const sqlSendLetters = `
UPDATE {schema}.parked SET state = 'retrying', attempts = 0, round = round + 1, due_at = clock_timestamp(), redriven_at = clock_timestamp(),
	reason = CASE reason WHEN 'unsettled' THEN 'failed' ELSE reason END,
	error = CASE reason WHEN 'unsettled' THEN '' ELSE error END, stack = CASE reason WHEN 'unsettled' THEN '' ELSE stack END
WHERE id = ANY ($1)`

// sqlDropLetters removes letters without anything left to do.
const sqlDropLetters = `DELETE FROM {schema}.parked WHERE id = ANY ($1)`

// sqlRejectLetters gives letters that stay the reason $2. A letter that has it already keeps its times.
const sqlRejectLetters = `
UPDATE {schema}.parked SET reason = $2, error = $3, stack = '', last_at = clock_timestamp(), ` + inbox.SQLKeepFailure + `
WHERE id = ANY ($1) AND reason <> $2
RETURNING id`

// sqlBuryLetters makes retrying messages dead letters.
const sqlBuryLetters = `UPDATE {schema}.parked SET state = 'dead', last_at = clock_timestamp() WHERE id = ANY ($1)`

// sqlMoveSteps moves rows whose locks are held.
const sqlMoveSteps = `
UPDATE {schema}.inbox i SET state = m.state, updated_at = clock_timestamp()
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) m (scope, key, step, n, state)
WHERE (i.scope, i.key, i.step, i.n) = (m.scope, m.key, m.step, m.n)`

// sqlForceStep stores the row of a step that has none any more. If a delivery has
// just stored one, the statement waits for that transaction and stores nothing.
const sqlForceStep = `
INSERT INTO {schema}.inbox (scope, key, step, n, state, digest, undo_digest)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (scope, key, step, n) DO NOTHING`

// sqlScopes are the scope $1 or, if that is empty, all scopes of {table}: one index look-up
// leads from each scope to the next. An index on the key alone would cost a write
// for every step.
const sqlScopes = `
WITH RECURSIVE other AS (
	(SELECT scope FROM {schema}.{table} WHERE $1::text = '' ORDER BY scope LIMIT 1)
	UNION ALL
	SELECT (SELECT t.scope FROM {schema}.{table} t WHERE t.scope > other.scope ORDER BY t.scope LIMIT 1)
	FROM other WHERE other.scope IS NOT NULL),
scopes AS (
	SELECT $1::text COLLATE "C" AS scope WHERE $1::text <> ''
	UNION ALL
	SELECT scope FROM other WHERE scope IS NOT NULL)`

// sqlLocateSteps reads up to $3 rows of the inbox of the saga $2.
const sqlLocateSteps = sqlScopes + `
SELECT i.scope, i.key, i.step, i.n, i.state, i.attempts, i.undo_attempts, i.created_at, i.updated_at
FROM scopes s CROSS JOIN LATERAL (
	SELECT scope, key, step, n, state, attempts, undo_attempts, created_at, updated_at
	FROM {schema}.inbox WHERE scope = s.scope AND key = $2 ORDER BY scope, key, step, n LIMIT $3) i
ORDER BY i.created_at, i.scope, i.step, i.n LIMIT $3`

// sqlLocateParked reads up to $3 of its parked messages, whatever their state.
const sqlLocateParked = sqlScopes + `
SELECT {letter} FROM {schema}.parked
WHERE id = ANY (ARRAY(SELECT p.id FROM scopes s CROSS JOIN LATERAL (
	SELECT id FROM {schema}.parked WHERE scope = s.scope AND key = $2 LIMIT $3) p))
ORDER BY id LIMIT $3`

// sqlLocateMoment reads the time, the horizon of the inbox, and the isolation level, which
// tells whether the following statements see the same snapshot.
const sqlLocateMoment = `
SELECT clock_timestamp(), nullif(swept_before, '-infinity'), current_setting('transaction_isolation')
FROM {schema}.inbox_horizon`

// byState is one statement in a form for each state.
type byState [2]string

func (s *byState) forState(state State) string {
	if state == StateRetrying {
		return s[1]
	}
	return s[0]
}

// inboxQueries are the statements on the dead letters and steps of a schema's inbox.
type inboxQueries struct {
	readClock, read, lock, readLetters   string
	count, list, pick, group             byState
	seeLetters, holdLetters              byState
	page, retryNow, discard, discardKept string
	edit, insertJournal                  string

	limitLocks, readSteps, holdSteps, tryHoldSteps, readCopies, readHorizon string
	send, drop, reject, bury, moveSteps, forceStep                          string

	locateMoment, locateSteps, locateParked string
}

func newInboxQueries(schema string) inboxQueries {
	columns := func(payload, earlier, stack string) string {
		return strings.NewReplacer("{payload}", payload, "{earlier}", earlier, "{stack}", stack).Replace(sqlLetter)
	}
	const earlier = "nullif(earlier_failures, '[]')"
	full := columns("payload", earlier, "stack")
	cut := columns("substring(payload FROM 1 FOR $2::integer)", earlier, "stack")
	last := columns("payload", "NULL::jsonb", "stack")
	short := columns("NULL::bytea", "NULL::jsonb", "''")
	unchanged := func(parameter string) string { return strings.ReplaceAll(sqlUnchanged, "{moment}", parameter) }
	parts := strings.NewReplacer("{unchanged $2}", unchanged("$2"), "{unchanged $13}", unchanged("$13"))
	bind := func(statement string) string { return sqlschema.Bind(schema, parts.Replace(statement)) }
	in := func(state State, statement string) string {
		statement = fillPicked(statement, sqlPicked, "error")
		return bind(strings.ReplaceAll(statement, "{state}", string(state)))
	}
	both := func(statement string) byState {
		return byState{in(StateDead, statement), in(StateRetrying, statement)}
	}
	with := func(letter, statement string) string { return strings.ReplaceAll(statement, "{letter}", letter) }
	located := func(table, statement string) string {
		return bind(strings.NewReplacer("{table}", table, "{letter}", short).Replace(statement))
	}
	return inboxQueries{
		readClock: sqlLetterClock, read: bind(with(cut, sqlReadLetter)), lock: bind(with(last, sqlLockLetter)), readLetters: bind(with(last, sqlReadLetters)),
		count: both(sqlCountLetters), list: both(with(short, sqlListLetters)), pick: both(sqlPickLetters), group: both(groupedLetters(inboxGrouping)),
		seeLetters: both(sqlSeeLetters), holdLetters: both(sqlHoldLetters), page: in(StateDead, sqlPageLetters),
		retryNow: in(StateRetrying, sqlRetryNow), discard: in(StateDead, sqlDiscard), discardKept: in(StateDead, with(full, sqlDiscardKept)),
		edit: bind(sqlEditLetter), insertJournal: bind(journal.SQLInsert),
		limitLocks: sqlLimitLocks, readSteps: bind(sqlReadSteps), holdSteps: bind(sqlHoldSteps), tryHoldSteps: bind(sqlTryHoldSteps),
		readCopies: bind(sqlReadCopies), readHorizon: bind(inbox.SQLReadHorizon),
		send: bind(sqlSendLetters), drop: bind(sqlDropLetters), reject: bind(sqlRejectLetters), bury: bind(sqlBuryLetters),
		moveSteps: bind(sqlMoveSteps), forceStep: bind(sqlForceStep),
		locateMoment: bind(sqlLocateMoment), locateSteps: located("inbox", sqlLocateSteps), locateParked: located("parked", sqlLocateParked),
	}
}
