package operator

import (
	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/keysql"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// keyColumns are the columns that scanKey reads. Each needs a grant of PREFIX_operator.
const keyColumns = `namespace, scope, key, state, attempt, token::text, created_at, lease_until, expires_at = 'infinity', clock_timestamp()`

// sqlListKeys lists the first $6 unknown outcomes behind namespace $1, scope $2 and key $3: those of namespace $4 and of
// scope $5, where these are not empty. The index idempotency_key_unknown has them in this order.
const sqlListKeys = `
SELECT ` + keyColumns + ` FROM {schema}.idempotency_key
WHERE (namespace, scope, key) > ($1, $2, $3) AND ` + keysql.IsUnknown + ` AND ($4::text = '' OR namespace = $4) AND ($5::text = '' OR scope = $5)
ORDER BY namespace, scope, key LIMIT $6`

// sqlListOpenKeys lists the first $4 keys of the same index, those whose owner lives too. A digest is looked for in it.
const sqlListOpenKeys = `
SELECT ` + keyColumns + ` FROM {schema}.idempotency_key
WHERE (namespace, scope, key) > ($1, $2, $3) AND expires_at = 'infinity'
ORDER BY namespace, scope, key LIMIT $4`

// sqlFindKeys finds up to $4 records of the key $3, in whichever state.
const sqlFindKeys = sqlPairs + `
SELECT r.* FROM pairs p CROSS JOIN LATERAL (
	SELECT ` + keyColumns + ` FROM {schema}.idempotency_key k
	WHERE k.namespace = p.namespace AND k.scope = p.scope AND k.key = $3) r
LIMIT $4`

// sqlReadKey reads a record after keysql.Settle has not changed it, to say why.
const sqlReadKey = `
SELECT ` + keyColumns + ` FROM {schema}.idempotency_key WHERE namespace = $1 AND scope = $2 AND key = $3`

// keyQueries are the statements of Keys for a schema.
type keyQueries struct {
	list, listOpen, find, read, settle, insertJournal string
}

func newKeyQueries(schema string) keyQueries {
	bind := func(statement string) string { return sqlschema.Bind(schema, statement) }
	return keyQueries{
		list: bind(sqlListKeys), listOpen: bind(sqlListOpenKeys), find: bind(sqlFindKeys), read: bind(sqlReadKey),
		settle: bind(keysql.Settle), insertJournal: bind(journal.SQLInsert),
	}
}
