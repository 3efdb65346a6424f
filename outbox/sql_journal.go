package outbox

// sqlListJournal lists what operators have done, the newest first: at most $3, since $1
// and below the id $2.
const sqlListJournal = `
SELECT id, at, who, db_user, verb, what, ids, why FROM {schema}.operator_journal
WHERE ($1::timestamptz IS NULL OR at >= $1) AND ($2::bigint = 0 OR id < $2)
ORDER BY id DESC LIMIT $3`
