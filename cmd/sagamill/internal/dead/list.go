// Package dead has the commands on the dead letters and retrying messages of steps.
package dead

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/operator"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{
		{Words: "dead list", About: "list dead letters: messages that a step could not handle or read; with -state retrying, list retrying messages", Run: deadList},
		{Words: "dead show", About: "print all details of the dead letters whose ids you give with -id", Run: deadShow},
		{Words: "dead plan", About: "print what a redrive would do with the dead letters that match the filter flags", Run: deadPlan},
		{Words: "dead redrive", About: "let the steps of dead letters run again; choose the dead letters with -id, or with -all and filter flags", Run: deadRedrive},
		{Words: "dead edit", About: "change the payload and the headers of one dead letter, which you choose with -id", Run: deadEdit},
		{Words: "dead discard", About: "remove dead letters for good; choose them with -id, or with -all and filter flags", Run: deadDiscard},
		{Words: "dead retry", About: "end the pause of retrying messages, so that their steps run again now; choose the messages with -id, or with -all and filter flags", Run: deadRetry},
		{Words: "dead bury", About: "turn retrying messages into dead letters now; give the ids of the messages with -id", Run: deadBury},
	}
}

// parkedFlags pick parked messages of steps.
type parkedFlags struct {
	filter operator.Filter
	names  []string // of these flags, except -id
}

// addFilter adds the flags of a filter to c.
func addFilter(c *cli.Call) *parkedFlags {
	p := &parkedFlags{names: []string{"step", "kind", "reason", "error", "scope", "key", "topic", "message", "older", "newer"}}
	f := &p.filter
	c.Flags.Var((*cli.IDList)(&f.IDs), "id", "only messages with these ids, separated by commas")
	c.Flags.StringVar(&f.Step, "step", "", "only messages of this step")
	c.Flags.StringVar(&f.Kind, "kind", "", "only messages of this kind: action, compensation or unknown; a message that could not be read has the kind unknown")
	c.Flags.Func("reason", "only messages with this reason, such as attempts-exhausted", func(s string) error {
		f.Reason = consumer.Reason(s)
		return checkReason(f.Reason)
	})
	c.Flags.StringVar(&f.Error, "error", "", "only messages whose error contains this text")
	c.Flags.StringVar(&f.Scope, "scope", "", "only messages of this scope")
	c.Flags.StringVar(&f.Key, "key", "", "only messages with this idempotency key; messages of all steps match")
	c.Flags.StringVar(&f.Topic, "topic", "", "only messages of this topic")
	c.Flags.StringVar(&f.MessageID, "message", "", "only the message with this message id")
	c.Flags.Var((*cli.Age)(&f.Older), "older", "only messages whose last failure was at least this long ago, such as 90m or 72h")
	c.Flags.Var((*cli.Age)(&f.Newer), "newer", "only messages whose last failure was at most this long ago, such as 90m or 72h")
	return p
}

// checkReason returns an error that lists the reasons unless r is one of them. A mistyped reason would
// pick nothing, and look as if there were no dead letters.
func checkReason(r consumer.Reason) error {
	all := consumer.Reasons()
	if slices.Contains(all, r) {
		return nil
	}
	names := make([]string, len(all))
	for i, reason := range all {
		names[i] = string(reason)
	}
	return fmt.Errorf("it is none of %s", strings.Join(names, ", "))
}

// checkFilter returns an error if the flags may pick more than was meant.
func (p *parkedFlags) checkFilter(c *cli.Call) error {
	if p.filter.Older < 0 || p.filter.Newer < 0 {
		return errors.New("-older and -newer must not be negative")
	}
	if k := p.filter.Kind; k != "" && !slices.Contains([]string{"action", "compensation", "unknown"}, k) {
		return errors.New("-kind must be action, compensation or unknown")
	}
	names := slices.DeleteFunc(slices.Clone(p.names), func(name string) bool { return name == "reason" })
	return c.CheckFilled(names)
}

// checkPicked returns an error unless messages are picked on purpose. A forgotten flag must not
// discard all dead letters.
func (p *parkedFlags) checkPicked(c *cli.Call, all bool) error {
	slices.Sort(p.filter.IDs)
	p.filter.IDs = slices.Compact(p.filter.IDs)
	if len(p.filter.IDs) == 0 && (!all || !c.IsGiven(p.names)) {
		return errors.New("say which: with -id, or with -all and a filter; -all -older 0s is every one")
	}
	return p.checkFilter(c)
}

func deadList(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.DefaultSchema)
	pick, after, limit := addFilter(c), c.AddAfterID(), c.AddLimitFlag()
	asJSON := c.Flags.Bool("json", false, "print JSON, one object per line")
	state := c.Flags.String("state", "dead", "only messages in this state: dead or retrying; default: dead")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if pick.filter.State = operator.State(*state); *state != "dead" && *state != "retrying" {
		return errors.New("-state must be dead or retrying")
	}
	if err := cmp.Or(cli.CheckLimit(*limit), pick.checkFilter(c)); err != nil {
		return err
	}
	targets, err := c.OpenTargets(ctx, cli.DefaultSchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	letters, err := cli.ListTargets(ctx, targets, after, *limit, func(ctx context.Context, t *cli.Target, after int64, limit int) ([]operator.DeadLetter, error) {
		d, err := t.OpenDeadLetters(operator.Inbox, operator.Options{})
		if err != nil {
			return nil, err
		}
		return d.List(ctx, pick.filter, after, limit)
	})
	if err != nil {
		return err
	}
	if err := printLetters(c, targets, letters, *asJSON); err != nil {
		return err
	}
	if len(letters) == 0 && !*asJSON {
		fmt.Fprintf(c.Stderr, "no %s\n", nameState(pick.filter.State))
	}
	if len(letters) == *limit {
		last := letters[len(letters)-1]
		fmt.Fprintf(c.Stderr, "there may be more: -after %s\n", targets.FormatPlace(last.Target, strconv.FormatInt(last.Entry.ID, 10)))
	}
	return nil
}

// printLetters prints a table, or a line of JSON each.
func printLetters(c *cli.Call, targets *cli.Targets, letters []cli.Listed[operator.DeadLetter], asJSON bool) error {
	if asJSON {
		for _, l := range letters {
			if err := cli.PrintJSON(c.Stdout, newLetter(l.Target, l.Entry)); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, len(letters))
	for i := range letters {
		l := letters[i].Entry
		rows[i] = []string{
			strconv.FormatInt(l.ID, 10), cli.FormatCell(l.Kind), cli.FormatCell(cli.FormatStep(l)), cli.FormatCell(l.Scope), cli.FormatCell(l.Key), cli.FormatCell(l.Topic), cli.FormatCell(string(l.Reason)),
			strconv.Itoa(l.Attempts), cli.FormatTime(l.LastAt), formatDue(l), strconv.Itoa(l.Size), cli.FormatCell(cli.ClipText(l.Error, cli.ReasonWidth)),
		}
	}
	header := []string{"ID", "KIND", "STEP", "SCOPE", "KEY", "TOPIC", "REASON", "ATTEMPTS", "FAILED", "AGAIN", "BYTES", "ERROR"}
	return targets.PrintListed(c, header, cli.TargetsOf(letters), rows)
}

func formatDue(l operator.DeadLetter) string {
	switch {
	case l.State == operator.StateDead:
		return "never"
	case l.DueAt.IsZero():
		return "waits"
	}
	return cli.FormatTime(l.DueAt)
}

func deadShow(ctx context.Context, c *cli.Call) error {
	return c.ShowDeadLetters(ctx, operator.Inbox, printLetter)
}

// printLetter prints all that is known of l, with the payload if it has one.
func printLetter(c *cli.Call, t *cli.Target, l operator.DeadLetter, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(c.Stdout, newLetter(t, l))
	}
	fields := [][2]string{
		{"id", strconv.FormatInt(l.ID, 10)}, {"state", cli.FormatCell(string(l.State))}, {"kind", cli.FormatCell(l.Kind)}, {"step", cli.FormatCell(cli.FormatStep(l))},
		{"scope", cli.FormatCell(l.Scope)}, {"key", cli.FormatCell(l.Key)}, {"topic", cli.FormatCell(l.Topic)}, {"message", cli.FormatCell(l.MessageID)},
		{"reason", cli.FormatCell(string(l.Reason))}, {"error", cli.FormatCell(l.Error)}, {"attempts", strconv.Itoa(l.Attempts)},
		{"parked", cli.FormatTime(l.FirstAt)}, {"failed", cli.FormatTime(l.LastAt)}, {"again", formatDue(l)},
		{"edited", strconv.FormatBool(l.Edited)}, {"in doubt", strconv.FormatBool(l.InDoubt)}, {"bytes", strconv.Itoa(l.Size)},
	}
	for _, name := range slices.Sorted(maps.Keys(l.Headers)) {
		fields = append(fields, [2]string{"header", cli.FormatCell(name) + " = " + cli.FormatCell(l.Headers[name])})
	}
	if l.Payload != nil {
		fields = append(fields, [2]string{"payload", strconv.Quote(string(l.Payload))})
	}
	for line := range strings.Lines(l.Stack) {
		fields = append(fields, [2]string{"stack", cli.EscapeText(strings.TrimSpace(line))})
	}
	shown := map[string]bool{placesOf(l.Stack): true}
	for _, f := range l.Earlier {
		at := cmp.Or(formatFailed(f), "at an unknown time")
		fields = append(fields, [2]string{"earlier", at + " " + cli.FormatCell(string(f.Reason)) + ": " + cli.FormatCell(f.Error)})
		places := placesOf(f.Stack)
		if shown[places] && f.Stack != "" {
			fields = append(fields, [2]string{"its stack", "has the same lines of code as one above"})
			continue
		}
		shown[places] = true
		for line := range strings.Lines(f.Stack) {
			fields = append(fields, [2]string{"its stack", cli.EscapeText(strings.TrimSpace(line))})
		}
	}
	return cli.PrintFields(c.Stdout, fields)
}

var addresses = regexp.MustCompile(`0x[0-9a-f]+|goroutine \d+`)

// placesOf returns a stack without what differs from one run to the next.
func placesOf(stack string) string { return addresses.ReplaceAllString(stack, "") }
