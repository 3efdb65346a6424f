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
	// rotateInterval is the time between two checks of the leaves. While nothing is published, it is idleRotations times
	// as long.
	rotateInterval = time.Second
	idleRotations  = 30

	// emptyCap is how long a leaf that is in use is left alone at most.
	emptyCap = time.Minute

	// emptyLeafSize is at most the size of an empty leaf: one page of its TOAST index.
	emptyLeafSize = 8 << 10
)

// A spaceKeeper gives the space of published messages back, leaf by leaf.
type spaceKeeper struct {
	*core
	epoch    int64
	checked  cursor                 // how far messages were published at the last check of the leaves
	rotateAt time.Time              // no check before
	idleAt   time.Time              // when to check although nothing was published
	turnedAt time.Time              // when new messages last went to another leaf
	vain     [len(leaves)]int       // attempts in a row to empty the leaf
	emptyAt  [len(leaves)]time.Time // not before
}

// rotateLeaves empties leaves whose messages are all published up to the cursor at. It sends new
// messages to an empty leaf when the current one is large or old enough. While no leaf is empty,
// because a long transaction may have written to each, the current one grows.
func (k *spaceKeeper) rotateLeaves(ctx context.Context, at cursor) error {
	now := time.Now()
	if now.Before(k.rotateAt) || now.Before(k.idleAt) && at.from.text == k.checked.from.text && at.last == k.checked.last {
		return nil
	}
	k.checked, k.rotateAt, k.idleAt = at, now.Add(k.limits.rotate), now.Add(idleRotations*k.limits.rotate)
	var current *int64
	var sizes []int64
	if err := k.db.QueryRow(ctx, k.sql.currentLeaf).Scan(&current, &sizes); err != nil {
		return fmt.Errorf("outbox: read the leaves: %w", err)
	}
	if current == nil || len(sizes) != len(leaves) {
		return fmt.Errorf("outbox: the sequence outbox_leaf has no value")
	}
	for leaf, size := range sizes {
		if size <= emptyLeafSize || int64(leaf) == *current || time.Now().Before(k.emptyAt[leaf]) {
			continue
		}
		if k.emptyLeaf(ctx, leaf, at) {
			sizes[leaf], k.vain[leaf] = 0, 0
			continue
		}
		k.vain[leaf]++
		k.emptyAt[leaf] = time.Now().Add(backoff.Policy{Base: k.limits.rotate, Cap: emptyCap}.Ceiling(k.vain[leaf]))
	}
	used := sizes[*current]
	steps := stepsToEmptyLeaf(*current, sizes)
	if used <= emptyLeafSize || steps == 0 || used < k.opts.RotateBytes && time.Since(k.turnedAt) < k.opts.RotateAfter {
		return nil
	}
	if _, err := k.db.Exec(ctx, k.sql.nextLeaf, steps); err != nil {
		return fmt.Errorf("outbox: change leaves: %w", err)
	}
	if err := failpoint.Hit("outbox/after-turn-leaves"); err != nil {
		return err
	}
	k.turnedAt, k.rotateAt, k.idleAt = time.Now(), time.Time{}, time.Time{}
	return nil
}

// stepsToEmptyLeaf returns how many leaves after current the first empty one is; 0: none is
// empty. A leaf that is not may have to stay so for long.
func stepsToEmptyLeaf(current int64, sizes []int64) int64 {
	for steps := int64(1); steps < rotated; steps++ {
		if sizes[(current+steps)%rotated] <= emptyLeafSize {
			return steps
		}
	}
	return 0
}

// emptyLeaf truncates the leaf if everything in it is published up to the cursor at and old
// enough, and reports whether it did. The lock on the leaf waits for open transactions with
// messages in it. The fence keeps the cursor from moving.
func (k *spaceKeeper) emptyLeaf(ctx context.Context, leaf int, at cursor) bool {
	published := false
	err := k.runImpatientTx(ctx, k.epoch, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, k.sql.lockLeaf[leaf]); err != nil {
			return err
		}
		current := leaf
		if leaf >= rotated {
			current = -1 // new messages may always go to the catch-all
		}
		err := tx.QueryRow(ctx, k.sql.judgeLeaf[leaf], at.from.xmaxText(), at.from.xip, at.toText(), at.last,
			max(0, k.opts.Retention).Microseconds(), current).Scan(&published)
		if err != nil || !published {
			return err
		}
		if _, err = tx.Exec(ctx, k.sql.truncateLeaf[leaf]); err != nil {
			return err
		}
		return failpoint.Hit("outbox/before-empty")
	})
	if published && err == nil {
		err = failpoint.Hit("outbox/after-empty")
	}
	if err != nil {
		k.opts.Logger.DebugContext(ctx, "outbox: the leaf cannot be emptied now", "schema", k.opts.Schema, "leaf", leaves[leaf], "error", err)
	}
	return published && err == nil
}

// turnCursors empties the older of the two tables of cursors, to go on with it. It does not wait
// for a reader of that table: the other one is always there.
func (s *settler) turnCursors(ctx context.Context) {
	if s.marks < s.turnAt {
		return
	}
	s.turnAt = s.marks + s.limits.cursors
	other := 1 - s.which
	err := s.runImpatientTx(ctx, s.epoch, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.sql.truncateCursor[other]); err != nil {
			return err
		}
		return failpoint.Hit("outbox/before-turn-cursors")
	})
	if err == nil {
		err = failpoint.Hit("outbox/after-turn-cursors")
	}
	if err != nil {
		s.opts.Logger.DebugContext(ctx, "outbox: the older table of cursors is in use", "schema", s.opts.Schema, "error", err)
		return
	}
	s.which = other
}

const sqlTruncateCursor = `TRUNCATE {schema}.{cursor}`

// sqlCurrentLeaf reads which leaf gets new messages, and how large each leaf is.
const sqlCurrentLeaf = `
SELECT pg_sequence_last_value('{schema}.outbox_leaf'::regclass) % 3,
	ARRAY[pg_table_size('{schema}.outbox_0'), pg_table_size('{schema}.outbox_1'), pg_table_size('{schema}.outbox_2'), pg_table_size('{schema}.outbox_other')]`

// sqlNextLeaf sends new messages to the leaf $1 further on. A message that goes into a leaf in
// between is as safe there.
const sqlNextLeaf = `SELECT nextval('{schema}.outbox_leaf') FROM generate_series(1, $1)`

// sqlLockLeaf waits for every transaction that has written to the leaf, for as long as
// lock_timeout allows.
const sqlLockLeaf = `LOCK TABLE {schema}.{leaf} IN ACCESS EXCLUSIVE MODE`

// sqlJudgeLeaf runs under sqlLockLeaf, so that it sees all committed messages. It tells whether
// the leaf may be emptied: new messages go elsewhere, and no message in it is unpublished or
// younger than $5 microseconds. A copy, which a replay has written, has the time of another
// message and need not be kept. The cursor is $1 (xmax) and $2 (in progress) of its from, $3
// (to) and $4 (id).
const sqlJudgeLeaf = `
SELECT pg_sequence_last_value('{schema}.outbox_leaf'::regclass) % 3 IS DISTINCT FROM $6::bigint
	AND NOT EXISTS (SELECT FROM {schema}.{leaf} WHERE xid >= $1::text::xid8
		AND NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)))
	AND NOT EXISTS (SELECT FROM {schema}.{leaf} WHERE xid = ANY ($2::text[]::xid8[])
		AND NOT ($3::text IS NOT NULL AND id <= $4 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)))
	AND ($5::bigint = 0 OR coalesce((SELECT created_at FROM {schema}.{leaf} WHERE leaf IS DISTINCT FROM -1 ORDER BY id DESC LIMIT 1)
		<= clock_timestamp() - $5 * interval '1 microsecond', true))`

// sqlTruncateLeaf gives the leaf's space back, whatever snapshots are open.
const sqlTruncateLeaf = `TRUNCATE {schema}.{leaf}`
