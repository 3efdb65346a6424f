package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/sagamill/sagamill/operator"
)

// OpenDeadLetters opens the letters of one side in c's schema, for the person who. The caller calls done.
func (c *Call) OpenDeadLetters(ctx context.Context, side operator.Side, who operator.Options) (d *operator.DeadLetters, done func(), err error) {
	db, err := c.OpenDatabase(ctx)
	if err != nil {
		return nil, nil, err
	}
	d, err = operator.NewDeadLetters(db, side, &operator.Options{Schema: *c.Schema, By: who.By, Why: who.Why})
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return d, db.Close, nil
}

// ShowDeadLetters runs the command that prints the letters with -id. They have a payload if -payload is given.
func (c *Call) ShowDeadLetters(ctx context.Context, side operator.Side, printLetter func(c *Call, l operator.DeadLetter, asJSON bool) error) error {
	var ids []int64
	c.Flags.Var((*IDList)(&ids), "id", "which; several separated by commas")
	payload := c.Flags.Bool("payload", false, "print the payload too")
	asJSON := c.Flags.Bool("json", false, "print JSON, a line each")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if len(ids) == 0 {
		return errors.New("say which with -id")
	}
	d, done, err := c.OpenDeadLetters(ctx, side, operator.Options{})
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	for _, id := range ids {
		l, err := d.Get(ctx, id)
		if err != nil {
			return fmt.Errorf("%d: %w", id, err)
		}
		if !*payload {
			l.Payload = nil
		}
		if err := printLetter(c, l, *asJSON); err != nil {
			return err
		}
	}
	return nil
}
