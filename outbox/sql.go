package outbox

import (
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// sqlInsertMessages stores a batch in the caller's transaction. It takes no
// lock that another writer could wait for. The ORDER BY makes the ids rise in
// the order of the batch.
const sqlInsertMessages = `
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload)
SELECT message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
	$9::text[], $10::text[], $11::text[], $12::json[], $13::bytea[])
	WITH ORDINALITY AS m (message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, headers, payload, position)
ORDER BY position`

// sqlInsertValues is the same for a few messages, as rows of a VALUES list,
// which PostgreSQL inserts in the order written.
const sqlInsertValues = `
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload)
VALUES {rows}`

// maxValues is up to how many messages go into a VALUES list, and messageColumns
// how many values each has there.
const (
	maxValues      = 4
	messageColumns = 13
)

// sqlInsertDelayed stores messages that are due later. The database's clock
// decides when that is; $14 is in microseconds.
const sqlInsertDelayed = `
INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, state, due_at)
SELECT nextval(pg_get_serial_sequence('{schema}.outbox', 'id')), message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload,
	'delayed', clock_timestamp() + delay * interval '1 microsecond'
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
	$9::text[], $10::text[], $11::text[], $12::json[], $13::bytea[], $14::bigint[])
	AS m (message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, headers, payload, delay)`

// leaves are the tables that outbox consists of. They are read by name: a
// statement on the whole would wait for a leaf that is being emptied.
var leaves = [...]string{"outbox_0", "outbox_1", "outbox_2", "outbox_other"}

// rotated is how many of them take turns: all but the catch-all.
const rotated = 3

// eachLeaf is a statement in a form of its own for each leaf.
type eachLeaf [len(leaves)]string

type queries struct {
	insertValues                  [maxValues]string // by number of messages, less one
	insertMessages, insertDelayed string

	lockRelay, takeLease, beginTenure, renewLease, releaseLease, readSystem string
	readCursor, unlimited, restampMessages, stampSystem                     string
	checkpoint, truncateCursor                                              [2]string
	fence                                                                   string

	planByIndex, asynchronous, lockSoon string
	listDifference                      string
	fetchMessages                       eachLeaf
	currentLeaf, nextLeaf               string
	lockLeaf, truncateLeaf, judgeLeaf   eachLeaf

	moveDelayed, listRetries, fetchHeld, deleteHeld, refuseHeld string
	holdMessages                                                eachLeaf
	promote, promotePage                                        string
	deferHeld, fetchProbe, makeTopicDue                         string

	countDifference, countHeld, readRelay, leafSizes, oldestWriter string
	readClock, countDead, listDead, redrive, discard               string
	lockLease, listRefused, release, readLetter                    string
	listKept, countKept, copyKept, readKept                        string
	locate, locateUnpublished, pin                                 string
	insertJournal, listJournal                                     string
}

func newQueries(schema string) queries {
	bind := func(statement string) string { return sqlschema.Bind(schema, statement) }
	each := func(statement string) (all eachLeaf) {
		for i, leaf := range leaves {
			all[i] = bind(strings.ReplaceAll(statement, "{leaf}", leaf))
		}
		return all
	}
	q := queries{
		insertMessages: bind(sqlInsertMessages), insertDelayed: bind(sqlInsertDelayed),

		lockRelay: bind(sqlLockRelay), takeLease: bind(sqlTakeLease), beginTenure: bind(sqlBeginTenure), renewLease: bind(sqlRenewLease), releaseLease: bind(sqlReleaseLease),
		readSystem: sqlReadSystem, readCursor: bind(sqlReadCursor), unlimited: sqlUnlimited, restampMessages: bind(sqlRestampMessages), stampSystem: bind(sqlStampSystem),
		fence: bind(sqlFence),

		planByIndex: sqlPlanByIndex, asynchronous: sqlAsynchronous, lockSoon: sqlLockSoon,
		listDifference: bind(unionOfLeaves(sqlListDifference, sqlListLeaf)), fetchMessages: each(sqlFetchMessages),
		currentLeaf: bind(sqlCurrentLeaf), nextLeaf: bind(sqlNextLeaf),
		lockLeaf: each(sqlLockLeaf), truncateLeaf: each(sqlTruncateLeaf), judgeLeaf: each(sqlJudgeLeaf),

		moveDelayed: bind(sqlMoveDelayed), listRetries: bind(sqlListRetries), fetchHeld: bind(sqlFetchHeld),
		deleteHeld: bind(sqlDeleteHeld), refuseHeld: bind(sqlRefuseHeld), holdMessages: each(sqlHoldMessages),
		promote: bind(sqlPromote), promotePage: bind(sqlPromotePage),
		deferHeld: bind(sqlDeferHeld), fetchProbe: bind(sqlFetchProbe), makeTopicDue: bind(sqlMakeTopicDue),

		countDifference: bind(unionOfLeaves(sqlCountDifference, sqlCountLeaf)), countHeld: bind(sqlCountHeld),
		readRelay: bind(sqlReadRelay), leafSizes: bind(sqlLeafSizes), oldestWriter: sqlOldestWriter,
		readClock: sqlReadClock, readLetter: bind(ofLetters("("+sqlDead+" OR "+sqlRefused+")", sqlReadLetter)), lockLease: bind(sqlLockLease),
		countDead: bind(ofLetters(sqlDead, sqlCountLetters)), listDead: bind(ofLetters(sqlDead, sqlListLetters)), listRefused: bind(ofLetters(sqlRefused, sqlListLetters)),
		redrive: bind(ofLetters(sqlDead, sqlRedrive)), discard: bind(ofLetters(sqlDead, sqlDiscard)), release: bind(ofLetters(sqlRefused, sqlRelease)),
		listKept: bind(strings.ReplaceAll(sqlListKept, "{kept}", sqlKept)), countKept: bind(strings.ReplaceAll(sqlCountKept, "{kept}", sqlKept)), copyKept: bind(sqlCopyKept), readKept: bind(sqlReadKept),
		locate: bind(located("true", sqlLocateLeaf)), locateUnpublished: bind(located("false", sqlLocateUnpublishedLeaf)), pin: bind(sqlPin),
		insertJournal: bind(journal.SQLInsert), listJournal: bind(sqlListJournal),
	}
	for i := range q.insertValues {
		q.insertValues[i] = bind(strings.ReplaceAll(sqlInsertValues, "{rows}", valueRows(i+1)))
	}
	for i := range q.checkpoint {
		cursor := "outbox_cursor_" + strconv.Itoa(i)
		q.checkpoint[i] = bind(strings.ReplaceAll(sqlCheckpoint, "{cursor}", cursor))
		q.truncateCursor[i] = bind(strings.ReplaceAll(sqlTruncateCursor, "{cursor}", cursor))
	}
	return q
}

// valueRows returns n rows of parameters, numbered through.
func valueRows(n int) string {
	rows := make([]string, n)
	for i := range rows {
		columns := make([]string, messageColumns)
		for j := range columns {
			columns[j] = "$" + strconv.Itoa(i*messageColumns+j+1)
		}
		rows[i] = "(" + strings.Join(columns, ", ") + ")"
	}
	return strings.Join(rows, ", ")
}

// unionOfLeaves puts one select for each leaf into the place of {leaves} in
// statement. In it, {leaf} is the leaf's table and {i} its number.
func unionOfLeaves(statement, selection string) string {
	selections := make([]string, len(leaves))
	for i, leaf := range leaves {
		selections[i] = strings.NewReplacer("{leaf}", leaf, "{i}", strconv.Itoa(i)).Replace(selection)
	}
	return strings.ReplaceAll(statement, "{leaves}", strings.Join(selections, "\nUNION ALL"))
}
