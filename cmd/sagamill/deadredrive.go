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

	"github.com/sagamill/sagamill/operator"
)

// A parkedChange is the command line of what changes parked messages.
type parkedChange struct {
	*parkedFlags
	*consent
	who         *operator.Options
	all, asJSON bool
}

// changeParked adds the flags of a change to c.
func (c *call) changeParked() *parkedChange {
	p := &parkedChange{parkedFlags: c.pickParked(), consent: c.sayWhether(), who: c.sayWho()}
	c.flags.BoolVar(&p.all, "all", false, "all that the other flags pick; -older 0s picks every one")
	c.flags.BoolVar(&p.asJSON, "json", false, "print JSON, a line each")
	return p
}

// check returns an error unless something is picked on purpose. More than are named is
// done with -yes only.
func (p *parkedChange) check(c *call) error {
	if err := p.picks(c, p.all); err != nil {
		return err
	}
	return p.consent.check(len(p.filter.IDs) == 0)
}

func deadPlan(ctx context.Context, c *call) error {
	pick := c.pickParked()
	asJSON := c.flags.Bool("json", false, "print JSON, a line each")
	force := c.flags.Bool("force", false, "plan a redrive with -force")
	limit := c.flags.Int("limit", defaultLimit, fmt.Sprintf("print so many, and count all; default: %d", defaultLimit))
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if err := pick.check(c); err != nil {
		return err
	}
	d, done, err := c.parked(ctx, operator.Options{})
	if err != nil {
		return err
	}
	defer done()
	return printPlan(ctx, c, d, pick.filter, "would redrive", *force, *asJSON, *limit)
}

// printPlan prints what a redrive would make of the first letters, and of how many.
func printPlan(ctx context.Context, c *call, d *operator.DeadLetters, filter operator.Filter, would string, force, asJSON bool, limit int) error {
	var rows [][]string
	planned := 0
	outcomes, err := d.Preview(ctx, filter, &operator.PreviewOptions{Force: force}, func(p operator.Preview) error {
		if planned++; planned > limit {
			return nil
		}
		if asJSON {
			l := newParked(p.DeadLetter)
			l.Outcome, l.Why, l.Payload, l.Base64, l.Stack = string(p.Outcome), p.Why, "", nil, ""
			return printJSON(c.stdout, l)
		}
		rows = append(rows, []string{
			strconv.FormatInt(p.ID, 10), string(p.Outcome), cell(p.Kind), cell(parkedStep(p.DeadLetter)), cell(p.Scope), cell(p.Key),
			cell(string(p.Reason)), cell(clip(p.Why, reasonWidth)),
		})
		return nil
	})
	if err != nil {
		return err
	}
	if !asJSON {
		if err := printTable(c.stdout, []string{"ID", "OUTCOME", "KIND", "STEP", "SCOPE", "KEY", "REASON", "WHY"}, rows); err != nil {
			return err
		}
	}
	if planned > limit {
		fmt.Fprintf(c.stderr, "these are the first %d\n", limit)
	}
	return c.reportProspects(would, outcomes, asJSON)
}

func deadRedrive(ctx context.Context, c *call) error {
	change := c.changeParked()
	rate := c.sayRate()
	force := c.flags.Bool("force", false, "also those whose step may have run: it has no row any more")
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if *rate < 0 {
		return errors.New("-rate must not be negative")
	}
	if err := change.check(c); err != nil {
		return err
	}
	d, done, err := c.parked(ctx, *change.who)
	if err != nil {
		return err
	}
	defer done()
	if change.dry {
		return change.told(printPlan(ctx, c, d, change.filter, "would redrive", *force, change.asJSON, previewLimit))
	}
	outcomes, err := d.Redrive(ctx, change.filter, &operator.RedriveOptions{Rate: *rate, Force: *force, Progress: c.progress(time.Now())})
	if len(outcomes) > 0 || err == nil {
		err = errors.Join(c.reportProspects("redrove", outcomes, change.asJSON), err)
	}
	if ctx.Err() != nil {
		return errors.New("interrupted; said again, it leaves out what is done")
	}
	if err != nil {
		return err
	}
	return c.judgeRedrive(outcomes, len(change.filter.IDs))
}

// progressAfter is how long a redrive goes on in silence.
const progressAfter = time.Second

// progress prints how far a redrive is that takes longer.
func (c *call) progress(began time.Time) func(operator.Outcomes) {
	return func(o operator.Outcomes) {
		if time.Since(began) > progressAfter {
			fmt.Fprintf(c.stderr, "%d so far\n", o.Sent()+o.Removed()+o.Left())
		}
	}
}

// judgeRedrive says what of the ids was left out, and why, and fails where the same
// command may do better next time.
func (c *call) judgeRedrive(o operator.Outcomes, ids int) error {
	handled := o.Sent() + o.Removed() + o.Left()
	if handled == 0 && ids > 0 {
		return errors.New("nothing was done: no dead letters with these ids, or no longer, or not what the filter picks")
	}
	if handled < ids {
		fmt.Fprintf(c.stderr, "%d of %d ids left out: no dead letters, or no longer, or not what the filter picks\n", ids-handled, ids)
	}
	if n := o[operator.OutcomeTooOld]; n > 0 {
		fmt.Fprintf(c.stderr, "too old: %d, older than what is known of steps, so that they may have run: -force runs them all the same\n", n)
	}
	if n := o[operator.OutcomeBusy]; n > 0 {
		return fmt.Errorf("left out because their steps are at work: %d; say it again", n)
	}
	return nil
}

// reportProspects says what became of letters, or would.
func (c *call) reportProspects(did string, o operator.Outcomes, asJSON bool) error {
	if asJSON {
		return printJSON(c.stdout, struct {
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
	sent, removed, left := "sent round", "removed", "left" // not redriven: some come back as they are
	if strings.HasPrefix(did, "would") {
		sent, removed, left = "would send round", "remove", "leave"
	}
	_, err := fmt.Fprintf(c.stdout, "%s %s, %s %d, %s %d%s\n", sent, amount(o.Sent(), "dead letters"), removed, o.Removed(), left, o.Left(), text)
	return err
}

func deadDiscard(ctx context.Context, c *call) error {
	change := c.changeParked()
	payload := c.flags.Bool("payload", false, "with -json: print the payloads too")
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if err := change.check(c); err != nil {
		return err
	}
	var keep operator.Keep
	if change.asJSON {
		keep = func(l operator.DeadLetter) error {
			if !*payload {
				l.Payload = nil
			}
			return printJSON(c.stdout, newParked(l))
		}
	}
	return c.doParked(ctx, change, "discarded", "would discard", func(d *operator.DeadLetters) (int, error) {
		return d.Discard(ctx, change.filter, keep)
	})
}

func deadRetry(ctx context.Context, c *call) error {
	change := c.changeParked()
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if err := change.check(c); err != nil {
		return err
	}
	change.filter.State = operator.StateRetrying
	return c.doParked(ctx, change, "made due", "would make due", func(d *operator.DeadLetters) (int, error) {
		return d.RetryNow(ctx, change.filter)
	})
}

func deadBury(ctx context.Context, c *call) error {
	change := c.changeParked()
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if len(change.filter.IDs) == 0 || change.all || c.given(change.names) {
		return errors.New("say which with -id, and nothing else")
	}
	if err := change.check(c); err != nil {
		return err
	}
	change.filter.State = operator.StateRetrying
	return c.doParked(ctx, change, "buried", "would bury", func(d *operator.DeadLetters) (int, error) {
		return d.Bury(ctx, change.filter.IDs...)
	})
}

// things is what messages in a state are called.
func things(state operator.State) string {
	if state == operator.StateRetrying {
		return "retrying messages"
	}
	return "dead letters"
}

// doParked does what to the messages that change picks, or says what it would do.
func (c *call) doParked(ctx context.Context, change *parkedChange, did, would string, do func(*operator.DeadLetters) (int, error)) error {
	to := things(change.filter.State)
	d, done, err := c.parked(ctx, *change.who)
	if err != nil {
		return err
	}
	defer done()
	if change.dry {
		return change.told(c.previewParked(ctx, d, change, would, to))
	}
	n, err := do(d)
	if err == nil || n > 0 {
		err = errors.Join(c.report(did, to, n, change.asJSON), err)
	}
	ids := len(change.filter.IDs)
	if err == nil && n == 0 && ids > 0 {
		return fmt.Errorf("nothing was done: no %s with these ids, or no longer, or not what the filter picks, or at work", to)
	}
	if err == nil && n < ids {
		fmt.Fprintf(c.stderr, "%d of %d ids left out: no %s, or no longer, or not what the filter picks, or at work\n", ids-n, ids, to)
	}
	return err
}

// previewParked prints some of what would be changed, and how much that is.
func (c *call) previewParked(ctx context.Context, d *operator.DeadLetters, change *parkedChange, would, to string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	letters, err := d.List(ctx, change.filter, 0, previewLimit)
	if err != nil {
		return err
	}
	n, err := d.Count(ctx, change.filter)
	if err != nil {
		return err
	}
	if err := printParked(c, letters, change.asJSON); err != nil {
		return err
	}
	if n > len(letters) {
		fmt.Fprintf(c.stderr, "these are the first %d\n", len(letters))
	}
	return c.report(would, to, n, change.asJSON)
}
