package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/operator"
)

func deadCommands() []command {
	return []command{
		{"dead list", "messages that a step could not handle or read; with -state retrying, those that go round", deadList},
		{"dead show", "all that is known of those with -id", deadShow},
		{"dead plan", "what a redrive would make of them", deadPlan},
		{"dead redrive", "send them round again: those with -id, or -all that a filter picks", deadRedrive},
		{"dead edit", "change the payload and headers of the one with -id", deadEdit},
		{"dead discard", "remove them for good: those with -id, or -all that a filter picks", deadDiscard},
		{"dead retry", "run now what goes round: those with -id, or -all that a filter picks", deadRetry},
		{"dead bury", "make those with -id, which go round, dead letters now", deadBury},
	}
}

// parkedFlags pick parked messages of steps.
type parkedFlags struct {
	filter operator.Filter
	names  []string // of these flags, but for the ids
}

// pickParked adds the flags of a filter to c.
func (c *call) pickParked() *parkedFlags {
	p := &parkedFlags{names: []string{"step", "kind", "reason", "error", "scope", "key", "topic", "message", "older", "newer"}}
	f := &p.filter
	c.flags.Var(idList{&f.IDs}, "id", "with this id; several separated by commas")
	c.flags.StringVar(&f.Step, "step", "", "of this step")
	c.flags.StringVar(&f.Kind, "kind", "", "action, compensation, or unknown: those that could not be read")
	c.flags.Func("reason", "of this reason, such as attempts-exhausted", func(s string) error {
		f.Reason = consumer.Reason(s)
		return checkReason(f.Reason)
	})
	c.flags.StringVar(&f.Error, "error", "", "whose error has this in it")
	c.flags.StringVar(&f.Scope, "scope", "", "of this scope")
	c.flags.StringVar(&f.Key, "key", "", "of this idempotency key, whatever the step")
	c.flags.StringVar(&f.Topic, "topic", "", "of this topic")
	c.flags.StringVar(&f.MessageID, "message", "", "with this message id")
	c.flags.Var(age{&f.Older}, "older", "failed for the last time at least so long ago, such as 90m or 72h")
	c.flags.Var(age{&f.Newer}, "newer", "failed for the last time at most so long ago")
	return p
}

// checkReason returns an error that lists the reasons unless r is one of them. A
// mistyped one would pick nothing, as if there were nothing.
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

// check returns an error if the flags could pick more than was meant.
func (p *parkedFlags) check(c *call) error {
	if p.filter.Older < 0 || p.filter.Newer < 0 {
		return errors.New("-older and -newer must not be negative")
	}
	if k := p.filter.Kind; k != "" && !slices.Contains([]string{"action", "compensation", "unknown"}, k) {
		return errors.New("-kind must be action, compensation or unknown")
	}
	names := slices.DeleteFunc(slices.Clone(p.names), func(name string) bool { return name == "reason" })
	return c.checkFilled(names)
}

// picks returns an error unless something is picked on purpose: nobody discards
// all there is by leaving something out.
func (p *parkedFlags) picks(c *call, all bool) error {
	slices.Sort(p.filter.IDs)
	p.filter.IDs = slices.Compact(p.filter.IDs)
	if len(p.filter.IDs) == 0 && (!all || !c.given(p.names)) {
		return errors.New("say which: with -id, or with -all and a filter; -all -older 0s is every one")
	}
	return p.check(c)
}

// parked opens the parked messages of c's schema. The caller calls done.
func (c *call) parked(ctx context.Context, who operator.Options) (d *operator.DeadLetters, done func(), err error) {
	db, err := c.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	d, err = operator.NewDeadLetters(db, operator.Inbox, &operator.Options{Schema: *c.schema, By: who.By, Why: who.Why})
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return d, db.Close, nil
}

func deadList(ctx context.Context, c *call) error {
	pick := c.pickParked()
	asJSON := c.flags.Bool("json", false, "print JSON, a line each")
	state := c.flags.String("state", "dead", "dead, or retrying: those that go round; default: dead")
	after := c.flags.Int64("after", 0, "begin behind this id")
	limit := c.flags.Int("limit", defaultLimit, fmt.Sprintf("print so many, at most %d; default: %d", operator.MaxList, defaultLimit))
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if *limit < 1 || *limit > operator.MaxList {
		return fmt.Errorf("-limit must be between 1 and %d", operator.MaxList)
	}
	if pick.filter.State = operator.State(*state); *state != "dead" && *state != "retrying" {
		return errors.New("-state must be dead or retrying")
	}
	if err := pick.check(c); err != nil {
		return err
	}
	d, done, err := c.parked(ctx, operator.Options{})
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	letters, err := d.List(ctx, pick.filter, *after, *limit)
	if err != nil {
		return err
	}
	if err := printParked(c, letters, *asJSON); err != nil {
		return err
	}
	if len(letters) == 0 && !*asJSON {
		fmt.Fprintf(c.stderr, "no %s\n", things(pick.filter.State))
	}
	if len(letters) == *limit {
		fmt.Fprintf(c.stderr, "there may be more: -after %d\n", letters[len(letters)-1].ID)
	}
	return nil
}

// printParked prints a table, or a line of JSON each.
func printParked(c *call, letters []operator.DeadLetter, asJSON bool) error {
	if asJSON {
		for _, l := range letters {
			if err := printJSON(c.stdout, newParked(l)); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, len(letters))
	for i, l := range letters {
		rows[i] = []string{
			strconv.FormatInt(l.ID, 10), cell(l.Kind), cell(parkedStep(l)), cell(l.Scope), cell(l.Key), cell(l.Topic), cell(string(l.Reason)),
			strconv.Itoa(l.Attempts), stamp(l.LastAt), dueAt(l), strconv.Itoa(l.Size), cell(clip(l.Error, reasonWidth)),
		}
	}
	return printTable(c.stdout, []string{"ID", "KIND", "STEP", "SCOPE", "KEY", "TOPIC", "REASON", "ATTEMPTS", "FAILED", "AGAIN", "BYTES", "ERROR"}, rows)
}

func parkedStep(l operator.DeadLetter) string {
	if l.N == "" {
		return l.Step
	}
	return l.Step + "#" + l.N
}

func dueAt(l operator.DeadLetter) string {
	switch {
	case l.State == operator.StateDead:
		return "never"
	case l.DueAt.IsZero():
		return "waits"
	}
	return stamp(l.DueAt)
}

func deadShow(ctx context.Context, c *call) error {
	var ids []int64
	c.flags.Var(idList{&ids}, "id", "which; several separated by commas")
	payload := c.flags.Bool("payload", false, "print the payload too")
	asJSON := c.flags.Bool("json", false, "print JSON, a line each")
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if len(ids) == 0 {
		return errors.New("say which with -id")
	}
	d, done, err := c.parked(ctx, operator.Options{})
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for _, id := range ids {
		l, err := d.Get(ctx, id)
		if err != nil {
			return fmt.Errorf("%d: %w", id, err)
		}
		if !*payload {
			l.Payload = nil
		}
		if err := showParked(c, l, *asJSON); err != nil {
			return err
		}
	}
	return nil
}

// showParked prints all that is known of l, with the payload if it has one.
func showParked(c *call, l operator.DeadLetter, asJSON bool) error {
	if asJSON {
		return printJSON(c.stdout, newParked(l))
	}
	fields := [][2]string{
		{"id", strconv.FormatInt(l.ID, 10)}, {"state", cell(string(l.State))}, {"kind", cell(l.Kind)}, {"step", cell(parkedStep(l))},
		{"scope", cell(l.Scope)}, {"key", cell(l.Key)}, {"topic", cell(l.Topic)}, {"message", cell(l.MessageID)},
		{"reason", cell(string(l.Reason))}, {"error", cell(l.Error)}, {"attempts", strconv.Itoa(l.Attempts)},
		{"parked", stamp(l.FirstAt)}, {"failed", stamp(l.LastAt)}, {"again", dueAt(l)},
		{"edited", strconv.FormatBool(l.Edited)}, {"in doubt", strconv.FormatBool(l.InDoubt)}, {"bytes", strconv.Itoa(l.Size)},
	}
	for _, name := range slices.Sorted(maps.Keys(l.Headers)) {
		fields = append(fields, [2]string{"header", cell(name) + " = " + cell(l.Headers[name])})
	}
	if l.Payload != nil {
		fields = append(fields, [2]string{"payload", strconv.Quote(string(l.Payload))})
	}
	for line := range strings.Lines(l.Stack) {
		fields = append(fields, [2]string{"stack", visible(strings.TrimSpace(line))})
	}
	return printFields(c.stdout, fields)
}
