package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/saga"
)

func sagaCommands() []command {
	return []command{
		{"saga list", "instances of orchestrated sagas that have not ended; with -status others", sagaList},
		{"saga show", "the timeline of the instance of a KEY, and what would be undone", sagaShow},
		{"saga pause", "let no step of it begin or be undone, nor time run out", decide(saga.VerbPause)},
		{"saga resume", "go on", decide(saga.VerbResume)},
		{"saga cancel", "compensate it", decide(saga.VerbCancel)},
		{"saga compensate", "undo what comes after the step -to, and pause", decide(saga.VerbCompensateTo)},
		{"saga skip", "let -step pass for done, with -result; or for undone", decide(saga.VerbSkip)},
		{"saga reject", "let -step pass for one that has done nothing: it compensates", decide(saga.VerbReject)},
		{"saga retry", "try again now: -step, or all that is stuck or waits", decide(saga.VerbRetry)},
		{"saga check", "say which live instances the binary with -manifest could not finish", sagaCheck},
		{"why", "say where the saga of a KEY is waiting, in all services of the database", why},
	}
}

// statuses are what -status of saga list takes.
var statuses = []saga.Status{saga.StatusRunning, saga.StatusCompensating, saga.StatusPaused, saga.StatusStuck, saga.StatusCompleted, saga.StatusCompensated}

// instances opens those of c's schema. The caller calls done.
func (c *call) instances(ctx context.Context) (n *saga.Instances, done func(), err error) {
	db, err := c.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	n, err = saga.NewInstances(db, &saga.InstancesOptions{Schema: *c.schema})
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return n, db.Close, nil
}

// pickInstances adds the flags of a filter to c.
func (c *call) pickInstances(f *saga.Filter) {
	c.flags.StringVar(&f.Saga, "saga", "", "of this saga")
	c.flags.IntVar(&f.Version, "version", 0, "of this version of it")
	c.flags.StringVar(&f.Scope, "scope", "", "of this scope")
	c.flags.StringVar(&f.Key, "key", "", "of this idempotency key")
	c.flags.Var(age{&f.Older}, "older", "started at least so long ago, such as 90m or 72h")
	c.flags.Var(age{&f.Silent}, "silent", "to which nothing has happened for so long")
	f.Live = true
	c.flags.Func("status", "running, compensating, paused, stuck, completed, compensated, or all; default: all but the ended ones", func(s string) error {
		f.Status, f.Live = saga.Status(s), false
		if s == "all" {
			f.Status = ""
		} else if !slices.Contains(statuses, f.Status) {
			return errors.New("it is none of running, compensating, paused, stuck, completed, compensated, all")
		}
		return nil
	})
}

func sagaList(ctx context.Context, c *call) error {
	var filter saga.Filter
	c.pickInstances(&filter)
	asJSON := c.flags.Bool("json", false, "print JSON, a line each")
	limit := c.flags.Int("limit", defaultLimit, fmt.Sprintf("print so many, at most %d; default: %d", saga.MaxList, defaultLimit))
	var after saga.Address
	c.flags.Func("after", "begin behind this one: its scope, key and path, as the last line says", func(s string) (err error) {
		after, err = parseAfter(s)
		return err
	})
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if *limit < 1 || *limit > saga.MaxList {
		return fmt.Errorf("-limit must be between 1 and %d", saga.MaxList)
	}
	if filter.Older < 0 || filter.Silent < 0 || filter.Version < 0 {
		return errors.New("-older, -silent and -version must not be negative")
	}
	if err := c.checkFilled([]string{"saga", "scope", "key"}); err != nil {
		return err
	}
	n, done, err := c.instances(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	all, err := n.List(ctx, filter, after, *limit)
	if err != nil {
		return err
	}
	if err := printInstances(c, all, *asJSON); err != nil {
		return err
	}
	if len(all) == 0 && !*asJSON {
		fmt.Fprintln(c.stderr, "no instances")
	}
	if len(all) == *limit {
		fmt.Fprintf(c.stderr, "there may be more: -after %s\n", formatAfter(all[len(all)-1].Address))
	}
	return nil
}

// formatAfter makes an address one word for a shell, which parseAfter reads.
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
func printInstances(c *call, all []saga.Instance, asJSON bool) error {
	rows := make([][]string, len(all))
	for k, i := range all {
		if asJSON {
			if err := printJSON(c.stdout, newInstance(&i)); err != nil {
				return err
			}
			continue
		}
		due := "-"
		if !i.DueAt.IsZero() {
			due = stamp(i.DueAt)
		}
		rows[k] = []string{
			cell(i.Scope), cell(i.Key), cmp.Or(i.Path, "-"), cell(i.Saga), strconv.Itoa(i.Version), string(i.Status),
			stamp(i.StartedAt), stamp(i.UpdatedAt), due, cell(clip(i.Reason, reasonWidth)),
		}
	}
	if asJSON {
		return nil
	}
	return printTable(c.stdout, []string{"SCOPE", "KEY", "NESTED", "SAGA", "VERSION", "STATUS", "STARTED", "MOVED", "DUE", "REASON"}, rows)
}

// parseAddress parses the command line of a command that is about the instance of a KEY, which is given
// before the flags, behind them, or as -key.
func (c *call) parseAddress(nested bool) (at saga.Address, err error) {
	c.flags.StringVar(&at.Key, "key", "", "the idempotency key, if it is not given without a flag")
	c.flags.StringVar(&at.Scope, "scope", "", "of this scope; needed where several have such a key")
	if nested {
		c.flags.StringVar(&at.Path, "path", "", "the one that is nested there, as list says")
	}
	var words []string
	for rest := c.args; ; {
		err := c.flags.Parse(rest)
		if errors.Is(err, flag.ErrHelp) {
			c.help()
		}
		if err != nil {
			return at, err
		}
		if c.flags.NArg() == 0 {
			break
		}
		words, rest = append(words, c.flags.Arg(0)), c.flags.Args()[1:]
	}
	if at.Key == "" && len(words) > 0 {
		at.Key, words = words[0], words[1:]
	}
	switch {
	case len(words) > 0:
		return at, fmt.Errorf("%q is not a flag", words[0])
	case at.Key == "":
		return at, errors.New("say which saga: its KEY")
	case *c.database == "":
		return at, errors.New("no database: give -database or set DATABASE_URL")
	}
	return at, c.checkFilled([]string{"scope", "path"})
}

func sagaCheck(ctx context.Context, c *call) error {
	file := c.flags.String("manifest", "", "what the binary says that it knows, as JSON, from this file; -: from standard input")
	names := c.flags.String("saga", "", "look at these sagas alone, separated by commas; default: all")
	asJSON := c.flags.Bool("json", false, "print JSON, a line each")
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if err := c.checkFilled([]string{"saga"}); err != nil {
		return err
	}
	m, err := c.readManifest(*file)
	if err != nil {
		return err
	}
	db, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var only []string
	if *names != "" {
		only = strings.Split(*names, ",")
	}
	live, err := m.Check(ctx, db, *c.schema, only...)
	if err != nil {
		return err
	}
	return c.printLive(live, *asJSON)
}

func (c *call) readManifest(file string) (saga.Manifest, error) {
	var from io.Reader = c.stdin
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

// printLive prints what is live, and returns an error if some of it cannot be finished.
func (c *call) printLive(live []saga.LiveVersion, asJSON bool) error {
	rows := make([][]string, len(live))
	bad := 0
	for k, v := range live {
		if v.Problem != "" {
			bad++
		}
		if asJSON {
			err := printJSON(c.stdout, struct {
				Saga      string `json:"saga"`
				Version   int    `json:"version"`
				Instances int    `json:"live"`
				Problem   string `json:"problem,omitempty"`
			}{v.Saga, v.Version, v.Instances, v.Problem})
			if err != nil {
				return err
			}
		}
		rows[k] = []string{cell(v.Saga), strconv.Itoa(v.Version), strconv.Itoa(v.Instances), cmp.Or(v.Problem, "can be finished")}
	}
	if !asJSON {
		if err := printTable(c.stdout, []string{"SAGA", "VERSION", "LIVE", "PROBLEM"}, rows); err != nil {
			return err
		}
	}
	if bad > 0 {
		return fmt.Errorf("%s cannot be finished by that binary", amount(bad, "versions"))
	}
	return nil
}
