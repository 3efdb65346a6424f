package saga

import (
	"strings"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// The columns of an instance, as scanInstance reads them, and the time since its start.
const instanceColumns = `scope, key, path, id, root, name, version, plan_hash, coalesce(parent, ''), status, reason, progress, state,
	revision, trace_parent, trace_state, (extract(epoch FROM clock_timestamp() - started_at) * 1000)::bigint`

// sqlInsertInstance begins an instance. Of two callers with one key the second
// waits here until the other's transaction ends, and inserts nothing if that
// committed.
const sqlInsertInstance = `
INSERT INTO {schema}.saga (scope, key, path, id, root, name, version, parent, status, reason, progress, state,
	trace_parent, trace_state, started_at, updated_at, due_at, ended_at, plan_hash)
SELECT $1, $2, $3, $4, $5, $6, $7, nullif($8, ''), $9, $10, $11, $12, $13, $14, now.at, now.at,
	now.at + $15::bigint * interval '1 millisecond', CASE WHEN $16 THEN now.at END, $17
FROM (SELECT clock_timestamp() AS at) AS now
ON CONFLICT (scope, key, path) DO NOTHING`

// sqlAddInstance is the same for a key that is known to be new; else it fails.
var sqlAddInstance = strings.TrimSuffix(sqlInsertInstance, "\nON CONFLICT (scope, key, path) DO NOTHING")

// sqlLockInstance locks an instance. Replies, timers and people take turns here.
const sqlLockInstance = `
SELECT {columns} FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3 FOR UPDATE`

// sqlTryLockInstance is sqlLockInstance where nobody else has the instance locked.
const sqlTryLockInstance = sqlLockInstance + ` SKIP LOCKED`

// sqlLockRoot comes first where the instance is nested in another. Of one saga a
// transaction may lock several instances, and another one too: so they take turns at
// the outermost, instead of waiting for each other.
const sqlLockRoot = `
SELECT FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3 FOR UPDATE`

// sqlTryLockRoot is sqlLockRoot where nobody else has it locked.
const sqlTryLockRoot = sqlLockRoot + ` SKIP LOCKED`

// sqlLimitLock and sqlUnlimitLock bound the waits between them: others share the
// transaction. After an error the savepoint takes the limit back.
const (
	sqlLimitLock   = `SELECT set_config('lock_timeout', $1, true)`
	sqlUnlimitLock = `SET LOCAL lock_timeout TO DEFAULT`
)

// sqlLockInstances locks several, in the order of their identities: two batches that
// lock the same ones do not wait for each other. Each is looked for by the index, whatever
// the planner believes about the size of the table.
const sqlLockInstances = `
SELECT i.* FROM (
	SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) AS w (scope, key, path) ORDER BY 1, 2, 3
) AS wanted
CROSS JOIN LATERAL (
	SELECT {columns} FROM {schema}.saga WHERE scope = wanted.scope AND key = wanted.key AND path = wanted.path FOR UPDATE
) AS i`

// sqlReadInstance reads one without a lock.
const sqlReadInstance = `
SELECT {columns} FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3`

// sqlMoveInstance stores what became of a locked instance. That it has not moved
// meanwhile follows from the lock; should it have, revision would be null, which it cannot be.
const sqlMoveInstance = `
UPDATE {schema}.saga SET status = $4, reason = $5, progress = $6, state = $7, tries = 0,
	revision = CASE WHEN revision = $10 THEN revision + 1 END,
	updated_at = clock_timestamp(), due_at = started_at + $8::bigint * interval '1 millisecond',
	ended_at = CASE WHEN $9 THEN clock_timestamp() END
WHERE scope = $1 AND key = $2 AND path = $3`

// sqlClaimDue takes instances whose time has come, of the versions given, and counts the
// try in the same commit, so that one which kills its process does not do so for
// ever. Others pass over them until $4 microseconds are over, twice as long for each try
// that has come to nothing. With $5 it takes those of which there was such a one, else the
// others.
//
// Here and below a row's time is compared with that of the statement, which is one
// moment: no index is searched for a clock that goes on, so that all that is due some day would be read.
const sqlClaimDue = `
UPDATE {schema}.saga AS s SET tries = s.tries + 1,
	due_at = clock_timestamp() + $4::bigint * (1 << least(s.tries, 5)) * interval '1 microsecond'
FROM (
	SELECT due.scope, due.key, due.path FROM {schema}.saga AS due
	JOIN unnest($1::text[], $2::integer[], $6::text[]) AS known (name, version, plan_hash)
		ON due.name = known.name AND due.version = known.version AND due.plan_hash = known.plan_hash
	WHERE due.due_at <= statement_timestamp() AND (due.tries > 0) = $5
	ORDER BY due.due_at LIMIT $3
	FOR UPDATE OF due SKIP LOCKED
) AS taken
WHERE s.scope = taken.scope AND s.key = taken.key AND s.path = taken.path
RETURNING s.scope, s.key, s.path, s.tries, s.revision`

// sqlNextDue is how long it is until the next instance of the versions given is due, in
// microseconds. One that is due already is somebody else's: its row is locked.
const sqlNextDue = `
SELECT (extract(epoch FROM due_at - clock_timestamp()) * 1000000)::bigint FROM {schema}.saga
JOIN unnest($1::text[], $2::integer[], $3::text[]) AS known (name, version, plan_hash) USING (name, version, plan_hash)
WHERE due_at > statement_timestamp() ORDER BY due_at LIMIT 1`

// sqlPostpone says of an instance whose timer failed when it is tried again, or
// never, and why. It changes nothing if the instance has moved since it was claimed, or
// somebody else has claimed it: the attempt may have committed after all, or ended
// long after its lease.
const sqlPostpone = `
UPDATE {schema}.saga SET reason = $4, updated_at = clock_timestamp(),
	status = CASE WHEN $6 THEN 'stuck' ELSE status END,
	due_at = CASE WHEN NOT $6 THEN clock_timestamp() + $5::bigint * interval '1 microsecond' END
WHERE scope = $1 AND key = $2 AND path = $3 AND ended_at IS NULL AND revision = $7 AND tries = $8`

// sqlLimitIdle frees an instance's lock when this process hangs while it holds it. The
// setting ends with the transaction.
const sqlLimitIdle = `SELECT set_config('idle_in_transaction_session_timeout', $1, true)`

// sqlListSilent finds instances that nothing has happened to for $3 microseconds, behind
// one that was listed before. They are found among those that live, before they are
// sorted: in the order of the primary key, all that have ended would be read. A
// progress with large messages is left out.
const sqlListSilent = `
WITH silent AS MATERIALIZED (
	SELECT scope, key, path FROM {schema}.saga
	JOIN unnest($1::text[], $2::integer[], $8::text[]) AS known (name, version, plan_hash) USING (name, version, plan_hash)
	WHERE ended_at IS NULL AND status IN ('running', 'compensating')
		AND updated_at < statement_timestamp() - $3::bigint * interval '1 microsecond'
), listed AS MATERIALIZED (
	SELECT scope, key, path FROM silent WHERE (scope, key, path) > ($4, $5, $6) ORDER BY scope, key, path LIMIT $7
)
SELECT scope, key, path, name, version, CASE WHEN length(progress) < 4096 THEN progress ELSE '' END,
	(extract(epoch FROM statement_timestamp() - started_at) * 1000)::bigint
FROM listed JOIN {schema}.saga USING (scope, key, path)
ORDER BY scope, key, path`

// sqlReadNested reads how far a nested instance has come, whether it has ended, and whether
// nothing has happened to it for $4 microseconds. It takes no lock.
const sqlReadNested = `
SELECT progress, ended_at IS NOT NULL, updated_at < statement_timestamp() - $4::bigint * interval '1 microsecond'
FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3`

// sqlDeleteEnded removes sagas that have ended long ago, with those nested in them.
const sqlDeleteEnded = `
DELETE FROM {schema}.saga WHERE (scope, key, root) IN (
	SELECT scope, key, root FROM {schema}.saga
	WHERE ended_at < statement_timestamp() - $1::bigint * interval '1 microsecond' AND parent IS NULL
	ORDER BY ended_at LIMIT $2
	FOR UPDATE SKIP LOCKED
) RETURNING scope, key, path`

// sqlDeleteJournal removes what was decided about them.
const sqlDeleteJournal = `
DELETE FROM {schema}.saga_journal WHERE (scope, key, path) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]))`

// sqlLiveVersions counts the instances that have not ended.
const sqlLiveVersions = `
SELECT name, version, count(*), plan_hash
FROM {schema}.saga WHERE ended_at IS NULL
GROUP BY name, version, plan_hash ORDER BY name, version, plan_hash`

// sqlRegister notes the plan of a definition.
const sqlRegister = `
INSERT INTO {schema}.saga_definition (name, version, hash, plan) VALUES ($1, $2, $3, $4)
ON CONFLICT (name, version) DO UPDATE SET hash = excluded.hash, plan = excluded.plan, registered_at = clock_timestamp()
WHERE (saga_definition.hash, saga_definition.plan) IS DISTINCT FROM (excluded.hash, excluded.plan)`

// queries are the statements of a schema.
type queries struct {
	insertInstance, addInstance, readInstance, moveInstance                                     string
	lockInstance, lockInstances, lockRoot, tryLockInstance, tryLockRoot, limitLock, unlimitLock string
	claimDue, nextDue, postpone, listSilent, readNested, limitIdle                              string
	deleteEnded, deleteJournal, liveVersions, register, readStats, readByIndex                  string
}

func newQueries(schema string) queries {
	bind := func(sql string) string {
		return sqlschema.Bind(schema, strings.ReplaceAll(sql, "{columns}", instanceColumns))
	}
	return queries{
		insertInstance: bind(sqlInsertInstance), addInstance: bind(sqlAddInstance), readInstance: bind(sqlReadInstance),
		lockInstance: bind(sqlLockInstance), lockInstances: bind(sqlLockInstances), lockRoot: bind(sqlLockRoot),
		tryLockInstance: bind(sqlTryLockInstance), tryLockRoot: bind(sqlTryLockRoot), limitLock: sqlLimitLock, unlimitLock: sqlUnlimitLock,
		moveInstance: bind(sqlMoveInstance), claimDue: bind(sqlClaimDue), nextDue: bind(sqlNextDue), postpone: bind(sqlPostpone),
		listSilent: bind(sqlListSilent), readNested: bind(sqlReadNested), limitIdle: sqlLimitIdle, deleteEnded: bind(sqlDeleteEnded), deleteJournal: bind(sqlDeleteJournal),
		liveVersions: bind(sqlLiveVersions), register: bind(sqlRegister), readStats: bind(sqlReadStats), readByIndex: sqlReadByIndex,
	}
}
