package outbox

import (
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// leaves are the partitions of the table outbox. They are read by name: a statement on the whole
// would wait for a leaf that is being emptied.
var leaves = outboxsql.Leaves

// rotated is how many of them take turns: all but the catch-all.
const rotated = 3

// eachLeaf is a statement with a text for each leaf.
type eachLeaf [len(leaves)]string

// queries are all statements, with the schema bound.
type queries struct {
	insertValues                  [maxValues]string // by number of messages, less one
	insertMessages, insertDelayed string

	lockRelay, takeLease, beginTenure, renewLease, releaseLease, readSystem string
	readCursor, unlimited, restampMessages, stampSystem                     string
	checkpoint, truncateCursor                                              [2]string
	fence                                                                   string

	planByIndex, asynchronous, lockSoon string
	listDifference, readTenure          string
	readNew, readDifference             string
	fetchMessages                       eachLeaf
	currentLeaf, nextLeaf               string
	lockLeaf, truncateLeaf, judgeLeaf   eachLeaf

	lookForHeld, moveDelayed, listRetries, fetchHeld, deleteHeld, refuseHeld string
	holdMessages                                                             eachLeaf
	promote, promotePage                                                     string
	deferHeld, fetchProbe, makeTopicDue                                      string

	countDifference, countHeld, readRelay, leafSizes, oldestWriter string
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

		planByIndex: outboxsql.PlanByIndex, asynchronous: sqlAsynchronous, lockSoon: sqlLockSoon,
		listDifference: bind(outboxsql.UnionOfLeaves(sqlListDifference, sqlListLeaf)), fetchMessages: each(sqlFetchMessages),
		readTenure: bind(sqlReadTenure), currentLeaf: bind(sqlCurrentLeaf), nextLeaf: bind(sqlNextLeaf),
		readNew:        bind(outboxsql.UnionOfLeaves(sqlReadDifference, sqlReadLeaf)),
		readDifference: bind(outboxsql.UnionOfLeaves(sqlReadDifference, sqlReadLeafBesides)),
		lockLeaf:       each(sqlLockLeaf), truncateLeaf: each(sqlTruncateLeaf), judgeLeaf: each(sqlJudgeLeaf),

		lookForHeld: bind(sqlLookForHeld), moveDelayed: bind(sqlMoveDelayed), listRetries: bind(sqlListRetries), fetchHeld: bind(sqlFetchHeld),
		deleteHeld: bind(sqlDeleteHeld), refuseHeld: bind(sqlRefuseHeld), holdMessages: each(sqlHoldMessages),
		promote: bind(outboxsql.Promote), promotePage: bind(sqlPromotePage),
		deferHeld: bind(sqlDeferHeld), fetchProbe: bind(sqlFetchProbe), makeTopicDue: bind(sqlMakeTopicDue),

		countDifference: bind(outboxsql.UnionOfLeaves(sqlCountDifference, sqlCountLeaf)), countHeld: bind(sqlCountHeld),
		readRelay: bind(sqlReadRelay), leafSizes: bind(sqlLeafSizes), oldestWriter: sqlOldestWriter,
	}
	for i := range q.insertValues {
		q.insertValues[i] = bind(strings.ReplaceAll(sqlInsertValues, "{rows}", numberValueRows(i+1)))
	}
	for i := range q.checkpoint {
		cursor := "outbox_cursor_" + strconv.Itoa(i)
		q.checkpoint[i] = bind(strings.ReplaceAll(sqlCheckpoint, "{cursor}", cursor))
		q.truncateCursor[i] = bind(strings.ReplaceAll(sqlTruncateCursor, "{cursor}", cursor))
	}
	return q
}
