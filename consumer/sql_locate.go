package consumer

import (
	"strings"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// sqlScopes are the scope $1 or, if that is empty, all that {table} has: from each
// to the next is one look into its index, which begins with the scope. An index on
// the key alone would be one more to write for every step.
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

// sqlLocateMoment reads when this is, how far the inbox was swept by then, and
// whether the statements behind it see the same as this one.
const sqlLocateMoment = `
SELECT clock_timestamp(), nullif(swept_before, '-infinity'), current_setting('transaction_isolation')
FROM {schema}.inbox_horizon`

type locateQueries struct {
	moment, steps, parked string
}

func newLocateQueries(schema string) locateQueries {
	bind := func(table, statement string) string {
		letter := strings.NewReplacer("{payload}", "NULL::bytea", "{stack}", "''").Replace(sqlLetter)
		return sqlschema.Bind(schema, strings.NewReplacer("{table}", table, "{letter}", letter).Replace(statement))
	}
	return locateQueries{moment: bind("", sqlLocateMoment), steps: bind("inbox", sqlLocateSteps), parked: bind("parked", sqlLocateParked)}
}
