package outboxes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

// A change is one of the commands that change dead letters or refused messages.
type change struct {
	did, would, to string
	state          operator.State
	do             func(*operator.DeadLetters, context.Context, *changeCall) (int, error)
	filtered       bool // a filter may pick messages, besides ids
	paced          bool // has the flag -rate
}

// A changeCall is the command line of a change.
type changeCall struct {
	*cli.Consent
	who    *operator.Options
	filter operator.Filter
	rate   float64
	asJSON bool
}

func outboxDeadRedrive(ctx context.Context, c *cli.Call) error {
	return changeLetters(ctx, c, change{"redrove", "would redrive", "dead letters", operator.StateDead, redriveLetters, true, true})
}

func outboxDeadDiscard(ctx context.Context, c *cli.Call) error {
	return changeLetters(ctx, c, change{"discarded", "would discard", "dead letters", operator.StateDead, discardLetters, true, false})
}

func outboxRefusedRelease(ctx context.Context, c *cli.Call) error {
	return changeLetters(ctx, c, change{"released", "would release", "refused messages", operator.StateRetrying, releaseIDs, false, false})
}

func redriveLetters(d *operator.DeadLetters, ctx context.Context, what *changeCall) (int, error) {
	done, err := d.Redrive(ctx, what.filter, &operator.RedriveOptions{Rate: what.rate})
	return done.Sent(), err
}

func discardLetters(d *operator.DeadLetters, ctx context.Context, what *changeCall) (int, error) {
	return d.Discard(ctx, what.filter, nil)
}

func releaseIDs(d *operator.DeadLetters, ctx context.Context, what *changeCall) (int, error) {
	return d.Bury(ctx, what.filter)
}

// changeLetters makes the change of the letters that the command line picks, or previews it. It prints
// the result, and returns an error if none of the ids was changed.
func changeLetters(ctx context.Context, c *cli.Call, what change) error {
	c.TakeSeveral(cli.DefaultSchema)
	said, err := parseChange(c, what)
	if err != nil {
		return err
	}
	err = c.ForEachLetters(ctx, operator.Outbox, *said.who, said.filter.IDs, said.asJSON, func(ctx context.Context, t *cli.Target, d *operator.DeadLetters, ids []int64) error {
		of := *said
		of.filter.IDs = ids
		if said.Dry {
			return previewLetters(ctx, c, t, d, what, &of)
		}
		return changeTarget(ctx, c, t, d, what, &of)
	})
	return said.ConcludePreview(err)
}

// changeTarget makes the change in one schema.
func changeTarget(ctx context.Context, c *cli.Call, t *cli.Target, d *operator.DeadLetters, what change, said *changeCall) error {
	n, err := what.do(d, ctx, said)
	if err == nil || n > 0 {
		err = errors.Join(c.PrintCount(t.Label, what.did, what.to, n, said.asJSON), err)
	}
	ids := len(said.filter.IDs)
	if err == nil && n == 0 && ids > 0 {
		return fmt.Errorf("nothing was changed: none of the %s matches these ids and this filter", what.to)
	}
	if err == nil && n < ids {
		fmt.Fprintf(c.Stderr, "%d of %d ids left out: none of the %s matches them and this filter\n", ids-n, ids, what.to)
	}
	return err
}

// parseChange reads the command line of a change. It returns an error unless letters are picked on
// purpose: a forgotten flag must not discard all of them.
func parseChange(c *cli.Call, what change) (*changeCall, error) {
	said := &changeCall{Consent: c.AddConsentFlags(), who: c.AddOperatorFlags()}
	rate, all := new(float64), new(bool)
	if what.paced {
		rate = c.AddRateFlag("messages")
	}
	pick := &letterFlags{}
	if what.filtered {
		pick = addFilter(c)
		all = c.Flags.Bool("all", false, "change all messages that match the filter flags; to match every message, use -older 0s")
	} else {
		addIDs(c, pick)
	}
	c.Flags.BoolVar(&said.asJSON, "json", false, "print JSON, one object per line")
	if err := c.ParseDatabaseFlags(); err != nil {
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
	case !named && (!*all || !pick.isGiven(c)):
		return nil, errors.New("say which: with -id, or with -all and a filter; -all -older 0s is every one")
	case said.rate < 0:
		return nil, errors.New("-rate must not be negative")
	}
	if err := pick.checkFilter(c); err != nil {
		return nil, err
	}
	return said, said.Consent.DecideChange(!named)
}

// previewLetters prints the first letters of a schema that would be changed, and the number of all.
func previewLetters(ctx context.Context, c *cli.Call, t *cli.Target, d *operator.DeadLetters, what change, said *changeCall) error {
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	filter := said.filter
	filter.State = what.state
	letters, err := d.List(ctx, filter, 0, cli.PreviewLimit)
	if err != nil {
		return err
	}
	n, err := d.Count(ctx, filter)
	if err != nil {
		return err
	}
	if err := printLetters(c, &cli.Targets{}, cli.ListedIn(t, letters), said.asJSON); err != nil {
		return err
	}
	if n > len(letters) {
		fmt.Fprintf(c.Stderr, "these are the first %d\n", len(letters))
	}
	return c.PrintCount(t.Label, what.would, what.to, n, said.asJSON)
}
