package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// orOnly ends the help of -schema of a command that takes the only schema: see takesOnlySchema.
const orOnly = "; if only one schema has tables of sagamill, the command uses this one"

// TakeSeveral makes the help say that -schema and -database may name several.
func (c *Call) TakeSeveral(without Default) {
	which := "default: the schema named " + migrations.DefaultSchema + orOnly
	if without == EverySchema {
		which = "default: all schemas with tables of sagamill"
	}
	c.Flags.Lookup("schema").Usage = "names of the schemas, separated by commas; " + which
	c.Flags.Lookup("database").Usage = "URL of the database, or NAME=URL to name it; repeat the flag for several databases; default: the environment variable DATABASE_URL"
}

// A Default says which schemas a command is about if -schema is not given.
type Default int

// The defaults.
const (
	DefaultSchema Default = iota // [migrations.DefaultSchema]; see takesOnlySchema
	EverySchema                  // each that has tables of sagamill
)

// A Target is a schema of a database.
type Target struct {
	DB     *pgxpool.Pool
	Schema string
	Name   string // the schema, or DATABASE/SCHEMA if the command line names several databases
	Label  string // Name if the command is about several targets, else ""
	Flags  string // the flags -schema and, if there are several, -database, for a shell: they begin with a blank and have no password
}

// Targets are all schemas that a command is about.
type Targets struct {
	All       []*Target
	databases []*Database
}

// Close closes the connections of all targets.
func (t *Targets) Close() {
	for _, d := range t.databases {
		d.Pool.Close()
	}
}

// Several reports whether an output has to say which target it is about.
func (t *Targets) Several() bool { return len(t.All) > 1 }

// ByDatabase returns the targets of each database.
func (t *Targets) ByDatabase() (all [][]*Target) {
	for _, d := range t.databases {
		var of []*Target
		for _, target := range t.All {
			if target.DB == d.Pool {
				of = append(of, target)
			}
		}
		if len(of) > 0 {
			all = append(all, of)
		}
	}
	return all
}

// JoinNames lists targets, cut off where a line ends.
func JoinNames(all []*Target) string {
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	return ClipText(strings.Join(names, ", "), 10*ReasonWidth)
}

// schemaNames returns the schemas that -schema lists, each once.
func (c *Call) schemaNames() (names []string) {
	for name := range strings.SplitSeq(*c.schemas, ",") {
		if name = strings.TrimSpace(name); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// NamedSchemas returns the schemas that -schema lists, or nil for every schema, if -schema is not given. Its error
// names one that cannot be a schema.
func (c *Call) NamedSchemas(without Default) ([]string, error) {
	if without == EverySchema && !c.IsGiven([]string{"schema"}) {
		return nil, nil
	}
	names := c.schemaNames()
	for _, name := range names {
		if name == "" {
			return nil, errors.New("-schema has an empty name")
		}
		if err := sqlschema.Check(name); err != nil {
			return nil, fmt.Errorf("-schema: %w", err)
		}
	}
	return names, nil
}

// OneSchema returns the schema. It returns an error if the command line names several.
func (c *Call) OneSchema() (string, error) {
	names := c.schemaNames()
	if len(names) > 1 {
		return "", fmt.Errorf("-schema: this command is about one schema, not about %d", len(names))
	}
	return names[0], nil
}

// OpenTargets returns the schemas that the command line names: of each database, in the order of -database and
// -schema. Of several databases, a schema may be in any. The pools connect when they are first used. The caller calls
// Close.
func (c *Call) OpenTargets(ctx context.Context, without Default) (*Targets, error) {
	names, err := c.NamedSchemas(without)
	if err != nil {
		return nil, err
	}
	if without == EverySchema && names != nil {
		without = DefaultSchema
	}
	targets, err := c.openTargets(ctx, without, names)
	if err == nil && len(targets.All) == 0 {
		targets.Close()
		return nil, errors.New("no schema with tables of sagamill in the database: has it been migrated (sagamill migrate up)?")
	}
	return targets, err
}

// openTargets returns the schemas called names, or all of each database.
func (c *Call) openTargets(ctx context.Context, which Default, names []string) (*Targets, error) {
	databases, err := c.OpenDatabases(ctx)
	if err != nil {
		return nil, err
	}
	targets := &Targets{databases: databases}
	for _, d := range databases {
		found := names
		switch {
		case which == EverySchema || len(databases) > 1:
			found, err = d.ListSchemas(ctx, names)
		case c.takesOnlySchema():
			found, err = d.orOnlySchema(ctx, names)
			names = nil
		}
		if err != nil {
			targets.Close()
			return nil, d.AddName(err)
		}
		for _, schema := range found {
			targets.All = append(targets.All, d.Target(schema))
		}
	}
	if targets.Several() {
		for _, t := range targets.All {
			t.Label = t.Name
		}
	}
	if err := checkNamesFound(names, targets.All); err != nil {
		targets.Close()
		return nil, err
	}
	return targets, nil
}

// takesOnlySchema reports whether the command may take the only schema with tables. A command that changes something is
// about a schema that the person has named, or about [migrations.DefaultSchema].
func (c *Call) takesOnlySchema() bool { return !c.changes && !c.IsGiven([]string{"schema"}) }

// sqlHasTables says whether the schema $1 has the table in which a migration notes its version.
const sqlHasTables = `SELECT to_regclass(quote_ident($1) || '.schema_version') IS NOT NULL`

// orOnlySchema returns names or, if the first has no tables and only one other schema has, this one.
func (d *Database) orOnlySchema(ctx context.Context, names []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	var known bool
	if err := d.Pool.QueryRow(ctx, sqlHasTables, names[0]).Scan(&known); known || err != nil {
		return names, err
	}
	all, err := d.ListSchemas(ctx, nil)
	if len(all) == 1 {
		return all, err
	}
	return names, err
}

// checkNamesFound returns an error for a name that no target has.
func checkNamesFound(names []string, all []*Target) error {
	for _, name := range names {
		if !slices.ContainsFunc(all, func(t *Target) bool { return t.Schema == name }) {
			return fmt.Errorf("schema %q has no tables of sagamill in any of the databases", name)
		}
	}
	return nil
}

// ForEachTarget calls do for each schema that the command line names, in order. If there are several, it prints the
// name of each before do, unless asJSON, and names it in an error.
func (c *Call) ForEachTarget(ctx context.Context, without Default, asJSON bool, do func(ctx context.Context, t *Target) error) error {
	targets, err := c.OpenTargets(ctx, without)
	if err != nil {
		return err
	}
	defer targets.Close()
	return c.forSomeTargets(ctx, targets, targets.All, asJSON, do)
}

// Each calls do for each target, and names the target in an error if there are several. All of them may take
// [ReadTimeout].
func (t *Targets) Each(ctx context.Context, do func(ctx context.Context, t *Target) error) error {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	for _, target := range t.All {
		if err := do(ctx, target); err != nil {
			return t.nameTarget(target, err)
		}
	}
	return nil
}

// forSomeTargets is ForEachTarget for some of targets.
func (c *Call) forSomeTargets(ctx context.Context, targets *Targets, some []*Target, asJSON bool, do func(ctx context.Context, t *Target) error) error {
	for _, t := range some {
		if t.Label != "" && !asJSON {
			fmt.Fprintf(c.Stdout, "schema %s:\n", t.Label)
		}
		if err := do(ctx, t); err != nil {
			return targets.nameTarget(t, err)
		}
	}
	return nil
}

// nameTarget adds the name of t to err if there are several targets.
func (t *Targets) nameTarget(of *Target, err error) error {
	if of.Label == "" {
		return err
	}
	return fmt.Errorf("schema %s: %w", of.Label, err)
}

// OpenInstances returns the instances of t.
func (t *Target) OpenInstances() (*operator.Instances, error) {
	return operator.NewInstances(t.DB, &operator.Options{Schema: t.Schema})
}

// hasSagas reports whether t has an instance, live or ended. The tables alone prove nothing, because
// every service has them. It returns false for a schema that the role may not read.
func (t *Target) hasSagas(ctx context.Context) bool {
	n, err := t.OpenInstances()
	if err != nil {
		return false
	}
	some, err := n.List(ctx, operator.InstanceFilter{}, saga.Address{}, 1)
	return err == nil && len(some) > 0
}
