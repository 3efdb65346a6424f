package sagas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

// pastTense has the words for what a verb has done to instances.
var pastTense = map[operator.Verb]string{
	operator.VerbPause: "paused", operator.VerbResume: "resumed", operator.VerbCancel: "cancelled", operator.VerbCompensateTo: "took back",
	operator.VerbSkip: "skipped the step of", operator.VerbReject: "rejected the step of", operator.VerbRetry: "retried",
}

// conditional has the words for what a verb would do to instances.
var conditional = map[operator.Verb]string{
	operator.VerbPause: "would pause", operator.VerbResume: "would resume", operator.VerbCancel: "would cancel", operator.VerbCompensateTo: "would take back",
	operator.VerbSkip: "would skip the step of", operator.VerbReject: "would reject the step of", operator.VerbRetry: "would retry",
}

// decideAll decides about all instances that the command line picks, schema by schema. In a dry run it only previews.
func decideAll(ctx context.Context, c *cli.Call, d *decideCall) error {
	total := operator.Decisions{}
	err := c.ForEachTarget(ctx, cli.DefaultSchema, d.asJSON, func(ctx context.Context, t *cli.Target) error {
		n, err := t.OpenInstances()
		if err != nil {
			return err
		}
		do := decideTarget
		if d.Dry {
			do = previewTarget
		}
		counts, err := do(ctx, c, t, n, d)
		total.Decided, total.Busy = total.Decided+counts.Decided, total.Busy+counts.Busy
		return err
	})
	switch {
	case err != nil:
		return err
	case d.Dry:
		return d.ConcludePreview(nil)
	case total.Busy > 0:
		return fmt.Errorf("%s left out because their rows were locked; run the command again", cli.FormatCount(total.Busy, "instances"))
	case total.Decided == 0:
		return errors.New("nothing was done: no instance that the filter picks takes this decision")
	}
	return nil
}

// decideTarget decides about the instances of one schema.
func decideTarget(ctx context.Context, c *cli.Call, t *cli.Target, n *operator.Instances, d *decideCall) (operator.Decisions, error) {
	began := time.Now()
	counts, err := n.DecideAll(ctx, d.filter, d.decision, &operator.DecideOptions{Rate: *d.rate, Progress: func(so operator.Decisions) {
		if time.Since(began) > cli.ProgressAfter {
			fmt.Fprintf(c.Stderr, "%d so far\n", so.Decided+so.TotalRefused()+so.Changed+so.Busy)
		}
	}})
	if ctx.Err() != nil {
		err = errors.New("interrupted: the decisions so far are committed; run the same command again for the rest")
	}
	if err == nil || counts.Decided > 0 {
		err = cmp.Or(printDecisions(c, t, pastTense[d.decision.Verb], &counts, d.asJSON), err)
	}
	return counts, err
}

// previewTarget prints the first instances of a schema that would take the decision, and how many would.
func previewTarget(ctx context.Context, c *cli.Call, t *cli.Target, n *operator.Instances, d *decideCall) (operator.Decisions, error) {
	var first []operator.Instance
	counts, err := n.PreviewAll(ctx, d.filter, d.decision, func(p operator.DecisionPreview) error {
		if p.Refusal == "" && len(first) < cli.PreviewLimit {
			first = append(first, p.Instance)
		}
		return nil
	})
	if err == nil && len(first) > 0 {
		err = printInstances(c, &cli.Targets{}, cli.ListedIn(t, first), d.asJSON)
	}
	if err != nil {
		return counts, err
	}
	if counts.Decided > len(first) {
		fmt.Fprintf(c.Stderr, "these are the first %d\n", len(first))
	}
	return counts, printDecisions(c, t, conditional[d.decision.Verb], &counts, d.asJSON)
}

// printDecisions prints how many instances took the decision, and why others did not.
func printDecisions(c *cli.Call, t *cli.Target, did string, d *operator.Decisions, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(c.Stdout, struct {
			Schema  string         `json:"schema,omitempty"`
			Did     string         `json:"did"`
			Count   int            `json:"count"`
			Refused map[string]int `json:"refused,omitempty"`
			Changed int            `json:"changed"`
			Busy    int            `json:"busy"`
		}{t.Label, did, d.Decided, d.Refused, d.Changed, d.Busy})
	}
	text := fmt.Sprintf("%s %s", did, cli.FormatCount(d.Decided, "instances"))
	if d.Changed > 0 {
		text += fmt.Sprintf(", left %d that changed after they were read", d.Changed)
	}
	if d.Busy > 0 {
		text += fmt.Sprintf(", left %d whose rows were locked", d.Busy)
	}
	if _, err := fmt.Fprintln(c.Stdout, text); err != nil {
		return err
	}
	for _, reason := range slices.SortedFunc(maps.Keys(d.Refused), func(a, b string) int { return cmp.Or(d.Refused[b]-d.Refused[a], cmp.Compare(a, b)) }) {
		if _, err := fmt.Fprintf(c.Stdout, "refused by %d: %s\n", d.Refused[reason], cli.EscapeText(reason)); err != nil {
			return err
		}
	}
	return nil
}
