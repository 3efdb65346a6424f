package operator

import (
	"strings"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// sqlBeginDecision begins an operator's transaction. Replies and timers wait for its lock of the instance. If
// the process is suspended in the transaction, the server ends the session after 30 s and releases the lock.
const sqlBeginDecision = `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '30s'`

// listedColumns are the columns of an instance, as scanListed reads them.
const listedColumns = `scope, key, path, id, root, name, version, coalesce(parent, ''), status, reason, tries,
	started_at, updated_at, due_at, ended_at`

// sqlListInstances reads up to $15 instances behind another one, without a lock.
const sqlListInstances = `
SELECT {listed} FROM {schema}.saga
WHERE (scope, key, path) > ($1, $2, $3) AND {filter}
ORDER BY scope, key, path LIMIT $15`

// sqlPickInstances is sqlListInstances for a change of many: of the instances that began by $16, with what a decision
// needs to know. It leaves out a progress of more than $17 bytes.
const sqlPickInstances = `
SELECT {listed}, plan_hash, CASE WHEN length(progress) <= $17 THEN progress ELSE '' END,
	(extract(epoch FROM clock_timestamp() - started_at) * 1000)::bigint
FROM {schema}.saga
WHERE (scope, key, path) > ($1, $2, $3) AND {filter} AND started_at <= $16
ORDER BY scope, key, path LIMIT $15`

// sqlCheckPicked reads whether a locked instance is still one that sqlPickInstances would read.
const sqlCheckPicked = `
SELECT EXISTS (SELECT FROM {schema}.saga WHERE scope = $1 AND key = $2 AND path = $3 AND {filter})`

// sqlCountInstances counts the instances that sqlListInstances would read, at most $15 unless it is null.
const sqlCountInstances = `
SELECT count(*) FROM (
	SELECT FROM {schema}.saga
	WHERE (scope, key, path) > ($1, $2, $3) AND {filter}
	LIMIT $15) counted`

// sqlListScopesOfKey lists up to $2 scopes that have instances of the key $1: one look-up in the primary key leads from
// each scope to the next.
const sqlListScopesOfKey = `
WITH RECURSIVE other AS (
	(SELECT scope FROM {schema}.saga ORDER BY scope LIMIT 1)
	UNION ALL
	SELECT (SELECT s.scope FROM {schema}.saga s WHERE s.scope > other.scope ORDER BY s.scope LIMIT 1)
	FROM other WHERE other.scope IS NOT NULL)
SELECT scope FROM other WHERE scope IS NOT NULL AND EXISTS (SELECT FROM {schema}.saga s WHERE s.scope = other.scope AND s.key = $1) LIMIT $2`

// sqlFindID finds the instance with the id $1. There is no index on all ids. An id is a UUIDv7 of the moment at which the
// instance began, and most end soon: so the instances that ended between $2 and $3 are looked at first, then the live
// ones, and then those that took long, by the index saga_long_lived.
const sqlFindID = `
SELECT scope, key, path FROM (
	(SELECT scope, key, path FROM {schema}.saga WHERE ended_at >= $2 AND ended_at < $3 AND id = $1 LIMIT 1)
	UNION ALL
	(SELECT scope, key, path FROM {schema}.saga WHERE ended_at IS NULL AND status IN ('running', 'compensating', 'paused', 'stuck') AND id = $1 LIMIT 1)
	UNION ALL
	(SELECT scope, key, path FROM {schema}.saga WHERE ended_at - started_at > '10 minutes'::interval AND id = $1 LIMIT 1)) found
LIMIT 1`

// sqlKnowsName reports whether a saga with the name $1 is registered, or has live instances. An instance ends only after
// an orchestrator has registered its definition, and nothing removes definitions. So an unknown name has no instances.
const sqlKnowsName = `
SELECT EXISTS (SELECT FROM {schema}.saga_definition WHERE name = $1) OR EXISTS (SELECT FROM {schema}.saga WHERE name = $1 AND ended_at IS NULL)`

const filterInstances = `($4::text = '' OR name = $4) AND ($5::integer = 0 OR version = $5) AND ($6::text = '' OR status = $6)
	AND (NOT $7::boolean OR ended_at IS NULL) AND (cardinality($8::text[]) IS NULL OR scope = ANY ($8)) AND ($9::text = '' OR key = $9)
	AND ($10::bigint = 0 OR started_at <= coalesce($13, clock_timestamp()) - $10::bigint * interval '1 microsecond')
	AND ($11::bigint = 0 OR updated_at <= coalesce($13, clock_timestamp()) - $11::bigint * interval '1 microsecond')
	AND ($12::uuid IS NULL OR id = $12) AND ($13::timestamptz IS NULL OR updated_at <= $13)
	AND ($14::bigint = 0 OR ended_at > coalesce($13, now()) - $14::bigint * interval '1 microsecond')`

// sqlReadPace counts instances by the minute in which they began or ended, 0 for the current one. It reads the $2 that
// ended last within $1 minutes, by the index saga_ended_at. It also reads those live ones that can have begun in this time,
// by saga_live: an id says in milliseconds when its instance began, by a clock that may be wrong by $3 minutes. An instance
// that began in this time is among these or those, unless more than $2 ended. Ended instances are grouped once, because
// most of the time goes into their rows. The last row has the number of ended instances that were read, and the minute of
// the oldest of them.
const sqlReadPace = `
WITH moment AS MATERIALIZED (SELECT now, date_part('epoch', now) AS epoch FROM clock_timestamp() AS now),
first AS MATERIALIZED (
	SELECT (lpad(to_hex((extract(epoch FROM now - ($1::integer + $3::integer) * interval '1 minute') * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid AS id
	FROM moment),
ended AS MATERIALIZED (
	SELECT floor(((SELECT epoch FROM moment) - date_part('epoch', started_at)) / 60)::integer AS began,
		floor(((SELECT epoch FROM moment) - date_part('epoch', ended_at)) / 60)::integer AS ended, status, count(*) AS instances
	FROM (SELECT started_at, ended_at, status FROM {schema}.saga
		WHERE ended_at > (SELECT now FROM moment) - $1::integer * interval '1 minute' ORDER BY ended_at DESC LIMIT $2) newest
	GROUP BY 1, 2, 3),
ends AS (
	SELECT ended AS minute, sum(instances) FILTER (WHERE status = 'completed') AS completed,
		sum(instances) FILTER (WHERE status = 'compensated') AS compensated
	FROM ended GROUP BY minute),
starts AS (
	SELECT minute, sum(instances) AS started
	FROM (SELECT began AS minute, instances FROM ended
		UNION ALL
		SELECT floor(((SELECT epoch FROM moment) - date_part('epoch', started_at)) / 60)::integer, 1 FROM {schema}.saga
		WHERE ended_at IS NULL AND status IN ('running', 'compensating', 'paused', 'stuck') AND id >= (SELECT id FROM first)
			AND started_at > (SELECT now FROM moment) - $1::integer * interval '1 minute') begun
	GROUP BY minute)
SELECT minute, coalesce(started, 0)::bigint, coalesce(completed, 0)::bigint, coalesce(compensated, 0)::bigint
FROM starts FULL JOIN ends USING (minute) WHERE minute BETWEEN 0 AND $1 - 1
UNION ALL
SELECT -1, coalesce(sum(instances), 0)::bigint, coalesce(max(ended), 0), 0 FROM ended`

// sqlFindAddresses finds the instances of a key at path $2, or the outermost ones if $2 is empty. It searches
// scope $3, or every scope if $3 is empty: one look-up in the primary key leads from each scope to the next.
const sqlFindAddresses = `
WITH RECURSIVE other AS (
	(SELECT scope FROM {schema}.saga WHERE $3 = '' OR scope = $3 ORDER BY scope LIMIT 1)
	UNION ALL
	SELECT (SELECT s.scope FROM {schema}.saga AS s WHERE s.scope > other.scope AND $3 = '' ORDER BY s.scope LIMIT 1)
	FROM other WHERE other.scope IS NOT NULL)
SELECT s.scope, s.key, s.path FROM other JOIN {schema}.saga AS s USING (scope)
WHERE s.key = $1 AND CASE $2 WHEN '' THEN s.parent IS NULL ELSE s.path = $2 END
ORDER BY s.started_at DESC, s.scope, s.path LIMIT $4`

// sqlReadFamily reads an instance with those around it and nested in it.
const sqlReadFamily = `
SELECT {listed} FROM {schema}.saga WHERE scope = $1 AND key = $2 ORDER BY path`

// sqlReadPlan reads the plan of a definition as it was registered last.
const sqlReadPlan = `
SELECT plan FROM {schema}.saga_definition WHERE name = $1 AND version = $2 AND starts_with(hash, $3)`

// sqlReadWaits reads the progress of the instances at addresses, and the plan of each.
const sqlReadWaits = `
SELECT s.scope, s.key, s.path, s.progress, p.plan
FROM unnest($1::text[], $2::text[], $3::text[]) AS w (scope, key, path)
JOIN {schema}.saga AS s ON s.scope = w.scope AND s.key = w.key AND s.path = w.path
JOIN {schema}.saga_definition AS p ON p.name = s.name AND p.version = s.version AND starts_with(p.hash, s.plan_hash)
WHERE s.ended_at IS NULL AND length(s.progress) <= $4`

// sqlReadJournal reads the decisions about an instance.
const sqlReadJournal = `
SELECT id, at, verb, step, who, why FROM {schema}.saga_journal WHERE scope = $1 AND key = $2 AND path = $3 ORDER BY id`

// sqlReadClock reads the time.
const sqlReadClock = `SELECT clock_timestamp()`

// sqlDecideInstance stores a decision about a locked instance and makes it due unless $7 is false,
// so that an orchestrator carries it out. It does not change the state. The revision becomes
// null, which fails, if the instance has moved in spite of the lock.
const sqlDecideInstance = `
UPDATE {schema}.saga SET status = $4, reason = $5, progress = $6, tries = 0,
	revision = CASE WHEN revision = $9 THEN revision + 1 END,
	updated_at = clock_timestamp(), due_at = CASE WHEN $7 THEN clock_timestamp() END,
	ended_at = CASE WHEN $8 THEN clock_timestamp() END
WHERE scope = $1 AND key = $2 AND path = $3`

// sqlInsertJournal writes a decision to the journal.
const sqlInsertJournal = `
INSERT INTO {schema}.saga_journal (scope, key, path, verb, step, who, why) VALUES ($1, $2, $3, $4, $5, $6, $7)`

// instanceQueries are the statements of Instances for a schema.
type instanceQueries struct {
	list, count, findAddresses, readFamily      string
	pick, limitLocks, checkPicked               string
	readPlan, readJournal, readClock, readWaits string
	readPace                                    string
	listScopesOfKey, findID, knowsName          string
	readEnded                                   string
	decide, insertJournal                       string
}

func newInstanceQueries(schema string) instanceQueries {
	bind := func(sql string) string {
		return sqlschema.Bind(schema, strings.NewReplacer("{listed}", listedColumns, "{filter}", filterInstances).Replace(sql))
	}
	return instanceQueries{
		list: bind(sqlListInstances), count: bind(sqlCountInstances), findAddresses: bind(sqlFindAddresses), readFamily: bind(sqlReadFamily),
		pick: bind(sqlPickInstances), limitLocks: sqlLimitLocks, checkPicked: bind(sqlCheckPicked),
		readPlan: bind(sqlReadPlan), readWaits: bind(sqlReadWaits), readJournal: bind(sqlReadJournal), readClock: bind(sqlReadClock),
		readPace:        bind(sqlReadPace),
		listScopesOfKey: bind(sqlListScopesOfKey), findID: bind(sqlFindID), knowsName: bind(sqlKnowsName),
		readEnded: bind(sqlReadEnded),
		decide:    bind(sqlDecideInstance), insertJournal: bind(sqlInsertJournal),
	}
}
