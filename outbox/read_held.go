package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

const (
	// heldInterval is the shortest time between two looks for held messages (see pauseAfterLook). A delay may take this
	// much longer than asked for.
	heldInterval = 100 * time.Millisecond

	maxDue       = 128 // refused messages that are due and taken at once
	maxFollowers = 16  // messages behind each of them

	// promoteInterval is how long messages may wait behind one that an operator has removed by
	// hand. In this time all ordering keys with held messages are looked at: 2000 a second.
	promoteInterval = time.Minute
	promoteKeys     = 200 // ordering keys that promoteWaiting looks at in one round
)

// A heldReader reads held messages that are due: refused ones and those behind them are handed
// out, and delayed ones are moved into the log.
type heldReader struct {
	*core
	window *window
	log    *logReader

	nextLookAt     time.Time // no look before: see queueLookForHeld
	lookWanted     bool      // since the last look, the log was expected to have new messages
	vain           int       // looks in a row that brought no result
	mayHaveRefused bool      // there may be refused messages, as of the last look
	retryAt        time.Time // when to look for refused messages that are due
	retrying       bool      // a page of them is in flight: no message is in two
	retried        []string  // the topics of the last page of them
	promoteAt      time.Time // when to look for messages that wait behind none
	promoted       string    // the ordering key up to which that is done
	moveAt         time.Time // when the next delayed message is due, as of the last look
	unmoved        int       // moves in a row that have failed
}

// roomForHeld returns how many held messages may be read, or moved into the log: half of the
// window at most. A topic that refuses everything, or a storm of timers, would otherwise hold
// up the others.
func (h *heldReader) roomForHeld() int {
	return min(h.limits.page, h.opts.Window-h.window.messages-h.window.settled, max(1, h.opts.Window/2))
}

// bytesForHeld is roomForHeld for the bytes of their memory, give or take a message.
func (h *heldReader) bytesForHeld() int {
	return min(maxPageBytes, h.window.roomInBytes(), max(1, h.window.usualBytes()/2))
}

// lookSoon makes the next round look for refused messages that are due.
func (h *heldReader) readRefusedSoon() { h.mayHaveRefused, h.retryAt = true, time.Time{} }

// queueLookForHeld adds a look for held messages to batch, if one is due. The look finds messages that this leader has
// not written itself: those of an earlier leader, redriven ones, and delayed ones. Call take after the batch, with the
// time at which it began: it stores the result.
func (h *heldReader) queueLookForHeld(batch *pgx.Batch) (take func(began time.Time)) {
	if time.Now().Before(h.nextLookAt) {
		return func(time.Time) {}
	}
	h.vain++ // a look that fails must not fail each read of the log
	h.nextLookAt = time.Now().Add(failurePolicy.Ceiling(h.vain))
	var refused bool
	var delay *float64 // seconds until the next delayed message is due
	batch.Queue(h.sql.lookForHeld).QueryRow(func(found pgx.Row) error { return found.Scan(&refused, &delay) })
	return func(began time.Time) {
		now := time.Now()
		h.lookWanted, h.vain = false, 0
		h.mayHaveRefused = h.mayHaveRefused && h.retrying || refused
		h.nextLookAt = now.Add(h.pauseAfterLook(now.Sub(began)))
		switch {
		case delay == nil:
			h.moveAt, h.unmoved = now.Add(farFuture), 0
		case h.unmoved == 0:
			h.moveAt = began.Add(time.Duration(*delay * float64(time.Second)))
		}
	}
}

// farFuture is when there is nothing to move: the next look says when there is.
const farFuture = 100 * 365 * 24 * time.Hour

// nextDueTime returns when there is something to read, to move or to promote, as far as is known.
func (h *heldReader) nextDueTime() time.Time {
	next := h.moveAt
	if h.mayHaveRefused && !h.retrying && h.retryAt.Before(next) {
		next = h.retryAt
	}
	if h.promoted != "" && h.promoteAt.Before(next) { // some keys are still to be looked at
		next = h.promoteAt
	}
	return next
}

// readDue reads refused messages that are due, and the messages that wait behind them. Messages
// of their keys in the log come later and wait for them, so these need not wait for the log.
func (h *heldReader) readDue(ctx context.Context) ([]row, error) {
	room := h.roomForHeld()
	if !h.mayHaveRefused || h.retrying || room <= 0 || h.bytesForHeld() <= 0 || time.Now().Before(h.retryAt) {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	began := time.Now()
	list, err := h.listDueFairly(ctx)
	h.retryAt = time.Now().Add(h.pauseAfterLook(time.Since(began)))
	if err != nil {
		return nil, err
	}
	if len(list.entries) == 0 {
		return nil, nil
	}
	rows, err := h.fetchHeld(ctx, list.entries[:countFitting(list.entries, room, h.bytesForHeld())])
	if err != nil {
		return nil, err
	}
	rows = list.dropOvertaking(rows)
	h.retried = distinctTopics(rows)
	if len(rows) == 0 {
		return nil, nil
	}
	if err := failpoint.Hit("outbox/after-read-held"); err != nil {
		return nil, err
	}
	h.readRefusedSoon() // more may be due
	h.retrying = true
	return rows, nil
}

// promoteWaiting makes messages due that wait behind none, because a person has removed the
// first message of their key by hand. Each round looks at some keys. All keys are looked at
// again after limits.promote.
func (h *heldReader) promoteWaiting(ctx context.Context) (int, error) {
	if time.Now().Before(h.promoteAt) {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	began := time.Now()
	keys, last := 0, ""
	err := h.queryByIndex(ctx, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&keys, &last}, func() error { return nil })
		return err
	}, h.sql.promotePage, h.promoted, h.limits.first)
	h.promoteAt = time.Now().Add(h.pauseAfterLook(time.Since(began)))
	if err != nil {
		return 0, fmt.Errorf("outbox: promote waiting messages: %w", err)
	}
	if h.promoted = last; keys < h.limits.first {
		h.promoted, h.promoteAt = "", time.Now().Add(h.limits.promote)
	}
	return 0, failpoint.Hit("outbox/after-promote")
}

// moveDelayed moves delayed messages that are due into the log, from where they are read like
// all others. It does so between two differences, and takes at most half of the window: delayed
// messages share the relay with messages that are written meanwhile.
//
// A move says nothing about what is published, so that it needs no fence. An overtaken relay may
// make it too: the message is delayed before the commit, and behind everything of its key in the
// log afterwards. The outcome of a move need not be known, and its commit does not wait for the
// disk: a message whose move a crash takes back is moved once more.
//
// A move that fails delays nothing else. It is tried again later, each time with half as many
// messages, down to one.
func (h *heldReader) moveDelayed(ctx context.Context) (moved int, err error) {
	room := max(h.roomForHeld()>>h.unmoved, min(h.roomForHeld(), 1))
	if now := time.Now(); room <= 0 || h.bytesForHeld() <= 0 || !h.log.isCaughtUp() || now.Before(h.log.readAt) || now.Before(h.moveAt) {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	began := time.Now()
	moved, err = h.moveOnce(ctx, room, max(1, h.bytesForHeld()>>h.unmoved))
	var failure *pgconn.PgError
	switch {
	case errors.As(err, &failure) && failure.Code == lockNotAvailable:
		h.opts.Logger.DebugContext(ctx, "outbox: somebody has locked a message that is due", "schema", h.opts.Schema, "error", err)
		moved = 0
	case err != nil:
		h.unmoved = min(h.unmoved+1, maxUnmoved)
		h.moveAt = time.Now().Add(movePolicy.Wait(h.unmoved))
		h.opts.Logger.WarnContext(ctx, "outbox: delayed messages that are due cannot be moved into the log", "schema", h.opts.Schema, "error", sqlschema.Explain(err))
		return 0, nil
	}
	h.unmoved = max(0, h.unmoved-1)
	if moved < room {
		h.moveAt = time.Now().Add(h.pauseAfterLook(time.Since(began)))
		h.nextLookAt = time.Time{}
	}
	if moved == 0 {
		return 0, nil
	}
	return moved, failpoint.Hit("outbox/after-move")
}

// moveOnce moves up to room delayed messages of up to so many bytes. It gives up rather than
// wait for a person's lock.
func (h *heldReader) moveOnce(ctx context.Context, room, bytes int) (moved int, err error) {
	err = h.runTx(ctx, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(h.sql.lockSoon, lockPatience)
		batch.Queue(h.sql.planByIndex)
		batch.Queue(h.sql.asynchronous)
		batch.Queue(h.sql.moveDelayed, room, bytes).Exec(func(tag pgconn.CommandTag) error {
			moved = int(tag.RowsAffected())
			return nil
		})
		if err := tx.SendBatch(ctx, batch).Close(); err != nil || moved == 0 {
			return err
		}
		return failpoint.Hit("outbox/before-move")
	})
	return moved, err
}

// pauseAfterLook returns the pause after a look for due messages that took so long. While some
// transaction has an old snapshot open, a look walks past all messages that were moved since. It
// must not take the time in which the leader would read the log.
//
// The pause cannot end at the next due time instead. A late commit, of a writer or of a redrive,
// may bring a message that was due before that. A later message of its key, visible at once with
// it, would then be moved ahead of it.
func (h *heldReader) pauseAfterLook(took time.Duration) time.Duration {
	return max(h.limits.held, min(lookSpacing*took, maxLookPause))
}

const (
	lookSpacing  = 10              // a look takes at most an eleventh of the leader's time
	maxLookPause = 5 * time.Second // or more, if a look takes longer than a tenth of this
)

// movePolicy spaces the tries of a move that fails. maxUnmoved is how often its size is halved.
var movePolicy = backoff.Policy{Base: 100 * time.Millisecond, Cap: 10 * time.Second}

const maxUnmoved = 16

// lockNotAvailable is PostgreSQL's code for a lock that was not granted in time.
const lockNotAvailable = "55P03"

// A dueList is messages that are due, and messages behind them, in the order of their ids.
type dueList struct {
	entries []entry
	keys    []string // the ordering key of each
}

// dropOvertaking drops each row that would overtake an earlier listed message of its key. Such a message is
// missing from rows because somebody has locked it. rows are a part of the list, in the order of their ids.
func (d dueList) dropOvertaking(rows []row) []row {
	missed := make(map[string]bool) // keys with a message that is not in rows
	kept := rows[:0]
	for i, e := range d.entries {
		if len(rows) == 0 || rows[0].ID != e.id {
			missed[d.keys[i]] = true
			continue
		}
		if !missed[d.keys[i]] {
			kept = append(kept, rows[0])
		}
		rows = rows[1:]
	}
	return kept
}

// listDueFairly lists due messages, of topics other than those of the page before if there are
// any: a topic with many due messages takes turns with the others.
func (h *heldReader) listDueFairly(ctx context.Context) (dueList, error) {
	stalled := h.topics.stalledNames()
	if len(h.retried) > 0 {
		list, err := h.listDue(ctx, append(h.retried, stalled...))
		if err != nil || len(list.entries) > 0 {
			return list, err
		}
	}
	return h.listDue(ctx, stalled)
}

// distinctTopics returns the topics of rows, each once.
func distinctTopics(rows []row) (topics []string) {
	for i := range rows {
		if !slices.Contains(topics, rows[i].Topic) {
			topics = append(topics, rows[i].Topic)
		}
	}
	return topics
}

// listDue lists due messages, except those of some topics.
func (h *heldReader) listDue(ctx context.Context, except []string) (list dueList, err error) {
	var e entry
	var key string
	err = h.queryByIndex(ctx, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&e.id, &e.size, &key}, func() error {
			list.entries, list.keys = append(list.entries, e), append(list.keys, key)
			return nil
		})
		return err
	}, h.sql.listRetries, maxDue, maxFollowers, except)
	if err != nil {
		return dueList{}, fmt.Errorf("outbox: list due messages: %w", err)
	}
	return list, nil
}

// fetchHeld reads the messages of list that are still in the state in which they were listed and
// that nobody has locked.
func (h *heldReader) fetchHeld(ctx context.Context, list []entry) ([]row, error) {
	ids := make([]int64, len(list))
	for i, e := range list {
		ids[i] = e.id
	}
	var rows []row
	if err := h.queryByIndex(ctx, appendRows(&rows, scanHeldRow), h.sql.fetchHeld, ids); err != nil {
		return nil, fmt.Errorf("outbox: read due messages: %w", err)
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.ID, b.ID) })
	return rows, nil
}

// queryByIndex sends a statement on held messages, planned as outboxsql.PlanByIndex says. Their number
// changes by the second, and statistics mislead.
func (s *core) queryByIndex(ctx context.Context, read func(pgx.Rows) error, statement string, args ...any) error {
	batch := &pgx.Batch{}
	batch.Queue(s.sql.planByIndex)
	batch.Queue(statement, args...).Query(read)
	return s.db.Send(ctx, batch)
}

// sqlLookForHeld says whether there are refused messages, and in how many seconds the next delayed one is due.
const sqlLookForHeld = `
SELECT EXISTS (SELECT FROM {schema}.outbox_held WHERE ` + outboxsql.Retried + ` AND due_at < 'infinity'),
	(SELECT extract(epoch FROM due_at - clock_timestamp())::float8 FROM {schema}.outbox_held WHERE state = 'delayed' ORDER BY due_at, id LIMIT 1)`

// sqlMoveDelayed moves delayed messages that are due into the log, in the order in which they
// were due: at most $1 of them and up to $2 bytes of payload, or one. They get new ids, and the
// time of the move as the time of their writing, by which the log is kept and replayed. A
// receiver needs another time: since when the message may have been handled. That goes with the
// message as a header. It is when the message was due, however often it is moved, as after a
// recovery to an earlier time. For a redriven message, which has the reason of its last refusal,
// it is when the message was first written. Of two relays that move messages at the same time
// the second waits, and finds the messages that are left. (The clock is read once, in a
// separate SELECT: an expression that may change from row to row is no condition for an index. Headers
// are put together as text, which fails for no stored JSON.)
const sqlMoveDelayed = `
WITH due AS (
	SELECT id, due_at, octet_length(payload) AS size FROM {schema}.outbox_held
	WHERE state = 'delayed' AND due_at <= (SELECT clock_timestamp()) ORDER BY due_at, id LIMIT $1 FOR UPDATE),
moved AS (
	DELETE FROM {schema}.outbox_held WHERE id = ANY (ARRAY(
		SELECT id FROM (SELECT id, sum(size) OVER (ORDER BY due_at, id) - size AS before FROM due) sized WHERE before < $2))
	RETURNING id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, due_at,
		to_char(CASE reason WHEN '' THEN due_at ELSE created_at END AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS since)
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload)
SELECT message_id, topic, type, scope, key, step, n, ` + outboxsql.KeptOrderingKey + `,
	correlation_id, causation_id, content_type,
	CASE WHEN headers IS NULL THEN ('{"timestamp":"' || since || '"}')::json
		WHEN headers::text LIKE '{"%' AND headers::text NOT LIKE '{"timestamp":%' THEN ('{"timestamp":"' || since || '",' || substr(headers::text, 2))::json
		ELSE headers END,
	payload
FROM moved ORDER BY due_at, id`

// sqlHeldTopics lists the topics with messages that are retrying, with one step into the index
// outbox_held_topic for each. The last topic is null.
const sqlHeldTopics = `
WITH RECURSIVE topics (topic) AS (
	(SELECT topic FROM {schema}.outbox_held WHERE ` + outboxsql.Retried + ` AND due_at < 'infinity' ORDER BY topic LIMIT 1)
	UNION ALL
	SELECT (SELECT topic FROM {schema}.outbox_held
		WHERE ` + outboxsql.Retried + ` AND due_at < 'infinity' AND topic > t.topic ORDER BY topic LIMIT 1)
	FROM topics t WHERE t.topic IS NOT NULL)`

// sqlDueByTopic reads messages that are due and the first of their keys, up to $1 of each topic.
// It leaves out the stalled topics $3, and walks past none of their messages. (Whether a message
// is the first of its key is one look into an index for each due message. As EXISTS it could
// become a join with all held messages. OFFSET 0 keeps that condition out of the walk in the
// order of the index: the planner expects a single message to meet it, and would read and sort
// all due messages.)
var sqlDueByTopic = `
	SELECT d.* FROM topics t, (VALUES ('refused'), ('waiting')) s (state), LATERAL (
		SELECT o.* FROM (
			SELECT id, ordering_key, due_at, payload FROM {schema}.outbox_held
			WHERE ` + outboxsql.Retried + ` AND due_at < 'infinity'
				AND topic = t.topic AND state = s.state AND due_at <= (SELECT clock_timestamp())
			ORDER BY due_at, id OFFSET 0) o
		WHERE o.id = (SELECT f.id FROM (` + outboxsql.RetriedOfKey("o.ordering_key", "1") + `) f)
		ORDER BY o.due_at, o.id LIMIT $1) d
	WHERE t.topic <> ALL ($3::text[])`

// sqlListRetries lists refused messages that are due, and some of those that wait behind them.
// It stops at the next refused message of the key: a delayed message may have come to lie over
// that, because its id can be older than its commit. $1 and $2 limit both numbers. Messages of
// the stalled topics $3 are left out.
var sqlListRetries = sqlHeldTopics + `,
due AS (SELECT id, ordering_key FROM (` + sqlDueByTopic + `) each ORDER BY due_at, id LIMIT $1)
SELECT h.id, octet_length(h.payload), h.ordering_key
FROM {schema}.outbox_held h
WHERE h.id = ANY (ARRAY(
	SELECT id FROM due
	UNION
	SELECT w.id FROM due, LATERAL (
		SELECT f.id, count(*) FILTER (WHERE f.state = 'refused' AND f.id <> due.id) OVER (ORDER BY f.id) AS refused
		FROM (` + outboxsql.RetriedOfKey("due.ordering_key", "$2 + 1") + `) f) w
	WHERE refused = 0))
ORDER BY h.id`

// sqlFetchHeld reads listed messages. A person may have made a dead letter of one meanwhile, and
// may even have redriven it. A message that somebody has locked is passed over until the lock is
// gone. That may be a person, an overtaken relay that is at this statement too, or a transaction
// of this relay whose COMMIT was lost.
const sqlFetchHeld = `
SELECT id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, created_at, attempts
FROM {schema}.outbox_held WHERE id = ANY ($1::bigint[]) AND ` + outboxsql.Retried + ` FOR UPDATE SKIP LOCKED`

// sqlPromotePage makes the first messages of $2 keys from $1 on due that wait behind none,
// because a person has removed the message before them. It returns how many keys it has looked
// at, and the last one.
var sqlPromotePage = `
WITH RECURSIVE first AS (
	SELECT 1 AS n, h.ordering_key, h.id, h.state, h.due_at FROM (` + outboxsql.RetriedOfKeys(">= $1", "1") + `) h
	UNION ALL
	SELECT f.n + 1, h.ordering_key, h.id, h.state, h.due_at
	FROM first f, LATERAL (` + outboxsql.RetriedOfKeys("> f.ordering_key", "1") + `) h
	WHERE f.n < $2),
promoted AS (` + outboxsql.PromoteFirst + `)
SELECT n, ordering_key FROM first ORDER BY n DESC LIMIT 1`
