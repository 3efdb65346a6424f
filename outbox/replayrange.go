package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

const (
	// replayBatch is how many messages of a range are replayed in one transaction, and
	// replayBytes how many bytes of payload, give or take a message.
	replayBatch = 1000
	replayBytes = 32 << 20

	// replayTimeout bounds that, and counting a range: a walk through what is kept.
	replayTimeout = 5 * time.Minute
)

// RangeOptions are what most callers leave alone. The zero value is usable.
type RangeOptions struct {
	// Rate is how many messages are replayed in a second; default: as many as go. The
	// relay publishes them as fast as it can, so that this is how consumers are spared.
	Rate float64

	// DryRun stores nothing, and tells Progress what would be.
	DryRun bool

	// Progress is called after each batch has committed. Its error ends the replay.
	// Default: nobody is told.
	Progress func(RangeProgress) error
}

// A RangeProgress is how far a replay of a range has got.
type RangeProgress struct {
	Batch    []Kept // the last batch; only in a call of Progress
	Replayed int    // messages so far
	Found    int    // messages that there were to replay when it began
	Last     int64  // ID of the last one so far: [ReplayFilter].After of who goes on
}

// ReplayRange does what [Replayer.Replay] does with however many messages f picks, of
// those that there are when it begins, in batches that are transactions of their own.
// It holds no more than one of them in memory. Its error is a [NotKeptError] if there
// are none.
//
// When ctx ends it ends between two batches, and returns ctx's error. After any error
// the result says how far it is known to have got: what was replayed stays so, and a
// call with f.After set to Last goes on. A batch whose outcome is not known is replayed
// twice then, which changes nothing, as any message that comes twice. So is one that
// had committed when the process died.
//
// Messages may be fewer in the end than were found: the relay removes what is older
// than [RelayOptions].Retention, and what it holds meanwhile is left to it.
func (r *Replayer) ReplayRange(ctx context.Context, db *pgxpool.Pool, f ReplayFilter, opts *RangeOptions) (p RangeProgress, err error) {
	o := RangeOptions{}
	if opts != nil {
		o = *opts
	}
	p.Last = f.After
	if err := f.check(); err != nil {
		return p, err
	}
	if o.Rate < 0 {
		return p, fmt.Errorf("%w: RangeOptions.Rate is negative", ErrInvalid)
	}
	through, err := r.survey(ctx, db, f, &p)
	if err != nil {
		return p, err
	}
	for ctx.Err() == nil {
		f.After = p.Last
		batch, err := r.replayBatch(ctx, db, f, through, &o)
		if err != nil || len(batch) == 0 {
			return p, err
		}
		p.Replayed, p.Last = p.Replayed+len(batch), batch[len(batch)-1].ID
		if o.Progress != nil {
			told := p
			told.Batch = batch
			if err := o.Progress(told); err != nil {
				return p, err
			}
		}
		o.pause(ctx, len(batch))
	}
	return p, ctx.Err()
}

// survey counts what f picks and returns the last one's id.
func (r *Replayer) survey(ctx context.Context, db *pgxpool.Pool, f ReplayFilter, p *RangeProgress) (through int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	err = db.QueryRow(ctx, r.sql.countKept, f.args()...).Scan(&p.Found, &through)
	if err != nil {
		return 0, fmt.Errorf("outbox: count kept messages: %w", sqlschema.Explain(err))
	}
	if p.Found == 0 {
		return 0, r.notKept(ctx, db)
	}
	return through, nil
}

// errDryRun rolls a batch back.
var errDryRun = errors.New("outbox: dry run")

// replayBatch replays the next messages, and returns them. It does not end with ctx:
// a transaction that is under way commits.
func (r *Replayer) replayBatch(ctx context.Context, db *pgxpool.Pool, f ReplayFilter, through int64, o *RangeOptions) (kept []Kept, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), replayTimeout)
	defer cancel()
	err = beginLimited(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, r.sql.planByIndex); err != nil {
			return fmt.Errorf("outbox: settle plans: %w", err)
		}
		if kept, err = r.list(ctx, tx, f, through, o.size()); err != nil {
			return err
		}
		kept = cutKept(kept)
		switch {
		case o.DryRun:
			return errDryRun
		case len(kept) == 0:
			return nil
		}
		if err := r.copy(ctx, tx, f, kept); err != nil {
			return err
		}
		return failpoint.Hit("redrive/outbox-replay-before-commit")
	})
	switch {
	case errors.Is(err, errDryRun):
		return kept, nil
	case err != nil:
		return nil, err
	case len(kept) == 0:
		return nil, nil
	}
	return kept, failpoint.Hit("redrive/outbox-replay-after-commit")
}

// cutKept returns the first of kept whose payloads are no more than a batch takes, and
// one at least.
func cutKept(kept []Kept) []Kept {
	bytes := 0
	for i, k := range kept {
		if bytes += k.Size; bytes > replayBytes && i > 0 {
			return kept[:i]
		}
	}
	return kept
}

// size is how many messages a batch has: at a limited rate, those of a second.
func (o *RangeOptions) size() int {
	if o.Rate == 0 {
		return replayBatch
	}
	return min(replayBatch, max(1, int(o.Rate)))
}

// pause keeps to the rate when n messages were replayed.
func (o *RangeOptions) pause(ctx context.Context, n int) {
	if o.Rate == 0 || o.DryRun {
		return
	}
	pauseFor(ctx, time.Duration(float64(n)/o.Rate*float64(time.Second)))
}

// pauseFor waits so long, or until ctx ends.
func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
