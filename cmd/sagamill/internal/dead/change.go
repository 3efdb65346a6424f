package dead

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

// A parkedChange is the command line of a command that changes parked messages.
type parkedChange struct {
	*parkedFlags
	*cli.Consent
	who         *operator.Options
	all, asJSON bool
}

// addChange adds the flags of a change to c.
func addChange(c *cli.Call) *parkedChange {
	c.TakeSeveral(cli.DefaultSchema)
	p := &parkedChange{parkedFlags: addFilter(c), Consent: c.AddConsentFlags(), who: c.AddOperatorFlags()}
	c.Flags.BoolVar(&p.all, "all", false, "change all messages that match the filter flags; to match every message, use -older 0s")
	c.Flags.BoolVar(&p.asJSON, "json", false, "print JSON, one object per line")
	return p
}

// checkChange returns an error unless messages are picked on purpose. A change of messages that are
// not named one by one needs -yes.
func (p *parkedChange) checkChange(c *cli.Call) error {
	if err := p.checkPicked(c, p.all); err != nil {
		return err
	}
	return p.Consent.DecideChange(len(p.filter.IDs) == 0)
}

func deadPlan(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.DefaultSchema)
	pick := addFilter(c)
	asJSON := c.Flags.Bool("json", false, "print JSON, one object per line")
	force := c.Flags.Bool("force", false, "print what sagamill dead redrive -force would do")
	all := c.Flags.Bool("all", false, "print what sagamill dead redrive -all would do; -id or a filter flag is then required")
	limit := c.Flags.Int("limit", cli.DefaultLimit, fmt.Sprintf("largest number of messages to print; the totals at the end include all messages; default: %d", cli.DefaultLimit))
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	check := pick.checkFilter
	if *all {
		check = func(c *cli.Call) error { return pick.checkPicked(c, true) }
	}
	if err := check(c); err != nil {
		return err
	}
	return c.ForEachLetters(ctx, operator.Inbox, operator.Options{}, pick.filter.IDs, *asJSON, func(ctx context.Context, t *cli.Target, d *operator.DeadLetters, ids []int64) error {
		filter := pick.filter
		filter.IDs = ids
		return printPlan(ctx, c, t, d, filter, &plan{would: "would redrive", force: *force, asJSON: *asJSON, limit: *limit})
	})
}

// A plan says how a planned redrive is printed.
type plan struct {
	would         string
	force, asJSON bool
	limit         int
}

// printPlan prints what a redrive in a schema would make of the first letters, and of how many.
func printPlan(ctx context.Context, c *cli.Call, t *cli.Target, d *operator.DeadLetters, filter operator.Filter, how *plan) error {
	var rows [][]string
	planned := 0
	outcomes, err := d.Preview(ctx, filter, &operator.PreviewOptions{Force: how.force}, func(p operator.Preview) error {
		if planned++; planned > how.limit {
			return nil
		}
		if how.asJSON {
			l := newLetter(t, p.DeadLetter)
			l.Outcome, l.Why, l.Payload, l.Base64, l.Stack = string(p.Outcome), p.Why, "", nil, ""
			return cli.PrintJSON(c.Stdout, l)
		}
		rows = append(rows, []string{
			strconv.FormatInt(p.ID, 10), string(p.Outcome), cli.FormatCell(p.Kind), cli.FormatCell(cli.FormatStep(p.DeadLetter)), cli.FormatCell(p.Scope), cli.FormatCell(p.Key),
			cli.FormatCell(string(p.Reason)), cli.FormatCell(cli.ClipText(p.Why, cli.ReasonWidth)),
		})
		return nil
	})
	if err != nil {
		return err
	}
	if !how.asJSON {
		if err := cli.PrintTable(c.Stdout, []string{"ID", "OUTCOME", "KIND", "STEP", "SCOPE", "KEY", "REASON", "WHY"}, rows); err != nil {
			return err
		}
	}
	if planned > how.limit {
		fmt.Fprintf(c.Stderr, "these are the first %d\n", how.limit)
	}
	return printOutcomes(c, t, how.would, outcomes, how.asJSON)
}

func deadRedrive(ctx context.Context, c *cli.Call) error {
	change := addChange(c)
	rate := c.AddRateFlag("messages")
	force := c.Flags.Bool("force", false, "also redrive actions of ended sagas, and messages from before the horizon of the inbox; the step of such an old message can run a second time")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if *rate < 0 {
		return errors.New("-rate must not be negative")
	}
	if err := change.checkChange(c); err != nil {
		return err
	}
	err := c.ForEachLetters(ctx, operator.Inbox, *change.who, change.filter.IDs, change.asJSON, func(ctx context.Context, t *cli.Target, d *operator.DeadLetters, ids []int64) error {
		filter := change.filter
		filter.IDs = ids
		if change.Dry {
			return printPlan(ctx, c, t, d, filter, &plan{would: "would redrive", force: *force, asJSON: change.asJSON, limit: cli.PreviewLimit})
		}
		return redriveTarget(ctx, c, t, d, filter, &operator.RedriveOptions{Rate: *rate, Force: *force, Progress: newProgress(c, time.Now())}, change.asJSON)
	})
	return change.ConcludePreview(err)
}

// redriveTarget redrives the letters of one schema.
func redriveTarget(ctx context.Context, c *cli.Call, t *cli.Target, d *operator.DeadLetters, filter operator.Filter, opts *operator.RedriveOptions, asJSON bool) error {
	outcomes, err := d.Redrive(ctx, filter, opts)
	if len(outcomes) > 0 || err == nil {
		err = errors.Join(printOutcomes(c, t, "redrove", outcomes, asJSON), err)
	}
	if ctx.Err() != nil {
		return errors.New("interrupted; said again, it leaves out what is done")
	}
	if err != nil {
		return err
	}
	return judgeRedrive(c, outcomes, len(filter.IDs))
}

// newProgress returns a function that prints the progress of a redrive that takes longer than
// [cli.ProgressAfter].
func newProgress(c *cli.Call, began time.Time) func(operator.Outcomes) {
	return func(o operator.Outcomes) {
		if time.Since(began) > cli.ProgressAfter {
			fmt.Fprintf(c.Stderr, "%d so far\n", o.Sent()+o.Removed()+o.Left())
		}
	}
}

// judgeRedrive prints how many of the ids were left out, and why. It returns an error if nothing was
// redriven, or if the same command may redrive more next time.
func judgeRedrive(c *cli.Call, o operator.Outcomes, ids int) error {
	handled := o.Sent() + o.Removed() + o.Left()
	if handled == 0 && ids > 0 {
		return errors.New("nothing was changed: no dead letter matches these ids and this filter")
	}
	if handled < ids {
		fmt.Fprintf(c.Stderr, "%d of %d ids left out: no dead letter matches them and this filter\n", ids-handled, ids)
	}
	if n := o[operator.OutcomeTooOld]; n > 0 {
		fmt.Fprintf(c.Stderr, "too old: %d, older than what is known of steps, so that they may have run: -force runs them all the same\n", n)
	}
	if n := o[operator.OutcomeSagaEnded]; n > 0 {
		fmt.Fprintf(c.Stderr, "left because their sagas have ended: %d; discard them, for nobody would undo what -force runs\n", n)
	}
	if n := o[operator.OutcomeBusy]; n > 0 {
		return fmt.Errorf("left out because their steps are at work: %d; say it again", n)
	}
	return nil
}

// printOutcomes prints the outcomes of a redrive, or of a planned one.
func printOutcomes(c *cli.Call, t *cli.Target, did string, o operator.Outcomes, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(c.Stdout, struct {
			Schema   string            `json:"schema,omitempty"`
			Did      string            `json:"did"`
			Count    int               `json:"count"`
			Removed  int               `json:"removed"`
			Left     int               `json:"left"`
			Outcomes operator.Outcomes `json:"outcomes"`
		}{t.Label, did, o.Sent(), o.Removed(), o.Left(), o})
	}
	parts := []string{}
	for _, outcome := range slices.Sorted(maps.Keys(o)) {
		parts = append(parts, fmt.Sprintf("%d %s", o[outcome], outcome))
	}
	text := ""
	if len(parts) > 0 {
		text = ": " + strings.Join(parts, ", ")
	}
	sent, removed, left := "sent round", "removed", "left" // "redriven" would be wrong: some become the same dead letters again
	if strings.HasPrefix(did, "would") {
		sent, removed, left = "would send round", "remove", "leave"
	}
	_, err := fmt.Fprintf(c.Stdout, "%s %s, %s %d, %s %d%s\n", sent, cli.FormatCount(o.Sent(), "dead letters"), removed, o.Removed(), left, o.Left(), text)
	return err
}

func deadDiscard(ctx context.Context, c *cli.Call) error {
	change := addChange(c)
	payload := c.Flags.Bool("payload", false, "with -json: print the payloads too")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if err := change.checkChange(c); err != nil {
		return err
	}
	return changeLetters(ctx, c, change, "discarded", "would discard", func(t *cli.Target, d *operator.DeadLetters, filter operator.Filter) (int, error) {
		var keep operator.Keep
		if change.asJSON {
			keep = func(l operator.DeadLetter) error {
				if !*payload {
					l.Payload = nil
				}
				return cli.PrintJSON(c.Stdout, newLetter(t, l))
			}
		}
		return d.Discard(ctx, filter, keep)
	})
}

func deadRetry(ctx context.Context, c *cli.Call) error {
	change := addChange(c)
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if err := change.checkChange(c); err != nil {
		return err
	}
	change.filter.State = operator.StateRetrying
	return changeLetters(ctx, c, change, "made due", "would make due", func(_ *cli.Target, d *operator.DeadLetters, filter operator.Filter) (int, error) {
		return d.RetryNow(ctx, filter)
	})
}

func deadBury(ctx context.Context, c *cli.Call) error {
	change := addChange(c)
	for _, name := range append([]string{"all"}, change.names...) {
		c.Flags.Lookup(name).Usage = "not allowed: choose the messages with -id"
	}
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if len(change.filter.IDs) == 0 || change.all || c.IsGiven(change.names) {
		return errors.New("say which with -id, and nothing else")
	}
	if err := change.checkChange(c); err != nil {
		return err
	}
	change.filter.State = operator.StateRetrying
	return changeLetters(ctx, c, change, "buried", "would bury", func(_ *cli.Target, d *operator.DeadLetters, filter operator.Filter) (int, error) {
		return d.Bury(ctx, filter)
	})
}

// nameState returns the name of messages in a state.
func nameState(state operator.State) string {
	if state == operator.StateRetrying {
		return "retrying messages"
	}
	return "dead letters"
}

// changeLetters calls do for the letters that change picks, schema by schema, or previews the change.
func changeLetters(ctx context.Context, c *cli.Call, change *parkedChange, did, would string, do func(*cli.Target, *operator.DeadLetters, operator.Filter) (int, error)) error {
	err := c.ForEachLetters(ctx, operator.Inbox, *change.who, change.filter.IDs, change.asJSON, func(ctx context.Context, t *cli.Target, d *operator.DeadLetters, ids []int64) error {
		filter := change.filter
		filter.IDs = ids
		if change.Dry {
			return previewLetters(ctx, c, t, d, filter, would, change.asJSON)
		}
		n, err := do(t, d, filter)
		return reportChange(c, t, filter, did, n, change.asJSON, err)
	})
	return change.ConcludePreview(err)
}

// reportChange prints how many letters of a schema were changed. It returns an error if none of the ids was.
func reportChange(c *cli.Call, t *cli.Target, filter operator.Filter, did string, n int, asJSON bool, err error) error {
	to, ids := nameState(filter.State), len(filter.IDs)
	if err == nil || n > 0 {
		err = errors.Join(c.PrintCount(t.Label, did, to, n, asJSON), err)
	}
	if err == nil && n == 0 && ids > 0 {
		return fmt.Errorf("nothing was changed: none of the %s matches these ids and this filter, or all that match are at work", to)
	}
	if err == nil && n < ids {
		fmt.Fprintf(c.Stderr, "%d of %d ids left out: none of the %s matches them and this filter, or its step is at work\n", ids-n, ids, to)
	}
	return err
}

// previewLetters prints the first messages of a schema that would be changed, and the number of all.
func previewLetters(ctx context.Context, c *cli.Call, t *cli.Target, d *operator.DeadLetters, filter operator.Filter, would string, asJSON bool) error {
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	letters, err := d.List(ctx, filter, 0, cli.PreviewLimit)
	if err != nil {
		return err
	}
	n, err := d.Count(ctx, filter)
	if err != nil {
		return err
	}
	if err := printLetters(c, &cli.Targets{}, cli.ListedIn(t, letters), asJSON); err != nil {
		return err
	}
	if n > len(letters) {
		fmt.Fprintf(c.Stderr, "these are the first %d\n", len(letters))
	}
	return c.PrintCount(t.Label, would, nameState(filter.State), n, asJSON)
}
