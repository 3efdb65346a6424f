// Package sagas has the commands on instances of sagas.
package sagas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{
		{Words: "saga list", About: "list instances of orchestrated sagas, by default the instances that have not ended; for other instances, use -status", Run: sagaList},
		{Words: "saga show", About: "print the timeline of the instance with the key KEY, and the steps that a cancellation would undo", Run: sagaShow},
		{Words: "saga pause", About: "pause the instance with the key KEY; during the pause, no step begins, no step is undone, and no deadline takes effect", Run: decideStep(operator.VerbPause)},
		{Words: "saga resume", About: "continue the paused instance with the key KEY", Run: decideStep(operator.VerbResume)},
		{Words: "saga cancel", About: "compensate the instance with the key KEY, without waiting for running steps; sagamill refuses this after the command of the pivot has been sent", Run: decideStep(operator.VerbCancel)},
		{Words: "saga compensate", About: "take an instance back to the step that you name with -to: undo the later steps, then pause the instance", Run: decideStep(operator.VerbCompensateTo)},
		{Words: "saga skip", About: "treat the step that you name with -step as done, with the result that you give with -result; if the step is being undone, treat it as undone", Run: decideStep(operator.VerbSkip)},
		{Words: "saga reject", About: "treat the step that you name with -step as a step that had no effect; the saga then compensates", Run: decideStep(operator.VerbReject)},
		{Words: "saga retry", About: "try the step that you name with -step again now; without -step, try again all steps that are stuck or that wait for a retry, except dead letters at the participant", Run: decideStep(operator.VerbRetry)},
		{Words: "saga check", About: "print which versions of sagas have live instances, and whether the binary that -manifest describes can finish these instances", Run: sagaCheck},
	}
}

// statuses are the values of -status of saga list.
var statuses = []saga.Status{saga.StatusRunning, saga.StatusCompensating, saga.StatusPaused, saga.StatusStuck, saga.StatusCompleted, saga.StatusCompensated}

// filterNames are the flags of a filter.
var filterNames = []string{"saga", "version", "scope", "key", "older", "silent", "status"}

// addFilter adds the flags of a filter to c, except -scope and -key.
func addFilter(c *cli.Call, f *operator.InstanceFilter) {
	c.Flags.StringVar(&f.Saga, "saga", "", "only instances of the saga with this name")
	c.Flags.IntVar(&f.Version, "version", 0, "only instances with this version of their saga, a number such as 2")
	c.Flags.Var((*cli.Age)(&f.Older), "older", "only instances that started at least this long ago, such as 90m or 72h")
	c.Flags.Var((*cli.Age)(&f.Silent), "silent", "only instances that have not changed for this long, such as 90m or 72h")
	f.Live = true
	c.Flags.Func("status", "only instances with this status: running, compensating, paused, stuck, completed, compensated or all (any status); default: instances that have not ended", func(s string) error {
		f.Status, f.Live = saga.Status(s), false
		if s == "all" {
			f.Status = ""
		} else if !slices.Contains(statuses, f.Status) {
			return errors.New("it is none of running, compensating, paused, stuck, completed, compensated, all")
		}
		return nil
	})
}

// checkFilter returns an error if the flags may pick more than was meant.
func checkFilter(c *cli.Call, f *operator.InstanceFilter) error {
	if f.Older < 0 || f.Silent < 0 || f.Version < 0 {
		return errors.New("-older, -silent and -version must not be negative")
	}
	return c.CheckFilled([]string{"saga", "scope", "key"})
}

// addAfter adds the flag -after.
func addAfter(c *cli.Call) *cli.Place[saga.Address] {
	p := &cli.Place[saga.Address]{}
	c.Flags.Func("after", "print only instances after this instance, to continue a list; copy the value (scope, key and path) from the last line of the earlier list", func(s string) (err error) {
		quoted := strings.IndexByte(s, '"')
		if quoted > 0 {
			p.Name = strings.TrimSuffix(s[:quoted], ":")
		}
		p.Entry, err = parseAfter(s[max(quoted, 0):])
		p.Given = true
		return err
	})
	return p
}

func sagaList(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.DefaultSchema)
	var filter operator.InstanceFilter
	addFilter(c, &filter)
	c.Flags.StringVar(&filter.Scope, "scope", "", "only instances of this scope")
	c.Flags.StringVar(&filter.Key, "key", "", "only instances with this idempotency key")
	c.Flags.Var((*cli.Age)(&filter.Ended), "ended", "list completed and compensated instances that ended at most this long ago, such as 1h; -status is not needed")
	asJSON := c.Flags.Bool("json", false, "print JSON, one object per line")
	limit, after := c.AddLimitFlag(), addAfter(c)
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if err := cmp.Or(cli.CheckLimit(*limit), checkFilter(c, &filter)); err != nil {
		return err
	}
	if filter.Ended < 0 {
		return errors.New("-ended must not be negative")
	}
	if filter.Ended > 0 {
		filter.Live = false
	}
	targets, err := c.OpenTargets(ctx, cli.DefaultSchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	all, err := cli.ListTargets(ctx, targets, after, *limit, func(ctx context.Context, t *cli.Target, after saga.Address, limit int) ([]operator.Instance, error) {
		n, err := t.OpenInstances()
		if err != nil {
			return nil, err
		}
		return n.List(ctx, filter, after, limit)
	})
	if err != nil {
		return err
	}
	if err := printInstances(c, targets, all, *asJSON); err != nil {
		return err
	}
	if len(all) == 0 && !*asJSON {
		fmt.Fprintln(c.Stderr, "no instances")
	}
	if len(all) == *limit {
		last := all[len(all)-1]
		fmt.Fprintf(c.Stderr, "there may be more: -after %s\n", formatAfter(targets, last.Target, last.Entry.Address))
	}
	return nil
}

// formatAfter returns the place of an instance as one word for a shell, in the form that -after takes.
func formatAfter(targets *cli.Targets, of *cli.Target, a saga.Address) string {
	entry := strings.Join([]string{strconv.Quote(a.Scope), strconv.Quote(a.Key), strconv.Quote(a.Path)}, ",")
	return "'" + strings.ReplaceAll(targets.FormatPlace(of, entry), "'", `\x27`) + "'"
}

func parseAfter(s string) (a saga.Address, err error) {
	for i, into := range []*string{&a.Scope, &a.Key, &a.Path} {
		quoted, err := strconv.QuotedPrefix(s)
		if err == nil {
			*into, err = strconv.Unquote(quoted)
		}
		s = strings.TrimPrefix(s, quoted)
		if i < 2 {
			s = strings.TrimPrefix(s, ",")
		}
		if err != nil {
			return a, errors.New(`it must be "SCOPE","KEY","PATH"`)
		}
	}
	return a, nil
}

// printInstances prints a table, or a line of JSON each.
func printInstances(c *cli.Call, targets *cli.Targets, all []cli.Listed[operator.Instance], asJSON bool) error {
	rows := make([][]string, len(all))
	for k := range all {
		i := &all[k].Entry
		if asJSON {
			if err := cli.PrintJSON(c.Stdout, newInstance(all[k].Name, i)); err != nil {
				return err
			}
			continue
		}
		due := "-"
		if !i.DueAt.IsZero() {
			due = cli.FormatTime(i.DueAt)
		}
		rows[k] = []string{
			cli.FormatCell(i.Scope), cli.FormatCell(i.Key), cmp.Or(i.Path, "-"), cli.FormatCell(i.Saga), strconv.Itoa(i.Version), string(i.Status), cmp.Or(i.Step, "-"), cmp.Or(string(i.WaitsFor), "-"),
			cli.FormatTime(i.StartedAt), cli.FormatTime(i.UpdatedAt), due, cli.FormatCell(cli.ClipText(i.Reason, cli.ReasonWidth)),
		}
	}
	if asJSON {
		return nil
	}
	header := []string{"SCOPE", "KEY", "NESTED", "SAGA", "VERSION", "STATUS", "STEP", "WAITS-FOR", "STARTED", "MOVED", "DUE", "REASON"}
	return targets.PrintListed(c, header, cli.TargetsOf(all), rows)
}
