package consumer

import (
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// sqlPlanSweep reads before when a row must have been moved last ($1 in
// microseconds ago) to be removed, where the inbox ends, and its horizon.
const sqlPlanSweep = `
SELECT clock_timestamp() - $1 * interval '1 microsecond',
	pg_relation_size('{schema}.inbox') / current_setting('block_size')::bigint,
	nullif(swept_before, '-infinity')
FROM {schema}.inbox_horizon`

// sqlRemovable is the condition on a row i that nobody is going to move again,
// redeliveries aside. A row with a parked message stays as long as that does. The
// scalar subquery, other than NOT EXISTS, cannot become a join that reads all of
// parked for every few blocks.
const sqlRemovable = `i.state NOT IN ('retrying', 'undoing') AND (
	SELECT p.id FROM {schema}.parked AS p
	WHERE p.scope = i.scope AND p.key = i.key AND p.step = i.step AND p.n = i.n LIMIT 1) IS NULL`

// sqlFindOld looks through the blocks from $1 to $2 for rows that were moved last
// before $3. It reads when the last of them was moved, null if there is none to
// remove, and when the first of the others. It takes no lock.
const sqlFindOld = `
SELECT max(i.updated_at) FILTER (WHERE i.updated_at < $3 AND ` + sqlRemovable + `),
	min(i.updated_at) FILTER (WHERE i.updated_at >= $3)
FROM {schema}.inbox AS i
WHERE i.ctid >= $1::tid AND i.ctid < $2::tid`

// sqlRaiseHorizon raises the horizon to $1 and never lowers it: of two at once the
// second compares with what the first has committed. The caller commits it before it
// removes anything.
const sqlRaiseHorizon = `
UPDATE {schema}.inbox_horizon
SET swept_before = $1
WHERE swept_before < $1`

// sqlRemoveOld removes rows from the blocks from $1 to $2 that were moved last
// before $3 and, whatever the caller believes, $4 microseconds before the horizon
// that is committed. Rows that a consumer or another sweeper holds are passed
// over; one that was moved meanwhile is no longer old.
const sqlRemoveOld = `
WITH old AS MATERIALIZED (
	SELECT i.ctid FROM {schema}.inbox AS i
	WHERE i.ctid >= $1::tid AND i.ctid < $2::tid AND i.updated_at < $3
		AND i.updated_at <= (SELECT swept_before - $4 * interval '1 microsecond' FROM {schema}.inbox_horizon)
		AND ` + sqlRemovable + `
	FOR UPDATE OF i SKIP LOCKED)
DELETE FROM {schema}.inbox WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))`

// sqlHasTooOld reports, under the step's row lock, whether the message is a dead
// letter already, or one that was redriven.
const sqlHasTooOld = `
SELECT EXISTS (
	SELECT FROM {schema}.parked
	WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND kind = $5 AND reason = $6 AND payload = $7)`

type retentionQueries struct {
	readHorizon, hasTooOld                      string
	planSweep, findOld, raiseHorizon, removeOld string
}

func newRetentionQueries(schema string) retentionQueries {
	bind := func(statement string) string { return sqlschema.Bind(schema, statement) }
	return retentionQueries{
		readHorizon: bind(inbox.SQLReadHorizon), hasTooOld: bind(sqlHasTooOld),
		planSweep: bind(sqlPlanSweep), findOld: bind(sqlFindOld), raiseHorizon: bind(sqlRaiseHorizon), removeOld: bind(sqlRemoveOld),
	}
}
