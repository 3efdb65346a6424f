package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/outboxsql"
)

// cursorRows is after how many checkpoints the two tables of cursors take turns.
const cursorRows = 2000

// A settler notes in the database what became of pages.
type settler struct {
	*core
	epoch  int64
	at     cursor // the last checkpoint
	which  int    // the table of cursors in use, of two
	marks  int64  // checkpoints of this epoch
	turnAt int64  // the checkpoint after which the tables of cursors take turns

	window         *window   // its settled messages are those that no written checkpoint covers
	unwrittenSince time.Time // when the first of them was settled
}

const (
	// checkpointPause is the shortest time between two checkpoints that are written together with a read of the log.
	checkpointPause = 100 * time.Millisecond

	// checkpointDelay is how long a checkpoint waits for a read of the log before it is written alone.
	checkpointDelay = 250 * time.Millisecond
)

// A settlement is what notePages has noted.
type settlement struct {
	through     uint64 // the last page
	exceptional bool   // held messages were written
	openKeys    []string
}

// notePages notes what became of pages. If all their messages are published, a later checkpoint covers them. Otherwise
// it writes the held ones at once, together with a checkpoint. After an error it can be called again.
func (s *settler) notePages(ctx context.Context, pages []*page) (noted settlement, err error) {
	noted.through = pages[len(pages)-1].seq
	after, messages, bytes := s.at, 0, 0
	for _, p := range pages {
		noted.exceptional = noted.exceptional || p.isExceptional()
		messages, bytes = messages+len(p.items), bytes+p.bytes
		if !p.held {
			after = p.after
		}
	}
	if noted.exceptional {
		if noted.openKeys, err = s.noteExceptions(ctx, pages, after); err != nil {
			return noted, err
		}
		s.at = after
		return noted, s.noteCheckpointWritten()
	}
	if s.window.settled == 0 {
		s.unwrittenSince = time.Now()
	}
	s.at = after
	s.window.settled, s.window.settledBytes = s.window.settled+messages, s.window.settledBytes+bytes
	return noted, nil
}

// noteCheckpointWritten notes that the checkpoint is written.
func (s *settler) noteCheckpointWritten() error {
	s.window.settled, s.window.settledBytes = 0, 0
	return failpoint.Hit("outbox/after-checkpoint")
}

// isCheckpointOlderThan reports whether messages have been settled without a checkpoint for d or longer.
func (s *settler) isCheckpointOlderThan(d time.Duration) bool {
	return s.window.settled > 0 && time.Since(s.unwrittenSince) >= d
}

// queueDueCheckpoint adds the checkpoint to batch if it is due. Call confirm after the batch: it returns errOvertaken
// if another relay has taken over.
func (s *settler) queueDueCheckpoint(batch *pgx.Batch) (confirm func() error) {
	if !s.isCheckpointOlderThan(checkpointPause) && !s.window.hasManySettled() {
		return func() error { return nil }
	}
	written := s.queueCheckpoint(batch, &s.sql.lateCheckpoint, s.at)
	return func() error {
		if !*written {
			return errOvertaken
		}
		return s.noteCheckpointWritten()
	}
}

// flushCheckpoint writes a checkpoint if settled messages have none yet.
func (s *settler) flushCheckpoint(ctx context.Context) error {
	if s.window.settled == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	if err := s.writeCheckpoint(ctx, s.at); err != nil {
		return err
	}
	return s.noteCheckpointWritten()
}

// writeCheckpoint moves the cursor to at.
func (s *settler) writeCheckpoint(ctx context.Context, at cursor) error {
	batch := &pgx.Batch{}
	written := s.queueCheckpoint(batch, &s.sql.lateCheckpoint, at)
	if err := s.db.Send(ctx, batch); err != nil {
		return fmt.Errorf("outbox: checkpoint: %w", err)
	}
	if !*written {
		return errOvertaken
	}
	return nil
}

// queueCheckpoint adds the checkpoint to batch. After the batch, written says whether it was
// written; if not, another relay has taken over. statements has one for each table of cursors.
func (s *settler) queueCheckpoint(batch *pgx.Batch, statements *[2]string, at cursor) (written *bool) {
	written = new(bool)
	s.marks++
	batch.Queue(statements[s.which], s.epoch, s.marks, at.from.text, at.toText(), at.last).Exec(func(tag pgconn.CommandTag) error {
		*written = tag.RowsAffected() == 1
		return nil
	})
	return written
}

// noteExceptions notes refusals, and moves the cursor in the same transaction: a message that is
// passed over is held by then. It returns the ordering keys of which nothing is held any more.
func (s *settler) noteExceptions(ctx context.Context, pages []*page, after cursor) (open []string, err error) {
	var ledger ledger
	for _, p := range pages {
		for i := range p.items {
			ledger.addItem(s.core, &p.items[i])
		}
	}
	err = s.runFencedTx(ctx, s.epoch, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		ledger.moved = nil
		batch.Queue(s.sql.planByIndex)
		ledger.queueStatements(&s.sql, batch)
		written := s.queueCheckpoint(batch, &s.sql.checkpoint, after)
		batch.Queue(s.sql.promote, ledger.keys).Query(func(rows pgx.Rows) (err error) {
			open, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		if !*written {
			return errOvertaken
		}
		return failpoint.Hit("outbox/before-commit")
	})
	if err != nil {
		return nil, err
	}
	ledger.logRefusals(ctx, s.core)
	return open, nil
}

// A ledger is what a transaction notes about messages.
type ledger struct {
	hold   heldColumns
	logged []uuid.UUID // the message ids of hold
	again  heldColumns // refusals of held messages
	later  heldColumns // held messages that are deferred
	forget []int64
	keys   []string // of every message concerned

	refusals []*item
	deferred int
	moved    []movedMessage
}

// A movedMessage was held under another id than it has in the log, or not found there.
type movedMessage struct {
	messageID uuid.UUID
	id        int64
	heldAs    *int64 // nil: it is not in the log any more
	taken     bool   // another message had its id
}

// heldColumns are messages and their new states in outbox_held, column by column.
type heldColumns struct {
	ids      []int64
	states   []string
	waits    []int64 // microseconds
	attempts []int
	reasons  []string
}

func (h *heldColumns) appendMessage(id int64, state string, wait time.Duration, attempts int, reason string) {
	h.ids = append(h.ids, id)
	h.states = append(h.states, state)
	h.waits = append(h.waits, wait.Microseconds())
	h.attempts = append(h.attempts, attempts)
	h.reasons = append(h.reasons, reason)
}

func (h *heldColumns) columnArgs() []any {
	return []any{h.ids, h.states, h.waits, h.attempts, h.reasons}
}

// maxReason is how many bytes of a refusal's text are stored.
const maxReason = 1000

// addItem notes the outcome of m.
func (d *ledger) addItem(s *core, m *item) {
	if m.held || m.outcome != published {
		d.keys = append(d.keys, m.OrderingKey)
	}
	if m.outcome == refused {
		d.refusals = append(d.refusals, m)
	}
	into := &d.again
	if !m.held {
		into = &d.hold
	}
	switch {
	case m.outcome == deferred:
		if m.held {
			into = &d.later
		}
		d.deferred++
		into.appendMessage(m.ID, "waiting", s.deferralOf(m.Topic), 0, cleantext.Clip(m.refusal.Error(), maxReason))
	case m.outcome == published && m.held:
		d.forget = append(d.forget, m.ID)
	case m.outcome == queued:
		into.appendMessage(m.ID, "waiting", 0, 0, "")
	case m.outcome == refused && m.dead:
		into.appendMessage(m.ID, "dead", 0, m.Attempts+1, cleantext.Clip(m.refusal.Error(), maxReason))
	case m.outcome == refused:
		into.appendMessage(m.ID, "refused", s.retry.Wait(m.Attempts+1), m.Attempts+1, cleantext.Clip(m.refusal.Error(), maxReason))
	}
	if len(d.hold.ids) > len(d.logged) {
		d.logged = append(d.logged, m.MessageID)
	}
}

// queueStatements adds what is noted to batch.
func (d *ledger) queueStatements(sql *queries, batch *pgx.Batch) {
	if len(d.hold.ids) > 0 {
		batch.Queue(sql.holdMessages, append(d.hold.columnArgs(), d.logged)...).Query(func(rows pgx.Rows) (err error) {
			d.moved, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (m movedMessage, err error) {
				return m, row.Scan(&m.messageID, &m.id, &m.heldAs, &m.taken)
			})
			return err
		})
	}
	if len(d.again.ids) > 0 {
		batch.Queue(sql.refuseHeld, d.again.columnArgs()...)
	}
	if len(d.later.ids) > 0 {
		batch.Queue(sql.deferHeld, d.later.ids, d.later.waits, d.later.reasons)
	}
	if len(d.forget) > 0 {
		batch.Queue(sql.deleteHeld, d.forget)
	}
}

// logRefusals counts and logs the refusals, once they are noted, and what was found amiss.
func (d *ledger) logRefusals(ctx context.Context, s *core) {
	for _, m := range d.moved {
		switch {
		case m.heldAs == nil:
			s.opts.Logger.WarnContext(ctx, "outbox: a message to be held was removed from the log meanwhile", "schema", s.opts.Schema, "message_id", m.messageID, "id", m.id)
		case m.taken:
			s.opts.Logger.ErrorContext(ctx, "outbox: another message had the id of a message to be held, which has a new id, as have later ones of its key; "+
				"the sequence of ids was behind its rows, as after a data-only restore",
				"schema", s.opts.Schema, "message_id", m.messageID, "id", m.id, "held_as", *m.heldAs)
		}
	}
	s.counters.deferred.Add(uint64(d.deferred))
	for _, m := range d.refusals {
		state := "refused"
		if m.dead {
			state = "dead"
		}
		s.logRefusal(ctx, &m.row, state, m.refusal)
	}
}

// logRefusal counts a refusal and logs it: each that makes a dead letter, and of the others one
// a second and topic, with how many it stands for.
func (s *core) logRefusal(ctx context.Context, m *row, state string, refusal error) {
	s.counters.refused.Add(1)
	level, unsaid := slog.LevelError, 0
	if state == "dead" {
		s.counters.dead.Add(1)
	} else {
		var log bool
		if unsaid, log = s.refusals.admitLine(m.Topic, time.Now()); !log {
			return
		}
		level = slog.LevelWarn
	}
	s.opts.Logger.Log(ctx, level, "outbox: message refused by the broker", "schema", s.opts.Schema, "state", state,
		"message_id", m.MessageID, "topic", m.Topic, "step", m.Step, "attempts", m.Attempts+1, "refusals_unsaid", unsaid, "error", refusal)
}

// The limits of the log lines about refusals. A broker that refuses everything is asked again
// hundreds of times a second.
const (
	refusalPause  = time.Second // from one line about a topic to the next
	refusalTopics = 1000        // that have their own lines; all others share one
)

// A refusalLog limits the log lines about refused messages. The zero value is ready for use.
type refusalLog struct {
	mu     sync.Mutex
	topics map[string]*refusalSilence
	others refusalSilence
}

// A refusalSilence counts the refusals of a topic since its last line.
type refusalSilence struct {
	spoken bool
	since  time.Time // the last line
	unsaid int
}

// silenceOf returns the silence of a topic, or the one of all topics over the limit.
func (r *refusalLog) silenceOf(topic string) *refusalSilence {
	s := r.topics[topic]
	if s != nil {
		return s
	}
	if len(r.topics) >= refusalTopics {
		return &r.others
	}
	if r.topics == nil {
		r.topics = make(map[string]*refusalSilence)
	}
	s = &refusalSilence{}
	r.topics[topic] = s
	return s
}

// admitLine reports whether a refusal of topic is to be logged now, and how many were not
// logged since the last line.
func (r *refusalLog) admitLine(topic string, now time.Time) (unsaid int, log bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.silenceOf(topic)
	if s.spoken && now.Sub(s.since) < refusalPause {
		s.unsaid++
		return 0, false
	}
	unsaid, s.unsaid, s.since, s.spoken = s.unsaid, 0, now, true
	return unsaid, true
}

// sqlHoldMessages copies messages of the log into outbox_held: refused messages with the time at which they are due
// again, and the messages behind them, which wait until they are the first of their key. A message that outbox_held
// already has was copied by a transaction whose outcome was not known.
//
// The messages of a key are held in the order of their ids, and an id may come twice (see pg.IDSequence). So a message
// whose id another held message has gets a new id. So does each later message of its key while that one is held. The
// statement returns the messages that it holds under a new id, and those that the log no longer has.
//
// The ids $1 are also a condition of each leaf: with a plan that was made while a leaf was empty, a join alone may read
// the whole leaf.
const sqlHoldMessages = `
WITH asked AS (
	SELECT * FROM unnest($1::bigint[], $6::uuid[], $2::text[], $3::bigint[], $4::int[], $5::text[])
		WITH ORDINALITY o (id, message_id, state, wait, attempts, reason, ordinal)),
logged AS MATERIALIZED (
	SELECT id, message_id, topic, ` + outboxsql.LoggedType + ` AS type, scope, key, step, n, ` + outboxsql.LoggedOrderingKey + ` AS ordering_key,
		` + outboxsql.LoggedCorrelation + ` AS correlation_id, causation_id, ` + outboxsql.LoggedContentType + ` AS content_type, headers, payload, created_at
	FROM ({leaves}) m),
compared AS MATERIALIZED (
	SELECT l.*, o.state, o.wait, o.attempts, o.reason, o.ordinal,
		coalesce(same.message_id = l.message_id, false) AS held,
		coalesce(same.message_id <> l.message_id, false) OR row_number() OVER (PARTITION BY l.id ORDER BY o.ordinal) > 1 AS taken,
		last.id AS behind
	FROM asked o
	JOIN logged l USING (id, message_id)
	LEFT JOIN LATERAL (SELECT h.message_id FROM {schema}.outbox_held h WHERE h.id = o.id) same ON true
	LEFT JOIN LATERAL (
		SELECT h.id FROM {schema}.outbox_held h
		WHERE h.state IN ('refused', 'waiting') AND h.ordering_key BETWEEN l.ordering_key AND l.ordering_key
		ORDER BY h.ordering_key DESC, h.id DESC LIMIT 1) last ON last.id > l.id),
missing AS MATERIALIZED (
	SELECT *, bool_or(taken OR behind IS NOT NULL) OVER (PARTITION BY ordering_key ORDER BY ordinal) AS moves
	FROM compared c
	WHERE NOT held AND (behind IS NULL OR NOT EXISTS (
		SELECT FROM {schema}.outbox_held h
		WHERE h.state IN ('refused', 'waiting') AND h.ordering_key BETWEEN c.ordering_key AND c.ordering_key AND h.message_id = c.message_id))
		AND (NOT taken AND behind IS NULL OR NOT EXISTS (SELECT FROM {schema}.outbox_held h WHERE h.state = 'dead' AND h.message_id = c.message_id))),
added AS (
	INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, headers, payload, created_at, state, due_at, attempts, reason, refused_at)
	SELECT CASE WHEN moves THEN nextval('{schema}.outbox_id_seq') ELSE id END, message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, headers, payload, created_at,
		state, CASE state WHEN 'waiting' THEN 'infinity' ELSE clock_timestamp() + wait * interval '1 microsecond' END,
		attempts, reason, CASE WHEN attempts > 0 THEN clock_timestamp() END
	FROM (SELECT * FROM missing ORDER BY ordinal) m
	RETURNING id, message_id)
SELECT o.message_id, o.id, a.id, coalesce(c.taken, false)
FROM asked o LEFT JOIN compared c USING (ordinal) LEFT JOIN added a ON a.message_id = o.message_id
WHERE c.ordinal IS NULL OR a.id <> o.id`

// sqlHoldLeaf is the part of sqlHoldMessages that reads a leaf.
const sqlHoldLeaf = `
		SELECT id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, created_at
		FROM {schema}.{leaf} WHERE id = ANY ($1::bigint[])`

// sqlUnlockedHeld locks the messages $1, except those that a person has locked. Those stay as
// they are, and are sent again. Waiting for one would delay all topics.
const sqlUnlockedHeld = `(SELECT id FROM {schema}.outbox_held WHERE id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED)`

// sqlDeleteHeld removes messages that the broker has confirmed.
const sqlDeleteHeld = `DELETE FROM {schema}.outbox_held WHERE id = ANY (ARRAY` + sqlUnlockedHeld + `)`

// sqlRefuseHeld notes one more refusal. It compares attempts, so that a transaction counts once
// that is repeated because its outcome was not known. A message that a person has made a dead
// letter meanwhile stays one.
const sqlRefuseHeld = `
UPDATE {schema}.outbox_held h
SET state = o.state, due_at = clock_timestamp() + o.wait * interval '1 microsecond',
	attempts = o.attempts, reason = o.reason, refused_at = clock_timestamp()
FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::int[], $5::text[]) o (id, state, wait, attempts, reason)
WHERE h.id = o.id AND h.attempts = o.attempts - 1 AND h.state <> 'dead' AND h.id = ANY (ARRAY` + sqlUnlockedHeld + `)`

// sqlDeferHeld notes when deferred messages are tried again. They spend no attempt. A refused
// one becomes 'waiting' too, because sqlMakeTopicDue selects that state. A message that a person
// has made a dead letter meanwhile stays one.
const sqlDeferHeld = `
UPDATE {schema}.outbox_held h
SET state = 'waiting', due_at = clock_timestamp() + o.wait * interval '1 microsecond', reason = o.reason
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) o (id, wait, reason)
WHERE h.id = o.id AND ` + outboxsql.Retried + ` AND h.id = ANY (ARRAY` + sqlUnlockedHeld + `)`

// sqlCheckpoint notes how far the log is published, unless the tenure is over. If another relay takes over at this very
// moment, the row has the older epoch and is not read again. {commit} is empty, or the source of the row:
// sqlCommitLate, which then needs no statement for itself.
const sqlCheckpoint = `
INSERT INTO {schema}.{cursor} (epoch, seq, from_snapshot, to_snapshot, last_id)
SELECT $1, $2, $3, $4, $5{commit}
WHERE EXISTS (SELECT FROM {schema}.outbox_relay WHERE epoch = $1) AND EXISTS (SELECT FROM {schema}.outbox_tenure WHERE epoch = $1)`

// sqlAsynchronous makes the transaction's commit not wait for the disk. A checkpoint that a
// crash of the server takes back costs duplicates. It takes back no earlier commit.
const (
	sqlAsynchronous = `SELECT ` + sqlCommitLate
	sqlCommitLate   = `set_config('synchronous_commit', 'off', true)`
)
