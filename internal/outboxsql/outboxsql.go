// Package outboxsql has the SQL on the tables of the outbox that both the relay and an
// operator execute.
package outboxsql

import (
	"strconv"
	"strings"
)

// Leaves are the tables that outbox consists of. Statements name each one: a statement on
// the whole would wait for a leaf that is being emptied.
var Leaves = [...]string{"outbox_0", "outbox_1", "outbox_2", "outbox_other"}

// UnionOfLeaves replaces {leaves} in statement by one selection for each leaf. In selection,
// {leaf} is the table of the leaf and {i} its number.
func UnionOfLeaves(statement, selection string) string {
	selections := make([]string, len(Leaves))
	for i, leaf := range Leaves {
		selections[i] = strings.NewReplacer("{leaf}", leaf, "{i}", strconv.Itoa(i)).Replace(selection)
	}
	return strings.ReplaceAll(statement, "{leaves}", strings.Join(selections, "\nUNION ALL"))
}

// Begin begins a transaction in which each statement sees what has committed by then,
// whatever the default of the database is: a row that is read under a lock must not be older
// than the lock. The limit for an idle transaction in milliseconds follows: a process that
// hangs in the transaction loses its session, and with it its locks.
const Begin = `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = `

// PlanByIndex settles how the following statements of the transaction are planned. A leaf is
// empty one minute and full the next, so that statistics mislead: a sequential scan would
// read all that is published already.
const PlanByIndex = `
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true)`

// PlanBySearch settles that the following statements of the transaction find messages by key or id with the index
// outbox_search. PostgreSQL 15 expects that a bloom filter of a column in random order excludes nothing, and would read the
// whole log.
const PlanBySearch = `
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_indexscan', 'off', true), set_config('enable_bitmapscan', 'on', true),
	set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true),
	set_config('plan_cache_mode', 'force_custom_plan', true)`

// LogSettings are for a session that reads the log and does nothing else: those of PlanByIndex, and that of pg.Own.
var LogSettings = map[string]string{
	"row_security":   "off",
	"enable_seqscan": "off", "enable_bitmapscan": "off", "max_parallel_workers_per_gather": "0", "jit": "off", "plan_cache_mode": "force_generic_plan",
}

// Retried is the condition of refused and waiting messages in a statement that finds them by id. With
// `state IN ('refused', 'waiting')`, a plan that was made while the table was empty may read the whole index of
// ordering keys, which has this condition.
const Retried = `state <> 'dead' AND state <> 'delayed'`

// RetriedOfKey selects the first refused and waiting messages of an ordering key, up to limit. Later messages of the
// key wait behind the first one. The key is searched as a range, because only the index of ordering keys has the order
// of a range. With `ordering_key = key ORDER BY id`, a plan that was made while the table was empty may walk the
// primary key instead: past all held messages, for each key.
func RetriedOfKey(key, limit string) string {
	return RetriedOfKeys("BETWEEN "+key+" AND "+key, limit)
}

// RetriedOfKeys selects the first refused and waiting messages of a range of ordering keys such as `> $1`, up to
// limit.
func RetriedOfKeys(keys, limit string) string {
	return `
	SELECT ordering_key, id, state, due_at, topic, scope, key, step, n, attempts, reason FROM {schema}.outbox_held
	WHERE state IN ('refused', 'waiting') AND ordering_key ` + keys + ` ORDER BY ordering_key, id LIMIT ` + limit
}

// Promote makes the first waiting message of each key in $1 due, and returns the keys
// without a message that holds back later ones. It skips a message that a person has locked.
var Promote = promoteHead + PromoteFirst + promoteTail

// PromoteLocked is Promote for an operator, who waits for a locked message: the relay locks messages for a moment
// while it reads them, and would find a skipped one a minute later. It waits for none itself. The operator limits the wait, because the relay
// waits for the operator's transaction.
var PromoteLocked = promoteHead + promoteFirst + `))` + promoteTail

var promoteHead = `
WITH keys AS (SELECT DISTINCT key FROM unnest($1::text[]) u (key)),
first AS (SELECT k.key, f.id, f.state, f.due_at
	FROM keys k LEFT JOIN LATERAL (` + RetriedOfKey("k.key", "1") + `) f ON true),
promoted AS (`

const (
	promoteTail = `)
SELECT key FROM first WHERE id IS NULL`
	promoteFirst = `
	UPDATE {schema}.outbox_held SET due_at = clock_timestamp()
	WHERE id = ANY (ARRAY(
		SELECT id FROM {schema}.outbox_held
		WHERE id = ANY (ARRAY(SELECT id FROM first WHERE state = 'waiting' AND due_at = 'infinity'))
			AND state <> 'refused' AND ` + Retried + ` AND due_at = 'infinity'
		FOR UPDATE`
)

// PromoteFirst makes those messages of first due that wait behind no other.
const PromoteFirst = promoteFirst + ` SKIP LOCKED))`
