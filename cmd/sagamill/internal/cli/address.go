package cli

import (
	"errors"
	"flag"
	"fmt"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// ParseAddress parses the command line of a command about the instance of a KEY. The KEY stands
// before the flags, behind them, or in -key. If nested is true, -path may name a nested instance.
func (c *Call) ParseAddress(nested bool) (at saga.Address, err error) {
	c.Flags.StringVar(&at.Key, "key", "", "the idempotency key, if it is not given without a flag")
	c.Flags.StringVar(&at.Scope, "scope", "", "of this scope; needed where several have such a key")
	if nested {
		c.Flags.StringVar(&at.Path, "path", "", "the one that is nested there, as list says")
	}
	var words []string
	for rest := c.Args; ; {
		err := c.Flags.Parse(rest)
		if errors.Is(err, flag.ErrHelp) {
			c.PrintHelp()
		}
		if err != nil {
			return at, err
		}
		if c.Flags.NArg() == 0 {
			break
		}
		words, rest = append(words, c.Flags.Arg(0)), c.Flags.Args()[1:]
	}
	if at.Key == "" && len(words) > 0 {
		at.Key, words = words[0], words[1:]
	}
	switch {
	case len(words) > 0:
		return at, fmt.Errorf("%q is not a flag", words[0])
	case at.Key == "":
		return at, errors.New("say which saga: its KEY")
	}
	if err := c.findDatabase(); err != nil {
		return at, err
	}
	return at, c.CheckFilled([]string{"scope", "path"})
}

// FormatAddress returns the address of an instance for people.
func FormatAddress(a saga.Address) string {
	s := FormatCell(a.Scope) + "/" + FormatCell(a.Key)
	switch a.Path {
	case "":
		return s
	case flow.Root(a.Path):
		return s + ", path " + FormatCell(a.Path)
	}
	return s + ", nested at " + FormatCell(a.Path)
}

// FormatStatus returns the status of an instance, and adds that it is paused if the status is
// another one.
func FormatStatus(t *operator.Timeline) string {
	if t.Paused && t.Status != saga.StatusPaused {
		return string(t.Status) + ", and paused"
	}
	return string(t.Status)
}
