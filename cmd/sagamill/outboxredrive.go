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
	count          func(*outbox.DeadLetters, context.Context, outbox.DeadFilter) (int, error)
	do             func(*outbox.DeadLetters, context.Context, *changeCall) (int, error)
	filtered       bool // a filter may pick them, and not only ids
	paced          bool // there is a rate
}

// A changeCall is the command line of a change.
type changeCall struct {
	*consent
	operator *outbox.Operator
	filter   outbox.DeadFilter
	rate     float64
	asJSON   bool
}

func outboxDeadRedrive(ctx context.Context, c *call) error {
	return changeLetters(ctx, c, change{"redrove", "would redrive", "dead letters", (*outbox.DeadLetters).List,
		(*outbox.DeadLetters).Count, redriveLetters, true, true})
}

func outboxDeadDiscard(ctx context.Context, c *call) error {
	return changeLetters(ctx, c, change{"discarded", "would discard", "dead letters", (*outbox.DeadLetters).List,
		(*outbox.DeadLetters).Count, discardLetters, true, false})
}

func outboxRefusedRelease(ctx context.Context, c *call) error {
	return changeLetters(ctx, c, change{"released", "would release", "refused messages", (*outbox.DeadLetters).Refused,
		countRefused, releaseIDs, false, false})
}

func countRefused(d *outbox.DeadLetters, ctx context.Context, f outbox.DeadFilter) (int, error) {
	letters, err := d.Refused(ctx, f, 0, outbox.MaxList)
	return len(letters), err
}

func redriveLetters(d *outbox.DeadLetters, ctx context.Context, what *changeCall) (int, error) {
	return d.RedriveAll(ctx, what.filter, &outbox.RedriveOptions{Rate: what.rate})
}

func discardLetters(d *outbox.DeadLetters, ctx context.Context, what *changeCall) (int, error) {
	return d.DiscardAll(ctx, what.filter)
}

func releaseIDs(d *outbox.DeadLetters, ctx context.Context, what *changeCall) (int, error) {
	return d.Release(ctx, what.filter.IDs...)
}

// changeLetters does what to the letters that the command line picks, or says what
// it would do.
func changeLetters(ctx context.Context, c *call, what change) error {
	said, err := c.parseChange(what)
	if err != nil {
		return err
	}
	filter := said.filter
	d, done, err := c.letters(ctx)
	if err != nil {
		return err
	}
	defer done()
	if said.dry {
		return said.told(preview(ctx, c, d, what, filter, said.asJSON))
	}
	n, err := what.do(d.As(*said.operator), ctx, said)
	if err == nil || n > 0 {
		err = errors.Join(c.report(what.did, what.to, n, said.asJSON), err)
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
func (c *call) parseChange(what change) (*changeCall, error) {
	said := &changeCall{consent: c.sayWhether(), operator: c.sayWho()}
	rate, all := new(float64), new(bool)
	if what.paced {
		rate = c.sayRate()
	}
	pick := &letterFlags{}
	if what.filtered {
		pick = c.pick()
		all = c.flags.Bool("all", false, "all that the other flags pick; -older 0s picks every one")
	} else {
		c.pickIDs(pick)
	}
	c.flags.BoolVar(&said.asJSON, "json", false, "print JSON, a line each")
	if err := c.parseDatabase(); err != nil {
		return nil, err
	}
	said.filter, said.rate = pick.filter, *rate
	ids := &said.filter.IDs
	slices.Sort(*ids)
	*ids = slices.Compact(*ids)
	named := len(*ids) > 0
	switch {
	case !named && !what.filtered:
		return nil, errors.New("say which with -id")
	case !named && (!*all || !pick.given(c)):
		return nil, errors.New("say which: with -id, or with -all and a filter; -all -older 0s is every one")
	case said.rate < 0:
		return nil, errors.New("-rate must not be negative")
	}
	if err := pick.check(c); err != nil {
		return nil, err
	}
	return said, said.consent.check(!named)
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
