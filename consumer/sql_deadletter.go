package consumer

import (
	"strings"

	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// sqlLetterClock reads the database's clock, $1 and $2 microseconds ago. No $2 is
// no lower bound.
const sqlLetterClock = `
SELECT clock_timestamp() - $1::bigint * interval '1 microsecond',
	CASE WHEN $2::bigint > 0 THEN clock_timestamp() - $2::bigint * interval '1 microsecond' END`

// sqlBeginLetters begins an operator's transaction. A process that is suspended in the
// middle of it loses its session after a while, and with it the locks of steps and
// letters, for which consumers wait.
const sqlBeginLetters = `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '30s'`

// sqlPicked is the condition of a filter, from an id on. What is empty holds for
// all. The state is no parameter: the planner would not know then which partial
// index has the messages.
const sqlPicked = `state = '{state}' AND id > $1 AND last_at <= $2 AND ($3::timestamptz IS NULL OR last_at >= $3)
	AND ($4::bigint[] IS NULL OR id = ANY ($4)) AND ($5 = '' OR step = $5) AND ($6 = '' OR kind = $6) AND ($7 = '' OR reason = $7)
	AND ($8 = '' OR position($8 IN error) > 0) AND ($9 = '' OR scope = $9) AND ($10 = '' OR key = $10) AND ($11 = '' OR topic = $11)
	AND ($12::bytea = '' OR message_id = $12)`

// sqlLetter is what is read of a letter. A payload may be left out, since a page of
// them may be as large as so many messages are at the most.
const sqlLetter = `id, state, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic, message_id,
	header_names, header_values, {payload}, octet_length(payload), reason, error, {stack}, attempts, first_at, last_at,
	CASE WHEN state = 'retrying' AND isfinite(due_at) THEN due_at END, digest, in_doubt`

const sqlCountLetters = `SELECT count(*) FROM {schema}.parked WHERE {picked}`

const sqlListLetters = `SELECT {letter} FROM {schema}.parked WHERE {picked} ORDER BY id LIMIT $13`

const sqlReadLetter = `SELECT {letter} FROM {schema}.parked WHERE id = $1`

// sqlLockLetter locks a dead letter, so that it is neither redriven nor discarded
// while it is edited. Nothing else of its step is locked behind it.
const sqlLockLetter = `SELECT {letter} FROM {schema}.parked WHERE id = $1 AND state = 'dead' FOR UPDATE`

// sqlNotCalling leaves out messages whose call is under way, as far as can be told:
// the attempt has a lease, and nothing is locked.
const sqlNotCalling = ` AND NOT (state = 'retrying' AND reason = 'calling' AND due_at > clock_timestamp())`

// sqlRetryNow makes messages due. A message that runs is locked by its consumer,
// and left out.
const sqlRetryNow = `
WITH batch AS (SELECT id FROM {schema}.parked WHERE {picked}` + sqlNotCalling + ` ORDER BY id LIMIT $13 FOR UPDATE SKIP LOCKED)
UPDATE {schema}.parked p SET due_at = least(p.due_at, clock_timestamp())
FROM batch WHERE p.id = batch.id
RETURNING p.id`

// sqlDiscard forgets up to $13 dead letters for good. Two people who do so at once
// lock them in one order; who comes second finds them gone.
const sqlDiscard = `
WITH batch AS (SELECT id FROM {schema}.parked WHERE {picked} ORDER BY id LIMIT $13 FOR UPDATE)
DELETE FROM {schema}.parked p USING batch WHERE p.id = batch.id
RETURNING p.id`

// sqlDiscardKept does the same and returns them.
const sqlDiscardKept = `
DELETE FROM {schema}.parked
WHERE id = ANY (ARRAY(SELECT id FROM {schema}.parked WHERE {picked} ORDER BY id LIMIT $13 FOR UPDATE))
RETURNING {letter}`

// sqlEditLetter changes what a dead letter says. What it said first stays its
// digest, also when it is edited again.
const sqlEditLetter = `
UPDATE {schema}.parked
SET header_names = $2, header_values = $3, digest = coalesce(digest, sha256(payload)), payload = $4
WHERE id = $1`

// sqlPickLetters picks up to $13 letters of the kinds $14, without a lock: they are
// looked at again under sqlHoldLetters.
const sqlPickLetters = `
SELECT id FROM {schema}.parked WHERE {picked} AND kind = ANY ($14) ORDER BY id LIMIT $13`

// sqlPageLetters picks up to $13 letters of the kinds $14, but stops before they
// exceed $15 bytes of payload, and takes one in any case.
const sqlPageLetters = `
SELECT id FROM (
	SELECT id, sum(octet_length(payload)) OVER (ORDER BY id) - octet_length(payload) AS before
	FROM (SELECT id, payload FROM {schema}.parked WHERE {picked} AND kind = ANY ($14) ORDER BY id LIMIT $13) first) sized
WHERE before < $15 ORDER BY id`

// sqlReadLetters reads letters with what Plan has to see of them.
const sqlReadLetters = `SELECT {letter} FROM {schema}.parked WHERE id = ANY ($1) AND state = 'dead' ORDER BY id`

// sqlLimitLocks bounds each wait for a lock. The setting ends with the transaction.
const sqlLimitLocks = `SELECT set_config('lock_timeout', $1, true)`

// sqlReadSteps reads rows of the inbox, those that there are.
const sqlReadSteps = `
SELECT i.scope, i.key, i.step, i.n, i.state, i.attempts, i.undo_attempts, i.digest, i.undo_digest
FROM {schema}.inbox i
WHERE (i.scope, i.key, i.step, i.n) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]))
ORDER BY i.scope, i.key, i.step, i.n`

// sqlHoldSteps locks them, as a delivery of the step does, and before the letters,
// as a parked copy does: so nobody decides about the step meanwhile, and nobody
// waits for who waits for him. They are locked in one order.
const sqlHoldSteps = sqlReadSteps + ` FOR UPDATE OF i`

// sqlTryHoldSteps passes over those that somebody is at work on: a handler may
// take long, and the other steps are not to wait for it.
const sqlTryHoldSteps = sqlHoldSteps + ` SKIP LOCKED`

// sqlSeeLetters reads what letters are of.
const sqlSeeLetters = `
SELECT id, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), coalesce(digest, sha256(payload)),
	header_values[array_position(header_names, 'timestamp'::bytea)], first_at
FROM {schema}.parked WHERE id = ANY ($1) AND state = '{state}'` + sqlNotCalling + ` ORDER BY id`

// sqlHoldLetters locks them, and makes sure that nobody has dealt with them.
const sqlHoldLetters = sqlSeeLetters + ` FOR UPDATE`

// sqlReadCopies reads which messages of steps go round already. Under the locks of
// sqlHoldSteps no further one comes; where the step has no row, the index
// parked_retrying refuses it.
const sqlReadCopies = `
SELECT scope, key, step, n, kind, coalesce(digest, sha256(payload)) FROM {schema}.parked
WHERE state = 'retrying' AND (scope, key, step, n) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]))`

// sqlSendLetters sends letters round, with all their attempts. What an attempt of
// before the redrive has to say does not count any more, nor what one has waited for.
const sqlSendLetters = `
UPDATE {schema}.parked SET state = 'retrying', attempts = 0, round = round + 1, due_at = clock_timestamp(), redriven_at = clock_timestamp(),
	reason = CASE reason WHEN 'unsettled' THEN 'failed' ELSE reason END
WHERE id = ANY ($1)`

// sqlDropLetters removes letters that have nothing left to do.
const sqlDropLetters = `DELETE FROM {schema}.parked WHERE id = ANY ($1)`

// sqlRejectLetters gives letters that stay the reason $2. One that has it has not failed anew.
const sqlRejectLetters = `
UPDATE {schema}.parked SET reason = $2, error = $3, stack = '', last_at = clock_timestamp() WHERE id = ANY ($1) AND reason <> $2
RETURNING id`

// sqlBuryLetters ends the rounds of retrying messages.
const sqlBuryLetters = `UPDATE {schema}.parked SET state = 'dead', last_at = clock_timestamp() WHERE id = ANY ($1)`

// sqlMoveSteps moves rows whose locks are held.
const sqlMoveSteps = `
UPDATE {schema}.inbox i SET state = m.state, updated_at = clock_timestamp()
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) m (scope, key, step, n, state)
WHERE (i.scope, i.key, i.step, i.n) = (m.scope, m.key, m.step, m.n)`

// sqlForceStep stores the row of a step that has none any more. If a delivery has
// just done so, it waits for that one and stores nothing.
const sqlForceStep = `
INSERT INTO {schema}.inbox (scope, key, step, n, state, digest, undo_digest)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (scope, key, step, n) DO NOTHING`

// byState is a statement in a form of its own for each state.
type byState [2]string

func (s *byState) of(state LetterState) string {
	if state == LetterRetrying {
		return s[1]
	}
	return s[0]
}

type letterQueries struct {
	readClock, read, lock, readLetters   string
	count, list, pick                    byState
	seeLetters, holdLetters              byState
	page, retryNow, discard, discardKept string
	edit, insertJournal                  string

	limitLocks, readSteps, holdSteps, tryHoldSteps, readCopies, readHorizon string
	send, drop, reject, bury, moveSteps, forceStep                          string
}

func newLetterQueries(schema string) letterQueries {
	full := strings.NewReplacer("{payload}", "payload", "{stack}", "stack").Replace(sqlLetter)
	short := strings.NewReplacer("{payload}", "NULL::bytea", "{stack}", "''").Replace(sqlLetter)
	bind := func(statement string) string { return sqlschema.Bind(schema, statement) }
	in := func(state LetterState, statement string) string {
		statement = strings.ReplaceAll(statement, "{picked}", sqlPicked)
		return bind(strings.ReplaceAll(statement, "{state}", string(state)))
	}
	both := func(statement string) byState {
		return byState{in(LetterDead, statement), in(LetterRetrying, statement)}
	}
	with := func(letter, statement string) string { return strings.ReplaceAll(statement, "{letter}", letter) }
	return letterQueries{
		readClock: sqlLetterClock, read: bind(with(full, sqlReadLetter)), lock: bind(with(full, sqlLockLetter)), readLetters: bind(with(full, sqlReadLetters)),
		count: both(sqlCountLetters), list: both(with(short, sqlListLetters)), pick: both(sqlPickLetters),
		seeLetters: both(sqlSeeLetters), holdLetters: both(sqlHoldLetters), page: in(LetterDead, sqlPageLetters),
		retryNow: in(LetterRetrying, sqlRetryNow), discard: in(LetterDead, sqlDiscard), discardKept: in(LetterDead, with(full, sqlDiscardKept)),
		edit: bind(sqlEditLetter), insertJournal: bind(journal.SQLInsert),
		limitLocks: sqlLimitLocks, readSteps: bind(sqlReadSteps), holdSteps: bind(sqlHoldSteps), tryHoldSteps: bind(sqlTryHoldSteps),
		readCopies: bind(sqlReadCopies), readHorizon: bind(sqlReadHorizon),
		send: bind(sqlSendLetters), drop: bind(sqlDropLetters), reject: bind(sqlRejectLetters), bury: bind(sqlBuryLetters),
		moveSteps: bind(sqlMoveSteps), forceStep: bind(sqlForceStep),
	}
}
