package outbox

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/guard"
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
	checkpoint, lateCheckpoint, truncateCursor                              [2]string
	fence                                                                   string

	planByIndex, asynchronous, lockSoon string
	listDifference, readTenure          string
	readNew, readDifference             string
	fetchMessages                       eachLeaf
	currentLeaf, nextLeaf               string
	lockLeaf, truncateLeaf, judgeLeaf   eachLeaf

	lookForHeld, moveDelayed, listRetries, fetchHeld, deleteHeld, refuseHeld string
	holdMessages                                                             string
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
		deleteHeld: bind(sqlDeleteHeld), refuseHeld: bind(sqlRefuseHeld), holdMessages: bind(outboxsql.UnionOfLeaves(sqlHoldMessages, sqlHoldLeaf)),
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
		q.checkpoint[i] = bind(strings.NewReplacer("{cursor}", cursor, "{commit}", "").Replace(sqlCheckpoint))
		q.lateCheckpoint[i] = bind(strings.NewReplacer("{cursor}", cursor, "{commit}", "\nFROM "+sqlCommitLate).Replace(sqlCheckpoint))
		q.truncateCursor[i] = bind(strings.ReplaceAll(sqlTruncateCursor, "{cursor}", cursor))
	}
	return q
}

// errNoSettings reports that a session has lost the settings with which it was opened.
var errNoSettings = errors.New("outbox: a pooler has dropped the settings of the session")

// openLogPool opens a pool of one connection, whose session has the settings of outboxsql.PlanByIndex. A read of the log
// then needs no statement for them. They are startup parameters, so that a pooler cannot give them to another client: it
// refuses or drops them. Without them, or with the option NoListen, openLogPool returns nil.
func (s *core) openLogPool(ctx context.Context) *pgxpool.Pool {
	if s.opts.NoListen {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.Lease/looksPerLease)
	defer cancel()
	var pool *pgxpool.Pool
	err := guard.Call(func() (err error) { // a hook of the pool may panic
		if pool, err = pgxpool.NewWithConfig(ctx, logPoolConfig(s.db.Pool().Config())); err == nil {
			err = pool.Ping(ctx)
		}
		return err
	})
	if err != nil {
		s.opts.Logger.DebugContext(ctx, "outbox: the log is read through the pool of the service", "schema", s.opts.Schema, "error", err)
		if pool != nil {
			pool.Close()
		}
		return nil
	}
	return pool
}

// logPoolConfig makes config, that of the service's pool, the one of openLogPool.
func logPoolConfig(config *pgxpool.Config) *pgxpool.Config {
	config.MaxConns, config.MinConns, config.MinIdleConns = 1, 0, 0
	for name, value := range outboxsql.LogSettings {
		config.ConnConfig.RuntimeParams[name] = value
	}
	hook := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if hook != nil {
			if err := hook(ctx, conn); err != nil {
				return err
			}
		}
		var names, values []string
		for name, value := range outboxsql.LogSettings {
			names, values = append(names, name), append(values, value)
		}
		var has bool
		if err := conn.QueryRow(ctx, sqlHasSettings, names, values).Scan(&has); err != nil || has {
			return err
		}
		return errNoSettings
	}
	return config
}

// sqlHasSettings reports whether the session has the settings $1 with the values $2.
const sqlHasSettings = `
SELECT bool_and(current_setting(name) = value) FROM unnest($1::text[], $2::text[]) u (name, value)`

// A row is a stored or a held message.
type row struct {
	ID                                            int64
	MessageID                                     uuid.UUID
	Topic, Type, Scope, Key, Step, N, OrderingKey string
	CorrelationID, CausationID, ContentType       string
	Headers                                       []byte
	Payload                                       []byte
	CreatedAt                                     time.Time
	Attempts                                      int // refusals so far

	leaf   int   // the leaf of the log where it is stored
	behind int64 // the held message of its ordering key when it was read from the log; 0: none
	held   bool  // it is in outbox_held
}

// memory returns about how many bytes of memory m takes.
func (m *row) memory() int { return len(m.Payload) + len(m.Headers) + messageOverhead }

// scanColumns reads the columns that every statement on messages returns, and then those of more.
func (m *row) scanColumns(rows pgx.Rows, more ...any) error {
	return rows.Scan(append([]any{&m.ID, &m.MessageID, &m.Topic, &m.Type, &m.Scope, &m.Key, &m.Step, &m.N, &m.OrderingKey,
		&m.CorrelationID, &m.CausationID, &m.ContentType, &m.Headers, &m.Payload, &m.CreatedAt, &m.Attempts}, more...)...)
}

// scanLogged is scanColumns for a row of the log, which leaves out derived columns.
func (m *row) scanLogged(rows pgx.Rows, more ...any) error {
	if err := m.scanColumns(rows, more...); err != nil {
		return err
	}
	c := outboxsql.Expand(outboxsql.Columns{
		ID: m.MessageID.String(), Topic: m.Topic, Scope: m.Scope, Key: m.Key, Causation: m.CausationID,
		Type: m.Type, Correlation: m.CorrelationID, ContentType: m.ContentType, OrderingKey: m.OrderingKey,
	})
	m.Type, m.CorrelationID, m.ContentType, m.OrderingKey = c.Type, c.Correlation, c.ContentType, c.OrderingKey
	return nil
}

// scanHeldRow reads a message that a statement on held messages returns.
func scanHeldRow(m *row, found pgx.Rows) error { return m.scanColumns(found) }
