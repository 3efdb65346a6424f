package consumer

import (
	"cmp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/txguard"
)

// sqlClaimOne inserts a step's row as if the step had succeeded. If the step succeeds, the row need not be written
// again; if not, the transaction changes the row before it ends. A concurrent claim of the same step waits here
// until the other transaction ends: then it inserts (the other rolled back) or inserts nothing (it committed). A
// plain SELECT … FOR UPDATE would lock nothing while the row is absent.
const sqlClaimOne = `
INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts, digest, undo_digest)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (scope, key, step, n) DO NOTHING`

// sqlClaimNew is sqlClaimOne for a message whose step most likely has no row. If it inserts the row, it does what
// sqlOpenClaim does for such a row, without the horizon. It returns the time instead: all horizons are at least
// MinRetention less ClockSkew before it, and a message that is younger needs none. If a row exists, it returns nothing,
// and sqlOpenClaim follows.
const sqlClaimNew = sqlClaimOne + `
RETURNING pg_current_xact_id()::xid, ` + txguard.Role + `,
	set_config('idle_in_transaction_session_timeout', $9, true) || ` + txguard.SetConnectionCheck + `,
	clock_timestamp()`

// sqlClaimMany is sqlClaimOne for several steps, one row after the other in the order of the arrays. The arrays are
// in the order of identities, so that two transactions cannot wait for each other's rows.
const sqlClaimMany = `
INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts, digest, undo_digest)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::bytea[], $8::bytea[])
ON CONFLICT (scope, key, step, n) DO NOTHING`

// sqlOpenClaim follows sqlClaimOne. It limits the transaction as [txguard.LimitTransaction] does, and reads the
// transaction's number, which is the xmin of a row that it has inserted. It locks the row that kept sqlClaimOne from
// inserting and reads its state, and the horizon of the inbox. It does not return a row that this transaction has
// inserted: the columns of the state are null then, as they are if a sweeper has removed the row since.
//
// The snapshot of this statement is older than the lock that it may wait for. The horizon counts only for a step
// whose row is absent or open, and for those it is as good as one that is read after the lock. A sweeper commits the
// horizon before it removes rows:
//
//   - The row was absent. sqlClaimOne has inserted it, after each removal of an earlier row of the step had
//     committed, and before this snapshot was taken.
//   - The row is open. This snapshot sees a version of it, so the row was inserted before, behind each removal of an
//     earlier row. If another transaction changes the row during the wait, its newest version is locked, which is
//     still the same row.
//   - The row is removed during the wait. A row that is inserted after that is invisible to this snapshot: there is
//     none to lock, and the attempt begins anew (errVanished).
const sqlOpenClaim = `
SELECT nullif(h.swept_before, '-infinity'), pg_current_xact_id()::xid, ` + txguard.Role + `,
	set_config('idle_in_transaction_session_timeout', $5, true) || ` + txguard.SetConnectionCheck + `,
	i.state, i.attempts, i.undo_attempts, i.digest, i.undo_digest
FROM {schema}.inbox_horizon AS h
LEFT JOIN (
	SELECT state, attempts, undo_attempts, digest, undo_digest
	FROM {schema}.inbox
	WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND xmin <> pg_current_xact_id()::xid
	FOR UPDATE) AS i ON true`

// sqlLockMany locks the rows that kept sqlClaimMany from inserting, in the order of the arrays. A subquery that locks
// is not merged into the join: each row is found by the primary key and locked before the next is searched. A
// transaction that waits here has locked rows that sort before, and rows that it has inserted itself. No transaction
// that has come this far waits for those.
const sqlLockMany = `
SELECT a.ordinal::integer, i.state, i.attempts, i.undo_attempts, i.digest, i.undo_digest
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS a (scope, key, step, n, ordinal)
CROSS JOIN LATERAL (
	SELECT state, attempts, undo_attempts, digest, undo_digest
	FROM {schema}.inbox
	WHERE scope = a.scope AND key = a.key AND step = a.step AND n = a.n AND xmin <> pg_current_xact_id()::xid
	FOR UPDATE) i`

// sqlClaimStep makes sure that the step's inbox row exists, as sqlClaimOne does, if it is not known yet how the step
// will end.
const sqlClaimStep = `
INSERT INTO {schema}.inbox (scope, key, step, n, state)
VALUES ($1, $2, $3, $4, 'open')
ON CONFLICT (scope, key, step, n) DO NOTHING`

// sqlLockStep locks the row that sqlClaimStep ensured, and reads its state.
const sqlLockStep = `
SELECT state, attempts, undo_attempts, digest, undo_digest
FROM {schema}.inbox
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4
FOR UPDATE`

// sqlTryLockStep is sqlLockStep for a parked message. It does not wait: while another transaction has locked the row, the
// message is handed back and its worker goes on.
const sqlTryLockStep = `
SELECT state, attempts, undo_attempts, digest, undo_digest
FROM {schema}.inbox
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4
FOR UPDATE SKIP LOCKED`

// sqlOpenClaims is sqlOpenClaim for several steps, without locks and limits: it is the horizon of those whose rows were
// absent. sqlLockMany may find a row that was inserted after this statement, behind a later horizon, which is
// therefore read again after it.
const sqlOpenClaims = `
SELECT nullif(swept_before, '-infinity'), pg_current_xact_id()::xid, ` + txguard.Role + `
FROM {schema}.inbox_horizon`

// sqlMoveStep records a transition, under the row's lock. A digest that is null leaves the recorded one as it is.
var sqlMoveStep = txguard.MustChange(`
UPDATE {schema}.inbox
SET state = $5, attempts = $6, undo_attempts = $7,
	digest = coalesce($8, digest), undo_digest = coalesce($9, undo_digest), updated_at = clock_timestamp()
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4`)

// sqlReopen takes back a claim that was committed too early. $6 is how many entries that handler has had: without
// one, its compensation would find nothing to undo. $7 is the transaction of the claim: if that has rolled back, the
// row belongs to another delivery, which has done the step.
const sqlReopen = `
UPDATE {schema}.inbox
SET state = 'open', attempts = $6, updated_at = clock_timestamp()
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND state = 'done' AND digest = $5 AND xmin = $7`

// sqlReadAttempts takes no lock: the answer only decides which messages run beside each other.
const sqlReadAttempts = `
SELECT attempts, undo_attempts
FROM {schema}.inbox
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4`

// sqlCountAction counts an entry into the action's handler before it happens. An absent row means that an earlier
// delivery most likely crashed: its entry ($5 less one) is counted too. Rows in other states do not run.
const sqlCountAction = `
INSERT INTO {schema}.inbox AS i (scope, key, step, n, state, attempts)
VALUES ($1, $2, $3, $4, 'open', $5)
ON CONFLICT (scope, key, step, n) DO UPDATE
SET attempts = i.attempts + 1, updated_at = clock_timestamp()
WHERE i.state = 'open'
RETURNING attempts`

// sqlReadBehind returns the steps of whose key an earlier message is parked. Messages with the same n do not count:
// the state machine orders an action and its compensation. A message that waits for its action does not count
// either. A message is acked after it was parked, and the next one of the key is delivered after that.
const sqlReadBehind = `
SELECT a.ordinal::integer
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS a (scope, key, step, n, ordinal)
WHERE EXISTS (
	SELECT FROM {schema}.parked p
	WHERE (p.scope, p.key, p.step) = (a.scope, a.key, a.step) AND p.n <> a.n AND p.state = 'retrying'
		AND p.reason <> 'waits-for-action')`

// sqlUnclaim removes rows that sqlClaimMany has inserted and whose steps have not run in this transaction. It fails unless
// it removes all: a row that stayed would say that its step is done.
var sqlUnclaim = txguard.MustChangeCount(`
DELETE FROM {schema}.inbox i
USING unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS a (scope, key, step, n)
WHERE i.scope = a.scope AND i.key = a.key AND i.step = a.step AND i.n = a.n`, "cardinality($1::text[])")

// sqlCountCompensation is sqlCountAction for a compensation, whose row is done. A compensation that the row knows is
// parked: its delivery does not run. The first counted entry stands for a crashed one as well.
const sqlCountCompensation = `
UPDATE {schema}.inbox
SET undo_attempts = CASE undo_attempts WHEN 0 THEN $5 ELSE undo_attempts + 1 END, updated_at = clock_timestamp()
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND state = 'done' AND undo_digest IS NULL
RETURNING undo_attempts`

// sqlPark stores a message that will run again. The unique index parked_retrying allows one copy: an existing copy
// stays, and takes over the attempts that another delivery has made. No row is touched if that copy has another
// payload. The row of the inbox may not know the copy: an example is a compensation that was a dead letter because
// of its action and was redriven.
const sqlPark = `
INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload,
	reason, error, stack, attempts, due_at)
VALUES ('retrying', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, clock_timestamp() + $15 * interval '1 microsecond')
ON CONFLICT (scope, key, step, n, kind) WHERE state = 'retrying' DO UPDATE
SET attempts = greatest(parked.attempts, EXCLUDED.attempts), reason = EXCLUDED.reason, error = EXCLUDED.error,
	not_done = false, stack = EXCLUDED.stack, last_at = clock_timestamp(), ` + inbox.SQLKeepFailure + `
WHERE coalesce(parked.digest, sha256(parked.payload)) = sha256(EXCLUDED.payload)`

// sqlBury stores a message for a person to look at.
const sqlBury = `
INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload,
	reason, error, stack, attempts, due_at)
VALUES ('dead', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, clock_timestamp())`

// sqlNextDue returns in how many seconds the next parked message is due. It is one lookup in the index. A person
// may have set due_at to infinity, from which PostgreSQL before 17 cannot subtract. Some plans compute the difference for
// all rows before the limit. So infinity is left out, and -infinity counts as 1970.
const sqlNextDue = `
SELECT (SELECT extract(epoch FROM greatest(due_at, 'epoch') - statement_timestamp())::float8 FROM {schema}.parked
	WHERE state = 'retrying' AND due_at < 'infinity' ORDER BY due_at LIMIT 1)`

// sqlTakeParked hands out each due message to one instance, and counts the entry into the handler before it happens.
// The caller commits it alone. The lease ($3, in microseconds) only covers the time until sqlLockParked: while the
// handler runs, that row lock proves that its process lives, and SKIP LOCKED skips the message. Of the ordered steps
// in $4, the messages of a key go one after the other. A message without an identity goes to a consumer that has its
// topic in $5.
//
// The index is searched with statement_timestamp(): with a clock that goes on, every waiting row would be read each
// time.
const sqlTakeParked = `
UPDATE {schema}.parked
SET attempts = attempts + 1, due_at = clock_timestamp() + $3 * interval '1 microsecond'
WHERE id = ANY(ARRAY(
	SELECT id FROM {schema}.parked
	WHERE state = 'retrying' AND due_at <= statement_timestamp() AND (step IS NULL AND topic = ANY($5) OR step = ANY($1)
		AND NOT (step = ANY($4) AND EXISTS (
			SELECT FROM {schema}.parked e
			WHERE (e.scope, e.key, e.step) = (parked.scope, parked.key, parked.step) AND e.n <> parked.n AND e.state = 'retrying'
				AND e.reason <> 'waits-for-action' AND e.id < parked.id)))
	ORDER BY due_at
	LIMIT $2
	FOR UPDATE SKIP LOCKED))
RETURNING id, kind, coalesce(scope, ''), coalesce(key, ''), coalesce(step, ''), coalesce(n, ''), topic,
	message_id, header_names, header_values, payload, digest, attempts, round, reason`

// sqlLockParked makes sure, under the inbox row's lock, that the parked copy is still the one that was taken. The
// fence is attempts, which every take raises, with round, since a redrive resets attempts. The lock keeps the
// message from being taken again.
const sqlLockParked = `
SELECT true FROM {schema}.parked
WHERE id = $1 AND attempts = $2 AND round = $3 AND state = 'retrying'
FOR UPDATE`

// sqlHandBack returns a parked message that was taken but whose step another transaction has locked. The take has
// cost no attempt.
const sqlHandBack = `
UPDATE {schema}.parked
SET attempts = attempts - 1, due_at = clock_timestamp() + $4 * interval '1 microsecond'
WHERE id = $1 AND attempts = $2 AND round = $3 AND state = 'retrying'`

// sqlDeleteParked ends a parked message that ran, or need not run any more. The transaction has locked it.
var sqlDeleteParked = txguard.MustChange(`DELETE FROM {schema}.parked WHERE id = $1`)

// sqlCancelParked removes the failed message of an action that must never run, under the row's lock. A message with
// another payload under its identity stays, for an operator to look at.
const sqlCancelParked = `
DELETE FROM {schema}.parked
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND kind = 'action' AND reason <> 'key-reused'
RETURNING reason, error`

// sqlReadNotDone reads, under the row's lock, whether the action that is parked in state $5 is known to have had no
// effect: not_done says so, or it has waited for its turn since it arrived. A message with the header $6 may have run
// before. If the message is gone, nothing is known.
const sqlReadNotDone = `
SELECT coalesce(bool_and(NOT in_doubt AND (not_done OR reason = 'waits-for-order' AND attempts = 0 AND round = 0) AND $6 <> ALL (header_names)), false)
FROM {schema}.parked
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND kind = 'action' AND state = $5 AND reason <> 'key-reused'`

// sqlRepark makes a parked message wait for its next attempt after one more failure, or makes it a dead letter.
// attempts is given, since a message that only waited for the action has spent none.
var sqlRepark = txguard.MustChange(`
UPDATE {schema}.parked
SET state = $2, reason = $3, error = $4, stack = $5, attempts = $6, not_done = false,
	due_at = clock_timestamp() + $7 * interval '1 microsecond', last_at = clock_timestamp(), ` + inbox.SQLKeepFailure + `
WHERE id = $1`)

// sqlCountParked counts an entry into the handler by a delivery that has not taken the parked copy. A higher attempts
// also fences the instance that has taken the copy: if its attempt has not begun, the lease ends and another instance
// takes the copy.
const sqlCountParked = `
UPDATE {schema}.parked
SET attempts = attempts + 1, not_done = false
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND kind = $5 AND state = 'retrying'`

// queueAnew queues a statement that is planned for the tables as they are, in a transaction that may be a handler's. A
// migration has left the table parked with the statistics of an empty one: a plan that was made before messages were
// parked scans all of them. Likewise a join with the inbox scans it.
func queueAnew(b *pgx.Batch, statement string, args ...any) *pgx.QueuedQuery {
	b.Queue(pg.PlanAnew)
	return b.Queue(statement, args...)
}

type queries struct {
	claimOne, claimNew, claimMany, openClaim, lockMany, unclaim, reopen, readBehind, readAttempts string
	claimStep, lockStep, tryLockStep, openClaims, limitIdle, moveStep, handBack                   string
	countAction, countCompensation                                                                string
	park, bury, nextDue, takeParked, lockParked                                                   string
	deleteParked, cancelParked, readNotDone, repark, countParked                                  string
	nameParked, refuseParked, yieldParked, findHidden                                             string
	readStats                                                                                     string
}

// newQueries returns the queries of a schema. check is Options.ConnectionCheck.
func newQueries(schema string, check time.Duration) queries {
	bind := func(statement string) string {
		return txguard.BindConnectionCheck(sqlschema.Bind(schema, statement), check)
	}
	return queries{
		claimOne: bind(sqlClaimOne), claimNew: bind(sqlClaimNew), claimMany: bind(sqlClaimMany), openClaim: bind(sqlOpenClaim), lockMany: bind(sqlLockMany),
		unclaim: bind(sqlUnclaim), reopen: bind(sqlReopen), readBehind: bind(sqlReadBehind), readAttempts: bind(sqlReadAttempts),
		claimStep: bind(sqlClaimStep), lockStep: bind(sqlLockStep), tryLockStep: bind(sqlTryLockStep), handBack: bind(sqlHandBack), openClaims: bind(sqlOpenClaims), limitIdle: bind(txguard.LimitTransaction), moveStep: bind(sqlMoveStep),
		countAction: bind(sqlCountAction), countCompensation: bind(sqlCountCompensation),
		park: bind(sqlPark), bury: bind(sqlBury), nextDue: bind(sqlNextDue), takeParked: bind(sqlTakeParked), lockParked: bind(sqlLockParked),
		deleteParked: bind(sqlDeleteParked), cancelParked: bind(sqlCancelParked), readNotDone: bind(sqlReadNotDone), repark: bind(sqlRepark), countParked: bind(sqlCountParked),
		nameParked: bind(sqlNameParked), refuseParked: bind(sqlRefuseParked), yieldParked: bind(sqlYieldParked), findHidden: bind(pg.SQLFindHidden("inbox", "parked")),
		readStats: bind(sqlReadStats),
	}
}

func compareIdentity(a, b *attempt) int {
	return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Step, b.Step), cmp.Compare(a.joinedN(), b.joinedN()))
}

// identity are the columns that name the step's row.
func (m *received) identity() []any { return []any{m.Scope, m.Key, m.Step, m.joinedN()} }

// claimArgs are the columns of a claimed row: the action is done, or the compensation has found nothing to undo.
func (a *attempt) claimArgs() []any {
	if a.kind == compensation {
		return append(a.identity(), void, 0, nil, a.digest)
	}
	return append(a.identity(), done, 1, a.digest, nil)
}

// identityColumns are the identities of attempts as four columns, for unnest.
func identityColumns(attempts []*attempt) []any {
	columns := make([][]string, 4)
	for _, a := range attempts {
		for i, value := range []string{a.Scope, a.Key, a.Step, a.joinedN()} {
			columns[i] = append(columns[i], value)
		}
	}
	return []any{columns[0], columns[1], columns[2], columns[3]}
}

func claimColumns(attempts []*attempt) []any {
	var states []string
	var entries []int
	var digests, undoDigests [][]byte
	for _, a := range attempts {
		to, n, digest, undoDigest := done, 1, a.digest, []byte(nil)
		if a.kind == compensation {
			to, n, digest, undoDigest = void, 0, nil, a.digest
		}
		states, entries = append(states, string(to)), append(entries, n)
		digests, undoDigests = append(digests, digest), append(undoDigests, undoDigest)
	}
	return append(identityColumns(attempts), states, entries, digests, undoDigests)
}

// columns are the scan targets for a row's state, counts and digests.
func (c *cell) columns() []any {
	return []any{&c.state, &c.attempts, &c.undoAttempts, &c.digest, &c.undoDigest}
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
