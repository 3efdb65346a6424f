package outboxes

import (
	"errors"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

// letterFlags pick dead letters of an outbox.
type letterFlags struct {
	filter operator.Filter
	names  []string // of these flags, except -id
}

// addFilter adds the flags of a filter to c.
func addFilter(c *cli.Call) *letterFlags {
	l := &letterFlags{names: []string{"message", "topic", "scope", "key", "reason", "older"}}
	f := &l.filter
	addIDs(c, l)
	c.Flags.StringVar(&f.MessageID, "message", "", "only the message with this message id")
	c.Flags.StringVar(&f.Topic, "topic", "", "only messages of this topic")
	c.Flags.StringVar(&f.Scope, "scope", "", "only messages of this scope")
	c.Flags.StringVar(&f.Key, "key", "", "only messages with this idempotency key; messages of all steps match")
	c.Flags.StringVar(&f.Error, "reason", "", "only messages whose reason contains this text")
	c.Flags.Var((*cli.Age)(&f.Older), "older", "only messages whose last refusal was at least this long ago, such as 90m or 72h")
	return l
}

func addIDs(c *cli.Call, l *letterFlags) {
	c.Flags.Var((*cli.IDList)(&l.filter.IDs), "id", "only messages with these ids, separated by commas")
}

// isGiven reports whether one of the filter's flags was on c's command line.
func (l *letterFlags) isGiven(c *cli.Call) bool { return c.IsGiven(l.names) }

// checkFilter returns an error if the flags may pick more than was meant.
func (l *letterFlags) checkFilter(c *cli.Call) error {
	if l.filter.Older < 0 {
		return errors.New("-older must not be negative")
	}
	return c.CheckFilled(l.names)
}
