package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/pg"
)

const (
	// maxPage is how many messages are read at once, and maxPageBytes how many bytes of
	// memory they take, give or take a message and their headers.
	maxPage      = 512
	maxPageBytes = 32 << 20

	// maxList is how many messages of a difference are listed at once. Each costs some 50
	// bytes of memory here. A list costs the server one walk over the whole backlog.
	maxList = 250_000
)

// A logReader reads the log from a cursor on, difference by difference. A difference is what
// one snapshot shows and the one before did not. It is listed, and then read page by page in
// the order of the ids. So a transaction that commits late delays its own messages only, and
// none of them is skipped. A reader that remembers the largest id would skip them.
type logReader struct {
	*core
	own   *pgxpool.Pool // one connection that plans by index, see openLogPool; nil: the service's pool is used
	epoch int64         // after a crash of the server the tenure is over, and the cursor means nothing

	position

	readAt  time.Time // no read before
	backlog bool      // the last read was a full one, or did not reach the end
}

// A position says how far the log is read.
type position struct {
	at        cursor  // behind what has been read
	list      []entry // of the difference from at, what is not read yet
	more      bool    // the difference goes on behind list
	listFirst bool    // the last read did not take its whole difference: list what follows before reading it
}

// smallDifference is how many messages are read without a list. More are listed first, and then read in pages.
const smallDifference = 32

// A message with more than largePayload bytes of payload is listed before it is read. A read without a list takes none
// of them, so that it needs at most smallDifference times largePayload bytes.
const largePayload = 256 << 10

// An entry is a listed message.
type entry struct {
	leaf int
	id   int64
	size int // bytes of payload
}

// newReadBatch returns a batch for a read of the log.
func (l *logReader) newReadBatch() *pgx.Batch {
	batch := &pgx.Batch{}
	if l.own == nil {
		batch.Queue(l.sql.planByIndex)
	}
	return batch
}

// sendBatch sends a batch that newReadBatch has begun. If there is no connection for it, the next one uses the service's
// pool.
func (l *logReader) sendBatch(ctx context.Context, batch *pgx.Batch) error {
	if l.own == nil {
		return l.db.Send(ctx, batch)
	}
	err := l.own.SendBatch(ctx, batch).Close()
	var unconnected *pgconn.ConnectError
	var failure *pgconn.PgError
	if err != nil && (errors.As(err, &unconnected) || !errors.As(err, &failure) || pg.IsOfSession(err)) {
		l.closeOwn()
	}
	return err
}

// closePatience is how long closeOwn waits. A pool waits 15 s for the server to notice that a connection is closed on
// which a statement was cancelled.
const closePatience = time.Second

// closeOwn closes the connection of the log, if there is one. If the server does not answer, it is closed in the
// background: neither a stop nor the next tenure waits for that.
func (l *logReader) closeOwn() {
	if l.own == nil {
		return
	}
	closed := make(chan struct{})
	go func(own *pgxpool.Pool) {
		defer close(closed)
		own.Close()
	}(l.own)
	l.own = nil
	select {
	case <-closed:
	case <-time.After(closePatience):
	}
}

// readPage returns the next messages, up to limit and up to so many bytes of memory, but at
// least one, and the cursor behind them. After an error it can be called again. Its statements go
// behind those of batch, which newReadBatch has made, in one transaction.
func (l *logReader) readPage(ctx context.Context, batch *pgx.Batch, limit, bytes int) ([]row, cursor, error) {
	rows, behind, err := l.readNext(ctx, batch, limit, bytes)
	if err == nil && len(rows) > 0 {
		err = failpoint.Hit("outbox/after-read")
	}
	if err != nil {
		return nil, l.at, err
	}
	l.position = behind
	return rows, l.at, nil
}

// readNext reads the next messages and returns the position behind them. It does not move l there.
func (l *logReader) readNext(ctx context.Context, batch *pgx.Batch, limit, bytes int) (rows []row, behind position, err error) {
	if l.isCaughtUp() && !l.listFirst && limit >= l.limits.small {
		return l.readSmallDifference(ctx, batch, bytes)
	}
	if len(l.list) == 0 {
		if err := l.listDifference(ctx, batch); err != nil {
			return nil, l.position, err
		}
		batch = l.newReadBatch()
	}
	behind = l.position
	if len(l.list) == 0 {
		return nil, behind, nil
	}
	n := countFitting(l.list, limit, bytes)
	rows, err = l.fetchMessages(ctx, batch, l.list[:n])
	behind.at.last = l.list[n-1].id
	behind.list = l.list[n:]
	if len(behind.list) == 0 && !behind.more {
		behind.at = behind.at.behindDifference()
	}
	return rows, behind, err
}

// isCaughtUp reports whether the difference is read to its end.
func (l *logReader) isCaughtUp() bool { return l.at.to == nil && len(l.list) == 0 }

// countFitting returns how many of list make a page of at most limit messages that take so many bytes of memory,
// without their headers. The page ends between two ids, since the next one begins behind its last id: ids of the log may
// come twice (see [pg.IDSequence]).
func countFitting(list []entry, limit, bytes int) int {
	n, sum := 0, 0
	for n < min(len(list), limit) {
		if sum += list[n].size + messageOverhead; n > 0 && sum > bytes {
			break
		}
		n++
	}
	for n > 0 && n < len(list) && list[n].id == list[n-1].id {
		n++
	}
	return n
}

// readSmallDifference reads the first messages of the difference from at, without listing them. It keeps those before
// the first large payload, up to so many bytes of memory. If there are more, the next call of readNext lists the rest.
func (l *logReader) readSmallDifference(ctx context.Context, batch *pgx.Batch, bytes int) (rows []row, behind position, err error) {
	var now string
	found, room := 0, bytes
	var next int64 // the first that is not kept
	read := func(result pgx.Rows) error {
		defer result.Close()
		for result.Next() {
			if raw := result.RawValues(); raw[0] == nil { // a row without a message has the snapshot alone
				now = string(raw[len(raw)-2])
				continue
			}
			var m row
			if err := m.scanLogged(result, &m.behind, &now, &m.leaf); err != nil {
				return err
			}
			room -= m.memory()
			switch {
			case len(rows) < found:
			case m.Payload != nil && found < l.limits.small && (found == 0 || room >= 0):
				rows = append(rows, m)
			default:
				next = m.ID
			}
			found++
		}
		return result.Err()
	}
	if from := l.at.from; len(from.xip) == 0 {
		batch.Queue(l.sql.readNew, from.xmaxText(), l.limits.small+1, l.limits.large, l.epoch).Query(read)
	} else {
		batch.Queue(l.sql.readDifference, from.xmaxText(), l.limits.small+1, l.limits.large, l.epoch, from.xip).Query(read)
	}
	if err := l.sendBatch(ctx, batch); err != nil {
		return nil, behind, fmt.Errorf("read messages: %w", err)
	}
	if now == "" {
		return nil, behind, errOvertaken
	}
	behind.listFirst = len(rows) < found
	for len(rows) > 0 && rows[len(rows)-1].ID == next { // as in countFitting
		rows = rows[:len(rows)-1]
	}
	to, err := parseSnapshot(now)
	behind.at = cursor{from: l.at.from, to: &to}
	switch {
	case !behind.listFirst:
		behind.at = behind.at.behindDifference()
	case len(rows) > 0:
		behind.at.last = rows[len(rows)-1].ID
	}
	behind.more = behind.listFirst
	return rows, behind, err
}

// listDifference lists the difference from at. If it is empty, at moves on.
func (l *logReader) listDifference(ctx context.Context, batch *pgx.Batch) error {
	var now string
	var list []entry
	after := l.at
	batch.Queue(l.sql.listDifference, after.from.xmaxText(), after.from.xip, after.last, after.toText(), l.limits.list+1, l.epoch).Query(func(rows pgx.Rows) error {
		var leaf, size *int
		var id *int64
		_, err := pgx.ForEachRow(rows, []any{&now, &leaf, &id, &size}, func() error {
			if id != nil {
				list = append(list, entry{*leaf, *id, *size})
			}
			return nil
		})
		return err
	})
	if err := l.sendBatch(ctx, batch); err != nil {
		return fmt.Errorf("list messages: %w", err)
	}
	if now == "" {
		return errOvertaken
	}
	to := l.at.to
	if to == nil {
		s, err := parseSnapshot(now)
		if err != nil {
			return err
		}
		to = &s
	}
	if len(list) == 0 {
		l.at.to = to
		l.position = position{at: l.at.behindDifference()}
		return nil
	}
	l.listFirst = after.to != nil || len(list) >= l.limits.small
	l.at.to, l.list, l.more = to, list, len(list) > l.limits.list
	for l.more && l.list[len(l.list)-1].id == list[l.limits.list].id { // as in countFitting
		if l.list = l.list[:len(l.list)-1]; len(l.list) == 0 {
			return fmt.Errorf("list messages: more than %d have the id %d", l.limits.list, list[0].id)
		}
	}
	return nil
}

// fetchMessages reads the messages of list. A message that is gone was removed by an operator,
// who did not want it published. If the tenure ends meanwhile, nothing is read: another relay may
// have moved a message from one leaf into outbox_held after messages of its key were read from
// another leaf, and have emptied the leaf.
func (l *logReader) fetchMessages(ctx context.Context, batch *pgx.Batch, list []entry) ([]row, error) {
	var ids [len(leaves)][]int64
	for _, e := range list {
		ids[e.leaf] = append(ids[e.leaf], e.id)
	}
	rows := make([]row, 0, len(list))
	for leaf, some := range ids {
		if len(some) > 0 {
			batch.Queue(l.sql.fetchMessages[leaf], some, l.at.from.xmaxText(), l.at.from.xip, l.at.toText()).Query(appendRows(&rows, func(m *row, found pgx.Rows) error {
				m.leaf = leaf
				return m.scanLogged(found, &m.behind)
			}))
		}
	}
	var found int64
	batch.Queue(l.sql.readTenure, l.epoch).QueryRow(func(row pgx.Row) error { return explainFence(row.Scan(&found)) })
	if err := l.sendBatch(ctx, batch); err != nil {
		return nil, fmt.Errorf("read messages: %w", err)
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.ID, b.ID) })
	return rows, nil
}

// appendRows returns a function that appends what a statement returns to rows.
func appendRows(rows *[]row, scan func(*row, pgx.Rows) error) func(pgx.Rows) error {
	return func(found pgx.Rows) error {
		defer found.Close()
		for found.Next() {
			var m row
			if err := scan(&m, found); err != nil {
				return err
			}
			*rows = append(*rows, m)
		}
		return found.Err()
	}
}

// A snapshot says which transactions were over at one moment, as pg_current_snapshot does:
// those before xmax that are not in xip
// (https://www.postgresql.org/docs/current/functions-info.html).
type snapshot struct {
	text string // xmin:xmax:xip,xip,…
	xmax uint64
	xip  []string // in progress, all below xmax
}

// beginning is the snapshot in which nothing is visible.
var beginning = snapshot{text: "1:1:", xmax: 1}

func parseSnapshot(text string) (snapshot, error) {
	s := snapshot{text: text}
	xmin, rest, found := strings.Cut(text, ":")
	xmax, xip, foundToo := strings.Cut(rest, ":")
	low, err := strconv.ParseUint(xmin, 10, 64)
	if err == nil {
		s.xmax, err = strconv.ParseUint(xmax, 10, 64)
	}
	if err != nil || !found || !foundToo || low == 0 || s.xmax < low {
		return s, fmt.Errorf("outbox: %q is not a snapshot", text)
	}
	if xip == "" {
		return s, nil
	}
	s.xip = strings.Split(xip, ",")
	for _, x := range s.xip {
		n, err := strconv.ParseUint(x, 10, 64)
		if err != nil || n < low || n >= s.xmax {
			return s, fmt.Errorf("outbox: %q is not a snapshot", text)
		}
		low = n + 1 // they are in order
	}
	return s, nil
}

// withoutRunning returns a snapshot that shows only transactions older than all that were in
// progress in s.
func (s snapshot) withoutRunning() snapshot {
	xmin, _, _ := strings.Cut(s.text, ":")
	n, _ := strconv.ParseUint(xmin, 10, 64) // s has been parsed
	return snapshot{text: xmin + ":" + xmin + ":", xmax: n}
}

func (s snapshot) xmaxText() string { return strconv.FormatUint(s.xmax, 10) }

// A cursor is a position in the log. Everything visible in from is dealt with, and of what is
// visible in to the ids up to last.
type cursor struct {
	from snapshot
	to   *snapshot // nil at the end of a difference
	last int64
}

// behindDifference is the position behind the difference that c is in.
func (c cursor) behindDifference() cursor { return cursor{from: *c.to} }

// newestSnapshot is the later of its snapshots.
func (c cursor) newestSnapshot() snapshot {
	if c.to == nil {
		return c.from
	}
	return *c.to
}

func (c cursor) toText() *string {
	if c.to == nil {
		return nil
	}
	return &c.to.text
}

// A querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readCheckpoint reads the newest checkpoint, and which of the two tables of cursors has it.
// With no checkpoint the log is read from its beginning.
func (s *core) readCheckpoint(ctx context.Context, db querier) (c cursor, which int, err error) {
	var epoch, seq int64
	var from string
	var to *string
	err = db.QueryRow(ctx, s.sql.readCursor).Scan(&epoch, &seq, &from, &to, &c.last, &which)
	if errors.Is(err, pgx.ErrNoRows) {
		return cursor{from: beginning}, 0, nil
	}
	if err != nil {
		return c, 0, fmt.Errorf("read the cursor: %w", err)
	}
	if c.from, err = parseSnapshot(from); err == nil && to != nil {
		var end snapshot
		end, err = parseSnapshot(*to)
		c.to = &end
	}
	return c, which, err
}

// sqlReadCursor reads how far the log is published, and which of the two tables has that.
const sqlReadCursor = `
SELECT epoch, seq, from_snapshot, to_snapshot, last_id, which FROM (
	SELECT epoch, seq, from_snapshot, to_snapshot, last_id, 0 AS which FROM {schema}.outbox_cursor_0
	UNION ALL
	SELECT epoch, seq, from_snapshot, to_snapshot, last_id, 1 FROM {schema}.outbox_cursor_1) c
ORDER BY epoch DESC, seq DESC LIMIT 1`

// sqlListDifference lists, in the order of their ids, the messages that became visible after one
// snapshot: those of transactions that were in progress then ($2) or began later (from $1 on).
// The snapshot of the statement itself, now, is where the next difference begins. It comes back
// with no message as well. A relay whose tenure, $6, is over gets no row.
// $4, if it is not null, is a snapshot in which the messages must be visible besides, and $3
// the id after which they begin. So a long difference can be listed in parts. (With id in place
// of id + 0 the planner might take the index on id and walk through all that is published.)
const sqlListDifference = `
SELECT s.now::text, m.leaf, m.id, m.size
FROM (SELECT pg_current_snapshot() AS now FROM {schema}.outbox_tenure WHERE epoch = $6) s
LEFT JOIN LATERAL (
	SELECT leaf, id, size FROM ({leaves}) d
	WHERE id + 0 > $3 AND ($4::text IS NULL OR pg_visible_in_snapshot(xid, $4::text::pg_snapshot))
	ORDER BY id LIMIT $5) m ON true
ORDER BY m.id`

// sqlListLeaf has two branches: one condition with OR could not use the index.
const sqlListLeaf = `
	SELECT {i} AS leaf, id, octet_length(payload) AS size, xid FROM {schema}.{leaf} WHERE xid >= $1::text::xid8
	UNION ALL
	SELECT {i}, id, octet_length(payload), xid FROM {schema}.{leaf} WHERE xid = ANY ($2::text[]::xid8[])`

// sqlReadTenure finds no row if the tenure is over.
const sqlReadTenure = `SELECT epoch FROM {schema}.outbox_tenure WHERE epoch = $1`

// sqlReadDifference reads the first $2 messages that sqlListDifference would list. A payload of more than $3 bytes is
// null. (Window functions could end the result at a sum of bytes, but starting them doubles the time of a read. With id
// in place of id + 0 the planner might take the index on id, as in sqlListDifference.)
var sqlReadDifference = `
SELECT m.id, m.message_id, m.topic, m.type, m.scope, m.key, m.step, m.n, m.ordering_key,
	m.correlation_id, m.causation_id, m.content_type, m.headers, CASE WHEN octet_length(m.payload) <= $3 THEN m.payload END,
	m.created_at, 0 AS attempts, ` + sqlBehind + ` AS behind, s.now::text, m.leaf
FROM (SELECT pg_current_snapshot() AS now FROM {schema}.outbox_tenure WHERE epoch = $4) s
LEFT JOIN LATERAL (SELECT * FROM ({leaves}) u ORDER BY id + 0 LIMIT $2) m ON true
ORDER BY m.id`

// sqlReadLeaf and sqlReadLeafBesides are the two branches of sqlListLeaf. The second one is left out if no transaction
// was in progress.
const (
	sqlReadLeaf = `
		SELECT {i} AS leaf, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.{leaf} WHERE xid >= $1::text::xid8`
	sqlReadLeafBesides = sqlReadLeaf + `
		UNION ALL
		SELECT {i}, id, message_id, topic, type, scope, key, step, n, ordering_key,
			correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.{leaf} WHERE xid = ANY ($5::text[]::xid8[])`
)

// sqlBehind is the held message of the same ordering key behind which the message m has to wait.
var sqlBehind = `coalesce((SELECT f.id FROM (` + outboxsql.RetriedOfKey(outboxsql.LoggedOrderingKey, "1") + `) f), 0)`

// sqlFetchMessages reads listed messages, and the held message of the same ordering key behind
// which each has to wait. It takes no lock: stored messages never change. It reads those of the difference alone, as
// sqlListDifference does: a message of another one may have the same id.
var sqlFetchMessages = `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, 0 AS attempts, ` + sqlBehind + ` AS behind
FROM {schema}.{leaf} m
WHERE id = ANY ($1::bigint[]) AND (xid >= $2::text::xid8 OR xid = ANY ($3::text[]::xid8[])) AND pg_visible_in_snapshot(xid, $4::text::pg_snapshot)`
