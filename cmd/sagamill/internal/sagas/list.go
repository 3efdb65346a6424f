// Package sagas has the commands on instances of sagas.
package sagas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
		{Words: "saga list", About: "instances of orchestrated sagas that have not ended; with -status others", Run: sagaList},
		{Words: "saga show", About: "the timeline of the instance of a KEY, and what would be undone", Run: sagaShow},
		{Words: "saga pause", About: "let no step of it begin or be undone, nor time run out", Run: decideStep(operator.VerbPause)},
		{Words: "saga resume", About: "go on", Run: decideStep(operator.VerbResume)},
		{Words: "saga cancel", About: "compensate it", Run: decideStep(operator.VerbCancel)},
		{Words: "saga compensate", About: "undo what comes after the step -to, and pause", Run: decideStep(operator.VerbCompensateTo)},
		{Words: "saga skip", About: "let -step pass for done, with -result; or for undone", Run: decideStep(operator.VerbSkip)},
		{Words: "saga reject", About: "let -step pass for one that has done nothing: it compensates", Run: decideStep(operator.VerbReject)},
		{Words: "saga retry", About: "try again now: -step, or all that is stuck or waits", Run: decideStep(operator.VerbRetry)},
		{Words: "saga check", About: "say which live instances the binary with -manifest could not finish", Run: sagaCheck},
	}
}

// statuses are the values of -status of saga list.
var statuses = []saga.Status{saga.StatusRunning, saga.StatusCompensating, saga.StatusPaused, saga.StatusStuck, saga.StatusCompleted, saga.StatusCompensated}

// openInstances opens the instances of c's schema. The caller calls done.
func openInstances(ctx context.Context, c *cli.Call) (n *operator.Instances, done func(), err error) {
	db, err := c.OpenDatabase(ctx)
	if err != nil {
		return nil, nil, err
	}
	n, err = operator.NewInstances(db, &operator.Options{Schema: *c.Schema})
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return n, db.Close, nil
}

// addFilter adds the flags of a filter to c.
func addFilter(c *cli.Call, f *operator.InstanceFilter) {
	c.Flags.StringVar(&f.Saga, "saga", "", "of this saga")
	c.Flags.IntVar(&f.Version, "version", 0, "of this version of it")
	c.Flags.StringVar(&f.Scope, "scope", "", "of this scope")
	c.Flags.StringVar(&f.Key, "key", "", "of this idempotency key")
	c.Flags.Var((*cli.Age)(&f.Older), "older", "started at least so long ago, such as 90m or 72h")
	c.Flags.Var((*cli.Age)(&f.Silent), "silent", "to which nothing has happened for so long")
	f.Live = true
	c.Flags.Func("status", "running, compensating, paused, stuck, completed, compensated, or all; default: all but the ended ones", func(s string) error {
		f.Status, f.Live = saga.Status(s), false
		if s == "all" {
			f.Status = ""
		} else if !slices.Contains(statuses, f.Status) {
			return errors.New("it is none of running, compensating, paused, stuck, completed, compensated, all")
		}
		return nil
	})
}

func sagaList(ctx context.Context, c *cli.Call) error {
	var filter operator.InstanceFilter
	addFilter(c, &filter)
	asJSON := c.Flags.Bool("json", false, "print JSON, a line each")
	limit := c.Flags.Int("limit", cli.DefaultLimit, fmt.Sprintf("print so many, at most %d; default: %d", operator.MaxList, cli.DefaultLimit))
	var after saga.Address
	c.Flags.Func("after", "begin behind this one: its scope, key and path, as the last line says", func(s string) (err error) {
		after, err = parseAfter(s)
		return err
	})
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if *limit < 1 || *limit > operator.MaxList {
		return fmt.Errorf("-limit must be between 1 and %d", operator.MaxList)
	}
	if filter.Older < 0 || filter.Silent < 0 || filter.Version < 0 {
		return errors.New("-older, -silent and -version must not be negative")
	}
	if err := c.CheckFilled([]string{"saga", "scope", "key"}); err != nil {
		return err
	}
	n, done, err := openInstances(ctx, c)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	all, err := n.List(ctx, filter, after, *limit)
	if err != nil {
		return err
	}
	if err := printInstances(c, all, *asJSON); err != nil {
		return err
	}
	if len(all) == 0 && !*asJSON {
		fmt.Fprintln(c.Stderr, "no instances")
	}
	if len(all) == *limit {
		fmt.Fprintf(c.Stderr, "there may be more: -after %s\n", formatAfter(all[len(all)-1].Address))
	}
	return nil
}

// formatAfter returns an address as one word for a shell, in the form that parseAfter reads.
func formatAfter(a saga.Address) string {
	return "'" + strings.ReplaceAll(strings.Join([]string{strconv.Quote(a.Scope), strconv.Quote(a.Key), strconv.Quote(a.Path)}, ","), "'", `\x27`) + "'"
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
func printInstances(c *cli.Call, all []operator.Instance, asJSON bool) error {
	rows := make([][]string, len(all))
	for k, i := range all {
		if asJSON {
			if err := cli.PrintJSON(c.Stdout, newInstance(&i)); err != nil {
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
	return cli.PrintTable(c.Stdout, []string{"SCOPE", "KEY", "NESTED", "SAGA", "VERSION", "STATUS", "STEP", "WAITS-FOR", "STARTED", "MOVED", "DUE", "REASON"}, rows)
}

func sagaCheck(ctx context.Context, c *cli.Call) error {
	file := c.Flags.String("manifest", "", "what the binary says that it knows, as JSON, from this file; -: from standard input")
	names := c.Flags.String("saga", "", "look at these sagas alone, separated by commas; default: all")
	asJSON := c.Flags.Bool("json", false, "print JSON, a line each")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if err := c.CheckFilled([]string{"saga"}); err != nil {
		return err
	}
	m, err := readManifest(c, *file)
	if err != nil {
		return err
	}
	db, err := c.OpenDatabase(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	var only []string
	if *names != "" {
		only = strings.Split(*names, ",")
	}
	live, err := m.Check(ctx, db, *c.Schema, only...)
	if err != nil {
		return err
	}
	return printLive(c, live, *asJSON)
}

func readManifest(c *cli.Call, file string) (saga.Manifest, error) {
	var from io.Reader = c.Stdin
	name := file
	switch file {
	case "":
		return nil, errors.New("say with -manifest what the binary knows: json.Marshal(saga.NewManifest(…)); -: from standard input")
	case "-":
		name = "standard input"
	default:
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	m, err := saga.ReadManifest(from)
	if err != nil {
		return nil, fmt.Errorf("-manifest %s: %w", name, err)
	}
	return m, nil
}

// printLive prints the versions with live instances. It returns an error if some of them cannot be
// finished.
func printLive(c *cli.Call, live []saga.LiveVersion, asJSON bool) error {
	rows := make([][]string, len(live))
	bad := 0
	for k, v := range live {
		if v.Problem != "" {
			bad++
		}
		if asJSON {
			err := cli.PrintJSON(c.Stdout, struct {
				Saga      string `json:"saga"`
				Version   int    `json:"version"`
				Instances int    `json:"live"`
				Problem   string `json:"problem,omitempty"`
			}{v.Saga, v.Version, v.Instances, v.Problem})
			if err != nil {
				return err
			}
		}
		rows[k] = []string{cli.FormatCell(v.Saga), strconv.Itoa(v.Version), strconv.Itoa(v.Instances), cmp.Or(v.Problem, "can be finished")}
	}
	if !asJSON {
		if err := cli.PrintTable(c.Stdout, []string{"SAGA", "VERSION", "LIVE", "PROBLEM"}, rows); err != nil {
			return err
		}
	}
	if bad > 0 {
		return fmt.Errorf("%s cannot be finished by that binary", cli.FormatCount(bad, "versions"))
	}
	return nil
}
