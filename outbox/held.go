package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/failpoint"
)

const (
	maxDue       = 128 // due messages that are taken at once
	maxFollowers = 16  // messages behind each of them
)

// A heldQueue is the refused or the delayed messages. One page of each is in
// flight at a time, so that no message is in two.
type heldQueue struct {
	at  time.Time // when to look for due ones
	out bool      // a page is in flight

	in    []entry // due ones, listed; they go after the log
	after uint64  // the difference of the log that was read at the time
}

// heldRoom returns how many held messages may be read: half of the window at the
// most, or a topic that refuses everything would hold up the others.
func (l *leader) heldRoom() int {
	return min(l.r.limits.page, l.r.opts.Window-l.inFlight, max(1, l.r.opts.Window/2))
}

// readRetries hands refused messages that are due to the lanes, and what waits
// behind them. Whatever the log has of their keys comes later, and waits for
// them: they need not wait for the log.
func (l *leader) readRetries(ctx context.Context) (int, error) {
	q := &l.retries
	room := l.heldRoom()
	if q.out || room <= 0 || time.Now().Before(q.at) {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	if time.Now().After(l.promoteAt) {
		if _, err := l.r.db.Exec(ctx, l.r.sql.promoteAll); err != nil {
			return 0, fmt.Errorf("outbox: promote waiting messages: %w", err)
		}
		if err := failpoint.Hit("outbox/after-promote"); err != nil {
			return 0, err
		}
		l.promoteAt = time.Now().Add(l.r.limits.promote)
	}
	list, err := l.listHeld(ctx, l.r.sql.listRetries, maxDue, maxFollowers)
	if err != nil {
		return 0, err
	}
	q.at = time.Now().Add(l.r.limits.held)
	if len(list) == 0 {
		return 0, nil
	}
	return l.dispatchHeld(ctx, q, list[:cut(list, room)])
}

// readDelayed hands delayed messages that are due to the lanes. They are listed
// first, and go once everything that had been committed by then is ahead of them
// in the lanes: a delayed message does not overtake an older one of its key. If
// that has been refused, they wait behind it.
func (l *leader) readDelayed(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	q := &l.delayed
	room := l.heldRoom()
	switch {
	case q.out || room <= 0 || len(q.in) == 0 && time.Now().Before(q.at):
		return 0, nil
	case len(q.in) == 0:
		q.in, err = l.listHeld(ctx, l.r.sql.listDelayed, maxDue)
		q.at, q.after = time.Now().Add(l.r.limits.held), l.reader.begun
		return 0, err
	case !l.reader.caughtUp() || l.reader.begun == q.after:
		return 0, nil
	}
	list := q.in[:cut(q.in, room)]
	if _, err := l.r.db.Exec(ctx, l.r.sql.queueDelayed, entryIDs(list)); err != nil {
		return 0, fmt.Errorf("outbox: put delayed messages behind refused ones: %w", err)
	}
	if err := failpoint.Hit("outbox/after-queue-delayed"); err != nil {
		return 0, err
	}
	if n, err = l.dispatchHeld(ctx, q, list); err == nil {
		q.in = nil
	}
	return n, err
}

// dispatchHeld hands the messages of list to the lanes.
func (l *leader) dispatchHeld(ctx context.Context, q *heldQueue, list []entry) (int, error) {
	rows, err := l.fetchHeld(ctx, list, q == &l.delayed)
	if err != nil {
		return 0, err
	}
	q.at = time.Time{} // more may be due
	if len(rows) > 0 {
		if err := failpoint.Hit("outbox/after-read-held"); err != nil {
			return 0, err
		}
		l.dispatch(rows, cursor{}, q)
		q.out = true
	}
	return len(rows), nil
}

// listHeld lists what is due, by a statement.
func (l *leader) listHeld(ctx context.Context, statement string, limits ...any) ([]entry, error) {
	var list []entry
	batch := &pgx.Batch{}
	batch.Queue(l.r.sql.planByIndex)
	batch.Queue(statement, limits...).Query(func(rows pgx.Rows) (err error) {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e entry, err error) {
			return e, row.Scan(&e.leaf, &e.id, &e.size)
		})
		return err
	})
	if err := l.r.db.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("outbox: list due messages: %w", err)
	}
	return list, nil
}

func entryIDs(list []entry) []int64 {
	ids := make([]int64, len(list))
	for i, e := range list {
		ids[i] = e.id
	}
	return ids
}

// fetchHeld reads the messages of list, those that are still what they were
// listed as.
func (l *leader) fetchHeld(ctx context.Context, list []entry, delayed bool) ([]row, error) {
	found, err := l.r.db.Query(ctx, l.r.sql.fetchHeld, entryIDs(list), delayed)
	if err != nil {
		return nil, fmt.Errorf("outbox: read due messages: %w", err)
	}
	var rows []row
	if err := collect(&rows, 0)(found); err != nil {
		return nil, fmt.Errorf("outbox: read due messages: %w", err)
	}
	for i := range rows {
		rows[i].delayed = delayed
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.ID, b.ID) })
	return rows, nil
}
