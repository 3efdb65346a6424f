package outbox

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/failpoint"
)

// cursorRows is after how many checkpoints the two tables of cursors take turns.
const cursorRows = 2000

// settle notes what became of the pages in front that are decided, and forgets
// them. After an error they are settled again.
func (l *leader) settle(ctx context.Context) (n int, err error) {
	front, bytes := 0, 0
	exceptional := false
	after := l.tenure.at
	for front < len(l.pages) && l.pages[front].left.Load() == 0 {
		p := l.pages[front]
		exceptional = exceptional || p.exceptional()
		if !p.held {
			after = p.after
		}
		n += len(p.items)
		bytes += p.bytes
		front++
	}
	if front == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	if err := failpoint.Hit("outbox/after-publish"); err != nil {
		return 0, err
	}
	if exceptional {
		err = l.settleExceptions(ctx, l.pages[:front], after)
	} else {
		err = l.checkpoint(ctx, after)
	}
	if err != nil {
		return 0, fmt.Errorf("outbox: settle: %w", err)
	}
	if err := failpoint.Hit("outbox/after-checkpoint"); err != nil {
		return 0, err
	}
	for _, p := range l.pages[:front] {
		l.r.counters.settled(p)
		l.retrying = l.retrying && !p.held
	}
	l.settled.note(l.pages[front-1].seq, l.seq)
	clear(l.pages[:front])
	l.pages = l.pages[front:]
	l.inFlight -= n
	l.bytes -= bytes
	l.tenure.at = after
	l.movedAt = time.Now()
	l.turnCursors(ctx)
	return n, nil
}

// checkpoint moves the cursor to at.
func (l *leader) checkpoint(ctx context.Context, at cursor) error {
	batch := &pgx.Batch{}
	batch.Queue(l.r.sql.asynchronous)
	written := l.queueCheckpoint(batch, at)
	if err := l.r.db.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if !*written {
		return errOvertaken
	}
	return nil
}

// queueCheckpoint adds the checkpoint to batch. Whether it was written, rather
// than another relay having taken over, is known once the batch is through.
func (l *leader) queueCheckpoint(batch *pgx.Batch, at cursor) (written *bool) {
	written = new(bool)
	l.marks++
	batch.Queue(l.r.sql.checkpoint[l.tenure.which], l.tenure.epoch, l.marks, at.from.text, at.toText(), at.last).Exec(func(tag pgconn.CommandTag) error {
		*written = tag.RowsAffected() == 1
		return nil
	})
	return written
}

// settleExceptions notes refusals, and moves the cursor in the same transaction:
// a message that is passed over is held by then.
func (l *leader) settleExceptions(ctx context.Context, pages []*page, after cursor) error {
	var ledger ledger
	for _, p := range pages {
		for i := range p.items {
			ledger.add(l.r, &p.items[i])
		}
	}
	var open []string
	err := l.r.begin(ctx, func(tx pgx.Tx) error {
		var epoch int64
		if err := tx.QueryRow(ctx, l.r.sql.fence, l.tenure.epoch).Scan(&epoch); err != nil {
			return overtaken(err)
		}
		batch := &pgx.Batch{}
		batch.Queue(l.r.sql.planByIndex)
		ledger.queue(&l.r.sql, batch)
		written := l.queueCheckpoint(batch, after)
		batch.Queue(l.r.sql.promote, ledger.keys).Query(func(rows pgx.Rows) (err error) {
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
		return err
	}
	ledger.log(ctx, l.r)
	l.freeKeys(open, pages[len(pages)-1].seq)
	return nil
}

// freeKeys lets messages of keys pass again of which nothing is held once page through is
// settled.
func (l *leader) freeKeys(keys []string, through uint64) {
	for _, key := range keys {
		h := maphash.String(keySeed, key)
		l.lane(h).free(freed{h, through})
	}
	l.retryAt = time.Time{} // what was promoted is due
}

// turnCursors empties the older of the two tables of cursors, to go on with it. It
// does not wait for somebody who reads it: there is always the other one.
func (l *leader) turnCursors(ctx context.Context) {
	if l.marks < l.turnAt {
		return
	}
	l.turnAt = l.marks + l.r.limits.cursors
	other := 1 - l.tenure.which
	err := l.locked(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, l.r.sql.truncateCursor[other]); err != nil {
			return err
		}
		return failpoint.Hit("outbox/before-turn-cursors")
	})
	if err == nil {
		err = failpoint.Hit("outbox/after-turn-cursors")
	}
	if err != nil {
		l.r.opts.Logger.DebugContext(ctx, "outbox: the older table of cursors is in use", "schema", l.r.opts.Schema, "error", err)
		return
	}
	l.tenure.which = other
}

func overtaken(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return errOvertaken
	}
	return err
}

// A ledger is what a transaction notes about messages.
type ledger struct {
	hold   [len(leaves)]holds
	again  holds // refusals of held messages
	later  holds // held messages that are deferred
	forget []int64
	keys   []string // of every message concerned

	refusals []*item
	deferred int
}

// holds are messages with what becomes of them, column by column.
type holds struct {
	ids      []int64
	states   []string
	waits    []int64 // microseconds
	attempts []int
	reasons  []string
}

func (h *holds) add(id int64, state string, wait time.Duration, attempts int, reason string) {
	h.ids = append(h.ids, id)
	h.states = append(h.states, state)
	h.waits = append(h.waits, wait.Microseconds())
	h.attempts = append(h.attempts, attempts)
	h.reasons = append(h.reasons, reason)
}

func (h *holds) args() []any { return []any{h.ids, h.states, h.waits, h.attempts, h.reasons} }

// add notes m.
func (d *ledger) add(r *Relay, m *item) {
	if m.held || m.outcome != published {
		d.keys = append(d.keys, m.OrderingKey)
	}
	if m.outcome == refused {
		d.refusals = append(d.refusals, m)
	}
	into := &d.again
	if !m.held {
		into = &d.hold[m.leaf]
	}
	switch {
	case m.outcome == deferred:
		if m.held {
			into = &d.later
		}
		d.deferred++
		into.add(m.ID, "waiting", r.deferral(m.Topic), 0, cleantext.Clip(m.refusal.Error(), maxReason))
	case m.outcome == published && m.held:
		d.forget = append(d.forget, m.ID)
	case m.outcome == queued:
		into.add(m.ID, "waiting", 0, 0, "")
	case m.outcome == refused && m.dead:
		into.add(m.ID, "dead", 0, m.Attempts+1, cleantext.Clip(m.refusal.Error(), maxReason))
	case m.outcome == refused:
		into.add(m.ID, "refused", r.retry.Wait(m.Attempts+1), m.Attempts+1, cleantext.Clip(m.refusal.Error(), maxReason))
	}
}

// log reports the refusals, once they are noted.
func (d *ledger) log(ctx context.Context, r *Relay) {
	r.counters.deferred.Add(uint64(d.deferred))
	for _, m := range d.refusals {
		state := "refused"
		if m.dead {
			state = "dead"
		}
		r.logRefusal(ctx, &m.row, state, m.refusal)
	}
}

// queue adds what is noted to batch.
func (d *ledger) queue(sql *queries, batch *pgx.Batch) {
	for leaf := range d.hold {
		if len(d.hold[leaf].ids) > 0 {
			batch.Queue(sql.holdMessages[leaf], d.hold[leaf].args()...)
		}
	}
	if len(d.again.ids) > 0 {
		batch.Queue(sql.refuseHeld, d.again.args()...)
	}
	if len(d.later.ids) > 0 {
		batch.Queue(sql.deferHeld, d.later.ids, d.later.waits, d.later.reasons)
	}
	if len(d.forget) > 0 {
		batch.Queue(sql.deleteHeld, d.forget)
	}
}
