package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	maxDue       = 128 // due messages that are taken at once
	maxFollowers = 16  // messages behind each of them
)

// readHeld hands due messages to the lanes. They are listed first, and go once
// everything that had been committed by then is ahead of them in the lanes: a
// delayed message does not overtake an older one of its key.
func (l *leader) readHeld(ctx context.Context) (int, error) {
	switch {
	case l.heldOut:
		return 0, nil
	case l.heldIn == nil && time.Now().After(l.heldAt):
		return 0, l.listHeld(ctx)
	case l.heldIn == nil || l.inFlight >= l.r.opts.Window || !l.reader.caughtUp() || l.reader.begun == l.heldAfter:
		return 0, nil
	}
	n := cut(l.heldIn, min(l.r.limits.page, l.r.opts.Window-l.inFlight))
	rows, err := l.fetchHeld(ctx, l.heldIn[:n])
	if err != nil {
		return 0, err
	}
	l.heldIn, l.heldAt = nil, time.Time{} // more may be due
	if len(rows) > 0 {
		l.dispatch(rows, cursor{}, true)
		l.heldOut = true
	}
	return len(rows), nil
}

// listHeld lists what is due.
func (l *leader) listHeld(ctx context.Context) error {
	var list []entry
	batch := &pgx.Batch{}
	batch.Queue(l.r.sql.queueHeld, maxDue)
	batch.Queue(l.r.sql.listHeld, maxDue, maxFollowers).Query(func(rows pgx.Rows) (err error) {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e entry, err error) {
			return e, row.Scan(&e.leaf, &e.id, &e.size)
		})
		return err
	})
	if err := l.r.db.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("outbox: list due messages: %w", err)
	}
	l.heldAt = time.Now().Add(l.r.limits.held)
	if len(list) > 0 {
		l.heldIn, l.heldAfter = list, l.reader.begun
	}
	return nil
}

// fetchHeld reads the messages of list.
func (l *leader) fetchHeld(ctx context.Context, list []entry) ([]row, error) {
	ids := make([]int64, len(list))
	for i, e := range list {
		ids[i] = e.id
	}
	found, err := l.r.db.Query(ctx, l.r.sql.fetchHeld, ids)
	if err != nil {
		return nil, fmt.Errorf("outbox: read due messages: %w", err)
	}
	var rows []row
	if err := collect(&rows, 0)(found); err != nil {
		return nil, fmt.Errorf("outbox: read due messages: %w", err)
	}
	for i := range rows {
		rows[i].delayed = rows[i].Attempts < 0
		rows[i].Attempts = max(rows[i].Attempts, 0)
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.ID, b.ID) })
	return rows, nil
}
