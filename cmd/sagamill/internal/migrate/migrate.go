// Package migrate has the commands on the tables of a schema.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/migrations"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{
		{Words: "migrate up", About: "create or update the tables", Run: migrateUp},
		{Words: "migrate print", About: "print the SQL, for people who apply it themselves", Run: migratePrint},
		{Words: "migrate roles", About: "print the SQL of database roles with the rights that each process needs", Run: migrateRoles},
		{Words: "migrate version", About: "say which migrations the schema has had", Run: migrateVersion},
		{Words: "migrate down", About: "take the schema back to the version -to; 0 removes every table", Run: migrateDown},
	}
}

// onlyParts adds the flag -only. The function that it returns returns the parts after the flags are
// parsed.
func onlyParts(c *cli.Call) func() []migrations.Part {
	names := c.Flags.String("only", "", "parts, separated by commas: idempotency, outbox, inbox, saga (which brings outbox and inbox along); default: all")
	return func() (parts []migrations.Part) {
		for name := range strings.SplitSeq(*names, ",") {
			if name = strings.TrimSpace(name); name != "" {
				parts = append(parts, migrations.Part(name))
			}
		}
		return parts
	}
}

func migrateUp(ctx context.Context, c *cli.Call) error {
	only := onlyParts(c)
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if err := migrations.Up(ctx, *c.Database, *c.Schema, only()...); err != nil {
		return err
	}
	return printVersion(ctx, c)
}

// printVersion prints how many migrations the schema has, and which parts.
func printVersion(ctx context.Context, c *cli.Call) error {
	applied, known, err := migrations.Version(ctx, *c.Database, *c.Schema)
	if err != nil {
		return err
	}
	there, err := migrations.Parts(ctx, *c.Database, *c.Schema)
	if err != nil {
		return err
	}
	var of string
	if len(there) > 0 {
		of = " of " + strings.ReplaceAll(strings.Trim(fmt.Sprint(there), "[]"), " ", ",") // in the form of -only
	}
	fmt.Fprintf(c.Stdout, "schema %s has had %d of %d migrations%s\n", *c.Schema, applied, known, of)
	return nil
}

func migratePrint(_ context.Context, c *cli.Call) error {
	only := onlyParts(c)
	if err := c.ParseFlags(); err != nil {
		return err
	}
	return migrations.Print(c.Stdout, *c.Schema, only()...)
}

func migrateRoles(_ context.Context, c *cli.Call) error {
	prefix := c.Flags.String("prefix", migrations.DefaultPrefix, "what the names of the roles begin with; default: "+migrations.DefaultPrefix)
	only := onlyParts(c)
	if err := c.ParseFlags(); err != nil {
		return err
	}
	return migrations.Roles(c.Stdout, *c.Schema, *prefix, only()...)
}

func migrateVersion(ctx context.Context, c *cli.Call) error {
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	return printVersion(ctx, c)
}

// migrateDown goes back to a version. It removes the contents of tables, so without -yes it only
// previews that.
func migrateDown(ctx context.Context, c *cli.Call) error {
	to := c.Flags.Int("to", -1, "the version to go back to")
	var yes bool
	c.Flags.BoolVar(&yes, "yes", false, "do it; without it, only say what would be done")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if *to < 0 || *to > math.MaxInt32 {
		return errors.New("say how far with -to; 0 removes every table and what it holds")
	}
	if !yes {
		if err := printVersion(ctx, c); err != nil {
			return err
		}
		return fmt.Errorf("nothing is done yet: the same with -yes goes back to %d, and removes with all that they hold the tables and columns that came later", *to)
	}
	if err := migrations.Down(ctx, *c.Database, *c.Schema, int32(*to)); err != nil {
		return err
	}
	return printVersion(ctx, c)
}
