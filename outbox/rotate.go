package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
)

const (
	// rotateInterval is how often the leaves are looked at.
	rotateInterval = time.Second

	// lockPatience is how long a TRUNCATE waits, and the relay with it, for a
	// transaction that has written to the leaf.
	lockPatience = "10ms"

	// emptyCap is how long a leaf that is in use is left alone at most.
	emptyCap = time.Minute
)

// rotate empties leaves whose messages are all published, and sends new messages
// to an empty one when the current one is large or old enough. As long as no leaf
// is empty, for a long transaction may have written to each, the current one
// grows.
func (l *leader) rotate(ctx context.Context) error {
	if time.Now().Before(l.rotateAt) {
		return nil
	}
	l.rotateAt = time.Now().Add(l.r.limits.rotate)
	var current *int64
	var sizes []int64
	if err := l.r.db.QueryRow(ctx, l.r.sql.currentLeaf).Scan(&current, &sizes); err != nil {
		return fmt.Errorf("outbox: read the leaves: %w", err)
	}
	if current == nil || len(sizes) != len(leaves) {
		return fmt.Errorf("outbox: the sequence outbox_leaf has no value")
	}
	for leaf, size := range sizes {
		if size <= emptyLeaf || int64(leaf) == *current || time.Now().Before(l.emptyAt[leaf]) {
			continue
		}
		if l.empty(ctx, leaf) {
			sizes[leaf], l.vain[leaf] = 0, 0
			continue
		}
		l.vain[leaf]++
		l.emptyAt[leaf] = time.Now().Add(backoff.Policy{Base: l.r.limits.rotate, Cap: emptyCap}.Ceiling(l.vain[leaf]))
	}
	used := sizes[*current]
	steps := stepsToEmpty(*current, sizes)
	if used <= emptyLeaf || steps == 0 || used < l.r.opts.RotateBytes && time.Since(l.turnedAt) < l.r.opts.RotateAfter {
		return nil
	}
	if _, err := l.r.db.Exec(ctx, l.r.sql.nextLeaf, steps); err != nil {
		return fmt.Errorf("outbox: change leaves: %w", err)
	}
	if err := failpoint.Hit("outbox/after-turn-leaves"); err != nil {
		return err
	}
	l.turnedAt, l.rotateAt = time.Now(), time.Time{}
	return nil
}

// stepsToEmpty returns how many leaves after current comes an empty one; 0: none
// is. One that is not may have to stay so for long.
func stepsToEmpty(current int64, sizes []int64) int64 {
	for steps := int64(1); steps < rotated; steps++ {
		if sizes[(current+steps)%rotated] <= emptyLeaf {
			return steps
		}
	}
	return 0
}

// emptyLeaf is at most what an empty leaf takes: one page of its TOAST index.
const emptyLeaf = 8 << 10

// empty truncates the leaf if everything in it is published and old enough, and
// reports whether it did. The messages of a transaction that is open are behind
// its lock on the leaf; the cursor is behind the fence.
func (l *leader) empty(ctx context.Context, leaf int) bool {
	published := false
	err := l.locked(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, l.r.sql.lockLeaf[leaf]); err != nil {
			return err
		}
		current := leaf
		if leaf >= rotated {
			current = -1 // new messages may always go to the catch-all
		}
		at := l.tenure.at
		err := tx.QueryRow(ctx, l.r.sql.judgeLeaf[leaf], at.from.xmaxText(), at.from.xip, at.toText(), at.last,
			l.r.opts.Retention.Microseconds(), current).Scan(&published)
		if err != nil || !published {
			return err
		}
		if _, err = tx.Exec(ctx, l.r.sql.truncateLeaf[leaf]); err != nil {
			return err
		}
		return failpoint.Hit("outbox/before-empty")
	})
	if published && err == nil {
		err = failpoint.Hit("outbox/after-empty")
	}
	if err != nil {
		l.r.opts.Logger.DebugContext(ctx, "outbox: the leaf cannot be emptied now", "schema", l.r.opts.Schema, "leaf", leaves[leaf], "error", err)
	}
	return published && err == nil
}

// locked runs f in a transaction that does not wait for locks, while no other
// relay takes over.
func (l *leader) locked(ctx context.Context, f func(pgx.Tx) error) error {
	return l.r.begin(ctx, func(tx pgx.Tx) error {
		var epoch int64
		batch := &pgx.Batch{}
		batch.Queue(l.r.sql.lockSoon, lockPatience)
		batch.Queue(l.r.sql.planByIndex)
		batch.Queue(l.r.sql.fence, l.tenure.epoch).QueryRow(func(row pgx.Row) error { return overtaken(row.Scan(&epoch)) })
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		return f(tx)
	})
}
