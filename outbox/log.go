package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/failpoint"
)

const (
	// maxPage is how many messages are read at once, and maxPageBytes how many
	// bytes of payload, give or take a message.
	maxPage      = 512
	maxPageBytes = 32 << 20

	// maxList is how many messages of a difference are listed at once. Each
	// costs some 50 bytes here, and a list one walk over the whole backlog there.
	maxList = 250_000
)

// A logReader reads the log from a cursor on. It goes from
// difference to difference: what one snapshot shows and the one before did not
// is listed, and read page by page in the order of the ids. So a transaction
// that commits late delays its own messages only, and none is skipped, as they
// would be by who remembers the largest id.
type logReader struct {
	db    *pgxpool.Pool
	sql   *queries
	limit int   // of list
	epoch int64 // of the tenure: after a crash of the server, at means nothing any more

	at   cursor  // after what has been read
	list []entry // of the difference from at, what is not read yet
	more bool    // the difference goes on behind list
}

// An entry is a listed message.
type entry struct {
	leaf int
	id   int64
	size int
}

// read returns the next messages, up to limit and up to so many bytes of payload, but at
// least one, and the cursor behind them. After an error it can be called again.
func (l *logReader) read(ctx context.Context, limit, bytes int) ([]row, cursor, error) {
	if len(l.list) == 0 {
		if err := l.refill(ctx); err != nil {
			return nil, l.at, err
		}
	}
	if len(l.list) == 0 {
		return nil, l.at, nil
	}
	n := cut(l.list, limit, bytes)
	rows, err := l.fetch(ctx, l.list[:n])
	if err == nil {
		err = failpoint.Hit("outbox/after-read")
	}
	if err != nil {
		return nil, l.at, err
	}
	l.at.last = l.list[n-1].id
	l.list = l.list[n:]
	if len(l.list) == 0 && !l.more {
		l.at = l.at.end()
	}
	return rows, l.at, nil
}

// caughtUp reports whether the difference is read to its end.
func (l *logReader) caughtUp() bool { return l.at.to == nil && len(l.list) == 0 }

// cut returns how many of list make a page of at most limit messages and so many bytes.
func cut(list []entry, limit, bytes int) int {
	n, sum := 0, 0
	for n < min(len(list), limit) && (n == 0 || sum+list[n].size <= bytes) {
		sum += list[n].size
		n++
	}
	return n
}

// refill lists the difference from at. If there is nothing in it, at moves on.
func (l *logReader) refill(ctx context.Context) error {
	var now string
	var list []entry
	after := l.at
	batch := &pgx.Batch{}
	batch.Queue(l.sql.planByIndex)
	batch.Queue(l.sql.listDifference, after.from.xmaxText(), after.from.xip, after.last, after.toText(), l.limit, l.epoch).Query(func(rows pgx.Rows) error {
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
	if err := l.db.SendBatch(ctx, batch).Close(); err != nil {
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
		l.at, l.more = l.at.end(), false
		return nil
	}
	l.at.to, l.list, l.more = to, list, len(list) == l.limit
	return nil
}

// fetch reads the messages of list. One that is not there any more was removed
// by an operator, who did not want it to be published.
func (l *logReader) fetch(ctx context.Context, list []entry) ([]row, error) {
	var ids [len(leaves)][]int64
	for _, e := range list {
		ids[e.leaf] = append(ids[e.leaf], e.id)
	}
	rows := make([]row, 0, len(list))
	batch := &pgx.Batch{}
	batch.Queue(l.sql.planByIndex)
	for leaf, some := range ids {
		if len(some) > 0 {
			batch.Queue(l.sql.fetchMessages[leaf], some).Query(collect(&rows, func(m *row, found pgx.Rows) error {
				m.leaf = leaf
				return m.scan(found, &m.behind)
			}))
		}
	}
	if err := l.db.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("read messages: %w", err)
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.ID, b.ID) })
	return rows, nil
}

// scanHeld reads a message that a statement on held messages returns.
func scanHeld(m *row, found pgx.Rows) error { return m.scan(found) }

// collect appends what a statement returns to rows.
func collect(rows *[]row, scan func(*row, pgx.Rows) error) func(pgx.Rows) error {
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
