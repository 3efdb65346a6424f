package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sagamill/sagamill/outbox"
)

// A change is what is done to dead letters, or to refused messages.
type change struct {
	did, would, to string
	list           lister
	count, do      func(*outbox.DeadLetters, context.Context, outbox.DeadFilter) (int, error)
	filtered       bool // a filter may pick them, and not only ids
}

func outboxDeadRedrive(ctx context.Context, c *call) error {
	return changeLetters(ctx, c, change{"redrove", "would redrive", "dead letters", (*outbox.DeadLetters).List,
		(*outbox.DeadLetters).Count, (*outbox.DeadLetters).RedriveAll, true})
}

func outboxDeadDiscard(ctx context.Context, c *call) error {
	return changeLetters(ctx, c, change{"discarded", "would discard", "dead letters", (*outbox.DeadLetters).List,
		(*outbox.DeadLetters).Count, (*outbox.DeadLetters).DiscardAll, true})
}

func outboxRefusedRelease(ctx context.Context, c *call) error {
	return changeLetters(ctx, c, change{"released", "would release", "refused messages", (*outbox.DeadLetters).Refused,
		countRefused, releaseIDs, false})
}

func countRefused(d *outbox.DeadLetters, ctx context.Context, f outbox.DeadFilter) (int, error) {
	letters, err := d.Refused(ctx, f, 0, outbox.MaxList)
	return len(letters), err
}

func releaseIDs(d *outbox.DeadLetters, ctx context.Context, f outbox.DeadFilter) (int, error) {
	return d.Release(ctx, f.IDs...)
}

// changeLetters does what to the letters that the command line picks, or says what
// it would do.
func changeLetters(ctx context.Context, c *call, what change) error {
	dry, asJSON, filter, err := c.parseChange(what)
	if err != nil {
		return err
	}
	d, done, err := c.letters(ctx)
	if err != nil {
		return err
	}
	defer done()
	if dry {
		return preview(ctx, c, d, what, filter, asJSON)
	}
	n, err := what.do(d, ctx, filter)
	if err == nil || n > 0 {
		err = errors.Join(c.report(what.did, what.to, n, asJSON), err)
	}
	if err == nil && n == 0 && len(filter.IDs) > 0 {
		return fmt.Errorf("nothing was done: no %s with these ids, or no longer, or not what the filter picks", what.to)
	}
	if err == nil && n < len(filter.IDs) {
		fmt.Fprintf(c.stderr, "%d of %d ids left out: no %s, or no longer, or not what the filter picks\n", len(filter.IDs)-n, len(filter.IDs), what.to)
	}
	return err
}

// parseChange reads the command line of a change. It must pick something: nobody
// discards all there is by leaving something out.
func (c *call) parseChange(what change) (dry, asJSON bool, filter outbox.DeadFilter, err error) {
	all := new(bool)
	pick := &letterFlags{}
	if what.filtered {
		pick = c.pick()
		all = c.flags.Bool("all", false, "all that the other flags pick; -older 0s picks every one")
	} else {
		c.pickIDs(pick)
	}
	c.flags.BoolVar(&dry, "n", false, "say what would be done, and do nothing")
	c.flags.BoolVar(&dry, "dry-run", false, "as -n")
	c.flags.BoolVar(&asJSON, "json", false, "print JSON, a line each")
	if err := c.parseDatabase(); err != nil {
		return false, false, filter, err
	}
	filter = pick.filter
	slices.Sort(filter.IDs)
	filter.IDs = slices.Compact(filter.IDs)
	switch {
	case len(filter.IDs) > 0:
		return dry, asJSON, filter, pick.check(c)
	case !what.filtered:
		err = errors.New("say which with -id")
	case !*all || !pick.given(c):
		err = errors.New("say which: with -id, or with -all and a filter; -all -older 0s is every one")
	default:
		err = pick.check(c)
	}
	return dry, asJSON, filter, err
}

// preview prints some of what would be changed, and how much that is.
func preview(ctx context.Context, c *call, d *outbox.DeadLetters, what change, filter outbox.DeadFilter, asJSON bool) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	letters, err := what.list(d, ctx, filter, 0, previewLimit)
	if err != nil {
		return err
	}
	n, err := what.count(d, ctx, filter)
	if err != nil {
		return err
	}
	if err := printLetters(c, letters, asJSON); err != nil {
		return err
	}
	if n > len(letters) {
		fmt.Fprintf(c.stderr, "these are the first %d\n", len(letters))
	}
	return c.report(what.would, what.to, n, asJSON)
}

// report says how much was done, or would be.
func (c *call) report(did, to string, n int, asJSON bool) error {
	if asJSON {
		return printJSON(c.stdout, struct {
			Did   string `json:"did"`
			Count int    `json:"count"`
		}{did, n})
	}
	_, err := fmt.Fprintf(c.stdout, "%s %s\n", did, amount(n, to))
	return err
}
