package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/celltext"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// ParseAddress parses the command line of a command about the instance of a KEY. The KEY stands
// before the flags, behind them, or in -key. If nested is true, -path may name a nested instance. The KEY may be
// missing if the flag that all points to is true after parsing. With a nil all it may not.
func (c *Call) ParseAddress(nested bool, all *bool) (at saga.Address, err error) {
	c.Flags.StringVar(&at.Key, "key", "", "the idempotency key, in place of the argument KEY")
	c.Flags.StringVar(&at.Scope, "scope", "", "scope of the key; required if several scopes have this key")
	if nested {
		c.Flags.StringVar(&at.Path, "path", "", "path of a nested instance; sagamill saga list prints this path in the column NESTED")
	}
	words, err := c.parseWords()
	if err != nil {
		return at, err
	}
	if at.Key == "" && len(words) > 0 {
		at.Key, words = words[0], words[1:]
	}
	switch {
	case len(words) > 0:
		return at, fmt.Errorf("%q is not a flag", words[0])
	case at.Key == "" && (all == nil || !*all):
		return at, errors.New("say which saga: its KEY")
	}
	if err := c.checkDatabases(); err != nil {
		return at, err
	}
	return at, c.CheckFilled([]string{"scope", "key", "path"})
}

// parseWords reads the flags, and returns the words before, between and behind them.
func (c *Call) parseWords() (words []string, err error) {
	for rest := c.Args; ; {
		err := c.Flags.Parse(rest)
		if errors.Is(err, flag.ErrHelp) {
			c.PrintHelp()
		}
		if err != nil {
			return nil, err
		}
		if c.Flags.NArg() == 0 {
			return words, c.environment
		}
		words, rest = append(words, c.Flags.Arg(0)), c.Flags.Args()[1:]
	}
}

// ParseWord parses the command line of a command that needs a database and takes at most one word besides its flags.
func (c *Call) ParseWord() (word string, err error) {
	words, err := c.parseWords()
	if err != nil {
		return "", err
	}
	if len(words) > 1 {
		return "", fmt.Errorf("%q is not a flag", words[1])
	}
	if len(words) == 1 {
		word = words[0]
	}
	return word, c.checkDatabases()
}

// FindInstance returns the instances of the target that has the one at an address, and the complete address. A key that
// several targets have is an error that names them. Of several targets it passes over those that the role may not read.
func (t *Targets) FindInstance(ctx context.Context, at saga.Address) (of *Target, n *operator.Instances, found saga.Address, err error) {
	var with, denied []*Target
	for _, target := range t.All {
		instances, err := target.OpenInstances()
		if err != nil {
			return nil, nil, at, err
		}
		full, err := instances.Find(ctx, at)
		switch {
		case err == nil:
			with = append(with, target)
			of, n, found = target, instances, full
		case t.Several() && IsDenied(err):
			denied = append(denied, target)
		case t.Several() && (errors.Is(err, saga.ErrNoInstance) || sqlschema.Missing(err)):
		default:
			return nil, nil, at, t.nameTarget(target, err)
		}
	}
	switch {
	case len(with) > 1:
		return nil, nil, at, fmt.Errorf("the key %s is in several schemas: say which with -schema: %s", FormatCell(at.Key), JoinNames(with))
	case of == nil && len(denied) > 0:
		return nil, nil, at, fmt.Errorf("%w that the role may read; it may not read the sagas of %s", saga.ErrNoInstance, JoinNames(denied))
	case of == nil:
		return nil, nil, at, saga.ErrNoInstance
	}
	return of, n, found, nil
}

// IsDenied reports whether PostgreSQL refused a statement because the role lacks a privilege.
func IsDenied(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "42501"
}

// FormatAddress returns the address of an instance for people.
func FormatAddress(a saga.Address) string { return celltext.FormatAddress(a.Scope, a.Key, a.Path) }
