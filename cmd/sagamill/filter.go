package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/operator"
)

// idList is a flag that may be given several times, with several ids each.
type idList struct{ ids *[]int64 }

func (l idList) String() string { return "" }

func (l idList) Set(s string) error {
	for part := range strings.SplitSeq(s, ",") {
		id, err := strconv.ParseInt(strings.TrimSpace(part), 10, 64)
		if err != nil || id < 1 {
			return fmt.Errorf("%q is not an id", part)
		}
		*l.ids = append(*l.ids, id)
	}
	return nil
}

// age is a flag for how long ago something was.
type age struct{ *time.Duration }

func (a age) String() string {
	if a.Duration == nil { // as package flag makes one
		return ""
	}
	return a.Duration.String()
}

func (a age) Set(s string) (err error) {
	if *a.Duration, err = time.ParseDuration(s); err != nil {
		return errors.New("it must be hours, minutes or seconds, such as 72h or 90m")
	}
	return nil
}

// letterFlags pick dead letters of an outbox.
type letterFlags struct {
	filter operator.Filter
	names  []string // of these flags, but for the ids
}

// pick adds the flags of a filter to c.
func (c *call) pick() *letterFlags {
	l := &letterFlags{names: []string{"message", "topic", "scope", "key", "reason", "older"}}
	f := &l.filter
	c.pickIDs(l)
	c.flags.StringVar(&f.MessageID, "message", "", "with this message id")
	c.flags.StringVar(&f.Topic, "topic", "", "of this topic")
	c.flags.StringVar(&f.Scope, "scope", "", "of this scope")
	c.flags.StringVar(&f.Key, "key", "", "of this idempotency key, whatever the step")
	c.flags.StringVar(&f.Error, "reason", "", "whose reason has this in it")
	c.flags.Var(age{&f.Older}, "older", "refused for the last time at least so long ago, such as 90m or 72h")
	return l
}

func (c *call) pickIDs(l *letterFlags) {
	c.flags.Var(idList{&l.filter.IDs}, "id", "with this id; several separated by commas")
}

// given reports whether a flag that picks was on c's command line.
func (l *letterFlags) given(c *call) bool { return c.given(l.names) }

// check returns an error if the flags could pick more than was meant.
func (l *letterFlags) check(c *call) error {
	if l.filter.Older < 0 {
		return errors.New("-older must not be negative")
	}
	return c.checkFilled(l.names)
}

// given reports whether one of the flags called names was on the command line.
func (c *call) given(names []string) bool {
	found := false
	c.flags.Visit(func(f *flag.Flag) { found = found || slices.Contains(names, f.Name) })
	return found
}

// checkFilled returns an error if one of the flags called names is empty: an empty
// value picks everything, as does a variable of a shell script that is not set.
func (c *call) checkFilled(names []string) (err error) {
	c.flags.Visit(func(f *flag.Flag) {
		if slices.Contains(names, f.Name) && f.Value.String() == "" {
			err = fmt.Errorf("-%s is empty", f.Name)
		}
	})
	return err
}

// letters opens the dead letters of c's schema. The caller calls done.
func (c *call) letters(ctx context.Context, who operator.Options) (d *operator.DeadLetters, done func(), err error) {
	db, err := c.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	d, err = operator.NewDeadLetters(db, operator.Outbox, &operator.Options{Schema: *c.schema, By: who.By, Why: who.Why})
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return d, db.Close, nil
}
