package saga

import (
	"strings"

	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/txguard"
)

// sqlInsertInstance inserts a new instance. Of two callers with one key the second waits here until the other's
// transaction ends, and inserts nothing if that committed.
const sqlInsertInstance = `
INSERT INTO {schema}.saga (scope, key, path, id, root, name, version, parent, status, reason, progress, state,
	trace_parent, trace_state, started_at, updated_at, due_at, ended_at, plan_hash)
SELECT $1, $2, $3, $4, $5, $6, $7, nullif($8, ''), $9, $10, $11, $12, $13, $14, now.at, now.at,
	now.at + $15::bigint * interval '1 millisecond', CASE WHEN $16 THEN now.at END, $17
FROM (SELECT clock_timestamp() AS at) AS now
ON CONFLICT (scope, key, path) DO NOTHING`

// sqlAddInstance is sqlInsertInstance for a key that is new; it fails if the key exists.
var sqlAddInstance = strings.TrimSuffix(sqlInsertInstance, "\nON CONFLICT (scope, key, path) DO NOTHING")

// sqlLimitLock and sqlUnlimitLock bound the waits for locks between them: other messages share the transaction.
// After an error the savepoint restores the limit.
const (
	sqlLimitLock   = `SELECT set_config('lock_timeout', $1, true)`
	sqlUnlimitLock = `SET LOCAL lock_timeout TO DEFAULT`
)

// sqlLockInstances locks several instances in the order of their addresses, so that two batches cannot deadlock. The
// LATERAL makes each row an index lookup, whatever the planner believes about the size of the table.
const sqlLockInstances = `
SELECT i.* FROM (
	SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) AS w (scope, key, path) ORDER BY 1, 2, 3
) AS wanted
CROSS JOIN LATERAL (
	SELECT {columns} FROM {schema}.saga WHERE scope = wanted.scope AND key = wanted.key AND path = wanted.path FOR UPDATE
) AS i`

// sqlMoveInstance stores a locked instance. The lock keeps it from moving meanwhile. If it moved all the same, the
// revision would be null, and its constraint would fail the statement. If the row is hidden, or a local step has removed
// it, the statement fails too.
var sqlMoveInstance = txguard.MustChange(`
UPDATE {schema}.saga SET status = $4, reason = $5, progress = $6, state = $7, tries = 0,
	revision = CASE WHEN revision = $10 THEN revision + 1 END,
	updated_at = clock_timestamp(), due_at = started_at + $8::bigint * interval '1 millisecond',
	ended_at = CASE WHEN $9 THEN clock_timestamp() END
WHERE scope = $1 AND key = $2 AND path = $3`)

// sqlClaimDue claims instances that are due, of the versions given. It counts the try in the same commit, so an
// instance that kills its process has an end. Other claims skip them for $4 microseconds, doubled for each failed try.
// With $5 it claims instances with a failed try, else those without. (MATERIALIZED: some plans of a join would search anew
// for each row of the table, and claim more than the limit.)
//
// Here and below a row's time is compared with that of the statement, which is constant. With a clock that advances
// PostgreSQL could not search the index, and would read all instances that are due some day.
const sqlClaimDue = `
WITH taken AS MATERIALIZED (
	SELECT due.scope, due.key, due.path FROM {schema}.saga AS due
	JOIN unnest($1::text[], $2::integer[], $6::text[]) AS known (name, version, plan_hash)
		ON due.name = known.name AND due.version = known.version AND due.plan_hash = known.plan_hash
	WHERE due.due_at <= statement_timestamp() AND (due.tries > 0) = $5
	ORDER BY due.due_at LIMIT $3
	FOR UPDATE OF due SKIP LOCKED
)
UPDATE {schema}.saga AS s SET tries = s.tries + 1,
	due_at = clock_timestamp() + $4::bigint * (1 << least(s.tries, 5)) * interval '1 microsecond'
FROM taken
WHERE s.scope = taken.scope AND s.key = taken.key AND s.path = taken.path
RETURNING s.scope, s.key, s.path, s.tries, s.revision`

// sqlNextDue reads in how many microseconds the next instance of the versions given is due; null: none is.
const sqlNextDue = `
SELECT (SELECT (extract(epoch FROM due_at - clock_timestamp()) * 1000000)::bigint FROM {schema}.saga
	JOIN unnest($1::text[], $2::integer[], $3::text[]) AS known (name, version, plan_hash) USING (name, version, plan_hash)
	WHERE due_at > '-infinity' AND due_at < 'infinity' ORDER BY due_at LIMIT 1)`

// sqlPostpone notes why an instance's timer failed, and when to try again; or that the instance is stuck. It changes
// nothing if the instance has moved since its claim, or was claimed again: the attempt may have committed after all,
// or ended long after its lease.
const sqlPostpone = `
UPDATE {schema}.saga SET reason = $4, updated_at = clock_timestamp(),
	status = CASE WHEN $6 THEN 'stuck' ELSE status END,
	due_at = CASE WHEN NOT $6 THEN clock_timestamp() + $5::bigint * interval '1 microsecond' END
WHERE scope = $1 AND key = $2 AND path = $3 AND ended_at IS NULL AND revision = $7 AND tries = $8`

// sqlListSilent lists instances that have not moved for $3 microseconds, behind one that was listed before. It finds
// them among the live ones and then sorts them: in the order of the primary key it would read all that have ended.
// It leaves out a progress with large messages.
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

// sqlReadNested reads the progress of a nested instance, whether it has ended, and whether it has not moved for $4
// microseconds. It takes no lock.
const sqlReadNested = `
SELECT progress, ended_at IS NOT NULL, updated_at < statement_timestamp() - $4::bigint * interval '1 microsecond'
FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3`

// sqlDeleteEnded removes sagas that ended long ago, with those nested in them. It skips locked rows. MATERIALIZED is as in
// sqlClaimDue.
const sqlDeleteEnded = `
WITH old AS MATERIALIZED (
	SELECT scope, key, root FROM {schema}.saga
	WHERE ended_at < statement_timestamp() - $1::bigint * interval '1 microsecond' AND parent IS NULL
	ORDER BY ended_at LIMIT $2
	FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.saga WHERE (scope, key, root) IN (SELECT scope, key, root FROM old)
RETURNING scope, key, path`

// sqlDeleteJournal removes the decisions of people about instances.
const sqlDeleteJournal = `
DELETE FROM {schema}.saga_journal WHERE (scope, key, path) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]))`

// sqlLiveVersions counts the instances that have not ended.
const sqlLiveVersions = `
SELECT name, version, count(*), plan_hash
FROM {schema}.saga WHERE ended_at IS NULL
GROUP BY name, version, plan_hash ORDER BY name, version, plan_hash`

// sqlRegister stores the plan of a definition. It writes nothing if the plan is stored already.
const sqlRegister = `
INSERT INTO {schema}.saga_definition (name, version, hash, plan) VALUES ($1, $2, $3, $4)
ON CONFLICT (name, version) DO UPDATE SET hash = excluded.hash, plan = excluded.plan, registered_at = clock_timestamp()
WHERE (saga_definition.hash, saga_definition.plan) IS DISTINCT FROM (excluded.hash, excluded.plan)`

// statements are the SQL of one schema.
type statements struct {
	rows sagarow.Statements
	queries
}

func newStatements(schema string) *statements {
	return &statements{rows: sagarow.NewStatements(schema), queries: newQueries(schema)}
}

// queries are the statements of this package alone.
type queries struct {
	insertInstance, addInstance, moveInstance, lockInstances, limitLock, unlimitLock string
	claimDue, nextDue, postpone, listSilent, readNested                              string
	deleteEnded, deleteJournal, liveVersions, register, readStats                    string
}

func newQueries(schema string) queries {
	bind := func(sql string) string { return sagarow.BindColumns(schema, sql) }
	return queries{
		insertInstance: bind(sqlInsertInstance), addInstance: bind(sqlAddInstance), moveInstance: bind(sqlMoveInstance),
		lockInstances: bind(sqlLockInstances), limitLock: sqlLimitLock, unlimitLock: sqlUnlimitLock,
		claimDue: bind(sqlClaimDue), nextDue: bind(sqlNextDue), postpone: bind(sqlPostpone), listSilent: bind(sqlListSilent),
		readNested: bind(sqlReadNested), deleteEnded: bind(sqlDeleteEnded), deleteJournal: bind(sqlDeleteJournal),
		liveVersions: bind(sqlLiveVersions), register: bind(sqlRegister), readStats: bind(sqlReadStats),
	}
}
