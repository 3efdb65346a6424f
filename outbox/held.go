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
	"github.com/sagamill/sagamill/internal/sqlschema"
)

const (
	maxDue       = 128 // refused messages that are due and taken at once
	maxFollowers = 16  // messages behind each of them

	promoteKeys = 200 // ordering keys that promoteWaiting looks at in one round
)

// heldRoom returns how many held messages may be read, or moved into the log: half of
// the window at the most, or a topic that refuses everything, and a storm of timers,
// would hold up the others.
func (l *leader) heldRoom() int {
	return min(l.r.limits.page, l.r.opts.Window-l.inFlight, max(1, l.r.opts.Window/2))
}

// heldBytes is heldRoom for the bytes of their payloads, give or take a message.
func (l *leader) heldBytes() int {
	return min(maxPageBytes, l.r.opts.WindowBytes-l.bytes, max(1, l.r.opts.WindowBytes/2))
}

// readRetries hands refused messages that are due to the lanes, and what waits
// behind them. Whatever the log has of their keys comes later, and waits for
// them: they need not wait for the log.
func (l *leader) readRetries(ctx context.Context) (int, error) {
	room := l.heldRoom()
	if l.retrying || room <= 0 || l.heldBytes() <= 0 || time.Now().Before(l.retryAt) {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	began := time.Now()
	list, err := l.listRetriesFairly(ctx)
	if err != nil {
		return 0, err
	}
	l.retryAt = time.Now().Add(l.lookPause(time.Since(began)))
	if len(list) == 0 {
		return 0, nil
	}
	rows, err := l.fetchHeld(ctx, list[:cut(list, room, l.heldBytes())])
	if err != nil {
		return 0, err
	}
	l.retried = topicsOf(rows)
	if len(rows) == 0 {
		return 0, nil
	}
	if err := failpoint.Hit("outbox/after-read-held"); err != nil {
		return 0, err
	}
	l.retryAt = time.Time{} // more may be due
	l.dispatch(rows, cursor{}, true)
	l.retrying = true
	return len(rows), nil
}

// promoteWaiting makes messages due that wait behind none, because somebody has removed the first
// of their key by hand: of some keys in each round, and of all again after limits.promote.
func (l *leader) promoteWaiting(ctx context.Context) (int, error) {
	if time.Now().Before(l.promoteAt) {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	began := time.Now()
	keys, last := 0, ""
	err := l.r.queryByIndex(ctx, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&keys, &last}, func() error { return nil })
		return err
	}, l.r.sql.promotePage, l.promoted, l.r.limits.first)
	if err != nil {
		return 0, fmt.Errorf("outbox: promote waiting messages: %w", err)
	}
	if keys < l.r.limits.first {
		l.promoted, l.promoteAt = "", time.Now().Add(l.r.limits.promote)
	} else {
		l.promoted, l.promoteAt = last, time.Now().Add(l.lookPause(time.Since(began)))
	}
	return 0, failpoint.Hit("outbox/after-promote")
}

// moveDelayed makes delayed messages that are due part of the log, from which they are
// read like all others. It does so between two differences, as many as take half of the
// window, so that they share the relay with what is written meanwhile.
//
// A move says nothing about what is published, so that it needs no fence: whoever makes it,
// an overtaken relay too, a message is delayed before, and behind all that its key has in
// the log once it commits. Its outcome need not be known, and the commit does not wait for
// the disk: what a crash takes back is moved once more.
//
// A move that fails holds nothing else up. It is tried again later, each time with half as
// many, down to one.
func (l *leader) moveDelayed(ctx context.Context) (moved int, err error) {
	room := max(l.heldRoom()>>l.unmoved, min(l.heldRoom(), 1))
	if now := time.Now(); room <= 0 || l.heldBytes() <= 0 || !l.reader.caughtUp() || now.Before(l.readAt) || now.Before(l.moveAt) {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	began := time.Now()
	err = l.r.begin(ctx, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(l.r.sql.lockSoon, lockPatience)
		batch.Queue(l.r.sql.planByIndex)
		batch.Queue(l.r.sql.asynchronous)
		batch.Queue(l.r.sql.moveDelayed, room, max(1, l.heldBytes()>>l.unmoved)).Exec(func(tag pgconn.CommandTag) error {
			moved = int(tag.RowsAffected())
			return nil
		})
		if err := tx.SendBatch(ctx, batch).Close(); err != nil || moved == 0 {
			return err
		}
		return failpoint.Hit("outbox/before-move")
	})
	var failure *pgconn.PgError
	switch {
	case errors.As(err, &failure) && failure.Code == lockNotAvailable:
		l.r.opts.Logger.DebugContext(ctx, "outbox: somebody has locked a message that is due", "schema", l.r.opts.Schema, "error", err)
		moved = 0
	case err != nil:
		l.unmoved = min(l.unmoved+1, maxUnmoved)
		l.moveAt = time.Now().Add(moveRetry.Wait(l.unmoved))
		l.r.opts.Logger.WarnContext(ctx, "outbox: delayed messages that are due cannot be moved into the log", "schema", l.r.opts.Schema, "error", sqlschema.Explain(err))
		return 0, nil
	}
	l.unmoved = max(0, l.unmoved-1)
	if moved < room {
		l.moveAt = time.Now().Add(l.lookPause(time.Since(began)))
	}
	if moved == 0 {
		return 0, nil
	}
	return moved, failpoint.Hit("outbox/after-move")
}

// lookPause returns how long after a look for what is due the next one begins, given
// how long that one took. While some transaction holds an old snapshot, a look walks past
// all that was moved since: it must not take the time in which the leader would read the log.
//
// A look that began at the least time at which something was due after the last one would
// walk past nothing. But whoever commits late, a writer or an operator who redrives, has a
// message before that, and a later one of its key, visible at once with it, would be moved
// ahead of it.
func (l *leader) lookPause(took time.Duration) time.Duration {
	return max(l.r.limits.held, min(lookSpacing*took, maxLookPause))
}

const (
	lookSpacing  = 10              // a look takes at most an eleventh of the leader's time
	maxLookPause = 5 * time.Second // or more, if a look takes longer than a tenth of this
)

// moveRetry spaces the tries of a move that fails, and maxUnmoved is how often it is halved.
var moveRetry = backoff.Policy{Base: 100 * time.Millisecond, Cap: 10 * time.Second}

const maxUnmoved = 16

// lockNotAvailable is PostgreSQL's code for a lock that was not to be had in time.
const lockNotAvailable = "55P03"

// listRetriesFairly lists what is due, of topics other than those of the page before if
// there are any: a topic with many messages that are due takes turns with the others.
func (l *leader) listRetriesFairly(ctx context.Context) ([]entry, error) {
	stalled := l.r.topics.stalledNames()
	if len(l.retried) > 0 {
		list, err := l.listRetries(ctx, append(l.retried, stalled...))
		if err != nil || len(list) > 0 {
			return list, err
		}
	}
	return l.listRetries(ctx, stalled)
}

// topicsOf returns the topics of rows, each once.
func topicsOf(rows []row) (topics []string) {
	for i := range rows {
		if !slices.Contains(topics, rows[i].Topic) {
			topics = append(topics, rows[i].Topic)
		}
	}
	return topics
}

// listRetries lists what is due, except messages of some topics.
func (l *leader) listRetries(ctx context.Context, except []string) ([]entry, error) {
	var list []entry
	err := l.r.queryByIndex(ctx, func(rows pgx.Rows) (err error) {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e entry, err error) {
			return e, row.Scan(&e.id, &e.size)
		})
		return err
	}, l.r.sql.listRetries, maxDue, maxFollowers, except)
	if err != nil {
		return nil, fmt.Errorf("outbox: list due messages: %w", err)
	}
	return list, nil
}

// queryByIndex sends a statement on held messages, planned as sqlPlanByIndex says: how many there
// are changes by the second, and statistics mislead.
func (r *Relay) queryByIndex(ctx context.Context, read func(pgx.Rows) error, statement string, args ...any) error {
	batch := &pgx.Batch{}
	batch.Queue(r.sql.planByIndex)
	batch.Queue(statement, args...).Query(read)
	return r.db.SendBatch(ctx, batch).Close()
}

// fetchHeld reads the messages of list, those that are still what they were
// listed as.
func (l *leader) fetchHeld(ctx context.Context, list []entry) ([]row, error) {
	ids := make([]int64, len(list))
	for i, e := range list {
		ids[i] = e.id
	}
	var rows []row
	if err := l.r.queryByIndex(ctx, collect(&rows, scanHeld), l.r.sql.fetchHeld, ids); err != nil {
		return nil, fmt.Errorf("outbox: read due messages: %w", err)
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.ID, b.ID) })
	return rows, nil
}
