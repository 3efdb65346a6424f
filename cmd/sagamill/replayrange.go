package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
)

// positions are how far a replay of a range has got, by schema.
type positions map[string]int64

// String is what Set reads.
func (p positions) String() string {
	parts := make([]string, 0, len(p))
	for _, schema := range slices.Sorted(maps.Keys(p)) {
		parts = append(parts, schema+":"+strconv.FormatInt(p[schema], 10))
	}
	return strings.Join(parts, ",")
}

// Set reads a flag.
func (p positions) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		schema, id, _ := strings.Cut(strings.TrimSpace(part), ":")
		at, err := strconv.ParseInt(id, 10, 64)
		if err != nil || at < 0 || schema == "" {
			return errors.New("want SCHEMA:ID,…")
		}
		p[schema] = at
	}
	return nil
}

// A rangeReplay is a replay of a time range, schema by schema.
type rangeReplay struct {
	*call
	*replayCall
	db       *pgxpool.Pool
	replayed int       // in all schemas
	spoke    time.Time // when progress was printed last
	listed   []keptMessage
}

// replayRange replays all that was written in a time range, batch by batch.
func (c *call) replayRange(ctx context.Context, db *pgxpool.Pool, what *replayCall) error {
	r := &rangeReplay{call: c, replayCall: what, db: db, spoke: time.Now()}
	replayers, err := r.outboxes(ctx)
	if err != nil {
		return err
	}
	var without []error
	for i, schema := range c.schemaNames() {
		err := r.one(ctx, schema, replayers[i])
		if errors.Is(err, operator.ErrNotKept) {
			without = append(without, err)
		} else if err != nil {
			return r.interrupted(ctx, err)
		}
	}
	var none error
	if n := len(without) - 1; n+1 == len(replayers) {
		without, none = without[:n], without[n]
	}
	for _, err := range without {
		fmt.Fprintln(c.stderr, visible(err.Error()))
	}
	if none != nil {
		return none
	}
	if r.dry && !r.asJSON {
		if err := printKept(c, r.listed, false); err != nil {
			return err
		}
		if r.replayed > len(r.listed) {
			fmt.Fprintf(c.stderr, "these are the first %d\n", len(r.listed))
		}
	}
	return r.told(c.report(r.did(), "messages", r.replayed, r.asJSON))
}

// outboxes returns the outbox of each schema. Nothing is done while one of them cannot be
// read, and it says what of the range is not kept any more.
func (r *rangeReplay) outboxes(ctx context.Context) (all []*operator.Replayer, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for _, schema := range r.schemaNames() {
		replayer, err := operator.NewReplayer(r.db, r.in(schema))
		if err != nil {
			return nil, err
		}
		oldest, err := replayer.Oldest(ctx)
		if err != nil {
			return nil, err
		}
		if oldest.After(r.filter.Since) && r.after[schema] == 0 {
			fmt.Fprintf(r.stderr, "schema %s keeps what was written since %s: of what was before, nothing can be replayed\n", schema, stamp(oldest))
		}
		all = append(all, replayer)
	}
	return all, nil
}

// one replays what the outbox in schema keeps.
func (r *rangeReplay) one(ctx context.Context, schema string, replayer *operator.Replayer) error {
	filter := r.filter
	filter.After = r.after[schema]
	p, err := replayer.ReplayRange(ctx, filter, &operator.RangeOptions{
		Rate: *r.rate, DryRun: r.dry, Progress: func(p operator.RangeProgress) error { return r.progress(schema, p) },
	})
	if errors.Is(err, operator.ErrNotKept) && filter.After > 0 {
		fmt.Fprintf(r.stderr, "schema %s: nothing is left behind %d\n", schema, filter.After)
		return nil
	}
	if err == nil && p.Replayed < p.Found {
		fmt.Fprintf(r.stderr, "schema %s: %d fewer than there were at the beginning: the relay has removed them since, or holds them\n", schema, p.Found-p.Replayed)
	}
	return err
}

// progress counts a batch, prints it where messages are listed, and says every now and
// then how far the replay is.
func (r *rangeReplay) progress(schema string, p operator.RangeProgress) error {
	r.replayed += len(p.Batch)
	r.after[schema] = p.Last
	batch := make([]keptMessage, len(p.Batch))
	for i, k := range p.Batch {
		batch[i] = keptMessage{schema, k}
	}
	switch {
	case r.asJSON:
		if err := printKeptJSON(r.call, batch); err != nil {
			return err
		}
	case r.dry:
		r.listed = append(r.listed, batch[:min(len(batch), defaultLimit-len(r.listed))]...)
	}
	if !r.dry && time.Since(r.spoke) > progressAfter {
		r.spoke = time.Now()
		last := p.Batch[len(p.Batch)-1]
		fmt.Fprintf(r.stderr, "schema %s: %d of %d, up to what was written at %s; -after %s goes on from here\n", schema, p.Replayed, p.Found, stamp(last.CreatedAt), r.after)
	}
	return nil
}

// interrupted adds to err, which has ended the replay, how it goes on.
func (r *rangeReplay) interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if r.dry || len(r.after) == 0 {
		return err
	}
	return fmt.Errorf("%w: replayed %s; the same with -after %s goes on", err, amount(r.replayed, "messages"), r.after)
}
