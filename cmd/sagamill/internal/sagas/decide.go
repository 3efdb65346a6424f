package sagas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/operator"
)

// decideStep returns the command of a verb.
func decideStep(verb operator.Verb) func(context.Context, *cli.Call) error {
	return func(ctx context.Context, c *cli.Call) error {
		d := operator.Decision{Verb: verb}
		asJSON := c.Flags.Bool("json", false, "print the instance as it is then as JSON")
		c.Flags.StringVar(&d.By, "by", cli.FindUserName(), "who decides it; default: the user who runs this")
		c.Flags.StringVar(&d.Why, "why", "", "why; it is kept, and shown to others")
		addStep(c, &d)
		at, err := c.ParseAddress(true)
		if err != nil {
			return err
		}
		if err := checkDecision(c, &d); err != nil {
			return err
		}
		n, done, err := openInstances(ctx, c)
		if err != nil {
			return err
		}
		defer done()
		ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
		defer cancel()
		is, err := n.Decide(ctx, at, d)
		if err != nil {
			return err
		}
		if *asJSON {
			return cli.PrintJSON(c.Stdout, newInstance(&is))
		}
		return reportDecision(c.Stdout, &is)
	}
}

// addStep adds the flags of d's verb to c.
func addStep(c *cli.Call, d *operator.Decision) {
	switch d.Verb {
	case operator.VerbCompensateTo:
		c.Flags.StringVar(&d.Step, "to", "", "the step to go back to, which stays done")
	case operator.VerbSkip, operator.VerbReject, operator.VerbRetry:
		c.Flags.StringVar(&d.Step, "step", "", "which step")
	}
	if d.Verb == operator.VerbSkip {
		c.Flags.Func("result", "what it has come to, as JSON; -: from standard input; default: the state stays as it is", func(s string) error {
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
