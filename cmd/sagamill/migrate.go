package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/sagamill/sagamill/migrations"
)

func migrateCommands() []command {
	return []command{
		{"migrate up", "create or update the tables", migrateUp},
		{"migrate print", "print the SQL, for people who apply it themselves", migratePrint},
		{"migrate roles", "print the SQL of database roles with the rights that each process needs", migrateRoles},
		{"migrate version", "say which migrations the schema has had", migrateVersion},
		{"migrate down", "take the schema back to the version -to; 0 removes every table", migrateDown},
	}
}

// onlyParts adds the flag -only. The parts are known once flags are parsed.
func (c *call) onlyParts() func() []migrations.Part {
	names := c.flags.String("only", "", "parts, separated by commas: idempotency, outbox, inbox, saga (which brings outbox and inbox along); default: all")
	return func() (parts []migrations.Part) {
		for name := range strings.SplitSeq(*names, ",") {
			if name = strings.TrimSpace(name); name != "" {
				parts = append(parts, migrations.Part(name))
			}
		}
		return parts
	}
}

func migrateUp(ctx context.Context, c *call) error {
	only := c.onlyParts()
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if err := migrations.Up(ctx, *c.database, *c.schema, only()...); err != nil {
		return err
	}
	return c.printVersion(ctx)
}

// printVersion says which migrations the schema has had.
func (c *call) printVersion(ctx context.Context) error {
	applied, known, err := migrations.Version(ctx, *c.database, *c.schema)
	if err != nil {
		return err
	}
	there, err := migrations.Parts(ctx, *c.database, *c.schema)
	if err != nil {
		return err
	}
	var of string
	if len(there) > 0 {
		of = " of " + strings.ReplaceAll(strings.Trim(fmt.Sprint(there), "[]"), " ", ",") // as -only takes them
	}
	fmt.Fprintf(c.stdout, "schema %s has had %d of %d migrations%s\n", *c.schema, applied, known, of)
	return nil
}

func migratePrint(_ context.Context, c *call) error {
	only := c.onlyParts()
	if err := c.parse(); err != nil {
		return err
	}
	return migrations.Print(c.stdout, *c.schema, only()...)
}

func migrateRoles(_ context.Context, c *call) error {
	prefix := c.flags.String("prefix", migrations.DefaultPrefix, "what the names of the roles begin with; default: "+migrations.DefaultPrefix)
	only := c.onlyParts()
	if err := c.parse(); err != nil {
		return err
	}
	return migrations.Roles(c.stdout, *c.schema, *prefix, only()...)
}

func migrateVersion(ctx context.Context, c *call) error {
	if err := c.parseDatabase(); err != nil {
		return err
	}
	return c.printVersion(ctx)
}

// migrateDown removes what tables hold, and so only says what it would do without -yes.
func migrateDown(ctx context.Context, c *call) error {
	to := c.flags.Int("to", -1, "the version to go back to")
	var yes bool
	c.flags.BoolVar(&yes, "yes", false, "do it; without it, only say what would be done")
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if *to < 0 || *to > math.MaxInt32 {
		return errors.New("say how far with -to; 0 removes every table and what it holds")
	}
	if !yes {
		if err := c.printVersion(ctx); err != nil {
			return err
		}
		return fmt.Errorf("nothing is done yet: the same with -yes goes back to %d, and removes with all that they hold the tables and columns that came later", *to)
	}
	if err := migrations.Down(ctx, *c.database, *c.schema, int32(*to)); err != nil {
		return err
	}
	return c.printVersion(ctx)
}
