package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/saga"
)

// decide returns the command of a verb.
func decide(verb saga.Verb) func(context.Context, *call) error {
	return func(ctx context.Context, c *call) error {
		d := saga.Decision{Verb: verb}
		asJSON := c.flags.Bool("json", false, "print the instance as it is then as JSON")
		c.flags.StringVar(&d.By, "by", userName(), "who decides it; default: the user who runs this")
		c.flags.StringVar(&d.Why, "why", "", "why; it is kept, and shown to others")
		c.pickStep(&d)
		at, err := c.parseAddress(true)
		if err != nil {
			return err
		}
		if err := c.checkDecision(&d); err != nil {
			return err
		}
		n, done, err := c.instances(ctx)
		if err != nil {
			return err
		}
		defer done()
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		is, err := n.Decide(ctx, at, d)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(c.stdout, newInstance(&is))
		}
		return reportDecision(c.stdout, &is)
	}
}

// pickStep adds the flags of d's verb to c.
func (c *call) pickStep(d *saga.Decision) {
	switch d.Verb {
	case saga.VerbCompensateTo:
		c.flags.StringVar(&d.Step, "to", "", "the step to go back to, which stays done")
	case saga.VerbSkip, saga.VerbReject, saga.VerbRetry:
		c.flags.StringVar(&d.Step, "step", "", "which step")
	}
	if d.Verb == saga.VerbSkip {
		c.flags.Func("result", "what it has come to, as JSON; -: from standard input; default: the state stays as it is", func(s string) error {
			d.Result = json.RawMessage(s)
			return nil
		})
	}
}

// checkDecision asks for what is missing by the names of flags, and reads a
// result from standard input.
func (c *call) checkDecision(d *saga.Decision) error {
	switch {
	case strings.TrimSpace(d.Why) == "":
		return errors.New("say why, with -why")
	case strings.TrimSpace(d.By) == "":
		return errors.New("say who decides it, with -by")
	case d.Step == "" && d.Verb == saga.VerbCompensateTo:
		return errors.New("say with -to which step to go back to")
	case d.Step == "" && (d.Verb == saga.VerbSkip || d.Verb == saga.VerbReject):
		return errors.New("say with -step which step")
	}
	if string(d.Result) == "-" {
		text, err := io.ReadAll(io.LimitReader(c.stdin, flow.MaxState+1))
		if err != nil {
			return err
		}
		d.Result = text
	}
	return c.checkFilled([]string{"step"})
}

// reportDecision says what an instance is now, and who carries it out.
func reportDecision(w io.Writer, is *saga.Instance) error {
	then := "; an orchestrator goes on with it within a second"
	switch {
	case !is.EndedAt.IsZero():
		then = ""
	case is.DueAt.IsZero():
		then = "; sagamill saga resume goes on"
	}
	_, err := fmt.Fprintf(w, "%s, version %d, %s is %s%s\n", cell(is.Saga), is.Version, address(is.Address), is.Status, then)
	return err
}

// address is an instance's for people.
func address(a saga.Address) string {
	s := cell(a.Scope) + "/" + cell(a.Key)
	switch a.Path {
	case "":
		return s
	case flow.Root(a.Path):
		return s + ", path " + cell(a.Path)
	}
	return s + ", nested at " + cell(a.Path)
}
