package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

// A rangeReplay is a replay of a time range, schema by schema.
type rangeReplay struct {
	*cli.Call
	*replayCall
	targets  *cli.Targets
	replayed int       // in all schemas
	spoke    time.Time // when progress was printed last
	listed   []storedMessage
}

// replayRange replays the messages that were written in a time range, batch by batch.
func replayRange(ctx context.Context, c *cli.Call, targets *cli.Targets, what *replayCall) error {
	r := &rangeReplay{Call: c, replayCall: what, targets: targets, spoke: time.Now()}
	replayers, err := r.openReplayers(ctx)
	if err != nil {
		return err
	}
	var without []error
	for i, t := range targets.All {
		err := r.replaySchema(ctx, t.Name, replayers[i])
		if errors.Is(err, operator.ErrNotKept) {
			without = append(without, err)
		} else if err != nil {
			return r.explainStop(ctx, err)
		}
	}
	var none error
	if n := len(without) - 1; n+1 == len(replayers) {
		without, none = without[:n], without[n]
	}
	for _, err := range without {
		fmt.Fprintln(c.Stderr, cli.EscapeText(err.Error()))
	}
	if none != nil {
		return none
	}
	if r.Dry && !r.asJSON {
		if err := printMessages(c, r.listed, false); err != nil {
			return err
		}
		if r.replayed > len(r.listed) {
			fmt.Fprintf(c.Stderr, "these are the first %d\n", len(r.listed))
		}
	}
	return r.ConcludePreview(c.PrintCount("", r.describeDone(), "messages", r.replayed, r.asJSON))
}

// openReplayers returns a replayer for each schema. If one outbox cannot be read, it returns an error
// before anything is replayed. It prints which part of the range is not stored any more.
func (r *rangeReplay) openReplayers(ctx context.Context) (all []*operator.Replayer, err error) {
	err = r.targets.Each(ctx, func(ctx context.Context, t *cli.Target) error {
		replayer, err := operator.NewReplayer(t.DB, r.buildOptions(t.Schema))
		if err != nil {
			return err
		}
		oldest, err := replayer.Oldest(ctx)
		if err != nil {
			return err
		}
		if oldest.After(r.filter.Since) && r.after[t.Name] == 0 {
			fmt.Fprintf(r.Stderr, "schema %s keeps what was written since %s: of what was before, nothing can be replayed\n", t.Name, cli.FormatTime(oldest))
		}
		all = append(all, replayer)
		return nil
	})
	return all, err
}

// replaySchema replays the range of the outbox in schema.
func (r *rangeReplay) replaySchema(ctx context.Context, schema string, replayer *operator.Replayer) error {
	filter := r.filter
	filter.After = r.after[schema]
	p, err := replayer.ReplayRange(ctx, filter, &operator.RangeOptions{
		Rate: *r.rate, DryRun: r.Dry, Progress: func(p operator.RangeProgress) error { return r.reportBatch(schema, p) },
	})
	if errors.Is(err, operator.ErrNotKept) && filter.After > 0 {
		fmt.Fprintf(r.Stderr, "schema %s: nothing is left behind %d\n", schema, filter.After)
		return nil
	}
	if err == nil && p.Replayed < p.Found {
		fmt.Fprintf(r.Stderr, "schema %s: %d fewer than there were at the beginning: the relay has removed them since, or holds them\n", schema, p.Found-p.Replayed)
	}
	return err
}

// reportBatch counts a batch, prints it if messages are listed, and prints the progress of a long
// replay.
func (r *rangeReplay) reportBatch(schema string, p operator.RangeProgress) error {
	r.replayed += len(p.Batch)
	r.after[schema] = p.Last
	batch := make([]storedMessage, len(p.Batch))
	for i, k := range p.Batch {
		batch[i] = storedMessage{schema, k}
	}
	switch {
	case r.asJSON:
		if err := printMessagesJSON(r.Call, batch); err != nil {
			return err
		}
	case r.Dry:
		r.listed = append(r.listed, batch[:min(len(batch), cli.DefaultLimit-len(r.listed))]...)
	}
	if !r.Dry && time.Since(r.spoke) > cli.ProgressAfter {
		r.spoke = time.Now()
		last := p.Batch[len(p.Batch)-1]
		fmt.Fprintf(r.Stderr, "schema %s: %d of %d, up to what was written at %s; -after %s goes on from here\n", schema, p.Replayed, p.Found, cli.FormatTime(last.CreatedAt), r.after)
	}
	return nil
}

// explainStop adds to err, which stopped the replay, the command line that continues it.
func (r *rangeReplay) explainStop(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if r.Dry || len(r.after) == 0 {
		return err
	}
	return fmt.Errorf("%w: replayed %s; the same with -after %s goes on", err, cli.FormatCount(r.replayed, "messages"), r.after)
}
