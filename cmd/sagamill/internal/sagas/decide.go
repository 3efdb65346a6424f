package sagas

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// A decideCall is the command line of a verb.
type decideCall struct {
	*cli.Consent
	decision operator.Decision
	asJSON   bool

	all    bool // many instances are picked by filter
	filter operator.InstanceFilter
	rate   *float64
}

// decideStep returns the command of a verb.
func decideStep(verb operator.Verb) func(context.Context, *cli.Call) error {
	return func(ctx context.Context, c *cli.Call) error {
		c.TakeSeveral(cli.EverySchema)
		c.MarkChange()
		c.Flags.Lookup("schema").Usage = "names of the schemas, separated by commas; default: the schema that has the KEY; with -all, the schema " + migrations.DefaultSchema
		d := &decideCall{decision: operator.Decision{Verb: verb}, Consent: c.AddConsentFlags(), rate: c.AddRateFlag("instances")}
		c.Flags.BoolVar(&d.asJSON, "json", false, "print the changed instance as JSON; with -all, print how many instances were changed, as JSON")
		c.Flags.StringVar(&d.decision.By, "by", cli.FindUserName(), "name of the person who decides; default: the user who runs the command")
		c.Flags.StringVar(&d.decision.Why, "why", "", "reason for the decision; sagamill stores the reason and shows it to other people")
		c.Flags.BoolVar(&d.all, "all", false, "in place of a KEY: change all live instances that match the filter flags, including nested instances; to match every live instance, use -older 0s")
		addStep(c, &d.decision)
		addFilter(c, &d.filter)
		for _, name := range manyFlags {
			c.Flags.Lookup(name).Usage = "with -all: " + c.Flags.Lookup(name).Usage
		}
		at, err := c.ParseAddress(true, &d.all)
		if err != nil {
			return err
		}
		if err := cmp.Or(d.checkPicked(c, at), checkDecision(c, &d.decision)); err != nil {
			return err
		}
		if d.all {
			return decideAll(ctx, c, d)
		}
		return decideOne(ctx, c, d, at)
	}
}

// manyFlags are the flags of a decision about many instances.
var manyFlags = []string{"saga", "version", "older", "silent", "status", "rate", "yes", "n", "dry-run"}

// checkPicked returns an error unless one instance is named, or many are picked on purpose.
func (d *decideCall) checkPicked(c *cli.Call, at saga.Address) error {
	if !d.all {
		for _, name := range manyFlags {
			if c.IsGiven([]string{name}) {
				return fmt.Errorf("-%s is for many instances, with -all", name)
			}
		}
		return nil
	}
	d.filter.Scope, d.filter.Key = at.Scope, at.Key
	picked := at.Key != "" || c.IsGiven(filterNames) || d.decision.Verb == operator.VerbRetry && d.decision.Step != ""
	switch {
	case at.Path != "":
		return errors.New("-path names one instance, and -all is for many")
	case !picked:
		return errors.New("-all needs a filter; -all -older 0s picks every live instance")
	case *d.rate < 0:
		return errors.New("-rate must not be negative")
	}
	return cmp.Or(checkFilter(c, &d.filter), d.DecideChange(true))
}

// decideOne decides about the instance at an address, in the schema that has it.
func decideOne(ctx context.Context, c *cli.Call, d *decideCall, at saga.Address) error {
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	targets, err := c.OpenTargets(ctx, cli.EverySchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	of, n, found, err := targets.FindInstance(ctx, at)
	if err != nil {
		return err
	}
	is, err := n.Decide(ctx, found, d.decision)
	if err != nil {
		return err
	}
	if d.asJSON {
		return cli.PrintJSON(c.Stdout, newInstance(of.Name, &is))
	}
	return reportDecision(c.Stdout, &is)
}

// addStep adds the flags of d's verb to c.
func addStep(c *cli.Call, d *operator.Decision) {
	switch d.Verb {
	case operator.VerbCompensateTo:
		c.Flags.StringVar(&d.Step, "to", "", "name of the step to go back to; this step stays done")
	case operator.VerbSkip, operator.VerbReject, operator.VerbRetry:
		usage := "name of the step"
		if d.Verb == operator.VerbRetry {
			usage += "; default: all steps that are stuck or that wait for a retry, except dead letters at the participant"
		}
		c.Flags.StringVar(&d.Step, "step", "", usage)
	}
	if d.Verb == operator.VerbSkip {
		c.Flags.Func("result", "result of the step, as JSON; - means standard input; without -result, the step does not change the state of the saga", func(s string) error {
			d.Result = json.RawMessage(s)
			return nil
		})
	}
}

// checkDecision returns an error that names the first missing flag. It reads a result from standard
// input if -result is a hyphen.
func checkDecision(c *cli.Call, d *operator.Decision) error {
	switch {
	case strings.TrimSpace(d.Why) == "":
		return errors.New("say why, with -why")
	case strings.TrimSpace(d.By) == "":
		return errors.New("say who decides it, with -by")
	case d.Step == "" && d.Verb == operator.VerbCompensateTo:
		return errors.New("say with -to which step to go back to")
	case d.Step == "" && (d.Verb == operator.VerbSkip || d.Verb == operator.VerbReject):
		return errors.New("say with -step which step")
	}
	if string(d.Result) == "-" {
		text, err := io.ReadAll(io.LimitReader(c.Stdin, flow.MaxState+1))
		if err != nil {
			return err
		}
		d.Result = text
	}
	return c.CheckFilled([]string{"step"})
}

// reportDecision prints the new status of an instance, and how it continues.
func reportDecision(w io.Writer, is *operator.Instance) error {
	then := "; an orchestrator goes on with it within a second"
	switch {
	case !is.EndedAt.IsZero():
		then = ""
	case is.DueAt.IsZero():
		then = "; sagamill saga resume goes on"
	}
	_, err := fmt.Fprintf(w, "%s, version %d, %s is %s%s\n", cli.FormatCell(is.Saga), is.Version, cli.FormatAddress(is.Address), is.Status, then)
	return err
}
