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
	p := &parkedChange{parkedFlags: addFilter(c), Consent: c.AddConsentFlags(), who: c.AddOperatorFlags()}
	c.Flags.BoolVar(&p.all, "all", false, "all that the other flags pick; -older 0s picks every one")
	c.Flags.BoolVar(&p.asJSON, "json", false, "print JSON, a line each")
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
	pick := addFilter(c)
	asJSON := c.Flags.Bool("json", false, "print JSON, a line each")
	force := c.Flags.Bool("force", false, "plan a redrive with -force")
	limit := c.Flags.Int("limit", cli.DefaultLimit, fmt.Sprintf("print so many, and count all; default: %d", cli.DefaultLimit))
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if err := pick.checkFilter(c); err != nil {
		return err
	}
	d, done, err := c.OpenDeadLetters(ctx, operator.Inbox, operator.Options{})
	if err != nil {
		return err
	}
	defer done()
	return printPlan(ctx, c, d, pick.filter, "would redrive", *force, *asJSON, *limit)
}

// printPlan prints what a redrive would make of the first letters, and of how many.
func printPlan(ctx context.Context, c *cli.Call, d *operator.DeadLetters, filter operator.Filter, would string, force, asJSON bool, limit int) error {
	var rows [][]string
	planned := 0
	outcomes, err := d.Preview(ctx, filter, &operator.PreviewOptions{Force: force}, func(p operator.Preview) error {
		if planned++; planned > limit {
			return nil
		}
		if asJSON {
			l := newLetter(p.DeadLetter)
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
	if !asJSON {
		if err := cli.PrintTable(c.Stdout, []string{"ID", "OUTCOME", "KIND", "STEP", "SCOPE", "KEY", "REASON", "WHY"}, rows); err != nil {
			return err
		}
	}
	if planned > limit {
		fmt.Fprintf(c.Stderr, "these are the first %d\n", limit)
	}
	return printOutcomes(c, would, outcomes, asJSON)
}

func deadRedrive(ctx context.Context, c *cli.Call) error {
	change := addChange(c)
	rate := c.AddRateFlag()
	force := c.Flags.Bool("force", false, "also those whose step may have run: it has no row any more")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if *rate < 0 {
		return errors.New("-rate must not be negative")
	}
	if err := change.checkChange(c); err != nil {
		return err
	}
	d, done, err := c.OpenDeadLetters(ctx, operator.Inbox, *change.who)
	if err != nil {
		return err
	}
	defer done()
	if change.Dry {
		return change.ConcludePreview(printPlan(ctx, c, d, change.filter, "would redrive", *force, change.asJSON, cli.PreviewLimit))
	}
	outcomes, err := d.Redrive(ctx, change.filter, &operator.RedriveOptions{Rate: *rate, Force: *force, Progress: newProgress(c, time.Now())})
	if len(outcomes) > 0 || err == nil {
		err = errors.Join(printOutcomes(c, "redrove", outcomes, change.asJSON), err)
	}
	if ctx.Err() != nil {
		return errors.New("interrupted; said again, it leaves out what is done")
	}
	if err != nil {
		return err
	}
	return judgeRedrive(c, outcomes, len(change.filter.IDs))
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
		return errors.New("nothing was done: no dead letters with these ids, or no longer, or not what the filter picks")
	}
	if handled < ids {
		fmt.Fprintf(c.Stderr, "%d of %d ids left out: no dead letters, or no longer, or not what the filter picks\n", ids-handled, ids)
	}
	if n := o[operator.OutcomeTooOld]; n > 0 {
		fmt.Fprintf(c.Stderr, "too old: %d, older than what is known of steps, so that they may have run: -force runs them all the same\n", n)
	}
	if n := o[operator.OutcomeBusy]; n > 0 {
		return fmt.Errorf("left out because their steps are at work: %d; say it again", n)
	}
	return nil
}

// printOutcomes prints the outcomes of a redrive, or of a planned one.
func printOutcomes(c *cli.Call, did string, o operator.Outcomes, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(c.Stdout, struct {
			Did      string            `json:"did"`
			Count    int               `json:"count"`
			Removed  int               `json:"removed"`
			Left     int               `json:"left"`
			Outcomes operator.Outcomes `json:"outcomes"`
		}{did, o.Sent(), o.Removed(), o.Left(), o})
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
	var keep operator.Keep
	if change.asJSON {
		keep = func(l operator.DeadLetter) error {
			if !*payload {
				l.Payload = nil
			}
			return cli.PrintJSON(c.Stdout, newLetter(l))
		}
	}
	return changeLetters(ctx, c, change, "discarded", "would discard", func(d *operator.DeadLetters) (int, error) {
		return d.Discard(ctx, change.filter, keep)
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
	return changeLetters(ctx, c, change, "made due", "would make due", func(d *operator.DeadLetters) (int, error) {
		return d.RetryNow(ctx, change.filter)
	})
}

func deadBury(ctx context.Context, c *cli.Call) error {
	change := addChange(c)
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
	return changeLetters(ctx, c, change, "buried", "would bury", func(d *operator.DeadLetters) (int, error) {
		return d.Bury(ctx, change.filter.IDs...)
	})
}

// nameState returns the name of messages in a state.
func nameState(state operator.State) string {
	if state == operator.StateRetrying {
		return "retrying messages"
	}
	return "dead letters"
}

// changeLetters calls do for the messages that change picks, or previews the change. It prints the
// result, and returns an error if none of the ids was changed.
func changeLetters(ctx context.Context, c *cli.Call, change *parkedChange, did, would string, do func(*operator.DeadLetters) (int, error)) error {
	to := nameState(change.filter.State)
	d, done, err := c.OpenDeadLetters(ctx, operator.Inbox, *change.who)
	if err != nil {
		return err
	}
	defer done()
	if change.Dry {
		return change.ConcludePreview(previewLetters(ctx, c, d, change, would, to))
	}
	n, err := do(d)
	if err == nil || n > 0 {
		err = errors.Join(c.PrintCount(did, to, n, change.asJSON), err)
	}
	ids := len(change.filter.IDs)
	if err == nil && n == 0 && ids > 0 {
		return fmt.Errorf("nothing was done: no %s with these ids, or no longer, or not what the filter picks, or at work", to)
	}
	if err == nil && n < ids {
		fmt.Fprintf(c.Stderr, "%d of %d ids left out: no %s, or no longer, or not what the filter picks, or at work\n", ids-n, ids, to)
	}
	return err
}

// previewLetters prints the first messages that would be changed, and the number of all.
func previewLetters(ctx context.Context, c *cli.Call, d *operator.DeadLetters, change *parkedChange, would, to string) error {
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	letters, err := d.List(ctx, change.filter, 0, cli.PreviewLimit)
	if err != nil {
		return err
	}
	n, err := d.Count(ctx, change.filter)
	if err != nil {
		return err
	}
	if err := printLetters(c, letters, change.asJSON); err != nil {
		return err
	}
	if n > len(letters) {
		fmt.Fprintf(c.Stderr, "these are the first %d\n", len(letters))
	}
	return c.PrintCount(would, to, n, change.asJSON)
}
