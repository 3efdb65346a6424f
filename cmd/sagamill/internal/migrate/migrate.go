// Package migrate has the commands on the tables of a schema.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/internal/celltext"
	"github.com/sagamill/sagamill/migrations"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{
		{Words: "migrate up", About: "create or update the tables", Run: migrateUp},
		{Words: "migrate print", About: "print the SQL of the tables, for people who apply this SQL themselves", Run: migratePrint},
		{Words: "migrate roles", About: "print SQL that creates a database role for each kind of process, with the privileges that this kind of process needs", Run: migrateRoles},
		{Words: "migrate version", About: "print how many migrations have been applied to the schema, and which of these parts the schema has: idempotency, outbox, inbox, saga", Run: migrateVersion},
		{Words: "migrate down", About: "revert the schema to the version in -to; with -to 0, remove every table except schema_version", Run: migrateDown},
	}
}

// onlyParts adds the flag -only. The function that it returns returns the parts after the flags are
// parsed.
func onlyParts(c *cli.Call) func() []migrations.Part {
	names := c.Flags.String("only", "", "only the tables of these parts, separated by commas: idempotency, outbox, inbox, saga; the part saga includes outbox and inbox; default: all parts")
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
	at, err := parsePlace(c)
	if err != nil {
		return err
	}
	before, err := readStanding(ctx, at)
	if err != nil {
		return err
	}
	if err := migrations.Up(ctx, at.database, at.schema, only()...); err != nil {
		return err
	}
	after, err := readStanding(ctx, at)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Stdout, "schema %s: %s\n", at.schema, describeUp(before, after))
	return nil
}

// describeUp says which migrations were applied between two standings of a schema.
func describeUp(before, after standing) string {
	added := slices.DeleteFunc(slices.Clone(after.parts), func(p migrations.Part) bool { return slices.Contains(before.parts, p) })
	switch {
	case after.applied > before.applied:
		return fmt.Sprintf("applied %s of %s", celltext.FormatCount(int(after.applied-before.applied), "migrations"), after.listParts())
	case len(added) > 0:
		return fmt.Sprintf("applied %s of %s", celltext.FormatCount(int(after.applied), "migrations"), standing{parts: added}.listParts())
	}
	verb := "are"
	if len(after.parts) == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%s %s up to date (%s)", after.listParts(), verb, celltext.FormatCount(int(after.applied), "migrations"))
}

// A place is the schema of a command, in its database.
type place struct{ database, schema string }

// parsePlace parses a command line that names one schema.
func parsePlace(c *cli.Call) (at place, err error) {
	if err := c.ParseDatabaseFlags(); err != nil {
		return at, err
	}
	if at.database, err = c.OneDatabase(); err != nil {
		return at, err
	}
	at.schema, err = c.OneSchema()
	return at, err
}

// A standing is how many migrations a schema has had, of how many, and its parts.
type standing struct {
	applied, known int32
	parts          []migrations.Part
}

func readStanding(ctx context.Context, at place) (s standing, err error) {
	if s.applied, s.known, err = migrations.Version(ctx, at.database, at.schema); err != nil {
		return s, err
	}
	s.parts, err = migrations.Parts(ctx, at.database, at.schema)
	return s, err
}

// listParts returns the parts in the form of -only.
func (s standing) listParts() string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(s.parts), "[]"), " ", ",")
}

// printVersion prints how many migrations the schema has, and which parts.
func printVersion(ctx context.Context, c *cli.Call, at place) error {
	s, err := readStanding(ctx, at)
	if err != nil {
		return err
	}
	var of string
	if len(s.parts) > 0 {
		of = " of " + s.listParts()
	}
	fmt.Fprintf(c.Stdout, "schema %s has had %d of %d migrations%s\n", at.schema, s.applied, s.known, of)
	return nil
}

func migratePrint(_ context.Context, c *cli.Call) error {
	only := onlyParts(c)
	if err := c.ParseFlags(); err != nil {
		return err
	}
	schema, err := c.OneSchema()
	if err != nil {
		return err
	}
	return migrations.Print(c.Stdout, schema, only()...)
}

func migrateRoles(_ context.Context, c *cli.Call) error {
	prefix := c.Flags.String("prefix", migrations.DefaultPrefix, "beginning of the names of the roles; default: "+migrations.DefaultPrefix)
	only := onlyParts(c)
	if err := c.ParseFlags(); err != nil {
		return err
	}
	schema, err := c.OneSchema()
	if err != nil {
		return err
	}
	return migrations.Roles(c.Stdout, schema, *prefix, only()...)
}

func migrateVersion(ctx context.Context, c *cli.Call) error {
	at, err := parsePlace(c)
	if err != nil {
		return err
	}
	return printVersion(ctx, c, at)
}

// migrateDown goes back to a version. It removes the contents of tables, so without -yes it only
// previews that.
func migrateDown(ctx context.Context, c *cli.Call) error {
	to := c.Flags.Int("to", -1, "version to which the schema is reverted")
	var yes bool
	c.Flags.BoolVar(&yes, "yes", false, "confirm the change; without -yes, the command only prints what it would do")
	at, err := parsePlace(c)
	if err != nil {
		return err
	}
	if *to < 0 || *to > math.MaxInt32 {
		return errors.New("say how far with -to; 0 removes every table except schema_version, with all rows")
	}
	if !yes {
		if err := printVersion(ctx, c, at); err != nil {
			return err
		}
		return fmt.Errorf("nothing is done yet: the same with -yes goes back to %d, and removes with all that they hold the tables and columns that came later", *to)
	}
	if err := migrations.Down(ctx, at.database, at.schema, int32(*to)); err != nil {
		return err
	}
	return printVersion(ctx, c, at)
}
